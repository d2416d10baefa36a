"""Typical mistakes in settings and commands: each ends in one line of plain words that say what to do."""

import os
import sys
from pathlib import Path

import pytest

from models.__main__ import main as models
from service.__main__ import main as service
from tests.mistakes import plain
from training.__main__ import main as training


@pytest.fixture(autouse=True)
def _somewhere_without_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith("SIMILE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def _said_by_service(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", ["service", *arguments])
    with pytest.raises(SystemExit) as ended:
        service()
    return str(ended.value.code)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("PORT", "http", "SIMILE_PORT must be a whole number, not 'http'."),
        ("PORT", "99999", "SIMILE_PORT must be between 0 and 65535, not 99999."),
        ("PROT", "8000", "SIMILE_PROT is not a setting of this version. Did you mean SIMILE_PORT?"),
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
        ("API_KEYS_FILE", "none.txt", "`python -m service keys add NAME --role ROLE` makes one."),
    ],
)
def test_a_mistake_in_a_setting_ends_the_start_in_one_line(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str, words: str
) -> None:
    monkeypatch.setenv(f"SIMILE_{setting}", value)
    said = plain(_said_by_service(monkeypatch))
    assert said.startswith("Simile cannot start: ")
    assert words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("service imprt rows.csv", "Did you mean import?"),
        ("service --port 9000", "Set SIMILE_PORT instead."),
        ("service import rows.csv --tetx body", "Did you mean --text?"),
        ("service keys add bob --role reader", "Did you mean read?"),
        ("service restore none", "none is no backup"),
        ("models lits", "Did you mean list?"),
        ("models show mine", "There is no published version 'mine'. `python -m models list` shows them."),
        ("models rollback", "There is no version to go back to"),
        ("models prune --keep two", "argument --keep: 'two' is not a whole number."),
        ("training trian", "Did you mean train?"),
        ("training train simcse-unsupp --corpus rows.txt --out run", "Did you mean simcse-unsup?"),
        ("training train simcse-unsup --corpus rows.txt --out run", "There is no file rows.txt."),
        ("training retrain --config retrain.toml", "There is no file retrain.toml."),
    ],
)
def test_a_mistake_in_a_command_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, words: str
) -> None:
    program, *rest = arguments.split()
    if program == "service":
        said = _said_by_service(monkeypatch, *rest)
        said = capsys.readouterr().err if said == "2" else said
    else:
        try:
            status = models(rest, environ={}) if program == "models" else training(rest)
        except SystemExit as ended:
            status = int(str(ended.code))
        assert status in {1, 2}
        said = capsys.readouterr().err
    assert words in plain(said)


def test_an_import_goes_to_the_port_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("id,text\n1,a\n")
    monkeypatch.setenv("SIMILE_PORT", "1")
    assert "http://127.0.0.1:1 does not answer" in _said_by_service(monkeypatch, "import", "rows.csv")
