"""Commands refused before torch is imported, files nested too deeply, and the threads of training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.errors import Unsupported
from models.files.bounded import MAX_DEPTH, parse_json, parse_toml
from models.graph.backbone import map_safetensors
from models.tokens.tokenizer import read_tokenizer
from tests.parts.json_server import json_server
from training.__main__ import main
from training.arguments import changes
from training.errors import TrainingError
from training.evaluation.scorable import Server
from training.methods.recipe_files import declared
from training.methods.stages import find_stages
from training.text.service import fetch_count, fetch_info

# Runs commands in a process where importing torch fails. Prints each status and output.
RUN = """
import contextlib, io, json, sys
from training.__main__ import main
for command in json.loads(sys.stdin.read()):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            status = main(command.split())
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, said.getvalue()]))
"""
SERVICE = "http://127.0.0.1:1"  # where nothing answers
TRAIN = "--corpus texts.txt --out run"
RIGHT = f"train simcse-unsup {TRAIN}"
MISTAKES = [
    (f"train simcse-unsub {TRAIN}", "There is no recipe 'simcse-unsub'. Did you mean simcse-unsup?"),
    ("train simcse-unsup --corpus none.txt --out run", "There is no file none.txt."),
    (f"train simcse-unsup {TRAIN} --base ./nowhere", "There is no model './nowhere'."),
    (f"train simcse-unsup {TRAIN} --base active", "`active` is for retrain"),
    (f"train simcse-unsup {TRAIN} --base ~nosuchuser/x", "There is no home folder for '~nosuchuser' in"),
    (f"train simcse-unsup {TRAIN} --seed {1 << 63}", "a whole number from 0 to 9223372036854775807"),
    (f"train simcse-unsup {TRAIN} --device gpu", "'gpu' is none of auto, cpu, cuda and cuda:N"),
    (f"train simcse-unsup {TRAIN} --set optim.lrr=1e-5", "optim has no key 'lrr'; 'lr' is."),
    (f"train simcse-unsup {TRAIN} --set optim.lr=5.0", "optim.lr must be above 0 and at most 1"),
    (f'train simcse-unsup {TRAIN} --set pool="maen"', "pool 'maen' is not known; 'mean' is."),
    (f"train simcse-unsup {TRAIN} --set optim.lr", "is not KEY=VALUE"),
    (f"train simcse-unsup {TRAIN} --data ./none", "none is not a folder."),
    (f"train simcse-unsup {TRAIN} --minutes 5", "--minutes is for a recipe of stages"),
    (f"train adapt {TRAIN} --set seed=1", "adapt runs several recipes"),
    (f"train mine.toml {TRAIN}", "The recipe mine: the recipe has no key 'poool'; 'pool' is."),
    (f"retrain --from-service {SERVICE}", f": {SERVICE} cannot be reached"),
    (f"retrain --from-service {SERVICE} --recipe triples --set seed=-1", "seed must be"),
    (f"retrain --from-service {SERVICE} --recipe adapt", "adapt runs several recipes"),
    ("retrain --corpus texts.txt --recipe pears", "There is no recipe 'pears'. Did you mean pairs?"),
    ("retrain --corpus texts.txt --recipe pairs --base ./nowhere", "There is no model './nowhere'."),
    ("retrain --config retrain.toml", "There is no recipe 'tripels'. Did you mean triples?"),
    ("retrain --config judged.toml", "none.tsv."),
    ("advise --config sets.toml", "none is not a folder."),
    ("schedule --config retrain.toml", "There is no recipe 'tripels'. Did you mean triples?"),
    ("retrain --from-service http://me:secret@[::1", "[::1 is no address."),
    (f"advise --from-service {SERVICE}/", f": {SERVICE}/ cannot be reached"),
    ("report --corpus none.txt", "There is no file none.txt."),
    ("report --corpus texts.txt --recipe simcse", "There is no recipe 'simcse'."),
    ("export run", "run holds no run of `simile train`."),
    ("evaluate defualt --data .", "defualt is not a model"),
    ("extend-vocabulary new --corpus none.txt", "none.txt"),
    ("mine dedupe --corpus none.txt --out new.txt", "none.txt"),
    ("mine pairs --corpus texts.txt --out pairs.tsv", "must end in .jsonl"),
]

FILES = {
    "broken/torch/__init__.py": "raise SystemExit('torch was imported')\n",
    "texts.txt": "The first text.\nThe second text.\n",
    "mine.toml": 'poool = "mean"\n',
    "judged.toml": '[corpus]\nfile = "texts.txt"\n[judgements]\nfile = "none.tsv"\n',
    "sets.toml": '[corpus]\nfile = "texts.txt"\n[gate]\ndata = "none"\n',
    "retrain.toml": '[corpus]\nfile = "texts.txt"\n[train]\nrecipe = "tripels"\n',
}


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[object, str]]:
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIMILE_")}
    commands: list[str] = [RIGHT, *(command for command, _ in MISTAKES)]
    done = subprocess.run(
        [sys.executable, "-c", RUN],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=kept | {"PYTHONPATH": f"{folder / 'broken'}:{Path.cwd()}"},
    )
    rows = [tuple(json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(commands, rows, strict=True))


@pytest.mark.long
def test_what_is_right_imports_torch(answers: dict[str, tuple[object, str]]) -> None:
    assert answers[RIGHT][0] == "torch was imported"


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_told_before_torch_is_imported(
    answers: dict[str, tuple[object, str]], command: str, words: str
) -> None:
    status, said = answers[command]
    assert status in (1, 2)
    assert words in said
    assert "Traceback" not in said


N = 50_000
TOML = {
    "lists": f"x = {'[' * N}",
    "closed lists": f"x = {'[' * N}{']' * N}",
    "tables": f"x = {'{a = ' * N}",
    "dots in a key": f"x{'.a' * N} = 1",
    "dots in a header": f"[x{'.a' * N}]",
    "a known key": f"[corpus]\nfile = {'[' * N}",
    "changes to the recipe": f'[corpus]\nfile = "x"\n[train]\nrecipe = "pairs"\nset{".a" * N} = 1',
    "a number": f"x = {'1' * 5000}",
}


def refused(given: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must end with exit status 1. Returns its only line on stderr."""
    assert main(given) == 1
    [line] = capsys.readouterr().err.splitlines()
    return line


