"""Both clients, with the service and with a stub server that answers with overload or other errors."""

import asyncio
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from models.publishing.publish import publish
from models.store import ModelStore
from simile_client import AsyncClient, Client, Document, DocumentPage, SimileError, Suggestion
from tests.parts.json_server import json_server
from tests.parts.rerankers import publish_reranker
from tests.service.process import Service, free_port
from tests.tiny import tiny_source
from tests.waiting import until

TEXTS = ["river red", "window paper red", "paper"]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("client")
    store = ModelStore(folder / "models")
    store.request(publish(store, tiny_source(folder / "source")).version)
    store.request_reranker(publish_reranker(store.root))
    with Service(folder) as running:
        running.wait_until_ready()
        yield f"http://127.0.0.1:{running.port}"


def test_documents_are_stored_found_judged_and_deleted(service: str) -> None:
    with Client(service) as client:
        stored = client.put([Document(text, f"a b/{at}", {"n": at}) for at, text in enumerate(TEXTS)])
        assert (stored.upserted, stored.truncated, stored.ids) == (3, 0, ("a b/0", "a b/1", "a b/2"))
        assert client.get("a b/1") == Document(TEXTS[1], "a b/1", {"n": 1})
        found = client.search("river red", k=2, mode="hybrid", filter={"n": {"$lt": 2}})
        assert [hit.id for hit in found.hits] == ["a b/0", "a b/1"]
        assert (found.hits[0].text, found.hits[0].metadata, found.mode) == (TEXTS[0], {"n": 0}, "hybrid")
        assert found.model == client.info()["model_version"]
        assert client.judge("river", "a b/0", relevant=True, user="visitor-7") == 1
        named = client.search("river red", k=2, mode="hybrid", filter={"n": {"$lt": 2}}, user="visitor-7")
        assert named.hits == found.hits
        with pytest.raises(SimileError, match="user: an id of a visitor has 1 to 128 characters"):
            client.search("river", user="two words")
        assert client.delete("a b/0") == 1
        assert client.delete("a b/0") == 0
        assert stored.unknown == 0
        assert client.put([Document("ቡና ጥሩ ነው"), Document("🍎 red")], collection="odd").unknown == 2
        elsewhere = client.put([Document("paper")], collection="other")
        assert len(elsewhere.ids) == 1
        assert client.search("paper", collection="other").hits[0].id == elsewhere.ids[0]


def test_documents_are_listed_counted_and_deleted_by_a_filter(service: str) -> None:
    documents = [Document(text, str(at), {"n": at}) for at, text in enumerate(TEXTS)]
    with Client(service) as client:
        client.put(documents, collection="listed")
        page = client.list_documents(limit=2, collection="listed")
        assert page == DocumentPage((documents[0], documents[1]), "1")
        page = client.list_documents(after="1", limit=2, collection="listed")
        assert page == DocumentPage((documents[2],), None)
        assert client.list_documents({"n": 1}, collection="listed").documents == (documents[1],)
        assert client.count(collection="listed") == 3
        assert client.count({"n": {"$lt": 2}}, collection="listed") == 2
        assert client.delete_matching({"$ids": ["0", "2", "none"]}, collection="listed") == 2
        assert client.list_documents(collection="listed").documents == (documents[1],)
        with pytest.raises(SimileError, match="a filter with a condition"):
            client.delete_matching({}, collection="listed")


def test_an_event_is_stored_with_its_search(service: str) -> None:
    with Client(service) as client:
        client.put([Document(text, str(at)) for at, text in enumerate(TEXTS)], collection="clicked")
        answer = client.search("red paper", user="visitor-7", collection="clicked")
        shown = [hit.id for hit in answer.hits]
        assert answer.search_id
        assert client.report(answer.search_id, shown[1], collection="clicked") == 1
        named = {"user": "visitor-8", "collection": "clicked"}
        client.report("made-up", shown[0], "convert", query="red", shown=shown, position=1, **named)
        [click, convert] = httpx2.get(f"{service}/collections/clicked/events").json()["events"]
        assert (click["search_id"], click["id"], click["type"]) == (answer.search_id, shown[1], "click")
        assert (click["query"], click["position"], click["shown"]) == ("red paper", 2, shown)
        assert (convert["id"], convert["type"], convert["position"]) == (shown[0], "convert", 1)
        assert click["user"] != convert["user"]
        with pytest.raises(SimileError, match="no document 'gone'"):
            client.report(answer.search_id, "gone", collection="clicked")


