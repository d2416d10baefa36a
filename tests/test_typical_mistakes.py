"""Typical mistakes in settings and commands end with one plain line that says what to do."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models.__main__ import main as models
from models.errors import Unsupported
from models.sources.folder import read_source
from service.__main__ import main as service
from tests.mistakes import plain
from training.__main__ import main as training
from training.errors import TrainingError
from training.text.lines import read_records


@pytest.fixture(autouse=True)
def _somewhere_without_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("SIMILE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def said_by_service(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[object, str]]:
    """A function that runs the service's command, and returns its exit status and its text on stderr."""

    def said(*arguments: str) -> tuple[object, str]:
        monkeypatch.setattr(sys, "argv", ["service", *arguments])
        with pytest.raises(SystemExit) as ended:
            service()
        return ended.value.code, capsys.readouterr().err

    return said


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("PORT", "http", "SIMILE_PORT must be a whole number, not 'http'."),
        ("PORT", "99999", "SIMILE_PORT must be between 0 and 65535, not 99999."),
        ("PROT", "8000", "SIMILE_PROT is not a setting of this version. Did you mean SIMILE_PORT?"),
        ("LONE_THREADS", "2", "Its name is now SIMILE_SINGLE_TEXT_THREADS."),
        ("PROVIDER", "cuda", "Did you mean SIMILE_DEVICE?"),
        ("API_KEY", "secret", "Did you mean SIMILE_API_KEYS_FILE?"),
        (
            "PRECISION",
            "float16",
            "SIMILE_PRECISION must be 'fp32', 'bf16', 'fp16', 'int8' or 'auto', not 'float16'.",
        ),
        ("SEARCH_MODE", "hybird", "not 'hybird'. Did you mean hybrid?"),
        ("CACHE_MB", "1GB", "SIMILE_CACHE_MB must be a whole number, not '1GB'."),
        ("EXAMPLES", "maybe", "SIMILE_EXAMPLES must be true or false, not 'maybe'."),
        ("TIMEOUT_SECONDS", "0", "SIMILE_TIMEOUT_SECONDS must be above 0"),
        ("HOST", "0.0.0.0", "set SIMILE_INSECURE=1"),
        ("DEVICE", "gpu", "SIMILE_DEVICE=gpu: name cpu, cuda or cuda:N."),
        ("API_KEYS_FILE", "none.txt", "`simile keys add NAME --role ROLE` makes one."),
    ],
)
def test_a_mistake_in_a_setting_ends_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    said_by_service: Callable[..., tuple[object, str]],
    setting: str,
    value: str,
    words: str,
) -> None:
    monkeypatch.setenv(f"SIMILE_{setting}", value)
    status, said = said_by_service()
    assert status == os.EX_CONFIG
    assert plain(said).startswith("Simile cannot start: ")
    assert words in said