@pytest.mark.parametrize(
    ("command", "what"),
    [*(("retrain", what) for what in TOML), ("schedule", "lists"), ("advise", "lists")],
)
def test_a_configuration_that_is_nested_too_deeply_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str, what: str
) -> None:
    file = tmp_path / "retrain.toml"
    file.write_text(TOML[what])
    said = refused([command, "--config", str(file)], capsys)
    assert said.startswith(f"python -m training: {file} is not TOML: ")
    assert len(said) < 500


@pytest.mark.parametrize("what", [*TOML, "stages"])
def test_a_recipe_that_is_nested_too_deeply_is_named(tmp_path: Path, what: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(TOML.get(what) or f"stages = {'[' * N}")
    assert find_stages(str(file)) is None
    with pytest.raises(TrainingError, match=r"The recipe mine is not TOML: .{1,300}$"):
        declared(str(file))


@pytest.mark.parametrize(
    "change", [f"x={'[' * N}", f"x={'{a=' * N}", f"optim.lr={'[' * N}", f"x={'1' * 5000}", f"x{'.a' * N}=1"]
)
def test_an_option_that_is_nested_too_deeply_is_refused(change: str) -> None:
    with pytest.raises(TrainingError, match=r"is not KEY=VALUE|has no key") as refused:
        declared("pairs", changes([change]))
    assert len(str(refused.value)) < 500


@pytest.mark.parametrize("deep", ["[" * N, f'{{"text": {"[" * N}'])
@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("run/run.json", "export run", "run.json is not JSON: "),
        ("scores.json", "compare scores.json scores.json --report new", "scores.json is not JSON: "),
        ("rows.jsonl", "report --corpus rows.jsonl", "line 1 is not JSON"),
        ("rows.jsonl", "mine dedupe --corpus rows.jsonl --out new.jsonl", "line 1 is not JSON"),
    ],
)
def test_a_json_file_that_is_nested_too_deeply_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    given: str,
    words: str,
    deep: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(deep + "\n")
    assert main(given.split()) == 1
    assert words in capsys.readouterr().err


