"""Typical mistakes of new users over HTTP. Each answer says what to do."""

from typing import Any

import pytest

from tests.mistakes import plain
from tests.service.process import Service

GONE = "20260101T000000-all-minilm-l6-v2-00000000"
KINDS = "a text, a list of texts, or token ids, all of one kind."


@pytest.fixture(scope="module")
def service(service: Service) -> Service:
    service.put({"a": "red river"})
    return service


MISTAKES: dict[str, list[tuple[object, int, str]]] = {
    "/embed": [
        ({"input": "a"}, 422, "inputs is missing. There is no field 'input' here. Did you mean inputs?"),
        ({"text": "a"}, 422, "inputs is missing. There is no field 'text' here; there are"),
        (["a"], 422, 'the body must be an object, not a list. Send {"inputs": […]}.'),
        ("a", 422, "the body must be an object, not 'a'. Send {\"inputs\": …}."),
        (3, 422, 'the body must be an object, not 3. Send {"inputs": …}.'),
        ({"inputs": 3}, 422, f"inputs must be {KINDS}"),
        ({"inputs": ""}, 400, "inputs is empty, or white space only. Send a text."),
        ({"inputs": " "}, 400, "inputs is empty, or white space only. Send a text."),
        ({"inputs": [""]}, 400, "inputs[0] is empty, or white space only. Leave it out."),
        ({"inputs": ["a", ["b"]]}, 422, "inputs[1] must be a text, as the first one is."),
        ({"inputs": "a", "normalize": "no"}, 422, "normalize must be true or false, not 'no'."),
        ({"inputs": "a", "truncate": "END"}, 422, "truncate must be true or false, not 'END'."),
        ({"inputs": "a", "truncation_direction": "Lefft"}, 422, "not 'Lefft'. Did you mean Left?"),
        ({"inputs": "a", "dimensions": "128"}, 422, "dimensions must be a whole number, not '128'."),
        ({"inputs": "a", "dimensions": 1000}, 422, "dimensions must be between 1 and 32, not 1000."),
        ({"inputs": "a", "prompt_name": "query"}, 422, "The model has no prompt 'query'; it has: none."),
        ({"inputs": "a", "model": GONE}, 404, f"There is no version '{GONE}'."),
    ],
    "/v1/embeddings": [
        ({"inputs": "a"}, 400, "There is no field 'inputs' here. Did you mean input?"),
        ({"input": ""}, 400, "input is empty, or white space only. Send a text."),
        ({"input": ["a", ""]}, 400, "input[1] is empty, or white space only. Leave it out."),
        (["a"], 400, 'the body must be an object, not a list. Send {"input": […]}.'),
        ({"input": "a", "encoding_format": "hex"}, 400, "must be 'float' or 'base64', not 'hex'."),
    ],
    "/v1/embedding": [
        ({"input": "a"}, 404, "There is no route POST /v1/embedding. Did you mean /v1/embeddings?")
    ],
    "/v2/embed": [
        ({"texts": "a"}, 400, "texts must be a list, not 'a'."),
        ({"texts": [""]}, 400, "texts[0] is empty, or white space only. Leave it out."),
        ({"texts": ["a"], "embedding_types": ["int4"]}, 400, "embedding_types[0] must be 'float', 'int8'"),
    ],
    "/similarity": [
        ({"inputs": ["a", "b"]}, 422, "inputs must be an object, not a list."),
        ({"pairs": ["a", "b"]}, 422, "pairs[0] must be a list of two texts."),
        ({"pairs": [["a", "b"], ["a", ""]]}, 400, "pairs[1][1] is empty, or white space only."),
        (
            {"inputs": {"source_sentence": "", "sentences": ["a"]}},
            400,
            "source_sentence is empty, or white space only. Send a text.",
        ),
    ],
    "/tokenize": [
        ({"inputs": ""}, 400, "inputs is empty, or white space only. Send a text."),
    ],
    "/search": [
        *(
            (
                body,
                422,
                'queries is missing. One query: GET /search?q=TEXT. Several: POST /search with {"queries"',
            )
            for body in ({"q": "a"}, {"query": "a"}, {"text": "a"}, {"inputs": ["a"]}, {"k": 3}, {})
        ),
        (["a"], 422, 'the body must be an object, not a list. Send {"queries": […]}.'),
        ({"queries": "a"}, 422, "queries must be a list, not 'a'."),
        ({"queries": ["a"], "top_k": 3}, 422, "There is no field 'top_k' here; there are k, offset, mode"),
        ({"queries": ["a"], "filter": "x"}, 422, "filter must be an object, not 'x'."),
    ],
    "/documents": [
        ({"text": "a"}, 422, "documents is missing. There is no field 'text' here; there is only documents."),
        ({"documents": {"text": "a"}}, 422, "documents must be a list, not an object."),
        ([{"id": "a", "text": "a"}], 422, 'the body must be an object, not a list. Send {"documents": […]}.'),
        *(
            ({"documents": [{"id": id, "text": "a"}]}, 422, "documents[0].id must be a text, not ")
            for id in (1.5, True, [1], {"a": 1})
        ),
        ({"documents": [{"text": "a", "meta": {}}]}, 422, "no field 'meta' in documents[0]; there are id"),
    ],
    "/feedback": [
        ({"query": "a", "id": "a", "relevant": 1}, 422, "relevant must be true or false, not 1."),
        ({"query": "a", "id": "x", "relevant": True}, 404, "There is no document 'x'"),
        ({"query": "a", "id": 7, "relevant": True}, 404, "There is no document '7'"),
        ([{"query": "a"}], 422, 'the body must be an object, not a list. Send {"feedback": […]}.'),
    ],
    "/events": [
        ([{"id": "a"}], 422, 'the body must be an object, not a list. Send {"events": […]}.'),
        ({"search_id": "s", "id": "a"}, 422, "type is missing."),
        ({"search_id": "s", "id": "a", "type": "clicked"}, 422, "not 'clicked'. Did you mean click?"),
        ({"search_id": "s", "doc_id": "a", "type": "click"}, 422, "id is missing. There is no field"),
        ({"search_id": "s", "id": "a", "type": "click"}, 404, "This process does not remember a search 's'"),
        (
            {"search_id": "s", "id": "a", "type": "click", "query": "q", "at": "2026-01-31T08:30:00"},
            422,
            "at must be a time with its zone, such as \"2026-01-31T08:30:00Z\", not '2026-01-31T08:30:00'.",
        ),
    ],
    **{
        path: [
            (
                {},
                404,
                f"There is no route POST {path}. There are POST /embed, /similarity, /search and /documents.",
            )
        ]
        for path in ("/ask", "/collections/x/points/search", "/v1/chat/completions", "/query", "/vectors")
    },
    "/documents/1001": [({"text": "a"}, 405, "POST /documents with the same id replaces it.")],
    "/collections": [
        ({"name": "x"}, 405, "A collection's first document makes it: POST /collections/NAME/doc")
    ],
    "/collections/x": [({}, 405, "Its first document makes a collection: POST /collections/NAME/documents.")],
    "/collections/Büro/documents": [
        (
            {"documents": [{"text": "a"}]},
            422,
            "'Büro' cannot be a collection. A collection's name is up to 64 let",
        )
    ],
    "/event": [({}, 404, "There is no route POST /event. Did you mean /events?")],
    "/map": [({}, 405, "/map does not take POST; it takes GET, HEAD.")],
    "/models/mine/activate": [({}, 404, "There is no version 'mine'. GET /models lists them.")],
    "/models/rollback": [({}, 409, "There is no version to go back to.")],
    "/retraining": [
        ({}, 409, "No schedule of retrainings runs on this models folder. Start it with `simile schedule")
    ],
}


