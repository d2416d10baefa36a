"""Search finds each document of several rows once, by its best row."""

from collections import defaultdict
from collections.abc import Collection

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from numpy.typing import NDArray

from service.index import view
from service.index.index import Index
from service.store.values import row_of
from tests.service.brute_force import (
    Rows,
    coarse_vectors,
    firsts,
    revisions,
    settle,
    small_segments,
    stored_vectors,
    unit_vectors,
)


def best(rows: Rows, query: NDArray[np.float32], k: int, allowed: Collection[int]) -> list[tuple[float, int]]:
    """Returns the best row of the best `k` documents and of all that tie with the last, by brute force."""
    found: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for name, vector in rows.items():
        if name >> 16 in allowed:
            found[name >> 16].append((-round(float(vector @ query), 6), name))
    ranked = sorted(min(of_one) for of_one in found.values())
    last = ranked[min(k, len(ranked)) - 1][0] if ranked else 0.0
    return [(-score, name) for score, name in ranked if score <= last]


class Passages(RuleBasedStateMachine):
    """Adds, replaces and removes documents of one to `MOST` rows. The answers are a dictionary's."""

    MOST = 6

    def __init__(self) -> None:
        super().__init__()
        self.index, self.rows, self.next = Index(3), Rows(), 1

    @property
    def revisions(self) -> list[int]:
        return sorted({name >> 16 for name in self.rows})

    @rule(count=st.integers(0, 12), seed=st.integers(0, 9), most=st.integers(1, 6), drop=st.integers(0, 5))
    def change(self, count: int, seed: int, most: int, drop: int) -> None:
        chance = np.random.default_rng(seed)
        fresh = range(self.next, self.next + count)
        self.next += count
        names = [
            row_of(revision, at)
            for revision in fresh
            for at in range(chance.integers(1, 1 + min(most, self.MOST)))
        ]
        names = names[:: -1 if seed % 2 else 1]
        vectors = coarse_vectors(len(names), 3, seed)
        gone = {*self.revisions[:: 7 - drop][:drop], *fresh[:1]} if drop else set()
        self.index.apply((names, vectors), remove=[*gone, 10_000_000])
        self.rows.update(zip(names, vectors, strict=True))
        self.rows = {name: vector for name, vector in self.rows.items() if name >> 16 not in gone}

    @rule(seed=st.integers(0, 9))
    def replace(self, seed: int) -> None:
        names = list(self.rows)[seed::5]
        vectors = coarse_vectors(len(names), 3, seed + 100)
        self.index.apply((names, vectors))
        self.rows.update(zip(names, vectors, strict=True))

    @rule()
    def wait_for_merges(self) -> None:
        settle(self.index)

    @rule(seed=st.integers(0, 9), k=st.integers(1, 40), every=st.integers(1, 40))
    def search(self, seed: int, k: int, every: int) -> None:
        query = coarse_vectors(1, 3, seed + 200)
        for allowed in (None, self.revisions[::every]):
            [(scores, names)] = self.index.search(query, k, allowed)
            expected = best(self.rows, query[0], k, self.revisions if allowed is None else allowed)
            assert list(zip(scores.tolist(), names.tolist(), strict=True)) == expected

    @invariant()
    def holds_the_same_rows(self) -> None:
        assert self.index.rows == len(self.rows)
        assert self.index.documents == len(self.revisions)
        assert revisions(self.index) == self.revisions

    def teardown(self) -> None:
        stored = stored_vectors(self.index, self.rows)
        np.testing.assert_array_equal(stored, np.array(list(self.rows.values())).reshape(-1, 3))
        self.index.close()


class WholeTexts(Passages):
    """Every document has one row."""

    MOST = 1


@pytest.mark.parametrize("machine", [Passages, WholeTexts])
@pytest.mark.parametrize("base_rows", [50_000, 40])
def test_after_any_changes_documents_are_found_by_their_best_rows(
    base_rows: int, machine: type[Passages], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_segments(monkeypatch, base_rows)
    run_state_machine_as_test(
        machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )


def test_a_document_whose_rows_crowd_the_top_does_not_hide_the_others() -> None:
    index = Index(2)
    crowd = [row_of(7, passage) for passage in range(5000)]
    angles = np.linspace(0, 0.5, 5000)
    index.apply((crowd, np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    index.apply((firsts([3, 9, 1]), [[0.5, 0.0], [0.25, 0.0], [0.125, 0.0]]))
    [(scores, names)] = index.search([[1.0, 0.0]], 3)
    assert names.tolist() == [row_of(7), row_of(3), row_of(9)]
    assert scores.tolist() == [1.0, 0.5, 0.25]
    [(_, names)] = index.search([[1.0, 0.0]], 10)
    assert names.tolist() == [row_of(7), row_of(3), row_of(9), row_of(1)]


@pytest.mark.parametrize("twins", [2, view.SPARE, view.SPARE + 1, 300])
def test_every_document_that_ties_with_the_last_is_there_once_by_its_first_best_row(twins: int) -> None:
    index = Index(2)
    index.apply((firsts([1]), [[1.0, 0.0]]))
    for revision in range(100, 100 + twins):
        vectors = np.array([[0, 1], [0.6, 0.8], [0.6, 0.8], [0, 1]])
        index.apply(([row_of(revision, at) for at in range(4)], vectors))
    [(scores, names)] = index.search([[1.0, 0.0]], 2)
    assert names.tolist() == [row_of(1), *(row_of(revision, 1) for revision in range(100, 100 + twins))]
    assert set(scores[1:].tolist()) == {np.float32(0.6)}


def test_a_removed_document_leaves_no_row_behind_and_a_replaced_row_only_the_others() -> None:
    vectors = unit_vectors(6, 8)
    index = Index(8)
    index.apply(([row_of(1), row_of(1, 1), row_of(1, 2), row_of(2), row_of(2, 1)], vectors[:5]))
    index.apply(([row_of(2, 1)], vectors[5:]), remove=[1])
    assert (index.rows, index.documents) == (2, 1)
    np.testing.assert_array_equal(stored_vectors(index, [row_of(2), row_of(2, 1)]), vectors[[3, 5]])
    with pytest.raises(KeyError, match=str(row_of(1, 2))):
        stored_vectors(index, [row_of(1, 2)])
