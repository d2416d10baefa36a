"""Small files are read whole. Files that are too large, too deep or not regular are refused."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from models.files.bounded import read_bytes, read_json
from models.files.retrainings import read_runs
from models.store import ModelStore


def pipe(file: Path) -> None:
    """Replaces `file` by a pipe, which would block a reader forever."""
    file.unlink()
    os.mkfifo(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "deep": (lambda file: file.write_text("[" * 100_000), "nested too deeply"),
    "large": (lambda file: os.truncate(file, 1 << 40), "larger than 16384 KiB"),
    "a pipe": (pipe, "not a regular file"),
    "a folder": (folder, "not a regular file"),
    "no JSON": (lambda file: file.write_text("{"), "Expecting property name"),
    "not UTF-8": (lambda file: file.write_bytes(b"\xff\xfe\xff"), "utf-16|codec"),
}


@pytest.mark.parametrize("damage", BAD)
def test_a_bad_file_is_refused_in_words(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "state.json"
    file.touch()
    act, words = BAD[damage]
    act(file)
    with pytest.raises(ValueError, match=words):
        read_json(file)
    assert ModelStore(tmp_path).read_state() == {}


@pytest.mark.parametrize("damage", BAD)
def test_files_beside_the_versions_that_are_damaged_say_nothing(tmp_path: Path, damage: str) -> None:
    version = "20260102T030405-tiny-0a1b2c3d"
    (tmp_path / version).mkdir()
    for name in ("asked.json", "schedule.json"):
        (tmp_path / name).touch()
        BAD[damage][0](tmp_path / name)
    (tmp_path / "wanted").write_text(version)
    requested = ModelStore(tmp_path).read_request()
    assert requested is not None
    assert (requested.version, requested.kind) == (version, "want")
    assert read_runs(tmp_path) == {}


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "a", 100) == b"x" * 100
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "b")