def test_versions_tell_their_kind(service: str) -> None:
    with Client(service) as client:
        until(lambda: sum(each.state == "active" for each in client.versions()) == 2)
        active = {each.kind: each.version for each in client.versions() if each.state == "active"}
        assert active["encoder"] == client.info()["model_version"]
        assert active["reranker"] != active["encoder"]


def test_vectors_are_of_unit_length_and_similarity_is_their_cosine(service: str) -> None:
    with Client(service) as client:
        vectors = np.array(client.embed(TEXTS))
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        [cosine] = client.similarity([(TEXTS[0], TEXTS[1])])
        assert cosine == pytest.approx(vectors[0] @ vectors[1], abs=1e-5)
        assert len(client.embed(TEXTS, dimensions=4)[0]) == 4


def test_texts_are_ranked_and_searches_reranked(service: str) -> None:
    with Client(service) as client:
        until(lambda: client.info()["reranker"] is not None)
        ranks = client.rerank("red river", TEXTS)
        assert [rank.text for rank in ranks] == [TEXTS[rank.index] for rank in ranks]
        assert [rank.score for rank in ranks] == sorted((rank.score for rank in ranks), reverse=True)
        assert client.rerank("red river", TEXTS, top_n=1) == ranks[:1]
        raw = client.rerank("red river", TEXTS, raw_scores=True)
        assert [rank.index for rank in raw] == [rank.index for rank in ranks]
        client.put([Document(text, str(at)) for at, text in enumerate(TEXTS)], collection="ranked")
        found = client.search("red river", mode="dense", rerank=True, rerank_k=3, collection="ranked")
        assert found.reranker == client.info()["reranker"]["version"]
        assert [hit.text for hit in found.hits] == [rank.text for rank in ranks]
        assert [hit.rerank_score for hit in found.hits] == pytest.approx([rank.score for rank in ranks])
        plain = client.search("red river", rerank=False, collection="ranked")
        assert (plain.reranker, plain.hits[0].rerank_score) == (None, None)


def test_a_hit_is_highlighted_and_explained(service: str) -> None:
    with Client(service) as client:
        client.put(
            [Document(text, str(at), title="Rivers") for at, text in enumerate(TEXTS)], collection="marked"
        )
        [hit, *_] = client.search("river", highlight=True, explain=True, collection="marked").hits
        assert hit.highlights is not None
        assert hit.snippet is not None
        assert hit.explanation is not None
        assert [hit.title[start:end] for start, end in hit.highlights.title] == ["Rivers"]
        assert {hit.text[start:end].lower() for start, end in hit.highlights.text} <= {"river"}
        assert hit.text[hit.snippet.start : hit.snippet.end] == hit.snippet.text
        assert hit.explanation["terms"][0]["term"] == "river"
        assert hit.explanation["fusion"]["dense"]["place"] is not None
        [plain, *_] = client.search("river", collection="marked").hits
        assert (plain.highlights, plain.snippet, plain.explanation) == (None, None, None)


def test_a_search_tells_its_corrections_and_uses_synonyms(service: str) -> None:
    with Client(service) as client:
        client.put([Document("an automobile in the garage", "a")], collection="cars")
        found = client.search("automobiel", mode="lexical", collection="cars")
        assert found.corrected_query == "automobile"
        assert found.corrections == {"automobiel": ("automobile",)}
        plain = client.search("automobiel", mode="lexical", typos=False, collection="cars")
        assert (plain.hits, plain.corrected_query, plain.corrections) == ((), None, {})
        one_way = [{"from": "tv", "to": ["television"]}]
        assert client.replace_synonyms([("car", "automobile")], one_way, collection="cars") == 1
        assert [hit.id for hit in client.search("car", mode="lexical", collection="cars").hits] == ["a"]
        stored = {"version": 1, "groups": [["car", "automobile"]], "one_way": one_way}
        assert client.synonyms(collection="cars") == stored
        assert client.delete_synonyms(collection="cars") == 2
        with pytest.raises(SimileError, match="version 2"):
            client.replace_synonyms(collection="cars", version=1)
        assert client.search("car", mode="lexical", collection="cars").hits == ()


