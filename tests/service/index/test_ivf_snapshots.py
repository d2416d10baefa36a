"""A start reads the lists of a base from a snapshot. It builds them again if no snapshot is intact."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest

from service.index import ivf, maintenance
from service.index.index import Index
from service.index.ivf_snapshots import Damaged, IvfSnapshots, Origin, damage, read, tidy, write
from service.store.values import get_revisions
from tests.service.brute_force import firsts, settle
from tests.service.index.test_ivf import DIMENSION, mixture

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
    """Replaces the file by a named pipe, which would block a reader."""
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


ORIGIN = Origin(1, "a1b2", DIMENSION)
COUNT, SEQUENCE = 3000, 4000


@pytest.fixture(autouse=True)
def _small_bases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 2000)
    monkeypatch.setattr(ivf, "EXACT_ROWS", 10)
    monkeypatch.setattr(ivf, "LOOKED_AT", 2.0)


@pytest.fixture
def vectors() -> np.ndarray:
    return mixture(COUNT + 200, seed=0)[np.random.default_rng(3).permutation(COUNT + 200)]


@pytest.fixture
def kept(tmp_path: Path, vectors: np.ndarray) -> Path:
    """A folder with a snapshot of the first `COUNT` rows."""
    index = loaded(tmp_path, vectors[:COUNT])
    settle(index)
    assert index.kind == "IVF,SQ8"
    index.close()
    assert [folder.name for folder in tmp_path.iterdir()] == ["1.lists"]
    return tmp_path


def loaded(folder: Path, vectors: np.ndarray, sequence: int = SEQUENCE, first: int = 0) -> Index:
    names = firsts(range(first, first + len(vectors)))
    return Index.load(DIMENSION, [(names, vectors)], sequence, IvfSnapshots(folder, ORIGIN))


def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(ivf, "_train", refused)


def check(index: Index, vectors: np.ndarray, first: int = 0) -> None:
    """Checks that nearly all of the best documents are found, with correct scores."""
    queries = mixture(40, seed=1)
    scores = queries @ vectors.astype(np.float16).astype(np.float32).T
    hits = 0
    for row, (found, names) in zip(scores, index.search(queries, 10), strict=True):
        revisions = get_revisions(names)
        np.testing.assert_allclose(found, row[revisions - first], atol=2e-6)
        hits += len({*revisions[:10].tolist()} & {*(np.argsort(-row)[:10] + first).tolist()})
    assert hits >= 0.97 * 400


def test_a_start_finds_the_lists_and_does_not_train(
    kept: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained(monkeypatch)
    index = loaded(kept, vectors[:COUNT])
    assert index.kind == "IVF,SQ8"
    check(index, vectors[:COUNT])
    index.close()


def test_what_came_since_is_in_the_lists_and_what_went_is_not(
    kept: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    untrained(monkeypatch)
    index = loaded(kept, vectors[300:], sequence=SEQUENCE + 500, first=300)
    assert index.kind == "IVF,SQ8"
    assert index.documents == COUNT - 100
    check(index, vectors[300:], first=300)
    index.close()


def test_a_damaged_snapshot_is_reported_and_the_lists_are_made_again(
    kept: Path, vectors: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    file = kept / "1.lists"
    flipped(file, file.stat().st_size // 2)
    index = loaded(kept, vectors[:COUNT])
    assert "is not used" in caplog.text
    settle(index)
    assert index.kind == "IVF,SQ8"
    check(index, vectors[:COUNT])
    index.close()
    assert IvfSnapshots(kept, ORIGIN).read(SEQUENCE) is not None


def unlike(facts: dict[str, Any], content: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yields snapshots with correct checksums and wrong content."""
    rows = facts["rows"]
    names, labels = np.frombuffer(content, np.int64, rows), np.frombuffer(content, np.int32, rows, 8 * rows)
    lists = content[12 * rows :]
    yield facts, names[::-1].tobytes() + labels.tobytes() + lists
    yield facts, names[1:].tobytes() + labels.tobytes() + lists
    yield facts | {"rows": 0}, lists
    yield facts, names.tobytes() + (labels - 1 - labels.min()).tobytes() + lists
    yield facts, names.tobytes() + (labels + 100_000).tobytes() + lists
    yield facts, names.tobytes() + labels.tobytes()
    yield facts, names.tobytes() + labels.tobytes() + faiss.serialize_index(faiss.IndexFlatIP(8)).tobytes()
    yield facts | {"format": 99}, content
    yield facts | {"origin": facts["origin"] | {"fingerprint": "ffff"}}, content
    yield facts | {"origin": facts["origin"] | {"dimension": 8}}, content
    yield {}, content


def test_a_whole_snapshot_of_something_else_is_refused(kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    snapshots, file = IvfSnapshots(kept, ORIGIN), kept / "1.lists"
    facts, content = read(file)
    for other in unlike(facts, content):
        write(file, *other)
        assert snapshots.read(SEQUENCE) is None
        assert "is not used" in caplog.text
        caplog.clear()
    write(file, facts, content)
    assert snapshots.read(SEQUENCE) is not None


def test_a_snapshot_of_a_later_moment_is_of_another_store(
    kept: Path, vectors: np.ndarray, caplog: pytest.LogCaptureFixture
) -> None:
    index = loaded(kept, vectors[:COUNT], sequence=SEQUENCE - 1)
    assert "newer than the store" in caplog.text
    settle(index)
    check(index, vectors[:COUNT])
    index.close()


def test_lists_for_far_fewer_rows_are_found_anew(kept: Path, vectors: np.ndarray) -> None:
    more = np.concatenate([vectors, mixture(2 * COUNT, seed=5)])
    index = loaded(kept, more, sequence=SEQUENCE + 1)
    settle(index)
    check(index, more)
    [part] = index.view.parts
    assert isinstance(part.segment, ivf.Clustered)
    assert part.segment.training.rows == len(more)
    index.close()


def test_a_disk_that_fails_costs_a_line_in_the_log(
    tmp_path: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("service.index.ivf_snapshots.write", full)
    index = loaded(tmp_path, vectors[:COUNT])
    settle(index)
    assert index.kind == "IVF,SQ8"
    index.close()
    assert "were not saved" in caplog.text
    assert [*tmp_path.iterdir()] == []
