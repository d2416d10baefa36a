"""Expected answers of an index by brute force, and helpers for tests of indexes."""

from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np
import pytest
from numpy.typing import NDArray

from service.index import maintenance, segments
from service.index.index import Index
from service.store.values import PASSAGE_BITS, RowNames, get_revisions
from tests.waiting import LIMIT

Rows = dict[int, NDArray[np.float32]]


def unit_vectors(rows: int, dimension: int, seed: int = 0) -> NDArray[np.float32]:
    vectors = np.random.default_rng(seed).standard_normal((rows, dimension))
    unit: NDArray[np.float32] = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return unit


def coarse_vectors(rows: int, dimension: int, seed: int) -> NDArray[np.float32]:
    """Returns vectors whose products are exact in float32, so ties are exact. Many are equal."""
    return np.random.default_rng(seed).choice(np.array([-0.25, 0, 0.25], np.float32), (rows, dimension))


def firsts(revisions: Iterable[int]) -> RowNames:
    """Returns the name of each revision's first row, for documents with one passage."""
    return np.array(list(revisions), np.int64) << PASSAGE_BITS


def nearest(rows: Rows, query: NDArray[np.float32], k: int) -> list[tuple[float, int]]:
    """Computes (score, revision) of the best `k` rows, and of all rows that tie with the last one."""
    ranked = sorted((-round(float(vector @ query), 6), revision) for revision, vector in rows.items())
    last = ranked[min(k, len(ranked)) - 1][0] if ranked else 0.0
    return [(-score, revision) for score, revision in ranked if score <= last]


def best(rows: Rows, query: NDArray[np.float32], k: int, allowed: Collection[int]) -> list[tuple[float, int]]:
    """Returns the best row (score, name) of each document: the best `k` of `allowed`, and ties."""
    found: defaultdict[int, list[tuple[float, int]]] = defaultdict(list)
    for name, vector in rows.items():
        if name >> 16 in allowed:
            found[name >> 16].append((-round(float(vector @ query), 6), name))
    ranked = sorted(min(of_one) for of_one in found.values())
    last = ranked[min(k, len(ranked)) - 1][0] if ranked else 0.0
    return [(-score, name) for score, name in ranked if score <= last]


def found(
    index: Index, query: NDArray[np.float32], k: int, allowed: Iterable[int] | None = None
) -> list[tuple[float, int]]:
    among = None if allowed is None else np.array(list(allowed), np.int64)
    scores, names = index.search(query[None], k, among)[0]
    return list(zip(scores.tolist(), get_revisions(names).tolist(), strict=True))


def revisions(index: Index) -> list[int]:
    """Returns the revisions of all documents in `index`, sorted."""
    names = [name for part in index.view.parts for name in part.rows().names.tolist()]
    return sorted({name >> PASSAGE_BITS for name in names})


def stored_vectors(index: Index, names: Iterable[int]) -> NDArray[np.float32]:
    """Returns the vectors of the rows `names` in their order. Raises KeyError for a missing row."""
    found: dict[int, NDArray[np.float32]] = {}
    for part in index.view.parts:
        rows = part.rows()
        found |= dict(zip(rows.names.tolist(), rows.vectors[rows.positions].astype(np.float32), strict=True))
    return np.array([found[int(name)] for name in names], np.float32).reshape(-1, index.dimension)


def settle(index: Index) -> None:
    """Waits until no merge is due."""
    assert index._merger.wait(LIMIT), "merging never ended"


def small_segments(monkeypatch: pytest.MonkeyPatch, base_rows: int = maintenance.BASE_ROWS) -> None:
    """Lowers the limits, so that an index of a few dozen rows merges like one of tens of thousands."""
    monkeypatch.setattr(maintenance, "BASE_ROWS", base_rows)
    monkeypatch.setattr(segments, "CHUNK_ROWS", 5)
