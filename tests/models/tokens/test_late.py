"""Late interaction: compressed token vectors, and their features against a slow reference."""

import numpy as np
import pytest

from models.tokens.late import (
    COMPARED,
    DIMENSIONS,
    LATE,
    STRONGEST,
    Tokens,
    compare,
    compress,
    fit_projection,
)

RNG = np.random.default_rng(0)
# A component is rounded to 1/127, so a vector is off by at most sqrt(128) / 254, and a cosine by twice that.
ROUNDED = 2 * np.sqrt(DIMENSIONS) / 254


def tokens(count: int, width: int = 96) -> np.ndarray:
    found = RNG.normal(size=(count, width)).astype(np.float32)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return found


def stored(count: int) -> Tokens:
    return compress(tokens(count, DIMENSIONS), np.eye(DIMENSIONS, dtype=np.float32))


def cosine(one: Tokens, other: Tokens) -> float:
    return float(one.astype(float) @ other.astype(float)) / 127**2


def reference(query: Tokens, documents: list[Tokens]) -> np.ndarray:
    """Compares one pair of tokens after the other, as the definitions say."""
    best = [[max(cosine(one, other) for other in document) for one in query] for document in documents]
    spread = [float(np.std([row[at] for row in best])) for at in range(len(query))]
    rows = []
    for document, row in zip(documents, best, strict=True):
        strongest = sorted((max(cosine(one, other) for one in query) for other in document), reverse=True)
        strongest = strongest[:STRONGEST]
        rare = sum(weight * each for weight, each in zip(spread, row, strict=True)) / (sum(spread) or 1)
        rows.append([sum(row) / len(row), rare, sum(strongest) / len(strongest)])
    return np.array(rows)


@pytest.mark.parametrize(
    ("query", "documents"), [(1, (1,)), (1, (5, 2)), (4, (3, 30, 9)), (12, (1, 1, 1)), (7, (20, 11, 10, 9))]
)
def test_the_features_are_those_of_a_slow_reference(query: int, documents: tuple[int, ...]) -> None:
    wanted, found = stored(query), [stored(count) for count in documents]
    np.testing.assert_allclose(compare(wanted, found), reference(wanted, found), atol=1e-6)


def test_a_document_that_has_every_token_of_the_query_is_the_best_one() -> None:
    query = stored(6)
    features = compare(query, [stored(40), np.concatenate([stored(3), query]), stored(40)])
    assert features.argmax(axis=0).tolist() == [1] * len(LATE)
    assert features[1, 0] == pytest.approx(1, abs=ROUNDED)


def test_documents_without_token_vectors_and_those_after_the_best_have_no_features() -> None:
    documents = [stored(4), None, stored(0), *[stored(3) for _ in range(COMPARED)]]
    missing = np.isnan(compare(stored(2), documents))
    assert (missing.all(axis=1) == missing.any(axis=1)).all()
    assert np.flatnonzero(missing[:, 0]).tolist() == [1, 2, *range(COMPARED, len(documents))]
    assert np.isnan(compare(stored(0), [stored(4)])).all()
    assert compare(stored(2), []).shape == (0, len(LATE))


def test_a_projection_keeps_the_cosines_of_vectors_in_few_dimensions() -> None:
    few = tokens(500, 40) @ np.linalg.qr(RNG.normal(size=(96, 40)))[0].T.astype(np.float32)
    projection = fit_projection(few)
    assert projection.shape == (96, DIMENSIONS)
    found = compress(few, projection)
    assert found.dtype == np.int8
    np.testing.assert_allclose(found @ found.T.astype(float) / 127**2, few @ few.T, atol=ROUNDED)


def test_a_projection_of_a_narrow_model_is_padded() -> None:
    narrow = tokens(50, 32)
    projection = fit_projection(narrow)
    assert projection.shape == (32, DIMENSIONS)
    found = compress(narrow, projection).astype(float)
    assert not found[:, 32:].any()
    np.testing.assert_allclose(found @ found.T / 127**2, narrow @ narrow.T, atol=ROUNDED)
