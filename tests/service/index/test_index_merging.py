"""The index during merges, and with several threads: no row is lost, and no search fails."""

import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence

import faiss
import numpy as np
import pytest

from service.index import ivf, maintenance
from service.index.index import Index
from service.index.maintenance import NICE
from service.index.segments import Segment
from service.index.view import Part
from service.store.values import build_row_name, get_revisions
from tests.service.brute_force import (
    Rows,
    coarse_vectors,
    firsts,
    found,
    nearest,
    revisions,
    settle,
    small_segments,
    stored_vectors,
)
from tests.waiting import LIMIT


class Paused(Index):
    """Pauses each merge, until `go` is set, before its new segment is published."""

    def __init__(self, dimension: int) -> None:
        super().__init__(dimension)
        self.reached, self.go = threading.Event(), threading.Event()

    def _merged(self, sources: Sequence[Part]) -> Segment:
        merged = super()._merged(sources)
        self.reached.set()
        assert self.go.wait(LIMIT)
        return merged


@pytest.fixture
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes an index of 25 rows build a base."""
    small_segments(monkeypatch, base_rows=24)


@pytest.fixture
def paused(tiny_segments: None) -> Iterator[Paused]:
    index = Paused(4)
    yield index
    index.go.set()
    index.close()


@pytest.mark.long
@pytest.mark.parametrize("base_rows", [50_000, 500])
def test_ten_thousand_single_writes_leave_few_parts_and_no_dead_weight(
    base_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", base_rows)
    index, vectors = Index(4), coarse_vectors(10_000, 4, seed=1)
    for revision in range(10_000):
        index.apply((firsts([revision]), vectors[revision : revision + 1]), remove=[revision - 2000])
    settle(index)
    assert revisions(index) == list(range(8000, 10_000))
    assert len(index.view.parts) <= 2
    assert index.nbytes < 1.5 * 2000 * (4 * 4 + 8)
    index.close()


def test_what_dies_or_is_replaced_while_a_merge_runs_stays_so(paused: Paused) -> None:
    vectors = coarse_vectors(40, 4, seed=2)
    rows: Rows = dict(enumerate(vectors))
    for start in range(0, 32, 8):
        paused.apply((firsts(range(start, start + 8)), vectors[start : start + 8]))
    assert paused.reached.wait(LIMIT)
    paused.apply(remove=[*range(8, 16), 3, 20])  # One source of the merge loses all rows.
    paused.apply((firsts(range(30, 40)), vectors[20:30]))  # Rows 30 and 31 are also in a source.
    rows |= dict(zip(range(30, 40), vectors[20:30], strict=True))
    rows = {revision: rows[revision] for revision in rows if not (8 <= revision < 16 or revision in {3, 20})}
    for _ in range(2):
        assert revisions(paused) == sorted(rows)
        np.testing.assert_array_equal(stored_vectors(paused, firsts(rows)), list(rows.values()))
        for query in coarse_vectors(20, 4, seed=3):
            assert found(paused, query, 7) == nearest(rows, query, 7)
        paused.go.set()
        settle(paused)
    assert len(paused.view.parts) == 1
    assert paused.kind == "IVF,SQ8"


def test_writes_and_searches_go_on_while_a_merge_is_held_up(paused: Paused) -> None:
    for revision in range(200):
        paused.apply((firsts([revision]), [[1, 0, 0, 0]]))
        assert found(paused, np.array([1, 0, 0, 0], np.float32), 1)[-1] == (1.0, revision)
        assert revision != 50 or paused.reached.wait(LIMIT)
    assert not paused.go.is_set()


@pytest.mark.usefixtures("tiny_segments")
def test_a_failed_merge_is_logged_and_tried_again_and_no_search_notices(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class FailsOnce(Index):
        failures = 0

        def _merged(self, sources: Sequence[Part]) -> Segment:
            if not self.failures:
                self.failures += 1
                raise MemoryError("injected")
            return super()._merged(sources)

    index, vectors = FailsOnce(4), coarse_vectors(40, 4, seed=5)
    with caplog.at_level(logging.ERROR):
        for start in range(0, 32, 8):
            index.apply((firsts(range(start, start + 8)), vectors[start : start + 8]))
        settle(index)
    assert "Merging the index failed" in caplog.text
    assert (index.failures, index.kind) == (1, "exact")
    rows: Rows = dict(enumerate(vectors[:32]))
    assert found(index, vectors[0], 5) == nearest(rows, vectors[0], 5)
    index.apply((firsts([32]), vectors[32:33]))
    settle(index)
    assert (len(index.view.parts), index.kind) == (2, "IVF,SQ8")
    assert found(index, vectors[0], 5) == nearest(rows | {32: vectors[32]}, vectors[0], 5)


def test_a_closed_index_takes_writes_and_answers_but_merges_no_more(paused: Paused) -> None:
    paused.close()
    vectors = coarse_vectors(80, 4, seed=6)
    for start in range(0, 80, 8):
        paused.apply((firsts(range(start, start + 8)), vectors[start : start + 8]))
    assert found(paused, vectors[0], 5) == nearest(dict(enumerate(vectors)), vectors[0], 5)
    assert paused.kind == "exact"
    assert not paused.reached.is_set()


@pytest.mark.usefixtures("tiny_segments")
def test_closing_cuts_a_running_merge_short(caplog: pytest.LogCaptureFixture) -> None:
    class ClosedMeanwhile(Paused):
        published = 0

        def _merged(self, sources: Sequence[Part]) -> Segment:
            self.reached.set()
            assert self._merger.closing.wait(LIMIT)
            return Index._merged(self, sources)

        def _publish(self, sources: Sequence[Part], merged: Segment) -> None:
            self.published += 1

    index = ClosedMeanwhile(4)
    for start in range(0, 32, 8):
        index.apply((firsts(range(start, start + 8)), coarse_vectors(8, 4, seed=start)))
    assert index.reached.wait(LIMIT)
    index.close()
    assert (index.published, index.kind, index.documents) == (0, "exact", 32)
    assert not caplog.records


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no priority of its own")
@pytest.mark.usefixtures("tiny_segments")
def test_merging_is_nicer_than_the_threads_that_answer() -> None:
    priorities: list[int] = []

    class Asks(Index):
        def _merged(self, sources: Sequence[Part]) -> Segment:
            priorities.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
            return super()._merged(sources)

    index = Asks(4)
    for start in range(0, 32, 8):
        index.apply((firsts(range(start, start + 8)), coarse_vectors(8, 4, seed=start)))
    settle(index)
    mine = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    assert priorities == [max(NICE, mine)]


def test_a_search_uses_one_thread_of_faiss_whoever_calls_it() -> None:
    index, seen = Index(2), list[int]()
    index.apply((firsts([1]), [[1, 0]]))

    def search() -> None:
        faiss.omp_set_num_threads(2)
        index.search([[1, 0]], 1)
        seen.append(faiss.omp_get_max_threads())

    thread = threading.Thread(target=search)
    thread.start()
    thread.join(LIMIT)
    assert seen == [1]


PAIRS, NOISE = 32, 16  # directions of the moved rows, and of the other rows
MOVES = 3000


class Mover:
    """Moves pairs of rows to new revisions while other rows change. `committed`: each row's last revision."""

    def __init__(self) -> None:
        self.index = Index(PAIRS + NOISE)
        self.axes = np.eye(PAIRS + NOISE, dtype=np.float32)
        self.committed = list(range(PAIRS))
        self.index.apply((firsts(range(PAIRS)), self.axes[:PAIRS]))
        self.finished = threading.Event()
        self.complaints: list[str] = []

    def write(self) -> None:
        chance = np.random.default_rng(0)
        noise: list[int] = []
        for move in range(MOVES):
            pair = 2 * int(chance.integers(PAIRS // 2))
            first = 1000 + 10 * move
            fresh = [first, first + 1, *range(first + 2, first + 10)]
            old = noise[: len(noise) // 2] if move % 50 == 0 else []
            noise = noise[len(old) :] + fresh[2:]
            rows = self.axes[[pair, pair + 1, *chance.integers(PAIRS, PAIRS + NOISE, 8)]]
            self.index.apply((firsts(fresh), rows), remove=[*self.committed[pair : pair + 2], *old])
            self.committed[pair : pair + 2] = fresh[:2]
        self.finished.set()

    def read(self, seed: int) -> None:
        chance = np.random.default_rng(seed)
        while not self.finished.is_set():
            pair = 2 * int(chance.integers(PAIRS // 2))
            before = self.committed[pair]
            hits = self.index.search(self.axes[pair : pair + 2], 3)
            one, two = (get_revisions(names[scores > 0.5]).tolist() for scores, names in hits)
            if len(one) != 1 or len(two) != 1:
                self.complaints.append(f"pair {pair}: {one} and {two} instead of one row each")
            elif one[0] < before:
                self.complaints.append(f"pair {pair}: {one[0]} was found after {before} was committed")
            elif two[0] != one[0] + 1:
                self.complaints.append(f"pair {pair}: {one[0]} and {two[0]} are of two steps")


@pytest.mark.long
@pytest.mark.parametrize("base_rows", [50_000, 300])
def test_readers_never_see_a_removed_row_or_half_a_step(
    base_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", base_rows)
    monkeypatch.setattr(ivf, "EXACT_ROWS", 0)
    monkeypatch.setattr(ivf, "LOOKED_AT", 1.0)
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.0)
    mover = Mover()
    readers = [threading.Thread(target=mover.read, args=(seed,)) for seed in range(3)]
    for reader in readers:
        reader.start()
    try:
        mover.write()
    finally:
        mover.finished.set()
        for reader in readers:
            reader.join(LIMIT)
    settle(mover.index)
    assert mover.complaints == []
    assert mover.index.kind == ("IVF,SQ8" if base_rows == 300 else "exact")
    for pair, (_, names) in enumerate(mover.index.search(mover.axes[:PAIRS], 1)):
        assert names[0] == build_row_name(mover.committed[pair])


def test_several_writers_at_once_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    index, kept = Index(4), 400

    def write(start: int) -> None:
        for revision in range(start, start + kept):
            index.apply((firsts([revision]), [[1, 0, 0, 0]]), remove=[revision - 1] if revision % 2 else [])

    writers = [threading.Thread(target=write, args=(start,)) for start in (0, 1000, 2000)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(LIMIT)
    settle(index)
    assert revisions(index) == [start + odd for start in (0, 1000, 2000) for odd in range(1, kept, 2)]


def test_a_closed_index_is_freed_without_the_garbage_collector() -> None:
    index = Index(4)
    index.apply(([build_row_name(1)], np.eye(1, 4, dtype=np.float32)))
    index.close()
    freed = weakref.ref(index)
    del index
    assert freed() is None, "a cycle keeps the vectors, because a running service freezes the collector"