def test_a_search_counts_facets(service: str) -> None:
    with Client(service) as client:
        client.put(
            [Document(f"river {at}", f"f{at}", {"n": at % 2}) for at in range(3)], collection="counted"
        )
        found = client.search("river", facets=["metadata.n"], facet_values=1, collection="counted")
        assert found.facets == {
            "metadata.n": {"ranges": [{"from": 0, "to": 2, "count": 3}], "other": 0, "missing": 0}
        }
        assert client.search("river", collection="counted").facets == {}


def test_suggestions_complete_a_beginning(service: str) -> None:
    with Client(service) as client:
        titles = {"a": ("Printer jam", 1), "b": ("Printer paper", 2)}
        documents = [Document("x", id, {"n": n}, title) for id, (title, n) in titles.items()]
        client.put(documents, collection="completed")
        found = client.suggest("prin", k=1, filter={"n": 2}, collection="completed")
        assert found == (Suggestion("Printer paper", "title"),)


def test_a_reranker_is_deactivated_and_activated_again(service: str) -> None:
    async def activate(version: str) -> None:
        async with AsyncClient(service) as client:
            assert await client.activate(version) == version

    with Client(service) as client:
        until(lambda: client.info()["reranker"] is not None)
        version = client.info()["reranker"]["version"]
        assert client.deactivate() == version
        until(lambda: client.info()["reranker"] is None)
        with pytest.raises(SimileError, match="so there is none to deactivate"):
            client.deactivate()
        asyncio.run(activate(version))
        until(lambda: client.info()["reranker"] is not None)
        with pytest.raises(SimileError, match="There is no version 'nothing'"):
            client.activate("nothing")


def test_the_client_for_asyncio_gives_the_same(service: str) -> None:
    async def requested() -> None:
        with Client(service) as waiting:
            async with AsyncClient(service) as client:
                await client.put([Document("window", "async", {"n": 9})])
                assert await client.get("async") == waiting.get("async")
                assert await client.embed(TEXTS) == waiting.embed(TEXTS)
                assert await client.similarity([("a", "b")]) == waiting.similarity([("a", "b")])
                assert (await client.search("window")).hits == waiting.search("window").hits
                assert (await client.search("window", user="7")).hits == waiting.search("window").hits
                marked = await client.search("window", highlight=True)
                assert marked.hits == waiting.search("window", highlight=True).hits
                assert await client.suggest("win") == waiting.suggest("win")
                assert await client.judge("window", "async", relevant=False, user="7", search_id="s") == 1
                assert await client.report("made-up", "async", query="window") == 1
                assert await client.count({"n": 9}) == waiting.count({"n": 9})
                assert await client.list_documents({"n": 9}) == waiting.list_documents({"n": 9})
                assert await client.replace_synonyms([["a", "b"]]) == waiting.synonyms()["version"]
                assert await client.synonyms() == waiting.synonyms()
                assert await client.delete_synonyms() == waiting.synonyms()["version"]
                assert (await client.info())["dimension"] == waiting.info()["dimension"]
                assert await client.retraining() == waiting.retraining()
                with pytest.raises(SimileError, match="No schedule of retrainings runs"):
                    await client.retrain()
                with pytest.raises(SimileError, match="No schedule of retrainings runs"):
                    waiting.retrain()
                assert await client.delete_matching({"n": 9}) == 1
                assert await client.delete("async") == 0

    asyncio.run(requested())


