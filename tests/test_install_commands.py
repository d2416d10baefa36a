"""Printed install commands install this project's extras, and never another project of the same name."""

import importlib.metadata
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import models.errors
from models.errors import install_command
from models.messages import simile_version

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXTS = [
    name
    for name in subprocess.run(
        ["git", "ls-files", "*.md", "*.py", "*.ipynb", "Makefile", ":!tests", ":!CHANGELOG.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    if (ROOT / name).is_file()
]


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_a_command_names_an_extra_of_these_sources_from_any_folder(extra: str) -> None:
    python, *rest = shlex.split(install_command(extra))
    assert python == sys.executable
    assert rest[:4] == ["-m", "pip", "install", "-c"]
    assert Path(rest[4]).is_file()
    assert rest[5:] == ["-e", f"{ROOT}[{extra}]"]


def test_without_sources_a_command_asks_for_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models.errors, "__file__", str(tmp_path / "models" / "errors.py"))
    assert install_command("map").startswith("in a checkout of Simile, ")


def test_no_text_installs_the_other_project() -> None:
    wrong = re.compile(r"pip install[^\n`]*['\" ]simile(\[|['\"\s`]|==)")
    assert [name for name in TEXTS if wrong.search((ROOT / name).read_text(encoding="utf-8"))] == []


def test_a_command_of_a_checkout_keeps_the_editable_install() -> None:
    copied = [
        f"{name}: {line}"
        for name in TEXTS
        for line in (ROOT / name).read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install[^`]*'\.\[", line) and "-e '" not in line and '-e "' not in line
    ]
    installed_for_all = [line for line in copied if "/usr/local/lib/simile/" in line]
    assert [line for line in copied if line not in installed_for_all and "checkout" not in line] == []


def test_the_version_is_that_of_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    assert simile_version() in {PROJECT["version"], "unknown"}

    def missing(name: str) -> str:
        assert name == PROJECT["name"] != "simile"
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr("models.messages.version", missing)
    assert simile_version() == "unknown"
