"""The wheel and the sdist hold every file of the packages, the license, and the command `simile`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

from models.version import VERSION

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("simile", "service", "models", "training")
NAME = f"simile_search-{VERSION}"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    done = subprocess.run(
        ["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.splitlines() if (ROOT / name).is_file()}


def test_the_wheel_holds_the_packages_and_nothing_else(built: Path, tracked: set[str]) -> None:
    with zipfile.ZipFile(built / f"{NAME}-py3-none-any.whl") as wheel:
        names = {name for name in wheel.namelist() if not name.startswith(f"{NAME}.dist-info/")}
        assert names == tracked
        entries = wheel.read(f"{NAME}.dist-info/entry_points.txt").decode()
        assert "simile = simile.__main__:main" in entries
        metadata = message_from_bytes(wheel.read(f"{NAME}.dist-info/METADATA"))
        assert (metadata["Version"], metadata["License-Expression"]) == (VERSION, "Apache-2.0")
        assert wheel.read(f"{NAME}.dist-info/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()


def test_the_sdist_holds_what_builds_the_wheel(built: Path, tracked: set[str]) -> None:
    with tarfile.open(built / f"{NAME}.tar.gz") as sdist:
        names = {name.removeprefix(f"{NAME}/") for name in sdist.getnames()}
    assert tracked | {"LICENSE", "README.md", "pyproject.toml", "PKG-INFO"} <= names
    assert {name.partition("/")[0] for name in names if "/" in name} == {*PACKAGES}
