"""Filtered search, by filtering the nearest documents or by collecting all matches first."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from service.index.index import Index
from service.index.moment import IndexMoment
from service.store.sqlite.filter_cache import FilterCache, FilterMatches
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.schema import connect, migrate
from service.store.values import DEFAULT_COLLECTION, build_row_name
from tests.service.brute_force import best, coarse_vectors, unit_vectors

DOCUMENTS = 2600
QUERIES = unit_vectors(2, 8, 5)


class Place(NamedTuple):
    """Documents numbered by their field `n`. Every third has two rows, and every fifth was deleted."""

    store: sqlite3.Connection
    moment: IndexMoment
    rows: dict[int, NDArray[np.float32]]
    far: set[int]  # living documents with negative cosines to the last query

    def matching(self, filter: dict[str, object]) -> "Counted":
        return Counted(self.store, FilterCache(), compile_filter(filter, ()), DEFAULT_COLLECTION)


class Counted(FilterMatches):
    """Counts how often all matches are collected."""

    found_all = 0

    @property
    def all(self) -> NDArray[np.int64]:
        self.found_all += 1
        return super().all


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    path: Path = tmp_path_factory.mktemp("moment") / "simile.db"
    migrate(path)
    store = connect(path)
    numbers = range(1, DOCUMENTS + 1)
    names = [build_row_name(at, passage) for at in numbers for passage in range(1 + (at % 3 == 0))]
    rows = dict(zip(names, coarse_vectors(len(names), 8, 1), strict=True))
    documents = {
        at: [rows[name] for name in (build_row_name(at), build_row_name(at, 1)) if name in rows]
        for at in numbers
    }
    far = {at: max(row @ QUERIES[-1] for row in documents[at]) < 0 for at in documents}
    store.executemany(
        "INSERT INTO documents (revision, collection, id, text, metadata) VALUES (?, ?, ?, '', ?)",
        [(at, DEFAULT_COLLECTION, f"d{at}", json.dumps({"n": at, "far": bool(far[at])})) for at in documents],
    )
    index = Index(8)
    index.apply((names, np.array([*rows.values()])))
    gone = range(5, DOCUMENTS + 1, 5)
    index.apply(remove=[*gone])
    store.execute("DELETE FROM documents WHERE revision % 5 = 0")
    left = {name: vector for name, vector in rows.items() if (name >> 16) % 5}
    far_ones = {at for at in documents if at % 5 and far[at]}
    yield Place(store, IndexMoment(index, index.view, is_split=True), left, far_ones)
    store.close()


@pytest.mark.parametrize("heads_only", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.parametrize("depth", [1, 60])
@pytest.mark.parametrize(
    ("filter", "passes"),
    [
        ({"n": {"$gte": 1300}}, lambda n: n >= 1300),
        ({"n": {"$lt": 700}}, lambda n: n < 700),
        ({"n": {"$lt": 40}}, lambda n: n < 40),
        ({"n": {"$gt": 10_000}}, lambda n: n > 10_000),
    ],
)
def test_the_hits_are_those_of_brute_force(
    place: Place, filter: dict[str, object], passes: "object", depth: int, heads_only: bool
) -> None:
    allowed = {n for n in range(1, DOCUMENTS + 1) if n % 5 and passes(n)}  # type: ignore[operator]
    rows = {name: vector for name, vector in place.rows.items() if not (heads_only and name & 0xFFFF)}
    answers = place.moment.search(QUERIES, depth, place.matching(filter), heads_only=heads_only)
    for query, (scores, names) in zip(QUERIES, answers, strict=True):
        expected = best(rows, query, depth, allowed)
        np.testing.assert_allclose(scores, [score for score, _ in expected], atol=2e-6)
        assert {int(name) >> 16 for name in names} == {name >> 16 for _, name in expected}


def test_what_half_of_all_pass_is_never_looked_for_as_a_whole(place: Place) -> None:
    matching = place.matching({"n": {"$gte": 1300}})
    assert len(list(place.moment.search(QUERIES, 11, matching, heads_only=False))) == len(QUERIES)
    assert matching.found_all == 0


def test_a_query_that_is_far_from_what_passes_is_answered_from_all_of_it(place: Place) -> None:
    matching = place.matching({"far": True})
    answers = list(place.moment.search(QUERIES, 11, matching, heads_only=False))
    assert matching.found_all == 1
    expected = best(place.rows, QUERIES[-1], 11, place.far)
    np.testing.assert_allclose(answers[-1][0], [score for score, _ in expected], atol=2e-6)
