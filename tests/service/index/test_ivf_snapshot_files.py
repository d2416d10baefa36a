"""A snapshot file is used only if it is intact, and no damage causes a failure."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.index.ivf_snapshots import Damaged, damage, read, tidy, write

FACTS = {"sequence": 7, "origin": {"generation": 2}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A snapshot of the collection `default` in the root `tmp_path`."""
    file = tmp_path / "default" / "2.lists"
    write(file, FACTS, b"old\n" * 1000)
    return file


def names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def test_the_last_one_written_is_read(file: Path, tmp_path: Path) -> None:
    assert read(file) == (FACTS, b"old\n" * 1000)
    write(file, {"sequence": 8}, b"")
    assert read(file) == ({"sequence": 8}, b"")
    assert damage(tmp_path) == []


def flipped(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def pipe(file: Path) -> None:
    """Replaces the file by a pipe, which would block a reader."""
    file.unlink()
    os.mkfifo(file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda file: flipped(file, -5),
    "a flipped bit in the facts": lambda file: flipped(file, 50),
    "a flipped bit in the checksum": lambda file: flipped(file, 3),
    "a flipped bit in the length": lambda file: flipped(file, 39),
    "too short": lambda file: os.truncate(file, 100),
    "shorter than its header": lambda file: os.truncate(file, 20),
    "empty": lambda file: os.truncate(file, 0),
    "too long": lambda file: file.write_bytes(file.read_bytes() + b"x"),
    "without end": lambda file: os.truncate(file, 1 << 40),
    "a pipe": pipe,
}


@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_not_read_and_is_reported(
    file: Path, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    harm(file)
    with pytest.raises(Damaged):
        read(file)
    [line] = damage(tmp_path)
    assert line.startswith("default/2.lists: it")


def test_a_disk_that_fails_leaves_the_one_before_as_it_was(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write(file, {}, b"new")
    assert names(tmp_path) == ["default", "default/2.lists"]
    assert read(file) == (FACTS, b"old\n" * 1000)


KILLED = """
import os, signal, sys
from pathlib import Path
from service.index.ivf_snapshots import write
os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)
write(Path(sys.argv[1]), {}, b"new")
"""


def test_what_a_killed_writer_leaves_is_no_snapshot_and_is_swept(file: Path, tmp_path: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(file)], check=False)
    assert killed.returncode == -9
    assert len(names(tmp_path)) == 3
    assert read(file) == (FACTS, b"old\n" * 1000)
    assert damage(tmp_path) == []
    tidy(tmp_path, {"default"}, {2})
    assert names(tmp_path) == ["default", "default/2.lists"]


def test_those_of_other_generations_and_collections_and_of_older_programs_are_removed(
    file: Path, tmp_path: Path
) -> None:
    write(file.with_name("12.lists"), {}, b"")
    write(tmp_path / "gone" / "2.lists", {}, b"")
    write(tmp_path / "other" / "12.lists", {}, b"")
    for folder in ("2-000000041377", ".tmp-9f8e7d6c"):  # format 1
        (file.parent / folder).mkdir()
        (file.parent / folder / "rows.npy").write_bytes(b"rows")
    tidy(tmp_path, {"default", "other"}, {2, 3})
    assert names(tmp_path) == ["default", "default/2.lists", "other"]
    tidy(tmp_path / "none", {"default"}, {2})
