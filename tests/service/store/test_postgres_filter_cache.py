"""The filter cache of the PostgreSQL store always knows what the database says."""

import random
from functools import partial

import pytest

from service.store.filters.grammar import Predicate
from service.store.values import Document, Revisions

pytest.importorskip("psycopg", reason="needs the extra postgres")

from service.store.postgres import vectors, writes
from service.store.postgres.filter_cache import FilterCache
from service.store.postgres.reader import Snapshot
from tests.parts.stores import Place

FILTERS = [None, Predicate("metadata->>'n' = ?", ["1"])]


def test_a_cached_list_follows_every_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes change texts, metadata alone, or nothing, in this or in another collection."""
    monkeypatch.setattr(writes, "COUNTS", 5)
    place, replicas = Place(), [FilterCache(), FilterCache()]
    random.seed(4)

    def look(snapshot: Snapshot) -> int:
        """Compares a cached list with the database. Returns the length of the list."""
        snapshot.filters = random.choice(replicas)
        where = random.choice(FILTERS)
        found = snapshot.list_matching(where, "default")
        assert found.tolist() == vectors.list_matching(snapshot, where, "default").tolist()
        return len(found)

    try:
        for _ in range(60):
            step, id = random.random(), str(random.randrange(8))
            if step < 0.2:
                place.write(partial(writes.delete_one, id=id, collection="default"))
            elif step < 0.4:
                place.write(writes.fold)
            else:
                text = random.choice(["", "red river"])
                place.put(Document(id, text, metadata_json=f'{{"n": "{random.randrange(3)}"}}'))
            for _ in range(random.randrange(4)):
                place.read(look)
        assert place.read(look) > 0
    finally:
        place.store.close()


def test_a_list_is_read_once_while_no_document_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    place, cache = Place(), FilterCache()
    listed: list[Predicate | None] = []
    original = vectors.list_matching

    def list_matching(connection: Snapshot, where: Predicate | None, collection: str) -> Revisions:
        listed.append(where)
        return original(connection, where, collection)

    monkeypatch.setattr("service.store.postgres.filter_cache.list_matching", list_matching)

    def look(snapshot: Snapshot) -> list[int]:
        snapshot.filters = cache
        found = snapshot.list_matching(None, "default")
        assert not found.flags.writeable
        return [*found.tolist()]

    try:
        place.put(Document("a", "red river"))
        assert place.read(look) == place.read(look)
        assert len(listed) == 1
        monkeypatch.setattr("service.store.postgres.filter_cache.MAX_BYTES", 0)
        cache = FilterCache()
        place.read(look)
        place.put(Document("b", "red river"))
        place.read(look)
        assert cache._results.nbytes == 0
    finally:
        place.store.close()
