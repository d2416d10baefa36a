"""`/documents` and `/search`: stored documents are found with the scores that numpy computes."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from starlette.testclient import TestClient

from service.runtime.runtime import Runtime
from tests.parts.documents import hits, put
from tests.service.api.test_http_errors import refused

WORDS = (
    "red green blue river stone market letter engine garden bridge paper window forest harbour cat dog"
).split()
CORPUS = [
    {
        "id": f"doc-{at:03}",
        "text": f"{WORDS[at % 16]} {WORDS[at // 16 % 16]} {WORDS[at * 7 % 16]}",
        "metadata": {"n": at},
    }
    for at in range(120)
]


@pytest.fixture(autouse=True)
def _empty_at_first(client: TestClient) -> None:
    everything = {"filter": '{"nothing": {"$exists": false}}'}
    client.delete("/documents", params=everything).raise_for_status()


def test_search_gives_the_best_by_cosine_with_ties_by_id(client: TestClient, runtime: Runtime) -> None:
    put(client, *CORPUS)
    encoder = runtime.active.generation.encoder
    vectors = encoder.encode([str(document["text"]) for document in CORPUS]).vectors
    scores = vectors @ encoder.encode(["blue river"]).vectors[0]
    expected = sorted(zip(-scores.round(5), (str(document["id"]) for document in CORPUS), strict=True))[:25]
    response = client.get("/search", params={"q": "blue river", "mode": "dense", "k": 25}).json()
    assert response["query"] == "blue river"
    assert response["model"] == runtime.active.generation.version
    assert response["mode"] == "dense"
    assert [hit["id"] for hit in response["hits"]] == [id for _, id in expected]
    np.testing.assert_allclose(
        [hit["score"] for hit in response["hits"]], [-score for score, _ in expected], atol=2e-5
    )
    assert response["hits"][0]["metadata"] == CORPUS[int(response["hits"][0]["id"][4:])]["metadata"]


def test_an_update_replaces_and_a_delete_removes(client: TestClient) -> None:
    put(client, {"id": "a", "text": "red river", "metadata": {"v": 1}})
    put(client, {"id": "a", "text": "green garden", "metadata": {"v": 2}})
    assert client.get("/documents/a").json() == {"id": "a", "text": "green garden", "metadata": {"v": 2}}
    found = hits(client, "red river")
    assert [(hit["id"], hit["text"]) for hit in found] == [("a", "green garden")]
    first = client.delete("/documents/a").json()
    assert first["deleted"] == 1
    assert client.delete("/documents/a").json() == {"deleted": 0, "sequence": first["sequence"]}
    assert hits(client, "green garden") == []


def test_new_metadata_is_not_embedded_and_equal_documents_change_nothing(client: TestClient) -> None:
    put(client, {"id": "a", "text": "red river", "metadata": {"v": 1}})
    before = embedded_tokens(client)
    put(client, {"id": "a", "text": "red river", "metadata": {"v": 2}})
    assert embedded_tokens(client) == before
    assert hits(client, "red river")[0]["metadata"] == {"v": 2}
    document = {"id": "a", "text": "red river", "metadata": {"v": 1}}
    first = put(client, document)
    again = put(client, document)
    assert again == {"upserted": 1, "truncated": 0, "unknown": 0, "sequence": first["sequence"]}


def embedded_tokens(client: TestClient) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith("simile_tokens_total") and 'lane="background"' in line
    )


def test_of_two_equal_ids_the_last_wins_and_both_count(client: TestClient) -> None:
    answer = put(
        client, {"id": "a", "text": "red"}, {"id": "b", "text": "blue"}, {"id": "a", "text": "green"}
    )
    assert (answer["upserted"], answer["documents"]) == (3, 2)
    assert "documents" not in put(client, {"id": "a", "text": "green"}), "no id came more than once"
    assert client.get("/documents/a").json()["text"] == "green"
    assert client.get("/documents/count").json() == {"count": 2}


@pytest.mark.parametrize(
    ("given", "id"),
    [(7, "7"), (0, "0"), (-3, "-3"), (2**53 - 1, "9007199254740991"), ("7", "7"), ("007", "007")],
)
@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
def test_a_whole_number_is_an_id_as_in_an_import(
    client: TestClient, given: object, id: str, kind: str
) -> None:
    document = {"id": given, "text": "red river"}
    body = document if kind.endswith("ndjson") else {"documents": [document]}
    answer = client.post("/documents", content=json.dumps(body), headers={"content-type": kind})
    assert answer.status_code == 200
    assert "ids" not in answer.json()
    assert client.get(f"/documents/{id}").json() == {"id": id, "text": "red river", "metadata": {}}
    judged = {"query": "red", "id": given, "relevant": True}
    assert client.post("/feedback", json=judged).json()["stored"] == 1
    near = client.post("/search", json={"queries": [{"id": given}], "k": 1})
    assert near.status_code == 200


def test_a_number_that_json_libraries_round_is_no_id(client: TestClient) -> None:
    answer = client.post("/documents", json={"documents": [{"id": 2**53, "text": "red river"}]})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")


def test_a_document_without_an_id_gets_one_from_its_text(client: TestClient) -> None:
    first = put(client, {"text": "red river"}, {"id": "mine", "text": "blue"})
    assert first["ids"][1] == "mine"
    again = put(client, {"text": "red river"})
    assert again["ids"] == first["ids"][:1]
    assert client.get("/documents/count").json() == {"count": 2}


def test_pages_follow_id_order_and_hold_every_document_once(client: TestClient) -> None:
    put(client, *reversed(CORPUS))
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = client.get("/documents", params={"after": after, "limit": 7}).json()
        seen += [document["id"] for document in page["documents"]]
        after = page["next"]
    assert seen == [document["id"] for document in CORPUS]


def test_a_document_of_any_id_is_read_by_that_id_also_one_that_is_called_count(client: TestClient) -> None:
    ids = ["count", "a/count", "emoji 🙂", "two\nlines", "100%25 & ?q=1#x", "'; DROP TABLE documents; --"]
    documents = [{"id": id, "text": f"river {at}", "metadata": {"at": at}} for at, id in enumerate(ids)]
    for path in ("/documents", "/collections/others/documents"):
        client.post(path, json={"documents": documents}).raise_for_status()
        assert set(client.get(f"{path}/count").json()) == {"count"}
        for document in documents:
            found = client.get(path, params={"id": str(document["id"])}).json()
            assert found == {"documents": [document], "next": None}
        assert client.get(path, params={"id": "nobody"}).json() == {"documents": [], "next": None}
        assert client.delete(f"{path}/count").json()["deleted"] == 1
        assert client.get(path, params={"id": "count"}).json()["documents"] == []
        client.delete(path, params={"filter": '{"at": {"$exists": true}}'}).raise_for_status()
    client.delete("/collections/others").raise_for_status()
    refused(client.get("/documents?id=a&filter={}"), 422, "Validation", "Leave them out")
    refused(client.get("/documents?id=a&id=b"), 422, "Validation", "more than once")


def test_a_filter_applies_to_search_pages_counts_and_deletes_alike(client: TestClient) -> None:
    put(client, *CORPUS)
    filter = '{"n": {"$gte": 40, "$lt": 43}}'
    expected = ["doc-040", "doc-041", "doc-042"]
    assert sorted(str(hit["id"]) for hit in hits(client, "red", k=100, filter=filter)) == expected
    posted = client.post(
        "/search", json={"queries": ["red"], "k": 100, "filter": {"n": {"$in": [40, 41, 42]}}}
    )
    assert sorted(hit["id"] for hit in posted.json()["results"][0]) == expected
    page = client.get("/documents", params={"filter": filter}).json()
    assert [document["id"] for document in page["documents"]] == expected
    assert client.get("/documents/count", params={"filter": filter}).json() == {"count": 3}
    assert client.delete("/documents", params={"filter": filter}).json()["deleted"] == 3
    assert client.get("/documents/count").json() == {"count": len(CORPUS) - 3}
    assert hits(client, "red", k=100, filter=filter) == []


def test_many_queries_and_vectors_give_the_hits_of_one_by_one(client: TestClient, runtime: Runtime) -> None:
    put(client, *CORPUS)
    queries = ["red river", "cat", "harbour bridge"]
    one_by_one = [[hit["id"] for hit in hits(client, query, k=5)] for query in queries]
    texts = client.post("/search", json={"queries": queries, "k": 5, "mode": "dense"}).json()
    assert [[hit["id"] for hit in hits] for hits in texts["results"]] == one_by_one
    vectors = (
        runtime.active.generation.encoder.encode(queries).vectors * 3
    ).tolist()  # The lengths of vectors do not matter.
    body = {"queries": vectors, "k": 5, "model": runtime.active.generation.version}
    answered = client.post("/search", json=body).json()
    assert [[hit["id"] for hit in hits] for hits in answered["results"]] == one_by_one


@pytest.mark.parametrize(
    "vector", [[0.0] * 32, [1.0] * 31, [1e39] * 32, ["a"] * 32, [True] * 32, [None] * 32]
)
def test_a_vector_that_cannot_be_compared_is_refused(
    client: TestClient, runtime: Runtime, vector: list[object]
) -> None:
    body = {"queries": [vector], "model": runtime.active.generation.version}
    response = client.post("/search", json=body)
    assert (response.status_code, response.json()["error_type"]) == (422, "Validation")


def test_min_score_leaves_the_weak_hits_out(client: TestClient) -> None:
    put(client, *CORPUS)
    found = hits(client, "red river", k=100)
    limit = float(found[10]["score"])
    strong = hits(client, "red river", k=100, min_score=limit)
    assert strong == [hit for hit in found if float(hit["score"]) >= limit]


@pytest.mark.long
def test_writers_and_readers_at_once_see_whole_documents(client: TestClient) -> None:
    """Each document's metadata repeats its text. A search must never mix two versions of a document."""

    def write(at: int) -> None:
        word = WORDS[at % 16]
        put(client, {"id": f"w-{at % 8}", "text": word, "metadata": {"word": word}})

    def read(at: int) -> None:
        for hit in hits(client, WORDS[at % 16], k=20):
            assert hit["metadata"] == {"word": hit["text"]}

    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit((write, read)[at % 2], at) for at in range(400)]
        for future in done:
            future.result()
    assert client.get("/documents/count").json() == {"count": 4}


@pytest.fixture
def million(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits answers to a million bytes."""
    few = runtime.settings.model_copy(update={"max_answer_mb": 1})
    monkeypatch.setattr(runtime, "settings", few)


def test_a_page_ends_before_it_is_larger_than_an_answer_may_be_and_the_next_goes_on(
    client: TestClient, million: None
) -> None:
    for at in range(5):
        put(client, {"id": f"d{at}", "text": "river " + "x" * 420_000})
    pages = []
    after = ""
    while after is not None:
        answer = client.get("/documents", params={"after": after, "limit": 4}).json()
        pages.append([document["id"] for document in answer["documents"]])
        after = answer["next"]
    assert pages == [["d0", "d1"], ["d2", "d3"], ["d4"]]


def test_a_document_larger_than_an_answer_is_a_page_of_its_own(client: TestClient, million: None) -> None:
    for at in range(2):
        put(client, {"id": f"d{at}", "text": "river " + "x" * 1_200_000})
    answer = client.get("/documents").json()
    assert [document["id"] for document in answer["documents"]] == ["d0"]
    assert answer["next"] == "d0"