@pytest.mark.parametrize(
    ("path", "body", "status", "words"), [(path, *row) for path, rows in MISTAKES.items() for row in rows]
)
def test_a_mistake_in_a_body_is_answered_in_plain_words(
    service: Service, path: str, body: object, status: int, words: str
) -> None:
    answer = service.client.post(path, json=body)
    assert answer.status_code == status, answer.text
    assert words in plain(_message(answer.json()))


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/serach?q=a", 404, "There is no route GET /serach. Did you mean /search? GET /docs lists all."),
        ("/map", 404, "While that version is active, `simile map` makes one."),
        ("/map?version=mine", 404, "There is no version 'mine'. GET /models lists them."),
        ("/map?collection=a", 422, "There is no parameter 'collection' here; there is only version."),
        ("/collections/none/map", 404, "There is no collection 'none'."),
        ("/me?name=a", 422, "There is no parameter 'name' here; there is none."),
        ("/mee", 404, "Did you mean /me?"),
        ("/documents/none", 404, "none"),
        ("/feedback/summry", 404, "Did you mean /feedback/summary?"),
        ("/feedback/summary?limit=3", 422, "no parameter 'limit' here; there are key, collection, user."),
        ("/search?q=a&passage_tokens=64", 422, "Did you mean passages?"),
        ("/models/latest/report", 404, "There is no version 'latest'. GET /models lists them."),
        ("/embed", 405, "/embed does not take GET; it takes POST."),
        ("/search", 422, "Give q, a text to look for, or id"),
        ("/search?q=", 400, "q is empty, or white space only. Give a text to look for."),
        ("/search?query=a", 422, "There is no parameter 'query' here; there are k, offset"),
        ("/search?q=a&k=ten", 422, "k must be a whole number, not 'ten'."),
        ("/search?q=a&mode=hybird", 422, "not 'hybird'. Did you mean hybrid?"),
        ("/search?q=a&filter=topic:x", 422, "filter: This is not JSON"),
    ],
)
def test_a_mistake_in_an_address_is_answered_in_plain_words(
    service: Service, path: str, status: int, words: str
) -> None:
    answer = service.client.get(path)
    assert answer.status_code == status, answer.text
    assert words in plain(_message(answer.json()))


