"""A base of inverted lists: rows and scores compared with numpy, filters, and training."""

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from service.index import ivf, kmeans, maintenance
from service.index.index import Index
from service.index.kmeans import cluster
from service.index.segments import Selection
from service.store.values import build_row_name, get_revisions
from tests.service.brute_force import firsts, settle, stored_vectors, unit_vectors
from tests.waiting import LIMIT

ROWS, DIMENSION, K = 12_000, 32, 10
HALF_ERROR = 2.0**-11  # bound of float16's relative error, and of the error of a cosine


def mixture(rows: int, seed: int) -> NDArray[np.float32]:
    """Returns unit vectors around 150 directions, ordered by direction."""
    chance = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((150, DIMENSION))
    near = centers[np.arange(rows) * 150 // rows] + 0.6 * chance.standard_normal((rows, DIMENSION))
    unit: NDArray[np.float32] = (near / np.linalg.norm(near, axis=1, keepdims=True)).astype(np.float32)
    return unit


class Made:
    """An index with newer rows, and with a base that has dead rows. `vectors` and `alive` are the truth."""

    def __init__(self) -> None:
        self.vectors = mixture(ROWS, seed=0)
        self.alive = np.ones(ROWS, bool)
        self.queries = mixture(60, seed=1)
        old = np.random.default_rng(2).permutation(ROWS)
        self.index = Index.load(DIMENSION, [(firsts(old[:-500]), self.vectors[old[:-500]])])
        settle(self.index)
        gone = old[:1500]
        self.alive[gone] = False
        self.index.apply((firsts(old[-500:]), self.vectors[old[-500:]]), remove=gone)
        settle(self.index)

    def truth(self, allowed: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Returns cosines with the stored float16, shape (queries, rows); -inf for dead or excluded rows."""
        cosines = self.queries.astype(np.float64) @ self.vectors.astype(np.float16).astype(np.float64).T
        return np.where(self.alive & allowed, cosines, -np.inf)

    def recall(self, allowed: NDArray[np.bool_] | None, k: int = K) -> float:
        """Returns the recall of the best `k`. Checks scores and that no row is dead, excluded or repeated."""
        truth = self.truth(np.ones(ROWS, bool) if allowed is None else allowed)
        found = self.index.search(self.queries, k, None if allowed is None else np.flatnonzero(allowed))
        shares = []
        for query, cosines, (scores, names) in zip(self.queries, truth, found, strict=True):
            revisions = get_revisions(names)
            assert len(set(revisions.tolist())) == len(revisions)
            np.testing.assert_allclose(scores, cosines[revisions], atol=1.1e-6)
            np.testing.assert_allclose(scores, self.vectors[revisions] @ query, atol=HALF_ERROR)
            assert (np.diff(scores) <= 0).all()
            best = np.argsort(-cosines)[: min(k, np.isfinite(cosines).sum())]
            assert len(revisions) >= len(best)
            shares.append(np.isin(best, revisions).mean())
        return float(np.mean(shares))


@pytest.fixture(scope="module")
def made() -> Iterator[Made]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "BASE_ROWS", 5000)
        patch.setattr(ivf, "EXACT_ROWS", 100)
        made = Made()
        assert (made.index.kind, len(made.index.view.parts)) == ("IVF,SQ8", 2)
        yield made
        made.index.close()


def test_an_unfiltered_search_finds_nearly_all_and_scores_them_by_their_own_vectors(made: Made) -> None:
    assert made.recall(None) >= 0.98
    assert made.recall(None, k=500) >= 0.98


@pytest.mark.parametrize("matching", [0.0001, 0.001, 0.01, 0.09])
def test_a_narrow_filter_gives_exactly_the_best_rows_that_pass(matching: float, made: Made) -> None:
    allowed = np.random.default_rng(3).random(ROWS) < matching
    assert made.recall(allowed) == 1.0


@pytest.mark.parametrize("matching", [0.12, 0.5, 0.99])
def test_a_wide_filter_gives_nearly_all_of_the_best_rows_that_pass(matching: float, made: Made) -> None:
    allowed = np.random.default_rng(4).random(ROWS) < matching
    assert made.recall(allowed) >= 0.98


def test_a_filter_that_passes_only_what_lies_far_from_the_query_is_searched_where_that_lies(
    made: Made,
) -> None:
    """Queries and rows have the same order of directions, so the first queries are far from all matches."""
    allowed = np.arange(ROWS) >= ROWS // 2
    assert made.recall(allowed) >= 0.98


def test_a_search_through_lists_looks_at_a_part_of_the_rows_only(made: Made) -> None:
    [base] = [part.segment for part in made.index.view.parts if isinstance(part.segment, ivf.Clustered)]
    [probes] = base._probes(made.queries[:1], K, Selection(None, len(base.names)))
    assert base._lists.nlist == 256  # the power of two nearest to 2 * sqrt(11,500)
    assert probes == int(np.ceil(256 * 4 * 11_500**0.75 / 11_500))
    half = np.packbits(np.arange(len(base.names)) % 2 == 0, bitorder="little")
    [more] = base._probes(made.queries[:1], K, Selection(half, len(base.names) // 2))
    assert 1.8 * probes < more < 256


def test_fewer_candidates_than_asked_for_lead_to_a_look_at_every_row(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ivf, "LOOKED_AT", 0.001)
    monkeypatch.setattr(ivf, "PER_HIT", 0.01)
    assert made.recall(np.random.default_rng(5).random(ROWS) < 0.5, k=300) == 1.0


def test_equal_vectors_have_equal_scores_in_the_base_and_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 2000)
    vectors, queries = unit_vectors(3000, 24), unit_vectors(20, 24, seed=1)
    index = Index.load(24, [(firsts(range(3000)), vectors)])
    settle(index)
    index.apply((firsts(range(3000, 3100)), vectors[:100]))
    assert len(index.view.parts) == 2
    for k in (1, 5, 400):
        for scores, names in index.search(queries, k):
            of = dict(zip(get_revisions(names).tolist(), scores.tolist(), strict=True))
            for revision in set(of) & {*range(100), *range(3000, 3100)}:
                twin = revision + 3000 if revision < 100 else revision - 3000
                assert of[twin] == of[revision]
    index.close()


def test_every_row_that_ties_with_the_last_place_is_found_in_a_base(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 500)
    monkeypatch.setattr(ivf, "EXACT_ROWS", 0)
    vectors = unit_vectors(1000, 16)
    vectors[300:700:2] = vectors[300]
    index = Index.load(16, [(firsts(range(1000)), vectors)])
    settle(index)
    assert index.kind == "IVF,SQ8"
    [(scores, names)] = index.search(vectors[300:301], 3)
    assert get_revisions(names).tolist() == list(range(300, 700, 2))
    assert len(set(scores.tolist())) == 1
    index.close()


def test_a_steady_stream_of_writes_trains_when_the_rows_have_doubled_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 1000)
    trained: list[int] = []
    train = ivf._train

    def counted(*arguments: object) -> ivf.Training:
        training = train(*arguments)  # type: ignore[arg-type]
        trained.append(training.rows)
        return training

    monkeypatch.setattr(ivf, "_train", counted)
    vectors, index = unit_vectors(5000, 16), Index(16)
    for start in range(0, 5000, 50):
        index.apply((firsts(range(start, start + 50)), vectors[start : start + 50]))
        settle(index)
    assert [rows // 1000 for rows in trained] == [1, 2, 4]
    [base] = [part.segment for part in index.view.parts if isinstance(part.segment, ivf.Clustered)]
    next_to = base._lists.quantizer.search(base.vectors.astype(np.float32), 1)[1][:, 0]
    assert (base.labels == next_to).mean() > 0.99, "rows lie in lists of other centres"
    assert index.rows == 5000
    np.testing.assert_allclose(stored_vectors(index, firsts(range(5000))), vectors, atol=HALF_ERROR)
    index.close()


def test_a_base_that_most_rows_have_left_becomes_exact_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 500)
    vectors = unit_vectors(1000, 16)
    index = Index.load(16, [(firsts(range(1000)), vectors)])
    settle(index)
    assert index.kind == "IVF,SQ8"
    index.apply(remove=range(600))
    settle(index)
    assert (index.kind, len(index.view.parts), index.documents) == ("exact", 1, 400)
    [(_, names)] = index.search(vectors[700:701], 1)
    assert names.tolist() == [build_row_name(700)]
    index.close()


def test_a_base_takes_the_memory_that_its_kind_is_chosen_for(made: Made) -> None:
    [base] = [part for part in made.index.view.parts if part.segment.is_float16]
    # Bytes per row: float16 and 8-bit numbers, name, FAISS's name, list, order of names. Also a bit per row.
    assert base.nbytes == 11_500 * (2 * DIMENSION + DIMENSION + 8 + 8 + 4 + 8) + 11_500 // 8 + 1


def test_closing_ends_a_training_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 500)
    monkeypatch.setattr(kmeans, "STEPS", 10**9)
    index = Index.load(16, [(firsts(range(1000)), unit_vectors(1000, 16))])
    time.sleep(0.2)
    assert not index._merger.wait(0)
    closing = threading.Thread(target=index.close)
    closing.start()
    closing.join(LIMIT)
    assert not closing.is_alive()
    assert (index.kind, index.documents) == ("exact", 1000)


def test_centres_are_those_of_lloyds_steps_in_numpy() -> None:
    sample = mixture(6000, seed=7)[np.random.default_rng(8).permutation(6000)]
    centers = sample[:40].astype(np.float64)
    for _ in range(kmeans.STEPS):
        label = np.argmax(sample @ centers.T, axis=1)
        sums = np.stack([sample[label == at].sum(axis=0, dtype=np.float64) for at in range(40)])
        centers = sums / np.linalg.norm(sums, axis=1, keepdims=True)
    np.testing.assert_allclose(cluster(sample, 40, bool), centers, atol=1e-3)


def test_more_centres_than_distinct_rows_are_still_directions() -> None:
    sample = np.repeat(unit_vectors(3, 8), 20, axis=0)
    sample[:5] = 0
    centers = cluster(sample, 10, bool)
    assert np.isfinite(centers).all()
    lengths = np.linalg.norm(centers, axis=1)
    np.testing.assert_allclose(lengths[lengths > 0], 1, atol=1e-6)
