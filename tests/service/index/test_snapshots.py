"""A snapshot is used only when every byte of it is as it was written; nothing that is wrong stops anybody."""

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from service.index.snapshots import MANIFEST, Damaged, Origin, Snapshot, Snapshots

ORIGIN = Origin(generation=2, fingerprint="a1b2", dimension=3)


def write(snapshots: Snapshots, sequence: int, content: bytes = b"rows", origin: Origin = ORIGIN) -> None:
    def base(file: Path) -> None:
        file.write_bytes(content * 1000)

    snapshots.write(origin, sequence, {"base": base, "empty": Path.touch})


def read(snapshot: Snapshot) -> tuple[int, bytes]:
    return snapshot.sequence, (snapshot.folder / "base").read_bytes()[:4]


def test_the_newest_of_the_same_origin_is_read(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path / "indexes")
    assert snapshots.newest(ORIGIN, read) is None
    write(snapshots, 9, b"old ")
    write(snapshots, 10, b"new ")
    write(snapshots, 11, b"2nd ", Origin(3, "a1b2", 3))
    assert snapshots.newest(ORIGIN, read) == (10, b"new ")
    assert snapshots.newest(Origin(3, "a1b2", 3), read) == (11, b"2nd ")
    assert snapshots.newest(Origin(4, "a1b2", 3), read) is None


@pytest.mark.parametrize("other", [Origin(2, "ffff", 3), Origin(2, "a1b2", 4)])
def test_one_of_another_model_is_not_read(
    tmp_path: Path, other: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 5)
    assert snapshots.newest(other, read) is None
    assert "another model" in caplog.text


def test_two_are_kept_and_a_generation_that_is_gone_takes_its_own_with_it(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for sequence in (1, 4, 20, 3_000_000_000_000):
        write(snapshots, sequence)
    write(snapshots, 7, origin=Origin(12, "a1b2", 3))
    assert sorted(folder.name for folder in tmp_path.iterdir()) == [
        "12-000000000007",
        "2-000000000020",
        "2-3000000000000",
    ]
    snapshots.keep_only({12, 13})
    assert [folder.name for folder in tmp_path.iterdir()] == ["12-000000000007"]


def test_one_of_a_store_that_was_replaced_goes_when_the_next_is_written(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    for sequence in (500, 600, 70, 80, 90):  # the store of before was at 600
        write(snapshots, sequence)
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["2-000000000080", "2-000000000090"]


def flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def pipe(file: Path) -> None:
    """A reader that opens it would wait for ever."""
    file.unlink()
    os.mkfifo(file)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": lambda folder: flipped(folder / "base"),
    "a file too short": lambda folder: os.truncate(folder / "base", 100),
    "a file too long": lambda folder: (folder / "empty").write_bytes(b"x"),
    "a missing file": lambda folder: (folder / "base").unlink(),
    "a flipped bit in the manifest": lambda folder: flipped(folder / MANIFEST),
    "half a manifest": lambda folder: os.truncate(folder / MANIFEST, 60),
    "an empty manifest": lambda folder: os.truncate(folder / MANIFEST, 0),
    "a list for a manifest": lambda folder: (folder / MANIFEST).write_text("[]"),
    "a manifest nested deeply": lambda folder: (folder / MANIFEST).write_text('{"facts":' * 100_000),
    "a manifest nested as deeply as is read": lambda folder: (folder / MANIFEST).write_text(
        f'{{"sha256": "", "facts": {"[" * 900}{"]" * 900}}}'
    ),
    "a manifest without end": lambda folder: os.truncate(folder / MANIFEST, 1 << 40),
    "a pipe for a manifest": lambda folder: pipe(folder / MANIFEST),
    "no manifest": lambda folder: (folder / MANIFEST).unlink(),
    "another sequence": lambda folder: (folder / MANIFEST).write_text(
        (folder / MANIFEST).read_text().replace('"sequence": 2', '"sequence": 3')
    ),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_one_is_reported_and_the_one_before_is_used(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 1, b"old ")
    write(snapshots, 2, b"new ")
    assert snapshots.damage() == []
    damage(tmp_path / "2-000000000002")
    assert snapshots.newest(ORIGIN, read) == (1, b"old ")
    assert "2-000000000002 is not used" in caplog.text
    [line] = snapshots.damage()
    assert line.startswith("2-000000000002: ")
    shutil.rmtree(tmp_path / "2-000000000001")
    assert snapshots.newest(ORIGIN, read) is None


def test_one_of_a_newer_format_is_left_alone(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 2)
    manifest = tmp_path / "2-000000000002" / MANIFEST
    said = json.loads(manifest.read_bytes())
    said["format"] = 99
    manifest.write_text(json.dumps(said))
    assert snapshots.newest(ORIGIN, read) is None
    assert manifest.exists()


def test_one_that_its_reader_cannot_use_is_passed_over(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 1, b"old ")
    write(snapshots, 2, b"new ")

    def picky(snapshot: Snapshot) -> int:
        if snapshot.sequence == 2:
            raise Damaged("not to my taste")
        return snapshot.sequence

    assert snapshots.newest(ORIGIN, picky) == 1


def test_a_reader_that_breaks_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 1)

    def broken(snapshot: Snapshot) -> int:
        raise RecursionError

    assert snapshots.newest(ORIGIN, broken) is None
    assert "2-000000000001 is not used" in caplog.text


def test_a_disk_that_fails_leaves_the_ones_before_as_they_were(tmp_path: Path) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 1, b"old ")

    def failing(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        snapshots.write(ORIGIN, 2, {"base": failing})
    assert [folder.name for folder in tmp_path.iterdir()] == ["2-000000000001"]
    assert snapshots.newest(ORIGIN, read) == (1, b"old ")


KILLED = """
import os, signal, sys
from pathlib import Path
from service.index.snapshots import Origin, Snapshots
def die(file):
    file.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
Snapshots(Path(sys.argv[1])).write(Origin(2, "a1b2", 3), 2, {"base": die})
"""


def test_what_a_killed_writer_leaves_is_no_snapshot_and_is_swept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(tmp_path)
    write(snapshots, 1, b"old ")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -9
    assert len([*tmp_path.iterdir()]) == 2
    with caplog.at_level(logging.WARNING):
        assert snapshots.newest(ORIGIN, read) == (1, b"old ")
    assert not caplog.records
    snapshots.keep_only({2})
    assert [folder.name for folder in tmp_path.iterdir()] == ["2-000000000001"]
