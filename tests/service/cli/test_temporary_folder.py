"""Without a temporary folder, the start and `check` name TMPDIR, and do not blame the data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.service.process import plain_environment
from tests.service.store.test_storage_faults import needs_mounts
from tests.tiny import tiny_source
from tests.waiting import LIMIT

pytestmark = [needs_mounts, pytest.mark.sqlite("it starts on a data directory")]
ROOT = Path(__file__).resolve().parents[3]
# Usual folders become read-only, with their contents. $1 stays writable, and $1/full is a full disk.
COVER = """
for each in /tmp /var/tmp /usr/tmp; do
  if [ -d $each ]; then mount --bind $each $each; mount -o remount,bind,ro $each; fi
done
mount --bind "$1" "$1"; mount -o remount,bind,rw "$1"
mkdir -p "$1/full"; mount -t tmpfs -o size=64k tmpfs "$1/full"
dd if=/dev/zero of="$1/full/all" bs=4k 2>/dev/null
cd /proc; shift; exec "$@"
"""
OPEN = """
from service.runtime.runtime import Runtime
from service.settings import read
Runtime(read()).open()
print("opened")
"""
START = ["-m", "service"]


def covered(folder: Path, *command: str, **variables: str) -> tuple[int, str]:
    """Runs Python where only `folder` can be written. Returns the exit status and the output."""
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", COVER, "bash", str(folder), sys.executable, *command],
        env=plain_environment(
            PYTHONPATH=str(ROOT),
            SIMILE_DATA_DIR=str(folder / "data"),
            SIMILE_MODELS_DIR=str(folder / "models"),
            SIMILE_WORKERS="1",
            **variables,
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "TEMP", "TMP", "SQLITE_TMPDIR"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(("name", "place"), [(None, ""), ("TMPDIR", "full"), ("TMP", "missing")])
def test_a_first_start_names_the_temporary_folder(tmp_path: Path, name: str | None, place: str) -> None:
    source = tiny_source(tmp_path / "source", seed=7)
    named = {} if name is None else {name: str(tmp_path / place)}
    status, said = covered(tmp_path, *START, SIMILE_MODEL=str(source), **named)
    assert status == os.EX_CONFIG, said
    assert "No usable temporary directory found" in said
    assert "Set TMPDIR to a folder for temporary files, such as the data directory." in said
    assert "SIMILE_MODELS_DIR" not in said
    assert "Traceback" not in said


def test_a_start_works_with_the_data_directory_as_tmpdir(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "source", seed=7)
    (tmp_path / "data").mkdir()
    named = {"TMPDIR": str(tmp_path / "data"), "SIMILE_MODEL": str(source)}
    status, said = covered(tmp_path, "-c", OPEN, **named)
    assert (status, said.splitlines()[-1]) == (0, "opened"), said


@pytest.mark.parametrize("name", [None, "TMPDIR", "TEMP"])
def test_check_looks_at_the_temporary_folder(tmp_path: Path, name: str | None) -> None:
    named = {} if name is None else {name: str(tmp_path / "full")}
    status, said = covered(tmp_path, *START, "check", **named)
    assert status == 0, said
    [line] = [line for line in said.splitlines() if line.startswith("temporary files")]
    assert "No usable temporary directory found" in line
    assert "Set TMPDIR" in line


def test_check_shows_a_folder_that_can_be_written(tmp_path: Path) -> None:
    _, said = covered(tmp_path, *START, "check", TMPDIR=str(tmp_path))
    [line] = [line for line in said.splitlines() if line.startswith("temporary files")]
    assert line.endswith(f"GiB free at {tmp_path.resolve()}, writable")
