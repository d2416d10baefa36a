"""The error message of commands if the project is not installed."""

import os
import subprocess
import sys

import pytest

from models.errors import install_command
from training.__main__ import ABOUT, NAMES, parser
from training.arguments import LOADING

RUN = """
import runpy, sys
class Hidden:
    def find_spec(self, name, *_):
        if name == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
sys.argv[1:] = {arguments!r}
runpy.run_module({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "package", "arguments"),
    [
        ("service", "starlette", []),
        ("models", "safetensors", ["list"]),
        ("training", "apscheduler", []),
        ("training", "torch", ["train", "simcse-unsup", "--corpus", "README.md", "--out", "no-such-run"]),
    ],
)
def test_a_missing_package_is_one_sentence_that_says_what_to_do(
    program: str, package: str, arguments: list[str]
) -> None:
    code = RUN.format(package=package, arguments=arguments, program=program)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == (os.EX_CONFIG if program == "service" else 1)
    said = done.stderr.removeprefix(f"{LOADING}\n")
    assert said.startswith(f"Simile needs {package}, which is not installed for {sys.executable}.")
    assert install_command("train" if program == "training" else "cpu") in said
    assert said.count("\n") == 1, "no traceback"


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["rank", "--help"]])
def test_the_help_of_training_needs_no_package(arguments: list[str]) -> None:
    code = RUN.format(package="markdown_it", arguments=arguments, program="training")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith(f"usage: simile training COMMAND …\n\n{ABOUT}\n")
    assert f"Commands: {', '.join(NAMES)}\n" in done.stdout
    assert "needs markdown_it, which is not installed" in done.stderr
    assert done.returncode == 1
    [commands] = [each.choices for each in parser()._actions if isinstance(each.choices, dict)]
    assert [*commands] == [*NAMES]


def test_a_file_of_our_own_that_is_missing_is_a_bug_and_shows_where() -> None:
    code = RUN.format(package="service.settings", arguments=[], program="service")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "Traceback" in done.stderr
