"""Files, options and answers that are nested too deeply are refused in a sentence, with no traceback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from models.errors import Unsupported
from models.files.bounded import MAX_DEPTH, parse_json, parse_toml
from models.graph.backbone import map_safetensors
from models.store import Store
from models.tokens.opening import read_tokenizer
from training.__main__ import main
from training.arguments import changes
from training.errors import TrainingError
from training.evaluation.scorable import Server
from training.methods.declared import declared
from training.methods.stages import find_stages
from training.text.service import count_of, info_of

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
    """The one line of a command that ends with exit status 1."""
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
        ("run/run.json", "export FOLDER/run", "run.json is not JSON: "),
        (
            "scores.json",
            "compare FOLDER/scores.json FOLDER/scores.json --report FOLDER/new",
            "scores.json is not JSON: ",
        ),
        ("rows.jsonl", "report --corpus FOLDER/rows.jsonl", "line 1 is not JSON"),
        ("rows.jsonl", "mine dedupe --corpus FOLDER/rows.jsonl --out FOLDER/new.jsonl", "line 1 is not JSON"),
    ],
)
def test_a_json_file_that_is_nested_too_deeply_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, given: str, words: str, deep: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(deep + "\n")
    assert main([each.replace("FOLDER", str(tmp_path)) for each in given.split()]) == 1
    assert words in capsys.readouterr().err


@pytest.fixture(scope="module", params=["[" * N, '{"a":' * N])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    class Deep(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = request.param.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Deep) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_an_answer_that_is_nested_too_deeply_is_no_service(url: str) -> None:
    readers: list[Callable[[str], object]] = [count_of, info_of, Server]
    for read in readers:
        with pytest.raises(TrainingError, match=r"does not answer as a Simile service|is not an embedding"):
            read(url)


def test_files_of_models_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("[" * N)
    with pytest.raises(Unsupported, match=r"tokenizer.json cannot be read: it is nested too deeply"):
        read_tokenizer(tmp_path / "tokenizer.json")
    header = ("[" * N).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(Unsupported, match="is not a valid safetensors file"):
        map_safetensors(tmp_path / "model.safetensors")
    store = Store(tmp_path)
    for name in ("state.json", "asked.json"):
        (tmp_path / name).write_text("[" * N)
    assert (store.read_state(), store.desired()) == ({}, None)


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
    """Not by the clock: a time by the square would be an hour, and the watchdog of the suite ends it."""
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
