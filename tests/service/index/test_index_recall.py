"""Recall: its definition, when it is measured, and where it is shown."""

from pathlib import Path

import numpy as np
import pytest

from service.index import ivf, maintenance
from service.index.index import Index
from service.store.values import get_revisions
from tests.parts.places import Place
from tests.service.brute_force import firsts, settle, unit_vectors
from tests.service.swapping import TEXTS, published

ROWS, DIMENSION = 3000, 24


@pytest.fixture
def careless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes indexes of 1,000 rows build a base. Searches then read very few of its rows and miss some."""
    monkeypatch.setattr(maintenance, "BASE_ROWS", 1000)
    monkeypatch.setattr(ivf, "EXACT_ROWS", 0)
    monkeypatch.setattr(ivf, "LOOKED_AT", 0.5)
    monkeypatch.setattr(ivf, "PER_HIT", 1)
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.0)


def based() -> Index:
    index = Index.load(DIMENSION, [(firsts(range(ROWS)), unit_vectors(ROWS, DIMENSION))])
    settle(index)
    assert index.kind == "IVF,SQ8"
    return index


@pytest.mark.usefixtures("careless")
@pytest.mark.parametrize("k", [1, 10, 40])
def test_recall_is_the_share_of_the_true_nearest_that_a_search_finds(k: int) -> None:
    index, queries = based(), unit_vectors(50, DIMENSION, seed=1)
    halves = unit_vectors(ROWS, DIMENSION).astype(np.float16).astype(np.float64)
    best = np.argsort(-(queries @ halves.T), axis=1)[:, :k]
    found = [get_revisions(names)[:k] for _, names in index.search(queries, k)]
    shares = [np.isin(true, near).mean() for true, near in zip(best, found, strict=True)]
    assert 0.05 < np.mean(shares) < 0.95
    assert maintenance.recall(index.view, queries, k) == pytest.approx(np.mean(shares), abs=1e-9)
    index.close()


def test_an_exact_search_finds_all_twins_included_and_measures_nothing() -> None:
    index = Index(DIMENSION)
    assert maintenance.recall(index.view, unit_vectors(3, DIMENSION)) == 1.0
    index.apply((firsts(range(60)), np.repeat(unit_vectors(2, DIMENSION), 30, axis=0)))
    assert maintenance.recall(index.view, unit_vectors(3, DIMENSION)) == 1.0
    index = Index(DIMENSION)
    index.apply((firsts(range(60)), unit_vectors(60, DIMENSION)))
    index.search(unit_vectors(200, DIMENSION), 3)
    assert index._merger.wait(0)
    assert index.measured is None


@pytest.mark.usefixtures("careless")
def test_the_latest_searches_are_measured_once_there_are_enough_and_anew_after_a_new_base(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index, queries = based(), unit_vectors(600, DIMENSION, seed=1)
    for query in queries[: maintenance.MIN_QUERIES - 1]:
        index.search(query[None], 3)
    settle(index)
    assert index.measured is None
    index.search(queries[maintenance.MIN_QUERIES - 1 : maintenance.MIN_QUERIES], 3)
    settle(index)
    first = index.measured
    assert first is not None
    assert first.recall == pytest.approx(maintenance.recall(index.view, queries[: maintenance.MIN_QUERIES]))
    assert first.queries == maintenance.MIN_QUERIES
    index.search(queries, 3)
    settle(index)
    assert index.measured is first, "an hour has not passed"
    monkeypatch.setattr(ivf, "LOOKED_AT", 100)
    more = unit_vectors(400, DIMENSION, seed=2)
    index.apply((firsts(range(ROWS, ROWS + 400)), more))
    settle(index)
    assert len(index.view.parts) == 1
    assert index.measured == maintenance.Measured(1.0, maintenance.MAX_QUERIES)
    index.close()


@pytest.mark.usefixtures("careless")
def test_a_measurement_makes_way_for_a_merge_and_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    index = based()
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.2)
    index.search(unit_vectors(100, DIMENSION), 3)
    assert not index._merger.wait(0)
    index.apply((firsts(range(ROWS, ROWS + 400)), unit_vectors(400, DIMENSION, seed=2)))
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.0)
    settle(index)
    assert len(index.view.parts) == 1
    assert index.measured is not None
    index.close()


@pytest.mark.usefixtures("careless")
def test_a_measurement_ends_when_the_index_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    index = based()
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 1000.0)
    index.search(unit_vectors(100, DIMENSION), 3)
    assert not index._merger.wait(0)
    index.close()
    assert index.measured is None


def test_info_and_metrics_tell_the_recall_of_what_was_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "BASE_ROWS", 50)
    monkeypatch.setattr(maintenance, "MIN_QUERIES", 5)
    monkeypatch.setattr(maintenance, "PAUSE_SECONDS", 0.0)
    published(tmp_path / "models", 3)
    place = Place(tmp_path)
    with place.serving() as client:
        place.fill()

        def told() -> tuple[object, ...]:
            index = client.get("/info").json()["index"]
            return index["kind"], index["recall_at_10"], index["recall_queries"]

        def shown() -> str:
            lines = client.get("/metrics").text.splitlines()
            return next(line for line in lines if line.startswith("simile_index_recall_at_10 "))

        place.until(lambda: told() == ("IVF,SQ8", None, None))
        assert shown().endswith("NaN")
        for text in TEXTS[:5]:
            assert client.get("/search", params={"q": text, "mode": "dense"}).status_code == 200
        place.until(lambda: told() == ("IVF,SQ8", 1.0, 5))
        assert shown().endswith(" 1.0")
