"""`simile` finds the program of each command, and says its own name in help and errors."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from models.version import VERSION
from service.cli import COMMANDS as OF_THE_SERVICE
from simile.__main__ import main
from simile.commands import COMMANDS
from simile.completion import build_parser
from training.__main__ import NAMES


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_each_command_names_it_as_it_was_typed(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: simile {name} ")


def test_the_help_lists_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    listed = re.findall(r"^    ([a-z-]+)", capsys.readouterr().out, flags=re.MULTILINE)
    assert listed == [*COMMANDS, "completion"]
    assert {*OF_THE_SERVICE} < {*listed}
    assert {name for name, command in COMMANDS.items() if command.program == "training"} <= {
        *NAMES,
        "training",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_the_program_of_a_command_prints_the_same_help(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")  # no line is wrapped
    command = COMMANDS[name]
    program = import_module(f"{command.program}.__main__")
    said = []
    for run, line in ((main, [name]), (program.main, [] if command.is_group else [name])):
        with pytest.raises(SystemExit):
            run([*line, "--help"])
        said.append(capsys.readouterr().out)
    mine = f"simile {name}" if command.is_group else "simile"
    assert said[0].replace(mine, program.PROG, 1) == said[1]


def list_without_help(parser: argparse.ArgumentParser) -> list[str]:
    """Returns the commands below a parser that its help does not describe in one line."""
    found = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            described = {each.dest: each.help for each in action._choices_actions}
            for name, each in action.choices.items():
                about = described.get(name) or ""
                found += list_without_help(each)
                found += [] if about and "\n" not in about else [f"{parser.prog} {name}"]
    return found


def test_every_command_and_its_commands_are_described() -> None:
    assert list_without_help(build_parser("simile")) == []


def test_a_group_has_all_commands_of_its_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["training", "compare", "--help"])
    assert capsys.readouterr().out.startswith("usage: simile training compare ")


def test_errors_name_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "show", "nothing", "--models-dir", str(tmp_path)]) == 1
    said = "There is no published version 'nothing'."
    assert capsys.readouterr().err == f"simile models: {said} `simile models list` shows them.\n"
    with pytest.raises(SystemExit) as ended:
        main(["modls"])
    assert ended.value.code == 2
    assert "Did you mean models? See `simile --help`." in capsys.readouterr().err
    (tmp_path / "keys").touch()
    with pytest.raises(SystemExit) as ended:
        main(["keys", "list", "--file", str(tmp_path / "keys")])
    assert ended.value.code == 1
    assert "`simile keys add NAME --role ROLE` makes one." in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["keys", "lst"])
    assert ended.value.code == 2
    assert "Did you mean list? See `simile keys --help`." in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"Simile {VERSION}\n"


@pytest.mark.parametrize(
    ("line", "unneeded"),
    [
        (["--help"], {"numpy", "pydantic", "fastapi", "torch", "onnxruntime", "faiss", "shtab"}),
        (
            ["search", "--url", "http://127.0.0.1:1", "x"],
            {"fastapi", "torch", "onnxruntime", "faiss", "shtab"},
        ),
        (["models", "list"], {"fastapi", "torch", "faiss", "shtab"}),
    ],
    ids=["help", "search", "models"],
)
def test_a_command_imports_nothing_that_it_does_not_need(line: list[str], unneeded: set[str]) -> None:
    code = (
        "import sys\nfrom simile.__main__ import main\n"
        f"try:\n    main({line!r})\nexcept SystemExit:\n    pass\n"
        f"print(sorted({unneeded!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_completion_knows_commands_and_their_options(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab", reason="needs shtab, which the distribution requires")
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
    for word in ("check-search", "--min-ndcg", "rollback", "--from-service", "powershell"):
        assert word in script


def test_text_that_the_terminal_cannot_print_is_escaped() -> None:
    code = (
        "from simile.__main__ import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit:\n    print('\\xe9')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=True)
    assert done.stdout.endswith(b"\\xe9\n")


@pytest.mark.parametrize("line", ["models list --models-dir {folder}", "completion bash"])
def test_a_pipe_that_was_closed_is_no_traceback(line: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "simile", *line.format(folder=tmp_path).split()]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        command, stdout=write, stderr=subprocess.PIPE, env=environment, text=True, check=False
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")


HIDING = """
import sys
class Hidden:
    def find_spec(self, name, *_):
        if name == "markdown_it":
            raise ModuleNotFoundError("No module", name=name)
sys.meta_path.insert(0, Hidden())
from simile.__main__ import main
sys.exit(main(["train", "x"]))
"""


def test_a_missing_extra_is_one_sentence() -> None:
    done = subprocess.run([sys.executable, "-c", HIDING], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Simile needs markdown_it, which is not installed")
    assert done.stderr.count("\n") == 1