def test_dots_are_an_id_and_no_way_up(service: str) -> None:
    with Client(service) as client:
        client.put([Document("paper", "kept")], collection="dots")
        for id in (".", ".."):
            assert client.delete(id, collection="dots") == 0
            client.put([Document("river", id)], collection="dots")
            assert client.get(id, collection="dots").text == "river"
        assert client.get("kept", collection="dots").text == "paper"


def test_a_title_comes_back_and_a_search_has_its_id(service: str) -> None:
    with Client(service) as client:
        titled = Document("window red", "titled", {"n": 7}, "River paper")
        client.put([titled])
        assert client.get("titled") == titled
        found = client.search("river paper", filter={"n": 7})
        assert [(hit.id, hit.title) for hit in found.hits] == [("titled", "River paper")]
        assert found.search_id
        assert found.warnings == ()
        said = client.search("river paper", filter={"metadata.n": 7}).warnings
        assert said == ("No document has the field 'metadata.n'. Leave out 'metadata.': the field is 'n'.",)
        client.delete("titled")


@pytest.mark.parametrize("page", ["docs/CLIENTS.md", "simile_client/README.md"])
def test_the_snippet_of_the_page_runs(service: str, page: str) -> None:
    [snippet] = re.findall(r"^```py\n(.*?)^```", Path(page).read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(snippet.replace("http://127.0.0.1:8000", service), names)
    assert [hit.id for hit in names["answer"].hits] == ["ticket-1"]
    assert len(names.get("vectors", "1")) == 1


def test_a_refusal_says_what_to_do(service: str) -> None:
    with Client(service) as client:
        with pytest.raises(SimileError, match="no document") as refused:
            client.get("nobody")
        assert refused.value.status == 404
        with pytest.raises(SimileError, match="empty") as refused:
            client.embed([" "])
        assert refused.value.status == 400
        assert refused.value.error_type


def full(*answers: tuple[Any, ...]) -> AbstractContextManager[str]:
    """Starts a server that gives these answers one after another. Yields its URL."""
    left = list(answers)
    return json_server(lambda *_: left.pop(0))


BUSY = {"error": "The queue is full.", "error_type": "overloaded"}


def test_it_waits_as_long_as_the_service_asks_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)

    async def paused(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("simile_client.clients.asyncio.sleep", paused)
    answers = ((429, BUSY, {"retry-after": "7"}), (503, BUSY), (200, {"dimension": 3}))
    with full(*answers) as url, Client(url) as client:
        assert client.info() == {"dimension": 3}
    assert pauses == [7.0, 1.0]

    async def requested(url: str) -> object:
        async with AsyncClient(url) as client:
            return await client.info()

    with full(*answers) as url:
        assert asyncio.run(requested(url)) == {"dimension": 3}
    assert pauses == [7.0, 1.0] * 2


def test_an_answer_of_another_program_is_said_to_be_one() -> None:
    with full((200, "hello")) as url, Client(url) as client, pytest.raises(SimileError, match="not Simile"):
        client.search("x")


def test_patience_ends_and_other_refusals_are_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    with (
        full(*[(429, BUSY, {"retry-after": "1000"})] * 2) as url,
        Client(url, retries=1) as client,
        pytest.raises(SimileError, match=r"The queue is full\.") as refused,
    ):
        client.info()
    assert (refused.value.status, refused.value.error_type) == (429, "overloaded")
    assert pauses == [60.0], "no service keeps a program for longer"
    pauses.clear()
    with full((500, "no JSON object")) as url, Client(url) as client, pytest.raises(SimileError, match="500"):
        client.info()
    assert not pauses


def test_a_service_that_does_not_run_is_said_to(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    url = f"http://127.0.0.1:{free_port()}"
    with Client(url, retries=2) as client, pytest.raises(SimileError, match=f"{url} does not answer"):
        client.info()
    assert pauses == [0.5, 1.0]


@pytest.mark.parametrize("key", ["sk-secret\nsecond", "sk-secret€"])
def test_a_malformed_key_is_an_error_that_does_not_show_it(key: str) -> None:
    with pytest.raises(SimileError, match="one line of printable ASCII") as raised:
        Client("http://127.0.0.1:1", key=key)
    assert "secret" not in str(raised.value)