@pytest.fixture(scope="module", params=["[" * N, '{"a":' * N])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with json_server(lambda *_: (200, request.param.encode())) as url:
        yield url


def test_an_answer_that_is_nested_too_deeply_is_no_service(url: str) -> None:
    readers: list[Callable[[str], object]] = [fetch_count, fetch_info, Server]
    for read in readers:
        with pytest.raises(TrainingError, match="does not answer as a Simile service"):
            read(url)


def test_files_of_models_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * N)
    with pytest.raises(Unsupported, match=r"tokenizer.json cannot be read: it is nested too deeply"):
        read_tokenizer(tmp_path / "tokenizer.json")
    header = ("[" * N).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Unsupported, match="is not a valid safetensors file"):
        map_safetensors(tmp_path / "model.safetensors")


MANY = ".a" * (MAX_DEPTH - 10)
DOTS = "A. " * (MAX_DEPTH + 1)


@pytest.mark.parametrize(
    "text",
    [
        *(f"x{(MANY + part) * 600} = 1" for part in ('."="', ".'='", '."#"', '."{"', '."\\"="')),
        "[x" + (MANY + '."="') * 600 + "]",
        f'x = {{a = """b"""", y{MANY * 600} = 1}}',  # a quote belongs to the string
        f"x = '\\'\ny{MANY * 600} = 1",
        f'x = "\\\\"\ny{MANY * 600} = 1',
    ],
    ids=range(9),
)
def test_a_key_of_many_parts_is_refused_at_once_whatever_strings_it_has(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tomllib.loads", lambda _: pytest.fail("it takes minutes"))
    with pytest.raises(ValueError, match="it is nested too deeply"):
        parse_toml(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f'x = "{DOTS}"', DOTS),
        (f"x = '{DOTS}'", DOTS),
        (f'x = """\n{DOTS}"""', DOTS),
        (f"x = '''{DOTS}'''", DOTS),
        (f'x = "\\"{DOTS}"', f'"{DOTS}'),
        (f"x = 1  # {DOTS}", 1),
        (f'x = "#"  # "{DOTS}', "#"),
        (f'"{DOTS}" = 1\nx = 2', 2),
    ],
    ids=["basic", "literal", "lines", "literal lines", "escape", "comment", "both", "key"],
)
def test_dots_of_strings_and_comments_are_not_counted(text: str, value: object) -> None:
    assert parse_toml(text)["x"] == value


@pytest.mark.parametrize("part", ['"', "'", '"""', "'''", '\\"', '"\\', '"""\\', '\\"""', "#", '"\n'])
def test_a_mebibyte_of_quotes_is_refused_in_time(part: str) -> None:
    """No time is measured. With quadratic time, the suite's watchdog would end the test after an hour."""
    with pytest.raises(ValueError, match=r"."):
        parse_toml(f"x = {part * ((1 << 20) // len(part))}")


@pytest.mark.parametrize("depth", [MAX_DEPTH, MAX_DEPTH + 1])
def test_the_deepest_value_that_is_read_has_so_many_levels(depth: int) -> None:
    spelled: dict[Callable[[str], Any], list[str]] = {
        parse_json: ["[" * depth + "]" * depth, '{"a": ' * depth + "1" + "}" * depth],
        parse_toml: [f"x = {'[' * (depth - 1)}{']' * (depth - 1)}", f"x{'.a' * (depth - 1)} = 1"],
    }
    for parse, texts in spelled.items():
        for text in texts:
            if depth > MAX_DEPTH:
                with pytest.raises(ValueError, match="it is nested too deeply; the limit is 100 levels"):
                    parse(text)
            else:
                json.dumps(parse(text))


@pytest.mark.long
@pytest.mark.parametrize(("given", "policy"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")])
def test_threads_sleep_at_a_barrier_unless_a_user_decides_otherwise(
    given: dict[str, str], policy: str
) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    told = subprocess.run(
        [sys.executable, "-c", "import training, torch"],
        env=environment | {"OMP_DISPLAY_ENV": "true"} | given,
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert f"OMP_WAIT_POLICY = '{policy}'" in told