def test_a_table_of_comma_separated_values_is_no_corpus(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text\n1,a\n")
    with pytest.raises(TrainingError, match="--from-service, or write it as") as refused:
        [*read_records(tmp_path / "rows.csv")]
    plain(str(refused.value))


def test_a_folder_without_a_model_is_refused_before_its_links_are_looked_at(tmp_path: Path) -> None:
    (tmp_path / "away.json").symlink_to("/etc/hostname")
    with pytest.raises(Unsupported, match=r"has no config\.json") as refused:
        read_source(tmp_path)
    plain(str(refused.value))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("service imprt rows.csv", "Did you mean import?"),
        ("service --port 9000", "Set SIMILE_PORT instead."),
        ("service import rows.csv --tetx body", "Did you mean --text?"),
        ("service keys add bob --role reader", "Did you mean read?"),
        ("service restore none", "none is not a backup"),
        ("models lits", "Did you mean list?"),
        ("models show mine", "There is no published version 'mine'. `simile models list` shows them."),
        ("models rollback", "There is no version to go back to"),
        ("models prune --keep two", "argument --keep: 'two' is not a whole number."),
        ("training trian", "Did you mean train?"),
        ("training train simcse-unsupp --corpus rows.txt --out run", "Did you mean simcse-unsup?"),
        ("training train simcse-unsup --corpus rows.txt --out run", "There is no file rows.txt."),
        ("training retrain --config retrain.toml", "There is no file retrain.toml."),
        ("service maps", "not 'maps'. Did you mean map?"),
        ("service map --points 0", "--points: '0' is not a whole number from 1 on."),
        ("service export --format csv", "service export: there is no argument --format. See `"),
        ("service export", "FILE is missing."),
        ("service keys", "COMMAND is missing."),
        ("service import rows.csv --passages 64", "Set SIMILE_PASSAGES instead."),
        ("models import default --pooling men", "not 'men'. Did you mean mean?"),
        ("models import default --max-length 0", "--max-length: '0' is not a whole number from 1 on."),
        ("models import default --max-length 128", "Leave --pooling, --max-length and --prompt out"),
        ("models import default --prompt query", "'query' must be NAME=TEXT"),
        (
            "models import https://huggingface.co/BAAI/bge-small-en",
            "Name only the hub id: BAAI/bge-small-en.",
        ),
        ("models show", "VERSION is missing."),
        ("models delete x", "Did you mean prune?"),
        ("models remove x", "Did you mean prune?"),
        ("models rm x", "Did you mean prune?"),
        ("models use x", "Did you mean activate?"),
        ("models publish x", "Did you mean import?"),
        ("models ls", "Did you mean list?"),
        ("models rollback --models-dir none", "There is no version to go back to"),
        ("models --models-dir none rollback", "There is no version to go back to"),
        ("models quantize mine --models-dir none", "There is no published version 'mine'."),
        ("service start", "Did you mean serve?"),
        ("service load rows.csv", "Did you mean import?"),
        ("service keys delete bob", "Did you mean remove?"),
        ("service keys create bob", "Did you mean add?"),
        ("service keys add bob read", "--role is missing. Write --role read."),
        ("service keys add bob admin", "--role is missing. Write --role admin."),
        ("service keys add bob", "--role is missing. Write --role read or write or admin."),
        ("service keys add", "name, --role is missing. Write --role read or write or admin."),
        ("service import rows.csv --collection Büro", "A collection's name is up to 64 letters a to z"),
        ("training retune", "COMMAND must be train, blank,"),
        ("training advise", "give one of --from-service, --config."),
        ("training advise --from-service", "argument --from-service: a value must follow."),
        ("training advise --from-service localhost:8000", "Name a service as http://127.0.0.1:8000."),
        ("training rank --from-service http://127.0.0.1:1", "Connection refused. Is the service running"),
        ("training advise --from-service http://127.0.0.1:1", "Is the service running there?"),
        ("training advise --from-service http://127.0.0.1:1 --recipe auto", "there is no argument --recipe"),
        ("training advise --config none.toml", "There is no file none.toml."),
        (
            "training train auto --corpus rows.txt --out run",
            "Without --recipe, `simile retrain` chooses",
        ),
        ("training train search --corpus rows.txt --out run", "search is not a recipe."),
        ("training train adap --corpus rows.txt --out run", "Did you mean adapt?"),
        ("training train icct --corpus rows.txt --out run", "Did you mean ict?"),
        ("training retrain --from-service http://127.0.0.1:1 --recipe atuo", "Did you mean auto?"),
        (
            "training retrain --from-service http://127.0.0.1:1 --minutes 0",
            "'0' is not a whole number from 1 on.",
        ),
        ("training retrain --from-service http://127.0.0.1:1 --set optim.lr=1e-5", "add --recipe NAME."),
        ("training mine list", "Did you mean lists?"),
    ],
)
def test_a_mistake_in_a_command_is_one_line(
    said_by_service: Callable[..., tuple[object, str]],
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    words: str,
) -> None:
    program, *rest = arguments.split()
    if program == "service":
        status, said = said_by_service(*rest)
    else:
        try:
            status = models(rest, environ={}) if program == "models" else training(rest)
        except SystemExit as ended:
            status = int(str(ended.code))
        said = capsys.readouterr().err
    assert status in {1, 2}
    assert words in plain(said)


def test_an_import_goes_to_the_port_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
    said_by_service: Callable[..., tuple[object, str]],
    tmp_path: Path,
) -> None:
    (tmp_path / "rows.csv").write_text("id,text\n1,a\n")
    monkeypatch.setenv("SIMILE_PORT", "1")
    _, said = said_by_service("import", "rows.csv")
    assert plain(said).startswith("http://127.0.0.1:1 does not answer ("), "one line"
    monkeypatch.setenv("SIMILE_PORT", "2")
    _, said = said_by_service("import", "rows.csv", "rows.csv", "--collection", "a")
    assert plain(said).startswith("http://127.0.0.1:2 does not answer (")
