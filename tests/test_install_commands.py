"""Printed install commands install this project's extras, and never another project of the same name."""

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import models.errors
from models.errors import install_command
from models.version import VERSION

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


@pytest.mark.parametrize(
    ("noted", "wanted"),
    [
        (json.dumps({"url": "file:///wheels/x.whl"}), "simile-search[map] @ file:///wheels/x.whl"),
        (
            json.dumps({"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "0a1"}}),
            "simile-search[map] @ git+https://example.org/x.git@0a1",
        ),
        (None, f"simile-search[map]=={VERSION}"),
    ],
    ids=["from a wheel", "from a repository", "from an index"],
)
def test_without_sources_a_command_installs_from_where_this_distribution_came(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, noted: str | None, wanted: str
) -> None:
    folder = tmp_path / f"simile_search-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: simile-search\nVersion: {VERSION}\n")
    if noted is not None:
        (folder / "direct_url.json").write_text(noted)
    monkeypatch.setattr(models.errors, "__file__", str(tmp_path / "models" / "errors.py"))
    monkeypatch.syspath_prepend(str(tmp_path))
    assert shlex.split(install_command("map")) == [sys.executable, "-m", "pip", "install", wanted]


def test_without_a_distribution_a_command_asks_for_a_checkout(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models.errors, "__file__", str(tmp_path / "models" / "errors.py"))
    monkeypatch.setattr(sys, "path", [])
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
