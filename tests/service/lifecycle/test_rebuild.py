"""The index is derived data: after damage to stored vectors, the next start restores it from the texts."""

import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.app import create_app
from service.index.index import Index
from service.settings import Settings
from service.store.values import DEFAULT_COLLECTION
from tests.parts.faults import before_passes, broken
from tests.service.conftest import new_settings, serving, wait_until_ready
from tests.service.held_builds import hold_builds
from tests.waiting import until

pytestmark = pytest.mark.sqlite("it looks into SQLite's file")

DOCUMENTS = [
    {"id": f"d{at:03}", "text": f"river stone {'engine ' * (at % 5)} letter {at}"} for at in range(200)
]


@pytest.fixture
def filled(tmp_path: Path, tiny_models_dir: Path) -> Settings:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        assert client.post("/documents", json={"documents": DOCUMENTS}).status_code == 200
    return settings


def damage(settings: Settings, sql: str) -> None:
    connection = sqlite3.connect(settings.data_dir / "simile.db")
    connection.execute(sql)
    connection.commit()
    connection.close()


def ranking(client: TestClient) -> list[tuple[str, float]]:
    hits = client.get("/search", params={"q": "river engine", "mode": "dense", "k": 1000}).json()["hits"]
    return [(hit["id"], round(hit["score"], 4)) for hit in hits]


@pytest.mark.parametrize(
    ("what", "sql"),
    [
        ("missing", "DELETE FROM vectors WHERE revision % 3 = 0"),
        ("truncated", "UPDATE vectors SET vector = substr(vector, 1, 40) WHERE revision % 3 = 0"),
        ("flipped", "UPDATE vectors SET vector = zeroblob(length(vector)) WHERE revision % 3 = 0"),
        ("checksum", "UPDATE vectors SET checksum = checksum + 1"),
        ("all missing", "DELETE FROM vectors"),
    ],
)
def test_damaged_vectors_are_embedded_again(filled: Settings, what: str, sql: str) -> None:
    with serving(filled) as client:
        before = ranking(client)
    assert len(before) == 200
    damage(filled, sql)
    with serving(filled) as client:
        assert ranking(client) == before
        assert "simile_index_missing_documents 0.0" in client.get("/metrics").text
    with TestClient(create_app(filled)) as client:  # The repaired vectors are stored.
        wait_until_ready(client)
        assert ranking(client) == before
        tokens = [line for line in client.get("/metrics").text.splitlines() if 'lane="background"' in line]
        assert any(line.startswith("simile_tokens_total") and line.endswith(" 0.0") for line in tokens)


