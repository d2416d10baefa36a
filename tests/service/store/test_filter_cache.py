"""Cached results of filters follow every write, so they always equal the matching documents."""

import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

from service.store.filters.grammar import Predicate
from service.store.sqlite import filter_cache, state_cache
from service.store.sqlite.filter_cache import FilterCache
from service.store.sqlite.filters import compile_filter, matching
from service.store.values import DEFAULT_COLLECTION, Document, Revisions, encode_json
from tests.parts import sqlite_store

DECLARED = ["third"]
FILTERS: list[dict[str, Any]] = [
    {"third": 0},
    {"third": {"$ne": 1}},
    {"odd": True},
    {"odd": False, "third": {"$gte": 1}},
    {},
    {"third": 7},
]


class Store(sqlite_store.Store):
    def put(self, *ids: int, collection: str = DEFAULT_COLLECTION, change: int = 0) -> None:
        documents = [
            Document(
                str(id), "a", encode_json({"third": (id + change) % 3, "odd": id % 2 == 1, "change": change})
            )
            for id in ids
        ]
        self.write(documents, collection)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "simile.db", DECLARED)
    yield store
    store.close()


@pytest.fixture(autouse=True)
def _all_are_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_cache, "SLOW_SECONDS", 0.0)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the collection of each filter whose result is not in the cache."""
    made: list[str] = []

    def counted(connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
        made.append(collection)
        return matching(connection, where, collection)

    monkeypatch.setattr(filter_cache, "matching", counted)
    return made


def where_of(filter: dict[str, Any]) -> Predicate:
    return compile_filter(filter, DECLARED)


def check(kept: FilterCache, reader: sqlite3.Connection, filters: Sequence[dict[str, Any]] = FILTERS) -> None:
    """Checks that cached results equal a scan in the reader's transaction."""
    for filter in filters:
        where = where_of(filter)
        sql = f"SELECT revision FROM documents WHERE collection = ? AND ({where.sql}) ORDER BY revision"
        truth = [row[0] for row in reader.execute(sql, [DEFAULT_COLLECTION, *where.parameters])]
        assert kept.of(reader, where, DEFAULT_COLLECTION).tolist() == truth, filter


@pytest.mark.parametrize("seed", range(4))
def test_over_random_writes_every_reader_gets_what_passes_at_its_own_moment(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(filter_cache, "STEP", 4)
    monkeypatch.setattr(state_cache, "FAR", 30)
    rng, kept = random.Random(seed), FilterCache()
    store.put(*range(30))
    readers = [store.now()]
    for step in range(60):
        some = rng.sample(range(40), rng.choice([1, 1, 3, 9]))
        if rng.random() < 0.6:
            store.put(*some, change=step)
        elif rng.random() < 0.8:
            store.remove(
                Predicate(
                    "id IN (SELECT value FROM json_each(?))",
                    [orjson.dumps([str(id) for id in some]).decode()],
                )
            )
        else:
            store.put(*some, collection="other")
        readers.append(store.now())
        for reader in rng.sample(readers[-4:], min(2, len(readers))):
            check(kept, reader, rng.sample(FILTERS, 3))


def test_a_filter_is_searched_for_once_and_brought_forward_over_writes_without_end(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_cache, "STEP", 4)
    monkeypatch.setattr(state_cache, "FAR", 15)
    kept = FilterCache()
    store.put(*range(90))
    for step in range(20):
        check(kept, store.now(), FILTERS[:2])
        store.put(step, step + 60, change=step)
        store.remove(Predicate("id = ?", [str(step + 30)]))
        store.put(step, collection="other")
    assert len(searches) == 2


def test_what_nothing_has_touched_is_the_same_array_and_nobody_can_change_it(store: Store) -> None:
    kept, where = FilterCache(), where_of({"third": 0})
    store.put(*range(9))
    first = kept.of(store.now(), where, DEFAULT_COLLECTION)
    store.put(1, 4, change=3)
    assert kept.of(store.now(), where, DEFAULT_COLLECTION) is first
    with pytest.raises(ValueError, match="read-only"):
        first[0] = 7


def test_an_older_moment_is_still_served_when_a_newer_one_was_kept(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_cache, "STEP", 2)
    kept = FilterCache()
    store.put(*range(9))
    check(kept, store.now(), FILTERS[:1])
    store.put(0, change=1)
    old = store.now()
    store.put(3, 6, change=1)
    check(kept, store.now(), FILTERS[:1])
    check(kept, old, FILTERS[:1])
    assert len(searches) == 1


def test_what_an_older_reader_found_does_not_take_the_place_of_what_is_newer(store: Store) -> None:
    kept, where = FilterCache(), where_of({"third": 0})
    store.put(*range(9))
    old = store.now()
    store.put(0, change=1)
    first = kept.of(store.now(), where, DEFAULT_COLLECTION)
    check(kept, old, FILTERS[:1])
    assert kept.of(store.now(), where, DEFAULT_COLLECTION) is first


@pytest.mark.parametrize("how", ["too far behind", "the log is cut", "from a later moment"])
def test_what_cannot_be_brought_to_a_moment_is_searched_for_anew(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    kept = FilterCache()
    store.put(*range(9))
    old = store.now()
    if how == "from a later moment":
        store.put(0, change=1)
    check(kept, store.now(), FILTERS[:1])
    store.put(0, 1, 2, change=1)
    if how == "too far behind":
        monkeypatch.setattr(state_cache, "FAR", 5)
    if how == "the log is cut":
        store.connection.execute("DELETE FROM operations WHERE sequence < 11")
    check(kept, old if how == "from a later moment" else store.now(), FILTERS[:1])
    assert len(searches) == 2


def test_what_was_found_quickly_is_not_kept(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_cache, "SLOW_SECONDS", 60.0)
    kept = FilterCache()
    store.put(*range(9))
    for _ in range(3):
        check(kept, store.now(), FILTERS[:1])
    assert len(searches) == 3


def test_the_same_filter_of_two_collections_or_with_other_values_is_another(store: Store) -> None:
    kept = FilterCache()
    store.put(*range(9))
    store.put(0, collection="other")
    reader = store.now()
    check(kept, reader, [{"third": 0}, {"third": 1}, {"third": 2}])
    assert kept.of(reader, where_of({"third": 0}), "other").tolist() == [10]


def test_no_more_is_kept_than_there_is_room_for_and_what_was_used_last_stays(
    store: Store, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 3 * (filter_cache.STATE_BYTES + 8 * 30)
    monkeypatch.setattr(filter_cache, "MAX_BYTES", room)
    kept = FilterCache()
    store.put(*range(90))
    reader = store.now()
    for value in (0, 1, 2, 0):  # 30 documents each
        check(kept, reader, [{"third": value}])
    assert len(searches) == 3
    check(kept, reader, [{"odd": True}])  # 45
    assert 0 < kept.states.kept.nbytes <= room
    check(kept, reader, [{"third": 0}, {"odd": True}])
    assert len(searches) == 4
    check(kept, reader, [{"third": 1}])
    assert len(searches) == 5
