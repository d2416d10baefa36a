"""Checks the index that a start builds after its process was killed."""

import hashlib
import logging
import random
import sqlite3
from pathlib import Path
from typing import Any, Self

import faiss
import numpy as np
from numpy.typing import NDArray

from service.index import maintenance
from service.index.index import APPROXIMATE, Index
from service.index.ivf import Clustered
from service.index.ivf_snapshots import IvfSnapshots, Origin
from service.settings import INDEXES
from service.store.sqlite import vectors
from service.store.sqlite.documents import sequence
from service.store.values import DEFAULT_COLLECTION, PASSAGE_BITS, Revisions, RowNames
from tests.service.brute_force import revisions as living
from tests.service.brute_force import stored_vectors
from tests.service.store_worker import DIMENSION, FINGERPRINT, get_vector

HURT = 0.2  # share of checks that first damage the snapshot of the active generation
QUERIES, K = 5, 10
CLOSE = 2e-6  # for two scores rounded to 1e-6


class KilledSnapshots:
    """The snapshots in `folder`. `check` raises AssertionError if an index differs from its store."""

    def __init__(self, folder: Path, rng: random.Random) -> None:
        self._root = folder / INDEXES / DEFAULT_COLLECTION
        self._rng = rng
        self.used = self.refused = self.hurt = 0

    def check(self, connection: sqlite3.Connection, number: int, *, active: bool) -> None:
        """May damage the snapshot. Then checks a generation's vectors in the store and in a new index."""
        texts: dict[int, str] = dict(connection.execute("SELECT revision, text FROM documents").fetchall())
        names, stored = _stored(connection, number)
        revisions = names >> PASSAGE_BITS
        assert not active or revisions.tolist() == sorted(texts)
        for revision, vector in zip(revisions.tolist(), stored, strict=True):
            np.testing.assert_array_equal(vector, get_vector(texts[revision], number))
        file = self._root / f"{number}.lists"
        if active and file.exists() and self._rng.random() < HURT:
            self._hurt(file)
        there, sound = file.exists(), is_whole(file)
        now = sequence(connection)
        ivf_snapshots = IvfSnapshots(self._root, Origin(number, FINGERPRINT, DIMENSION))
        with _Reports() as reports:
            known = ivf_snapshots.read(now)
            assert reports.count == there - sound
            index = Index.load(DIMENSION, [(names, stored)], now, ivf_snapshots)
        assert (known is not None) == sound, "a sound snapshot is used, and no other"
        self.refused += there - sound
        kind = index.kind
        index.close()  # No base may be built during the check.
        if known is not None and len(names) > maintenance.BASE_ROWS and known.training.suits(len(names)):
            assert kind == APPROXIMATE
            self.used += 1
        _check_lists(index)
        _check_answers(index, revisions, stored, self._rng.randrange(2**32))

    def _hurt(self, file: Path) -> None:
        """Flips a bit, truncates the file, or removes it."""
        self.hurt += 1
        content = bytearray(file.read_bytes())
        harm = self._rng.choice(["flip", "cut", "remove"])
        if harm == "flip":
            content[self._rng.randrange(len(content))] ^= 1 << self._rng.randrange(8)
        elif harm == "cut":
            del content[self._rng.randrange(len(content)) :]
        file.write_bytes(content)
        if harm == "remove":
            file.unlink()


def is_whole(file: Path) -> bool:
    """Returns whether the file exists with a correct checksum. Uses no code of the service."""
    if not file.exists():
        return False
    content = file.read_bytes()
    return len(content) > 40 and hashlib.sha256(content[40:]).digest() == content[:32]


class _Reports(logging.Handler):
    """Counts log lines about unused snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        assert "is not used" in record.msg
        self.count += 1

    def __enter__(self) -> Self:
        logging.getLogger("service.index.ivf_snapshots").addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("service.index.ivf_snapshots").removeHandler(self)


def _stored(connection: sqlite3.Connection, number: int) -> tuple[RowNames, NDArray[np.float32]]:
    """Returns names and vectors of a generation's rows, and checks that no row is damaged."""
    damaged: list[int] = []
    batches = list(vectors.read(connection, number, DIMENSION, damaged, DEFAULT_COLLECTION))
    assert damaged == []
    names = np.concatenate([np.empty(0, np.int64), *(names for names, _ in batches)])
    matrix = np.concatenate([np.empty((0, DIMENSION), np.float32), *(rows for _, rows in batches)])
    return names, matrix


def _check_lists(index: Index) -> None:
    """Checks that each row is in the list of its nearest center, and in no other."""
    for part in index.view.parts:
        if isinstance(part.segment, Clustered):
            segment = part.segment
            lists: Any = segment._lists  # FAISS's type stubs have no invlists.
            centers = lists.quantizer.reconstruct_n(0, lists.nlist)
            scores = segment.vectors.astype(np.float32) @ centers.T
            chosen = scores[np.arange(len(part)), segment.labels]
            np.testing.assert_allclose(
                chosen, scores.max(axis=1), atol=2e-3
            )  # Labels were chosen in full precision.
            for number in range(lists.nlist):
                theirs = np.flatnonzero(segment.labels == number)
                assert lists.invlists.list_size(number) == len(theirs)
                if len(theirs):
                    ids = faiss.rev_swig_ptr(lists.invlists.get_ids(number), len(theirs))
                    np.testing.assert_array_equal(ids, theirs)


def _check_answers(index: Index, revisions: Revisions, stored: NDArray[np.float32], seed: int) -> None:
    """Checks every stored vector, and search results against numpy."""
    assert living(index) == revisions.tolist()
    rounded = [part.rows().names for part in index.view.parts if part.segment.is_float16]
    half = np.isin(revisions << PASSAGE_BITS, np.concatenate([np.empty(0, np.int64), *rounded]))
    requested = np.where(half[:, None], stored.astype(np.float16), stored)
    np.testing.assert_array_equal(stored_vectors(index, revisions << PASSAGE_BITS), requested)
    if index.kind == APPROXIMATE:  # A view with a base scores all rows in float16.
        stored = stored.astype(np.float16).astype(np.float32)
    queries = np.random.default_rng(seed).standard_normal((QUERIES, DIMENSION)).astype(np.float32)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    for query, (scores, names) in zip(queries, index.search(queries, K), strict=True):
        truth = stored @ query
        best = np.sort(truth)[::-1][:K]
        assert len(scores) >= len(best)
        np.testing.assert_allclose(scores[: len(best)], best, atol=CLOSE)
        places = np.searchsorted(revisions, names >> PASSAGE_BITS)
        np.testing.assert_allclose(scores, truth[places], atol=CLOSE)