def test_while_it_is_rebuilt_embedding_and_writing_work_and_ready_tells_the_progress(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(filled, "DELETE FROM vectors")
    release = hold_builds(monkeypatch)
    with TestClient(create_app(filled)) as client:
        until(lambda: "0 of 200 documents are in the index" in client.get("/ready").text)
        ready = client.get("/ready")
        assert ready.status_code == 503
        assert ready.headers["retry-after"]
        assert client.get("/search", params={"q": "river"}).status_code == 503
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
        changed = {"documents": [{"id": "d015", "text": "completely new"}]}
        assert client.post("/documents", json=changed).status_code == 200
        assert client.delete("/documents/d016").json()["deleted"] == 1
        release.set()
        wait_until_ready(client)
        stored = dict(ranking(client))
        assert len(stored) == 199
        assert "d016" not in stored, "a delete during the rebuild was undone"
        best = client.get("/search", params={"q": "completely new", "mode": "dense", "k": 1}).json()["hits"][
            0
        ]
        assert (best["id"], best["text"]) == ("d015", "completely new")


def test_a_text_that_the_model_fails_on_is_left_out_and_counted(
    filled: Settings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    damage(filled, "DELETE FROM vectors")
    app = create_app(filled)
    app.state.runtime.open()
    encoder = app.state.runtime.active.generation.encoder
    [poison] = [tuple(tokens.ids) for tokens in encoder.tokenize([str(DOCUMENTS[7]["text"])])]

    def fails_on_one(_: Encoder, ids: list[list[int]]) -> None:
        if any(tuple(row) == poison for row in ids):
            raise RuntimeError("injected")

    before_passes(monkeypatch, fails_on_one)
    with TestClient(app) as client:
        wait_until_ready(client)
        found = [id for id, _ in ranking(client)]
        assert sorted(found) == sorted({str(document["id"]) for document in DOCUMENTS} - {"d007"})
        assert "simile_index_missing_documents 1.0" in client.get("/metrics").text
        assert "simile_documents 200.0" in client.get("/metrics").text
        assert "'d007' is left out" in caplog.text


def test_a_model_that_fails_on_everything_is_waited_for(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    damage(filled, "DELETE FROM vectors WHERE revision % 2 = 0")
    monkeypatch.setattr("service.runtime.index_keeper.RETRY_SECONDS", 0.05)
    app = create_app(filled)
    app.state.runtime.open()
    with TestClient(app) as client:
        with monkeypatch.context() as patch:
            patch.setattr(app.state.runtime.active.generation.encoder, "forward", broken)
            until(lambda: "injected" in client.get("/ready").text, lambda: client.get("/ready").text)
            assert client.get("/ready").status_code == 503
            assert client.get("/search", params={"q": "a"}).status_code == 503
        wait_until_ready(client)
        assert len(ranking(client)) == 200


def test_an_index_that_cannot_follow_a_write_is_loaded_again_from_the_store(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(filled) as client:
        monkeypatch.setattr(Index, "apply", failing(1, Index.apply))
        put_new(client)
        hits = client.get("/search", params={"q": "a harbour in the forest", "mode": "dense", "k": 1}).json()[
            "hits"
        ]
        assert hits[0]["id"] == "new"
        np.testing.assert_allclose(hits[0]["score"], 1.0, atol=1e-5)


def test_sending_a_document_again_mends_its_lost_vector(filled: Settings) -> None:
    app = create_app(filled)
    with TestClient(app) as client:
        wait_until_ready(client)
        damage(filled, "DELETE FROM vectors WHERE revision = 5")
        app.state.runtime.active.generation.indexes.of(DEFAULT_COLLECTION).apply(None, [5])
        text = str(DOCUMENTS[4]["text"])
        assert "d004" not in dict(ranking(client))
        assert (
            client.post("/documents", json={"documents": [{"id": "d004", "text": text}]}).status_code == 200
        )
        assert "d004" in dict(ranking(client))


def test_an_index_that_cannot_even_be_loaded_is_not_searched(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(filled) as client:
        monkeypatch.setattr(Index, "apply", failing(10**6, Index.apply))
        monkeypatch.setattr(Index, "load", failing(10**6, Index.load))
        put_new(client)
        assert client.get("/search", params={"q": "a"}).status_code == 503
        assert client.get("/ready").status_code == 503
        assert client.get("/documents/new").status_code == 200


def failing(times: int, work: Any) -> Any:
    """Wraps `work` to raise MemoryError in each of its first `times` calls."""
    left = [times]

    def broken(*arguments: Any, **named: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise MemoryError("injected")
        return work(*arguments, **named)

    return broken


def put_new(client: TestClient) -> None:
    body = {"documents": [{"id": "new", "text": "a harbour in the forest"}]}
    assert client.post("/documents", json=body).status_code == 200


def best(client: TestClient) -> str:
    """Waits for the service. Returns the id of the first hit for the text of the document `new`."""
    wait_until_ready(client)
    hits = client.get("/search", params={"q": "a harbour in the forest", "mode": "dense", "k": 1}).json()[
        "hits"
    ]
    return str(hits[0]["id"])


def test_an_index_that_could_not_be_loaded_again_is_mended_by_itself(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.runtime.index_keeper.RETRY_SECONDS", 0.02)
    with serving(filled) as client:
        monkeypatch.setattr(Index, "apply", failing(1, Index.apply))
        monkeypatch.setattr(Index, "load", failing(3, Index.load))
        put_new(client)
        assert best(client) == "new"
        assert len(ranking(client)) == 201


def test_an_index_that_breaks_while_it_is_made_whole_is_not_called_whole(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failed `apply` leaves a stored write out of the index, although each document has a vector."""
    damage(filled, "DELETE FROM vectors WHERE revision = 7")
    monkeypatch.setattr("service.runtime.index_keeper.RETRY_SECONDS", 0.02)
    release = hold_builds(monkeypatch)
    with TestClient(create_app(filled)) as client:
        until(lambda: "documents are in the index" in client.get("/ready").text)
        with monkeypatch.context() as patch:
            patch.setattr(Index, "apply", failing(1, Index.apply))
            patch.setattr(Index, "load", failing(1, Index.load))
            put_new(client)
        release.set()
        assert best(client) == "new"
        assert len(ranking(client)) == 201


def test_a_damaged_vector_that_is_found_when_the_index_is_loaded_again_is_embedded_again(
    filled: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(filled) as client:
        damage(filled, "UPDATE vectors SET checksum = checksum + 1 WHERE revision = 5")
        monkeypatch.setattr(Index, "apply", failing(1, Index.apply))
        put_new(client)
        assert best(client) == "new"
        assert "d004" in dict(ranking(client))
        assert len(ranking(client)) == 201


def test_the_examples_are_loaded_once_and_only_when_asked_for(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, examples=True)
    with serving(settings) as client:
        assert client.get("/documents/count").json() == {"count": 320}
        assert client.get("/documents/count", params={"filter": '{"example": true}'}).json() == {"count": 320}
        client.delete("/documents", params={"filter": '{"example": true}'})
    with serving(settings) as client:
        assert client.get("/documents/count").json() == {"count": 0}, "deleted examples must not come back"


def test_no_examples_come_to_a_directory_that_was_made_without(filled: Settings) -> None:
    again = filled.model_copy(update={"examples": True})
    with serving(again) as client:
        assert client.get("/documents/count").json() == {"count": 200}