@pytest.mark.parametrize(
    ("method", "path", "words"),
    [
        (
            "PUT",
            "/documents/1001",
            "it takes DELETE, GET, HEAD. POST /documents with the same id replaces it.",
        ),
        (
            "PATCH",
            "/documents/a/b",
            "it takes DELETE, GET, HEAD. POST /documents with the same id replaces it.",
        ),
        ("PUT", "/collections/x/documents/1", "POST /documents with the same id replaces it."),
        ("PUT", "/documents", "POST /documents stores documents, and replaces those with the same id."),
        ("PUT", "/collections/x/documents", "POST /documents stores documents, and replaces those with"),
        ("PUT", "/collections/x", "Its first document makes a collection: POST /collections/NAME/documents."),
        ("PATCH", "/collections/x", "Its first document makes a collection: POST /collections/NAME/docum"),
        ("PUT", "/collections", "A collection's first document makes it: POST /collections/NAME/documents."),
        ("DELETE", "/collections", "/collections does not take DELETE; it takes GET, HEAD."),
    ],
)
def test_a_method_that_other_services_have_is_answered_with_ours(
    service: Service, method: str, path: str, words: str
) -> None:
    answer = service.client.request(method, path, json={})
    assert answer.status_code == 405
    assert plain(_message(answer.json())).endswith(words) or words in _message(answer.json())
    assert answer.headers["allow"]


@pytest.mark.parametrize("path", ["/documents", "/collections/x/documents"])
@pytest.mark.parametrize("kind", ["text/csv", "text/plain", "application/octet-stream", ""])
def test_a_file_that_is_posted_as_documents_is_answered_with_what_stores_it(
    service: Service, path: str, kind: str
) -> None:
    answer = service.client.post(path, content=b"id,text\n1,a\n", headers={"content-type": kind})
    assert answer.status_code == 415, answer.text
    said = plain(_message(answer.json()))
    assert "NDJSON (application/x-ndjson). `simile import FILE` stores CSV" in said


@pytest.mark.parametrize("fields", ["id", "score", "id,score", "id,text", "metadata,id"])
def test_the_fields_that_every_hit_has_may_be_named(service: Service, fields: str) -> None:
    answer = service.client.get("/search", params={"q": "red river", "k": 1, "fields": fields}).json()
    shown = {"id", "score"} | ({*fields.split(",")} - {"id", "score"})
    assert answer["hits"][0].keys() == shown
    body = {"queries": ["red river"], "k": 1, "fields": fields.split(",")}
    assert service.client.post("/search", json=body).json()["results"][0][0].keys() == shown


@pytest.mark.parametrize(
    ("content", "kind", "status", "words"),
    [
        (b"", "application/json", 422, "The body is empty. Send a JSON object."),
        (b'{"inputs": "a",}', "application/json", 422, "The body is not valid JSON: trailing comma"),
        (b"inputs=a", "application/x-www-form-urlencoded", 415, "Content-Type: application/json."),
        (b'{"inputs": "a"}', "", 415, "Content-Type: application/json."),
    ],
)
def test_bytes_that_are_no_json_are_refused_in_plain_words(
    service: Service, content: bytes, kind: str, status: int, words: str
) -> None:
    answer = service.client.post("/embed", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert words in plain(_message(answer.json()))


def test_fields_that_a_compatible_route_does_not_know_are_ignored_and_named(service: Service) -> None:
    body = {"inputs": "a", "normalise": False, "parameters": {"trunkate": True}, "ü\n": 1}
    answer = service.client.post("/embed", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "normalise, parameters.trunkate, ??"
    openai = service.client.post(
        "/v1/embeddings", json={"input": "a", "user": "u", "encoding_format": "float"}
    )
    assert "x-ignored-fields" not in openai.headers
    many = service.client.post("/embed", json={"inputs": "a"} | {f"f{at}": 1 for at in range(1000)})
    assert many.headers["x-ignored-fields"].count(",") == 9


def _message(said: dict[str, Any]) -> str:
    found = said.get("error", said.get("message"))
    return str(found["message"] if isinstance(found, dict) else found)
