"""Stores of commit 78ba641 (schema 12) and of later schemas are opened, and everything is found in them."""

import sqlite3
import zlib
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.engines.form import FP32
from models.store import ModelStore
from service.app import create_app
from service.errors import StartupError
from service.store.sqlite.schema import MIGRATIONS, SCHEMA_VERSION, _entries, migrate
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.swapping import TEXTS

DIGEST = "3a15dddb4a2e4258d41e4e5b572b69978f4d4a9922a0b391a5ba833adfd9d4f8"  # of schema 12
DOCUMENTS = {f"d{at}": TEXTS[at] for at in range(30)}
ROWS = """
    INSERT INTO verdicts VALUES ('20260101T000000-x-00000000', 'failed', 'it was slow');
    INSERT INTO feedback (collection, query, id, key, relevant) VALUES ('default', 'a river', 'd3', '', 1);
    INSERT INTO events (collection, key, event_id, search_id, query, id, type, shown, at)
        VALUES ('default', '', 'e', 's', 'a river', 'd3', 'click', '[]', 4e9);
"""


def old_store(path: Path, models_dir: Path, schema: int) -> list[bytes]:
    """Writes a store of `schema` as the service of that time left it. Returns the bytes of its vectors."""
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
    connection.executescript(MIGRATIONS[12] + ROWS)
    row = (version, manifest.fingerprint, str(FP32), dimension)
    connection.execute("INSERT INTO generations VALUES (1, ?, ?, ?, ?, 'active')", row)
    connection.execute("INSERT INTO history (version) VALUES (?)", (version,))
    blobs = [np.ascontiguousarray(vector, dtype="<f4").tobytes() for vector in vectors]
    for at, (id, text) in enumerate(DOCUMENTS.items()):
        revision = 2 * at + 1  # Gaps are revisions that were replaced.
        metadata = f'{{"n":{at}}}'
        connection.execute(
            "INSERT INTO documents VALUES (?, 'default', ?, ?, ?, '')", (revision, id, text, metadata)
        )
        blob = blobs[at]
        values = (revision, blob, zlib.crc32(blob))
        connection.execute("INSERT INTO vectors VALUES (1, ?, 0, ?, ?, 0, 0, NULL)", values)
        connection.execute("INSERT INTO operations (kind, revision) VALUES ('put', ?)", (revision,))
    for number in range(13, schema + 1):
        connection.executescript(MIGRATIONS[number])
    connection.execute(f"PRAGMA user_version = {schema}")
    connection.close()
    return blobs


def test_the_first_schema_is_what_commit_78ba641_made() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(MIGRATIONS[12])
        made = sorted(_entries(connection))
    assert sha256(repr(made).encode()).hexdigest() == DIGEST


@pytest.mark.parametrize("schema", [1, 11])
def test_a_store_of_an_early_development_version_is_refused(tmp_path: Path, schema: int) -> None:
    path = tmp_path / "simile.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"PRAGMA user_version = {schema}")
    with pytest.raises(StartupError, match=f"schema {schema}, this one reads 12 and later"):
        migrate(path)


@pytest.mark.parametrize("schema", [*MIGRATIONS])
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
        assert said == [("", True)]
        clicked = [(row["user"], row["trusted"]) for row in client.get("/events").json()["events"]]
        assert clicked == [("", True)]
        assert client.get("/models").json()["active"] == app.state.runtime.active.generation.version
        assert not any("title" in document for document in page)
        new = {"id": "new", "title": "a title", "text": "stone"}
        stored = client.post("/documents", json={"documents": [new]}).json()
        assert stored == {"upserted": 1, "truncated": 0, "unknown": 0, "sequence": 31}
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)
    stored = connection.execute("SELECT vector FROM vectors WHERE revision < 60 ORDER BY revision").fetchall()
    assert [row[0] for row in stored] == blobs, "vectors that were there were made anew"
    history = connection.execute("SELECT version FROM history").fetchall()
    assert history == connection.execute("SELECT version FROM generations").fetchall()
    assert connection.execute("SELECT count(*) FROM verdicts").fetchone() == (1,)
    connection.close()
