"""Highlights, snippets and explanations of hits over HTTP."""

import asyncio
import json
from random import Random
from typing import Any

import numpy as np
import orjson
import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.search.highlights import MAX_CHARACTERS, MAX_RANGES, SNIPPET_CHARACTERS, split_sentences
from models.search.terms import compute_idf, get_terms, parse_query
from service.corpus import highlighting
from service.corpus.highlighting import Highlighting
from service.corpus.query import HIGHLIGHT_WORK, Hit, Page, Search
from service.errors import Overloaded
from service.runtime.runtime import Runtime
from service.store.values import Record
from tests.parts.marking import SCRIPTS, locate, write
from tests.waiting import LIMIT

WORDS = "red green blue river stone market letter engine garden bridge".split()
LONG = " ".join(f"{WORDS[at % 10].title()} {WORDS[at // 10]} paper window." for at in range(60))
DOCUMENTS: list[dict[str, Any]] = [
    {"id": "long", "text": LONG, "title": "Rivers"},
    {"id": "short", "text": "Cats sleep. Dogs run. A red bridge stands here.", "title": "Red BRIDGES"},
    {"id": "other", "text": "Nothing of it. Something else.", "metadata": {"n": 1}},
    *({"id": f"d{at}", "text": f"{WORDS[at]} {WORDS[at - 1]}"} for at in range(10)),
]
MODES = ["dense", "lexical", "hybrid"]


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a search highlight, however busy the machine is."""
    monkeypatch.setattr(highlighting, "MARK_SECONDS", LIMIT)
    monkeypatch.setattr(highlighting, "SENTENCE_SECONDS", LIMIT)


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    assert running.post("/documents", json={"documents": DOCUMENTS}).status_code == 200


def search(client: TestClient, q: str, path: str = "/search", **options: Any) -> dict[str, Any]:
    answer = client.get(path, params={"q": q, "highlight": "true", **options})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def hit_of(client: TestClient, id: str, q: str, **options: Any) -> dict[str, Any]:
    [hit] = [hit for hit in search(client, q, k=100, **options)["hits"] if hit["id"] == id]
    return dict(hit)


def test_each_range_of_a_thousand_random_hits_is_a_matching_term(client: TestClient) -> None:
    random, seen, scripts = Random(7), 0, [*SCRIPTS]
    rows = [
        {"id": f"s{at}", "text": write(random, script, 25), "title": write(random, script, 4)}
        for at, script in enumerate(scripts * 25)
    ]
    path = "/collections/scripts"
    assert client.post(f"{path}/documents", json={"documents": rows}).status_code == 200
    cut = dict.fromkeys(scripts, 0)
    while seen < 1000:
        script = random.choice(scripts)
        query = " ".join(random.choice(SCRIPTS[script]) for _ in range(random.randint(1, 3)))
        wanted = parse_query(query)
        for hit in search(client, query, f"{path}/search", mode="lexical", k=20)["hits"]:
            seen += 1
            ranges = 0
            for name in ("title", "text"):
                found = [(start, end) for start, end in hit["highlights"][name]]
                assert found == locate(hit[name], query), (hit, query)
                for start, end in found:
                    terms = get_terms(hit[name][start:end])
                    firsts = {term[0] for term in terms}
                    assert not {*wanted.terms}.isdisjoint(terms) or firsts & {*wanted.beginnings}
                ranges += len(found)
            assert ranges, (hit, query)
            cut[script] += ranges
            snippet = hit["snippet"]
            assert snippet["text"] == hit["text"][snippet["start"] : snippet["end"]]
    assert min(cut.values()) > 20, cut


@pytest.mark.parametrize("mode", MODES)
def test_terms_of_title_and_text_are_marked_in_every_mode(client: TestClient, mode: str) -> None:
    hit = hit_of(client, "short", "red bridges", mode=mode)
    assert hit["highlights"] == {"title": [[0, 3], [4, 11]], "text": [[24, 27], [28, 34]]}
    assert hit["snippet"] == {"start": 0, "end": 47, "text": DOCUMENTS[1]["text"]}


def test_a_post_has_the_same_highlights_for_each_query(client: TestClient) -> None:
    body = {"queries": ["red bridges", "cats"], "mode": "lexical", "highlight": True, "fields": ["title"]}
    first, second = client.post("/search", json=body).json()["results"]
    [one] = [hit for hit in first if hit["id"] == "short"]
    assert one["highlights"] == {"title": [[0, 3], [4, 11]], "text": [[24, 27], [28, 34]]}
    assert (one["title"], "text" in one, one["snippet"]["end"]) == ("Red BRIDGES", False, 47)
    assert [hit["highlights"]["text"] for hit in second] == [[[0, 4]]]


def test_without_it_hits_have_neither(client: TestClient) -> None:
    [hit, *_] = client.get("/search", params={"q": "red"}).json()["hits"]
    assert not {"highlights", "snippet", "explanation"} & {*hit}
    for given in ("yes", "1", ""):
        answer = client.get("/search", params={"q": "red", "highlight": given})
        assert (answer.status_code, "highlight" in answer.json()["error"]) == (422, True)
    assert client.post("/search", json={"queries": ["red"], "highlight": "true"}).status_code == 422


def test_the_snippet_of_a_long_text_is_in_its_best_passage(client: TestClient) -> None:
    hit = hit_of(client, "long", "garden engine", mode="hybrid")
    start, end = hit["passage"]["start"], hit["passage"]["end"]
    snippet = hit["snippet"]
    inside = [one for one in hit["highlights"]["text"] if start <= one[0] and one[1] <= end]
    if inside:
        assert start <= snippet["start"] < snippet["end"] <= end
    assert any(snippet["start"] <= one[0] < snippet["end"] for one in hit["highlights"]["text"])
    assert snippet["end"] - snippet["start"] <= SNIPPET_CHARACTERS
    assert snippet["text"] == LONG[snippet["start"] : snippet["end"]]
    assert snippet["text"].endswith("window.")
    assert snippet["text"][0].isupper(), "it starts with a sentence"


def best_sentence(encoder: Encoder, query: str, text: str, passage: dict[str, int] | None) -> str:
    within = (passage["start"], passage["end"]) if passage else (0, len(text))
    sentences = [text[start:end] for start, end in split_sentences(text, within)]
    cosines = encoder.encode(sentences).vectors @ encoder.encode([query]).vectors[0]
    return sentences[int(np.argmax(cosines))]


@pytest.mark.parametrize("mode", ["dense", "hybrid"])
def test_a_hit_without_terms_shows_the_nearest_sentence_of_its_best_passage(
    client: TestClient, encoder: Encoder, mode: str
) -> None:
    chosen = set()
    for query in ("cat dog", "forest harbour", "harbour", "forest cat"):
        for id in ("long", "short", "other"):
            hit = hit_of(client, id, query, mode=mode)
            if not hit["highlights"]["text"]:
                assert hit["snippet"]["text"] == best_sentence(
                    encoder, query, hit["text"], hit.get("passage")
                )
                chosen.add(hit["snippet"]["text"])
    assert chosen - {split[0] for split in (LONG.split(". "), ["Cats sleep."], ["Nothing of it."])}
    assert len(chosen) > 3


def test_a_search_by_vector_or_id_shows_the_nearest_sentence(client: TestClient, encoder: Encoder) -> None:
    query = "forest harbour"
    vector = encoder.encode([query]).vectors[0].tolist()
    body = {"queries": [vector], "model": encoder.manifest.version, "mode": "dense", "highlight": True}
    [hits] = client.post("/search", json=body).json()["results"]
    for hit in hits:
        assert hit["highlights"] == {"title": [], "text": []}
        assert hit["snippet"]["text"] == best_sentence(encoder, query, hit["text"], hit.get("passage"))
    similar = client.get("/search", params={"id": "short", "highlight": "true"}).json()["hits"]
    query = "Red BRIDGES\n" + DOCUMENTS[1]["text"]
    for hit in similar:
        assert hit["snippet"]["text"] == best_sentence(encoder, query, hit["text"], hit.get("passage"))


def test_a_search_embeds_only_some_sentences(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []
    score = runtime.batcher.score

    async def counted(model: Any, inputs: Any, seconds: float, **options: Any) -> Any:
        embedded.append(len(inputs))
        return await score(model, inputs, seconds, **options)

    monkeypatch.setattr(runtime.batcher, "score", counted)
    search(client, "harbour", mode="dense", k=100)
    assert 3 < embedded[0] <= highlighting.MAX_SENTENCES
    monkeypatch.setattr(highlighting, "MAX_SENTENCES", 3)
    few = search(client, "harbour", mode="dense", k=100)
    assert 0 < embedded[1] <= 3
    assert "warnings" not in few
    assert all(hit["snippet"] for hit in few["hits"])
    search(client, "red river", mode="lexical")
    assert len(embedded) == 2, "a hit with terms needs no sentence"


@pytest.mark.parametrize("fault", ["late", "full", "broken"])
def test_sentences_never_fail_a_search(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    async def fill(*_: Any, **__: Any) -> None:
        if fault == "full":
            raise Overloaded("The queue is full.", retry_after_seconds=1)
        if fault == "broken":
            raise ArithmeticError
        await asyncio.sleep(LIMIT)

    if fault == "late":
        monkeypatch.setattr(highlighting, "SENTENCE_SECONDS", 0.05)
    whole = search(client, "harbour", mode="dense", k=100)
    embed = runtime.batcher.embed

    async def embed_query(*arguments: Any, **options: Any) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(runtime.batcher, "_fill", real)
            return await embed(*arguments, **options)

    real = runtime.batcher._fill
    monkeypatch.setattr(runtime.batcher, "embed", embed_query)
    monkeypatch.setattr(runtime.batcher, "_fill", fill)
    found = search(client, "harbour", mode="dense", k=100)
    monkeypatch.undo()
    assert [hit["id"] for hit in found["hits"]] == [hit["id"] for hit in whole["hits"]]
    [warning] = found["warnings"]
    said = {"late": "0.05 s", "full": "The queue is full", "broken": "the log says why"}
    assert said[fault] in warning
    [short] = [hit for hit in found["hits"] if hit["id"] == "short"]
    assert short["snippet"]["text"] == "Cats sleep."


def test_marking_that_is_late_or_fails_leaves_the_hits(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = search(client, "river", mode="lexical")["hits"]
    monkeypatch.setattr(highlighting, "MARK_SECONDS", -1.0)
    late = search(client, "river", mode="lexical")
    assert [hit["id"] for hit in late["hits"]] == [hit["id"] for hit in whole]
    assert "no highlights" in late["warnings"][0]
    assert not any("snippet" in hit for hit in late["hits"])
    monkeypatch.undo()
    mark = highlighting._mark

    def fail(hit: Any, *rest: Any) -> Any:
        if hit.document.id == "d3":
            raise ArithmeticError
        return mark(hit, *rest)

    monkeypatch.setattr(highlighting, "_mark", fail)
    failed = search(client, "river", mode="lexical")
    assert [hit["id"] for hit in failed["hits"] if "snippet" not in hit] == ["d3"]
    assert "the log says why" in failed["warnings"][0]


def test_highlights_count_as_work(client: TestClient) -> None:
    plain, marked = Search(k=7, mode="lexical"), Search(k=7, mode="lexical", highlight=True)
    assert marked.cost - plain.cost == 7 * HIGHLIGHT_WORK
    assert (plain.is_heavy(500), marked.is_heavy(500)) == (False, True)
    body = {"queries": ["river"] * 1000, "mode": "lexical", "k": 10}
    assert client.post("/search", json=body).status_code == 200
    refused = client.post("/search", json=body | {"highlight": True})
    assert (refused.status_code, "SIMILE_MAX_CANDIDATES" in refused.json()["error"]) == (422, True)


def test_explained_hits_have_their_terms_with_the_idf_of_the_collection(client: TestClient) -> None:
    for mode in MODES:
        hit = hit_of(client, "short", "red bridges zebra cats", mode=mode, explain="true")
        wanted = {"red": ["title", "text"], "bridg": ["title", "text"], "cat": ["text"]}
        terms = {term["term"]: term for term in hit["explanation"]["terms"]}
        assert {term: each["in"] for term, each in terms.items()} == wanted
        for term in wanted:
            texts = (f"{one.get('title', '')} {one['text']}" for one in DOCUMENTS)
            count = sum(term in get_terms(text) for text in texts)
            assert terms[term]["idf"] == pytest.approx(compute_idf(len(DOCUMENTS), count)), term
    found = search(client, "red", mode="lexical", explain="true", highlight="false", fields="")["hits"]
    assert not any("explanation" in hit for hit in found), "no text is read"


def test_terms_have_no_idf_with_a_filter_because_it_counts_hidden_documents(client: TestClient) -> None:
    for mode in MODES:
        hit = hit_of(client, "other", "nothing red", mode=mode, explain="true", filter='{"n": 1}')
        assert hit["explanation"]["terms"] == [{"term": "noth", "in": ["text"]}]


def test_characters_of_cjk_have_an_idf_and_places(client: TestClient) -> None:
    path = "/collections/cjk"
    rows = [{"id": f"c{at}", "text": text} for at, text in enumerate(["東京都", "京都", "大阪", "名古屋"])]
    assert client.post(f"{path}/documents", json={"documents": rows}).status_code == 200
    found = search(client, "京", f"{path}/search", mode="lexical", explain="true")["hits"]
    assert {hit["id"]: hit["highlights"]["text"] for hit in found} == {"c0": [[1, 2]], "c1": [[0, 1]]}
    for hit in found:
        [term] = hit["explanation"]["terms"]
        assert term == {"term": "京", "idf": pytest.approx(compute_idf(4, 2)), "in": ["text"]}


@pytest.mark.usefixtures("_fused")
def test_the_fusion_adds_up_to_the_score(client: TestClient) -> None:
    query = "red bridge"
    by_mode = {
        mode: client.get("/search", params={"q": query, "mode": mode, "k": 100}).json()["hits"]
        for mode in MODES
    }
    explained = search(client, query, mode="hybrid", explain="true", k=100)["hits"]
    assert [hit["id"] for hit in explained] == [hit["id"] for hit in by_mode["hybrid"]]
    scores = {mode: {hit["id"]: hit["score"] for hit in hits} for mode, hits in by_mode.items()}
    for hit in explained:
        fusion = hit["explanation"]["fusion"]
        assert fusion["dense"]["share"] + fusion["lexical"]["share"] == pytest.approx(hit["score"], abs=1e-6)
        for name, part in fusion.items():
            known = scores[name].get(hit["id"])
            assert part["score"] == (None if known is None else pytest.approx(known, abs=1e-6))
            better = [score for score in scores[name].values() if known is not None and score > known]
            assert part["place"] == (None if known is None else 1 + len(better))
        assert fusion["dense"]["weight"] == 0.5
    assert {hit["explanation"]["fusion"]["lexical"]["score"] for hit in explained} > {None}


def test_a_filter_and_a_page_change_no_highlight(client: TestClient) -> None:
    whole = search(client, "red river", mode="lexical", k=10)["hits"]
    pages = [
        hit
        for offset in range(0, 10, 3)
        for hit in search(client, "red river", mode="lexical", k=3, offset=offset)["hits"]
    ]
    assert pages[: len(whole)] == whole
    filtered = search(client, "something", mode="lexical", filter=json.dumps({"n": 1}))["hits"]
    assert [(hit["id"], hit["highlights"]["text"]) for hit in filtered] == [("other", [[15, 24]])]


def test_long_texts_are_read_in_part_and_other_reads_run_between(monkeypatch: pytest.MonkeyPatch) -> None:
    text, pauses = "river stone " * 90_000, list[int]()
    hits = [Hit(Record(f"d{at}", orjson.dumps(text), b"{}"), np.float32(1)) for at in range(5)]
    page = Page(hits, terms=parse_query("river stone"), idf={"river": 1.0, "stone": 2.0})
    monkeypatch.setattr(highlighting, "pause", lambda: pauses.append(1))
    [marked] = Highlighting(None).mark(Search(highlight=True), [page])  # type: ignore[arg-type]
    words = MAX_CHARACTERS // 6
    assert 5 * words // 1000 < len(pauses) < 5 * words // 100
    for hit in marked.hits:
        assert hit.highlight is not None
        assert hit.highlight.snippet is not None
        assert len(hit.highlight.text) == MAX_RANGES
        assert hit.highlight.text[-1][1] < MAX_CHARACTERS


def test_hits_that_cannot_be_reranked_are_highlighted(client: TestClient) -> None:
    found = search(client, "red river", mode="lexical", rerank="true")
    assert "not reranked" in found["warnings"][0]
    assert found["hits"] == search(client, "red river", mode="lexical")["hits"]
