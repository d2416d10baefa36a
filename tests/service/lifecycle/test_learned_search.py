"""A version that changes only the search defaults: no text is embedded again. A rollback restores them."""

import shutil
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.manifest import FILE_NAME, FUSION, Manifest, SearchDefaults, version_name
from models.publishing.publish import publish
from models.store import ModelStore
from tests.parts.places import Place, count_embedded
from tests.service.swapping import QUERIES
from tests.tiny import tiny_source


def _copy(folder: Path, source: Path, manifest: Manifest) -> Manifest:
    shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(FILE_NAME))
    return manifest


def with_search(store: ModelStore, version: str, search: dict[str, SearchDefaults]) -> str:
    """Publishes a copy of `version` with the defaults `search`, by collection. Returns its name."""
    old = store.verify(version)
    name = version_name(datetime.now(UTC), f"{old.origin}-{len(store.versions())}", old.fingerprint)
    new = old.model_copy(update={"version": name, "search": search, "files": {}})
    return store.publish(partial(_copy, source=store.folder(version), manifest=new)).version


@pytest.fixture
def place(tmp_path: Path) -> Place:
    store = ModelStore(tmp_path / "models")
    first = publish(store, tiny_source(tmp_path / "source"))
    hybrid = {"default": SearchDefaults(mode="hybrid", weight=0.3, fusion=FUSION)}
    lexical = {"default": SearchDefaults(mode="lexical", weight=0.0)}
    others = [with_search(store, first.version, search) for search in (hybrid, lexical)]
    place = Place(tmp_path)
    place.a, place.b, place.c = first.version, *others  # Names from one second do not sort by time.
    return place


def test_a_version_without_search_is_written_as_before_there_was_any(place: Place) -> None:
    texts = {manifest.version: manifest.text() for manifest in place.store.versions()}
    assert '"search"' not in texts[place.a]
    assert '"search"' in texts[place.b]
    assert "passage_tokens" not in texts[place.b], "where none is learned"
    learned = Manifest.model_validate_json(texts[place.b]).search["default"]
    assert (learned.weight, learned.fusion) == (0.3, FUSION)
    assert "fusion" not in texts[place.c], "where none is named"


@pytest.mark.usefixtures("_fused")
def test_the_learned_search_comes_to_live_without_embedding_and_goes_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.store.request(place.a)
    with place.serving() as client:
        place.fill()
        q = QUERIES[0]
        before = client.get("/search", params={"q": q}).json()
        dense = client.get("/search", params={"q": q, "mode": "dense"}).json()
        assert before["mode"] == "hybrid"
        embedded = count_embedded(monkeypatch)
        place.activate(place.b)
        assert len(embedded) <= 2, "the one forward pass that warms it, but no document"
        learned = client.get("/search", params={"q": q}).json()
        assert learned["mode"] == "hybrid"
        assert learned["model"] == place.b
        requested = client.get("/search", params={"q": q, "mode": "dense"}).json()
        assert requested["hits"] == dense["hits"], "the same vectors"
        default_weight = client.post(
            "/search", json={"queries": [q], "mode": "hybrid"}, headers={"X-Model-Version": place.a}
        )
        assert default_weight.status_code == 200, default_weight.text
        assert default_weight.json()["results"][0] == before["hits"]
        assert default_weight.json()["results"][0] != learned["hits"], "another weight, the kept version's"
        many = client.post("/search", json={"queries": [q]}).json()
        assert many["results"][0] == learned["hits"]
        assert client.get("/search", params={"id": "d3"}).json()["mode"] == "dense"
        place.activate(place.c)
        assert client.get("/search", params={"q": q}).json()["mode"] == "lexical"
        assert client.get("/collections").json()["collections"][0]["mode"] == "lexical"
        place.rollback(place.b)
        back = client.get("/search", params={"q": q}).json()
        assert (back["mode"], back["hits"]) == ("hybrid", learned["hits"])


def test_hybrid_that_is_asked_for_is_hybrid_where_words_alone_were_learned(place: Place) -> None:
    place.store.request(place.a)
    with place.serving() as client:
        place.fill()
        requested = {"q": QUERIES[0], "mode": "hybrid"}
        usual = client.get("/search", params=requested).json()["hits"]
        place.activate(place.c)
        assert client.get("/search", params=requested).json()["hits"] == usual


def test_a_weight_that_was_learned_for_another_formula_is_ignored_and_logged(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    older = {"default": SearchDefaults(mode="hybrid", weight=0.3)}
    place.c = with_search(place.store, place.a, older)
    place.store.request(place.a)
    with place.serving() as client:
        place.fill()
        requested = {"q": QUERIES[0]}
        usual = client.get("/search", params=requested).json()["hits"]
        assert "another formula" not in caplog.text
        place.activate(place.c)
        assert client.get("/search", params=requested).json()["hits"] == usual
    assert f"{place.c} learned a weight of hybrid search for another formula" in caplog.text


def test_the_operators_word_wins_over_the_learned_mode(place: Place) -> None:
    place.store.request(place.c)
    with place.serving(search_mode="dense") as client:
        place.fill()
        assert client.get("/search", params={"q": QUERIES[0]}).json()["mode"] == "dense"


@pytest.mark.long
def test_shorter_passages_are_embedded_anew_come_to_live_and_go_back(tmp_path: Path) -> None:
    """Only the default collection changes. A text without passages keeps its vector."""
    store = ModelStore(tmp_path / "models")
    first = publish(store, tiny_source(tmp_path / "source"))
    shorter = {"default": SearchDefaults(mode="dense", weight=1, passage_tokens=16)}
    second = with_search(store, first.version, shorter)
    store.request(first.version)
    place = Place(tmp_path, versions=[first.version, second])
    parts = [
        "red river green river " * 3,
        "cold letter from the old harbour " * 2,
        "stone market engine " * 4,
    ]
    long = {"id": "long", "text": "".join(f"{part.strip()}. " for part in parts)}
    with place.serving() as client:
        for path in ("/documents", "/collections/other/documents"):
            texts = [long, {"id": "short", "text": "a garden bridge"}]
            assert client.post(path, json={"documents": texts}).status_code == 200

        def found(query: str, path: str = "/search") -> dict[str, dict[str, Any]]:
            answer = client.get(path, params={"q": query, "mode": "dense"}).json()
            return {hit["id"]: hit for hit in answer["hits"]}

        before = {
            path: found("letter from the harbour", path) for path in ("/search", "/collections/other/search")
        }
        place.activate(second)
        after = {path: found("letter from the harbour", path) for path in before}
        assert after["/collections/other/search"] == before["/collections/other/search"]
        was, now = (each["/search"] for each in (before, after))
        assert now["short"]["score"] == was["short"]["score"]
        assert now["long"]["score"] > was["long"]["score"]
        hit = now["long"]["passage"]
        shown = long["text"][hit["start"] : hit["end"]]
        assert "letter from the" in shown
        assert len(shown) < len(long["text"]) / 2
        assert client.post("/documents", json={"documents": [long | {"id": "new"}]}).status_code == 200
        assert found("letter from the harbour")["new"]["score"] == now["long"]["score"]
        place.rollback(first.version)
        assert found("letter from the harbour")["long"] == was["long"]
    with place.serving():
        assert place.active() == first.version
        place.activate(second)
    with place.serving() as client:  # A start also reads vectors with passages.
        assert place.active() == second
        assert client.get("/documents/count").json() == {"count": 3}
