"""The index compared with numpy and a dictionary. Search finds each document once, by its best row."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from service.index import view
from service.index.index import Index
from service.store.values import build_row_name, get_revisions
from tests.service.brute_force import (
    Rows,
    best,
    coarse_vectors,
    firsts,
    found,
    nearest,
    revisions,
    settle,
    small_segments,
    stored_vectors,
    unit_vectors,
)


@pytest.mark.parametrize("k", [1, 10, 200])
def test_scores_and_order_are_those_of_a_full_matrix_product(k: int) -> None:
    vectors, queries = unit_vectors(3000, 48), unit_vectors(40, 48, seed=1)
    index = Index.load(48, [(firsts(range(0, 6000, 3)), vectors[:2000])])
    index.apply((firsts(range(6000, 9000, 3)), vectors[2000:]))
    truth = queries.astype(np.float64) @ vectors.astype(np.float64).T
    for row, (scores, names) in enumerate(index.search(queries, k)):
        assert len(scores) == k
        np.testing.assert_allclose(scores, truth[row, get_revisions(names) // 3], atol=1.1e-6)
        np.testing.assert_allclose(scores, np.sort(truth[row])[::-1][:k], atol=1.1e-6)


def test_k_beyond_the_rows_gives_every_row_once_and_no_row_that_is_not_there() -> None:
    index = Index(4)
    assert [len(scores) for scores, _ in index.search(np.eye(4), 3)] == [0, 0, 0, 0]
    index.apply((firsts([5, 9]), np.eye(4)[:2]))
    index.apply((firsts([12]), np.eye(4)[2:3]), remove=[5])
    assert found(index, np.eye(4, dtype=np.float32)[0], 1000) == [(0.0, 9), (0.0, 12)]


@pytest.mark.parametrize("twins", [2, view.SPARE, view.SPARE + 1, view.SPARE + 2, 300])
def test_every_row_that_ties_with_the_last_place_is_in_the_answer(twins: int) -> None:
    index = Index(2)
    index.apply((firsts([1, 10_000]), [[1.0, 0.0], [0.5, 0.0]]))
    for revision in range(twins):
        index.apply((firsts([100 + revision]), [[0.6, 0.8]]))
    answer = found(index, np.array([1, 0], np.float32), 2)
    assert [revision for _, revision in answer] == [1, *range(100, 100 + twins)]
    assert {score for score, _ in answer[1:]} == {np.float32(0.6)}


def test_more_ties_than_the_cap_leave_those_of_the_lowest_revisions() -> None:
    count = view.TIES + 200
    shuffled = np.random.default_rng(0).permutation(count)
    index = Index(2)
    for start in range(0, count, 100):
        index.apply((firsts(shuffled[start : start + 100]), np.tile([0.6, 0.8], (100, 1))))
    _, names = index.search([[1.0, 0.0]], 5)[0]
    assert names.tolist() == firsts(range(view.TIES + 5)).tolist()


def test_a_filtered_search_finds_all_the_allowed_living_rows_and_no_other() -> None:
    vectors, chance = coarse_vectors(4000, 12, seed=3), np.random.default_rng(4)
    index = Index.load(12, [(firsts(range(2500)), vectors[:2500])])
    index.apply((firsts(range(2500, 4000)), vectors[2500:]), remove=range(0, 4000, 3))
    living: Rows = {revision: vectors[revision] for revision in range(4000) if revision % 3}
    for matching in (0, 1, 3, 40, 2000, 4000):
        allowed = [*chance.choice(4000, matching, replace=False).tolist(), 77_777]
        rows = {revision: living[revision] for revision in allowed if revision in living}
        for query in coarse_vectors(5, 12, seed=matching):
            assert found(index, query, 10, allowed) == nearest(rows, query, 10)


def test_a_view_in_hand_sees_no_row_that_was_written_or_removed_since() -> None:
    vectors, index = coarse_vectors(300, 12, seed=7), Index(12)
    index.apply((firsts(range(1, 200, 2)), vectors[1:200:2]))
    index.apply((firsts([500]), vectors[:1]))  # The buffer has spare room.
    view, before = index.view, index.search(vectors[:5], 300)
    for revision in (502, 504, *range(0, 200, 2)):  # appended, then inserted, then in a copied buffer
        index.apply((firsts([revision]), vectors[:1]), remove=[revision + 1])
        for (scores, names), (again, same) in zip(
            before, index.search(vectors[:5], 300, view=view), strict=True
        ):
            np.testing.assert_array_equal(scores, again)
            np.testing.assert_array_equal(names, same)
    assert view.rows == 101


def test_rows_are_appended_to_the_memory_of_those_before_them_while_there_is_room() -> None:
    vectors, index = coarse_vectors(100, 4, seed=8), Index(4)
    index.apply((firsts(range(50)), vectors[:50]))
    memories = set()
    for revision in range(50, 100):
        index.apply((firsts([revision]), vectors[revision : revision + 1]))
        memories.add(index.view.tail.segment.vectors.ctypes.data)
    assert len(memories) <= 4
    assert index.nbytes <= 1.25 * 100 * (4 * 4 + 8) + 13


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_refused_and_its_step_leaves_no_trace(bad: float) -> None:
    index = Index(2)
    index.apply((firsts([1]), [[1, 0]]))
    with pytest.raises(ValueError, match="position 1 has a number that is not finite"):
        index.apply((firsts([2, 3]), [[1.0, 0.0], [bad, 0.0]]), remove=[1])
    with pytest.raises(ValueError, match="query at position 0"):
        index.search([[bad, 0.0]], 1)
    assert revisions(index) == [1]


def test_what_does_not_fit_is_refused_in_words() -> None:
    index = Index(3)
    with pytest.raises(ValueError, match=r"shape \(n, 3\), got \(1, 2\)"):
        index.apply((firsts([1]), [[1, 0]]))
    with pytest.raises(ValueError, match=r"shape \(n, 3\), got \(3,\)"):
        index.search([1, 0, 0], 1)
    with pytest.raises(ValueError, match="2 vectors came with names of shape"):
        index.apply((firsts([1]), np.eye(3)[:2]))


def test_the_caller_may_reuse_its_arrays_after_a_change() -> None:
    index, vectors = Index(2), np.array([[1, 0]], np.float32)
    index.apply((firsts([1]), vectors))
    vectors[:] = 0
    assert stored_vectors(index, firsts([1])).tolist() == [[1, 0]]


@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_a_loaded_index_equals_one_that_grew(order: str) -> None:
    vectors = unit_vectors(500, 8)
    order_of_rows = np.arange(500) if order == "sorted" else np.random.default_rng(0).permutation(500)
    names = firsts(order_of_rows)
    loaded = Index.load(8, [(names[:300], vectors[:300]), (names[300:], vectors[300:])])
    np.testing.assert_array_equal(stored_vectors(loaded, names), vectors)
    assert revisions(loaded) == list(range(500))
    assert Index.load(8, []).documents == 0


class Passages(RuleBasedStateMachine):
    """Adds, replaces and removes documents of one to `MAX_ROWS` rows. Answers must equal a dictionary's."""

    MAX_ROWS = 6

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
            build_row_name(revision, at)
            for revision in fresh
            for at in range(chance.integers(1, 1 + min(most, self.MAX_ROWS)))
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

    MAX_ROWS = 1


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
    crowd = [build_row_name(7, passage) for passage in range(5000)]
    angles = np.linspace(0, 0.5, 5000)
    index.apply((crowd, np.stack([np.cos(angles), np.sin(angles)], axis=1)))
    index.apply((firsts([3, 9, 1]), [[0.5, 0.0], [0.25, 0.0], [0.125, 0.0]]))
    [(scores, names)] = index.search([[1.0, 0.0]], 3)
    assert names.tolist() == [build_row_name(7), build_row_name(3), build_row_name(9)]
    assert scores.tolist() == [1.0, 0.5, 0.25]
    [(_, names)] = index.search([[1.0, 0.0]], 10)
    assert names.tolist() == [build_row_name(7), build_row_name(3), build_row_name(9), build_row_name(1)]


@pytest.mark.parametrize("twins", [2, view.SPARE, view.SPARE + 1, 300])
def test_every_document_that_ties_with_the_last_is_there_once_by_its_first_best_row(twins: int) -> None:
    index = Index(2)
    index.apply((firsts([1]), [[1.0, 0.0]]))
    for revision in range(100, 100 + twins):
        vectors = np.array([[0, 1], [0.6, 0.8], [0.6, 0.8], [0, 1]])
        index.apply(([build_row_name(revision, at) for at in range(4)], vectors))
    [(scores, names)] = index.search([[1.0, 0.0]], 2)
    assert names.tolist() == [
        build_row_name(1),
        *(build_row_name(revision, 1) for revision in range(100, 100 + twins)),
    ]
    assert set(scores[1:].tolist()) == {np.float32(0.6)}
