"""A store of every schema there ever was is opened by today's code, and everything is found in it."""

import sqlite3
import zlib
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.engines.form import FP32
from models.store import ModelStore
from service.app import create_app
from service.store.sqlite.schema import MIGRATIONS, SCHEMA_VERSION
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.swapping import TEXTS

# As the first version made them. Never to be changed.
FIRST = """
CREATE TABLE documents (
    revision INTEGER PRIMARY KEY AUTOINCREMENT, collection TEXT NOT NULL, id TEXT NOT NULL,
    text TEXT NOT NULL, metadata TEXT NOT NULL, UNIQUE (collection, id)
);
CREATE TABLE vectors (
    generation INTEGER NOT NULL, revision INTEGER NOT NULL, vector BLOB NOT NULL, checksum INTEGER NOT NULL,
    truncated INTEGER NOT NULL, PRIMARY KEY (generation, revision)
) WITHOUT ROWID;
CREATE TABLE operations (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL CHECK (kind IN ('put', 'delete')),
    revision INTEGER NOT NULL
);
CREATE TABLE generations (
    number INTEGER PRIMARY KEY AUTOINCREMENT, version TEXT NOT NULL, fingerprint TEXT NOT NULL,
    form TEXT NOT NULL, dimension INTEGER NOT NULL, state TEXT NOT NULL
);
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
DOCUMENTS = {f"d{at}": TEXTS[at] for at in range(30)}
# Rows of tables that a schema added.
ADDED = {
    2: "INSERT INTO verdicts VALUES ('20260101T000000-x-00000000', 'failed', 'it was slow');",
    3: "INSERT INTO feedback (collection, query, id, relevant) VALUES ('default', 'a river', 'd3', 1);",
    10: "INSERT INTO events (collection, key, event_id, search_id, query, id, type, shown, at) "
    "VALUES ('default', '', 'e', 's', 'a river', 'd3', 'click', '[]', 4e9);",
}


def old_store(path: Path, models_dir: Path, schema: int) -> list[bytes]:
    """A store of `schema`, as its version would have left it; its vectors."""
    store = ModelStore(models_dir)
    version = store.requested()
    assert version is not None
    encoder = store.open(version)
    vectors = encoder.encode(list(DOCUMENTS.values())).vectors
    manifest, dimension = encoder.manifest, encoder.dimension
    encoder.close()
    path.parent.mkdir()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA page_size = 16384")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(FIRST)
    row = (version, manifest.fingerprint, str(FP32), dimension)
    connection.execute("INSERT INTO generations VALUES (1, ?, ?, ?, ?, 'active')", row)
    blobs = [np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in vectors]
    for at, (id, text) in enumerate(DOCUMENTS.items()):
        revision = 2 * at + 1  # some were replaced since
        metadata = f'{{"n":{at}}}'
        connection.execute(
            "INSERT INTO documents VALUES (?, 'default', ?, ?, ?)", (revision, id, text, metadata)
        )
        blob = blobs[at]
        connection.execute("INSERT INTO vectors VALUES (1, ?, ?, ?, 0)", (revision, blob, zlib.crc32(blob)))
        connection.execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
    for number in range(1, schema):
        connection.executescript(MIGRATIONS[number])
        connection.executescript(ADDED.get(number + 1, ""))
    connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    return blobs


def test_the_first_schema_is_what_it_was() -> None:
    def tables(script: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(":memory:")
        connection.executescript(script)
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = [(name, *row) for name in names for row in connection.execute(f"PRAGMA table_info({name})")]
        connection.close()
        return found

    assert tables(FIRST) == tables(MIGRATIONS[0])


@pytest.mark.parametrize("schema", range(1, SCHEMA_VERSION + 1))
def test_a_store_of_each_schema_is_found_again(tmp_path: Path, tiny_models_dir: Path, schema: int) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    path = settings.data_dir / "simile.db"
    blobs = old_store(path, settings.models_dir, schema)
    app = create_app(settings)
    with TestClient(app) as client:
        wait_until_ready(client)
        page = client.get("/documents", params={"limit": 1000}).json()["documents"]
        assert {document["id"]: document["text"] for document in page} == DOCUMENTS
        assert all(document["metadata"] == {"n": int(document["id"][1:])} for document in page)
        encoder = app.state.runtime.active.generation.encoder
        query = encoder.encode(["a red river"]).vectors[0]
        scores = np.array([np.frombuffer(blob, "<f4") @ query for blob in blobs])
        best = sorted(zip(-scores.round(5), DOCUMENTS, strict=True))[:5]
        requested = {"q": "a red river", "k": "5", "mode": "dense", "filter": '{"n": {"$gte": 0}}'}
        hits = client.get("/search", params=requested).json()["hits"]
        assert [hit["id"] for hit in hits] == [id for _, id in best]
        np.testing.assert_allclose([hit["score"] for hit in hits], [-score for score, _ in best], atol=1e-5)
        requested = {"q": DOCUMENTS["d3"], "mode": "lexical", "k": "30"}
        assert "d3" in {hit["id"] for hit in client.get("/search", params=requested).json()["hits"]}
        said = [(row["user"], row["trusted"]) for row in client.get("/feedback").json()["feedback"]]
        assert said == [("", True)] * (1 if schema >= 3 else 0)
        clicked = [(row["user"], row["trusted"]) for row in client.get("/events").json()["events"]]
        assert clicked == [("", True)] * (1 if schema >= 10 else 0)
        assert client.get("/models").json()["active"] == app.state.runtime.active.generation.version
        assert not any("title" in document for document in page)
        new = {"id": "new", "title": "a title", "text": "stone"}
        stored = client.post("/documents", json={"documents": [new]}).json()
        assert stored == {"upserted": 1, "truncated": 0, "sequence": 31}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    stored = connection.execute("SELECT vector FROM vectors WHERE revision < 60 ORDER BY revision").fetchall()
    assert [row[0] for row in stored] == blobs, "vectors that were there were made anew"
    history = connection.execute("SELECT version FROM history").fetchall()
    assert history == connection.execute("SELECT version FROM generations").fetchall()
    if schema >= 2:
        assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (1,)
    connection.close()
