"""The bench of hybrid search compares hits with a slow reference, and finds differences."""

import numpy as np
import pytest

from benchmarks.hybrid import ROUNDING, OneByOne, is_equal
from models.search.fusion import Fusion, Scores


def draw(rng: np.random.Generator, count: int, *, best: float) -> Scores:
    """Returns a ranking with ties, best first."""
    scores = (np.sort(rng.integers(1, 20, count))[::-1] / 20 * best).astype(np.float32)
    return Scores(rng.choice(60, count, replace=False).astype(np.int64), scores.astype(np.float64))


@pytest.mark.parametrize("seed", range(30))
def test_rankings_are_fused_as_document_by_document(seed: int) -> None:
    rng = np.random.default_rng(seed)
    dense, lexical = (
        draw(rng, int(rng.integers(0, 40)) * (seed != empty), best=best)
        for empty, best in ((1, 0.9), (2, 12.0))
    )
    weight, unrelated, cover = rng.random(), rng.choice([0.07, 0.8, 1.0]), rng.choice([0.2, 1.0])
    found, expected = (kind(dense, lexical, weight, unrelated, cover) for kind in (Fusion, OneByOne))
    assert found.revisions.tolist() == expected.revisions.tolist()
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert found.in_lexical.tolist() == expected.in_lexical.tolist()
    bm25 = dict(zip(lexical.revisions.tolist(), lexical.scores.tolist(), strict=True))
    for revision, score in zip(found.revisions.tolist(), found.scores.tolist(), strict=True):
        parts = Fusion(dense, lexical, weight, unrelated, cover).explain(revision)
        assert sum(part.share for part in parts.values()) == pytest.approx(score, rel=1e-6)
        assert parts["lexical"].score == bm25.get(revision)
        if revision in bm25:
            assert parts["lexical"].place == 1 + sum(other > bm25[revision] for other in bm25.values())


def test_pages_are_equal_apart_from_rounding_and_ties_at_their_end() -> None:
    page = {"a": 0.9, "b": 0.8, "c": 0.5}
    assert is_equal(page, {"a": 0.9 * (1 + ROUNDING / 2), "b": 0.8, "d": 0.5})
    assert not is_equal(page, {"a": 0.9, "d": 0.8, "c": 0.5})
    assert not is_equal(page, {"a": 0.91, "b": 0.8, "c": 0.5})
    assert not is_equal(page, {"a": 0.9, "b": 0.8})
