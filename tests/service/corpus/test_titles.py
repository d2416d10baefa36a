"""Titles are embedded and indexed with the text, but stored and shown separately."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.search.content import Content
from models.search.passages import split
from service.lifecycle.canary import canary_queries
from service.settings import Settings
from tests.parts.documents import activate_another, encoder_of, hits, place, put
from tests.service.conftest import serving
from tests.service.corpus.test_long_texts import text as long_text

__all__ = ["place"]
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "a", "title": "red garden", "text": "a bridge over the river", "metadata": {"n": 1}},
    {"id": "b", "text": "a bridge over the river", "metadata": {}},
    {"id": "c", "title": "blue market", "text": long_text(1, 14), "metadata": {}},
    {"id": "d", "title": long_text(2, 14), "text": "paper window", "metadata": {}},
]


@pytest.fixture
def client(place: Settings) -> Iterator[TestClient]:
    with serving(place) as client:
        put(client, *DOCUMENTS)
        yield client


def check(client: TestClient) -> None:
    """Checks each hit's score and passage against those computed from its title and text."""
    encoder = encoder_of(client)
    query = encoder.encode(["blue river"]).vectors[0]
    for hit in hits(client, "blue river"):
        content = Content(hit["text"], hit.get("title", ""))
        where, shown = split(content, encoder), [content.whole]
        if where is not None:
            shown += [where.lead + content.text[slice(*span)] for span in where.others]
        scores = encoder.encode(shown).vectors @ query
        assert hit["score"] == pytest.approx(float(scores.max()), abs=2e-6), hit["id"]
        if where is None:
            assert "passage" not in hit
        else:
            start, end = [where.head, *where.others][int(scores.argmax())]
            assert hit["passage"] == {"start": start, "end": end}


def test_it_is_shown_where_the_document_is(client: TestClient) -> None:
    assert client.get("/documents/a").json() == DOCUMENTS[0]
    assert client.get("/documents").json()["documents"] == DOCUMENTS
    shown = {hit["id"]: hit.get("title") for hit in hits(client, "bridge")}
    assert shown == {document["id"]: document.get("title") for document in DOCUMENTS}
    only = {"filter": '{"n": 1}'}
    [hit] = hits(client, "bridge", fields="title", **only)
    assert hit == {"id": "a", "score": hit["score"], "title": "red garden"}
    assert "title" not in hits(client, "bridge", fields="text", **only)[0]


def test_it_is_embedded_with_the_text_and_in_front_of_each_passage(client: TestClient) -> None:
    check(client)
    [whole] = [hit for hit in hits(client, "bridge") if hit["id"] == "a"]
    encoder = encoder_of(client)
    vectors = encoder.encode(["red garden\na bridge over the river", "bridge"]).vectors
    assert whole["score"] == pytest.approx(float(vectors[0] @ vectors[1]), abs=2e-6)


def test_a_model_that_comes_later_embeds_it_too(client: TestClient, place: Settings) -> None:
    activate_another(client, place.models_dir)
    check(client)


def test_its_words_are_found_and_go_with_the_document(client: TestClient) -> None:
    assert {hit["id"] for hit in hits(client, "garden", mode="lexical")} >= {"a"}
    put(client, {**DOCUMENTS[0], "title": "orange"})
    assert "a" not in {hit["id"] for hit in hits(client, "garden", mode="lexical")}
    assert [hit["id"] for hit in hits(client, "orange", mode="lexical")] == ["a"]
    client.delete("/documents/a")
    assert hits(client, "orange", mode="lexical") == []


def test_equal_ones_change_nothing_and_another_title_embeds_anew(client: TestClient) -> None:
    before = client.delete("/documents/nobody").json()["sequence"]
    answer = client.post("/documents", json={"documents": DOCUMENTS})
    assert answer.json()["sequence"] == before
    assert answer.headers["x-compute-tokens"] == "0"
    answer = client.post("/documents", json={"documents": [{**DOCUMENTS[0], "title": "green garden"}]})
    assert answer.json()["sequence"] == before + 2
    assert int(answer.headers["x-compute-tokens"]) > 0
    check(client)


def test_white_space_around_a_title_is_kept_and_lines_of_ndjson_have_titles_too(client: TestClient) -> None:
    around = {**DOCUMENTS[0], "title": " red garden\n"}
    put(client, around)
    assert client.get("/documents/a").json() == around
    check(client)
    kind = {"content-type": "application/x-ndjson"}
    answer = client.post("/documents", content=b'{"id": "e", "title": "T", "text": "stone"}\n', headers=kind)
    assert answer.json()["upserted"] == 1
    assert client.get("/documents/e").json()["title"] == "T"


@pytest.mark.parametrize("none", [None, ""])
def test_no_title_is_the_same_however_it_is_said(client: TestClient, none: str | None) -> None:
    before = client.delete("/documents/nobody").json()["sequence"]
    assert put(client, {**DOCUMENTS[1], "title": none})["sequence"] == before


def test_without_ids_documents_that_differ_only_in_title_are_two(client: TestClient) -> None:
    texts = [{"text": "stone", "title": title} for title in ("one", "two", None, "one")]
    ids = put(client, *texts)["ids"]
    assert len(set(ids)) == 3
    assert ids[0] == ids[3]
    assert put(client, {"text": "stone"})["ids"] == [ids[2]], "as before there were titles"


def test_canary_queries_are_titles_where_there_are_any(client: TestClient, place: Settings) -> None:
    corpus = client.app.state.runtime.corpus  # type: ignore[attr-defined]
    assert client.portal is not None
    found = client.portal.call(canary_queries, corpus, place)["default"]
    assert {"red garden", "blue market"} <= set(found)


def test_a_hit_in_a_title_that_fills_the_model_has_no_character_of_the_text(client: TestClient) -> None:
    encoder = encoder_of(client)
    head = encoder.encode([DOCUMENTS[3]["title"]]).vectors[0]
    body = {"queries": [head.tolist()], "model": encoder.manifest.version, "passages": False}
    [found] = client.post("/search", json=body).json()["results"]
    assert found[0]["id"] == "d"
    assert found[0]["passage"] == {"start": 0, "end": 0}
    np.testing.assert_allclose(found[0]["score"], 1, atol=1e-5)
