"""The vocabularies in memory follow the writes of a store, also those of other replicas and after folds."""

import random
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.search.spelling import Word
from models.search.terms import stem
from service.store.sqlite import secondary_indexes, vocabulary
from service.store.sqlite.reader import Snapshot
from service.store.sqlite.schema import connect, migrate
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.values import Document, Embedding
from service.store.vocabularies import Vocabularies

WORDS = [f"{a}{b}{c}ellum" for a in "bdfg" for b in "aeou" for c in "klmn"]


def near(snapshot: Any, word: str) -> set[str]:
    """Returns all terms near to a word that documents have."""
    groups = [*snapshot.nearest_terms(Word(0, len(word), word, stem(word)), "default")]
    found = {term for group in groups for term in group.terms}
    return {*snapshot.count_documents(sorted(found), "default")}


@pytest.mark.parametrize("far", [1, 1000])
@pytest.mark.sqlite("it opens SQLite's file")
def test_a_vocabulary_follows_the_operation_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, far: int
) -> None:
    """With `far` 1, all terms are listed again. Otherwise only new documents are read."""
    monkeypatch.setattr(vocabulary, "FAR", far)
    monkeypatch.setattr(vocabulary, "FAR_SHARE", 0)
    listed: list[int] = []
    original = vocabulary._list_all

    def list_all(connection: sqlite3.Connection, number: int) -> list[str]:
        listed.append(number)
        return original(connection, number)

    monkeypatch.setattr(vocabulary, "_list_all", list_all)
    path = tmp_path / "simile.db"
    migrate(path)
    connection = connect(path)
    bring_up_to_date(connection)
    reading = connect(path, Snapshot, read_only=True)
    assert isinstance(reading, Snapshot)
    reading.vocabularies = Vocabularies()
    stored: dict[str, int] = {}
    random.seed(far)
    for word in random.sample(WORDS, 40):
        connection.execute("BEGIN")
        for each in {word, *random.sample(sorted(stored) or [word], 1)}:
            if each in stored and random.random() < 0.5:
                revision = stored.pop(each)
                secondary_indexes.remove(connection, revision)
                connection.execute("DELETE FROM documents WHERE revision = ?", (revision,))
                connection.execute(
                    "INSERT INTO operations (kind, revision) VALUES ('delete', ?)", (revision,)
                )
            elif each not in stored:
                sql = "INSERT INTO documents (collection, id, text, metadata) VALUES ('default', ?, ?, '{}')"
                revision = connection.execute(sql, (each, each)).lastrowid or 0
                secondary_indexes.add(connection, revision)
                connection.execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
                stored[each] = revision
        connection.execute("COMMIT")
        reading.execute("BEGIN")
        assert near(reading, "bbkellum") == {each for each in stored if each[0] == "b" and each[2] == "k"}
        reading.rollback()
    assert (len(listed) == 1) == (far > 1)
    reading.close()
    connection.close()


def test_replicas_follow_writes_and_folds(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg", reason="needs the extra postgres")
    from service.store.postgres import fulltext, writes
    from tests.parts.stores import Place, unit

    monkeypatch.setattr(fulltext, "FOLDED", (0, 10))
    place = Place()
    replicas = [Vocabularies() for _ in range(3)]
    stored: set[str] = set()
    random.seed(3)

    def ask(shared: Vocabularies) -> set[str]:
        def read(snapshot: Any) -> set[str]:
            snapshot.vocabularies = shared
            return near(snapshot, "bbkellum")

        found: set[str] = place.read(read)
        return found

    try:
        for word in random.sample(WORDS, 40):
            step = random.random()
            if step < 0.3 and stored:
                gone = random.choice(sorted(stored))
                stored.remove(gone)
                place.write(partial(writes.delete_one, id=gone, collection="default"))
            if step > 0.7:
                place.write(fulltext.fold)
            rows = {place.active: {0: Embedding(unit(), truncated=False)}}
            place.write(partial(writes.put, documents=[Document(word, word)], embedded=rows))
            stored.add(word)
            for replica in replicas[: random.randrange(4)]:
                assert ask(replica) == {each for each in stored if each[0] == "b" and each[2] == "k"}
        while place.write(fulltext.fold):
            pass
        kept = place.read(lambda it: it.execute("SELECT term FROM vocabulary").fetchall())
        assert sorted(term for (term,) in kept) == sorted(stored), "terms of deleted documents are gone"
        for replica in (*replicas, Vocabularies()):
            assert ask(replica) == {each for each in stored if each[0] == "b" and each[2] == "k"}
    finally:
        place.store.close()
