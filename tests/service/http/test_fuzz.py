"""Malformed bodies and addresses: each is rejected clearly, and the next request is served. Also tests HEAD.

Rejections of well-formed bodies are in test_http_errors.py, and malformed HTTP is in test_protocol.py.
"""

import json
import re
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.process import Service
from tests.service.raw import FAMILIES, Answer, Wire, check_served, head, post

VALID = {
    **FAMILIES,
    "/similarity": b'{"pairs": [["a", "b"]]}',
    "/tokenize": b'{"inputs": "red"}',
    "/decode": b'{"ids": [2, 3]}',
    "/documents": b'{"documents": [{"id": "d", "text": "red river", "metadata": {"a": [1, null]}}]}',
    "/search": b'{"queries": ["red"], "k": 3, "filter": {"a": {"$gt": 0}}}',
    "/feedback": b'{"query": "red", "id": "d", "relevant": true}',
    "/events": b'{"search_id": "s", "query": "red", "id": "d", "type": "click"}',
}


@pytest.fixture(scope="module")
def running(service: Service) -> Service:
    assert service.put({"d": "red river"}).is_success
    return service


@pytest.fixture(autouse=True)
def _served(running: Service) -> Iterator[None]:
    yield
    check_served(running)


@pytest.mark.parametrize("path", VALID)
def test_a_body_that_is_cut_off_anywhere_is_refused(service: Service, path: str) -> None:
    body = VALID[path]
    with Wire(service) as wire:
        assert wire.send(post(path, body)).answer().status == 200
        for length in range(len(body)):
            answer = wire.send(post(path, body[:length])).answer()
            assert "JSON" in answer.refused(path, 422, "Validation"), body[:length]
        assert wire.send(post(path, body)).answer().status == 200, "on the same connection"


MALFORMED = {
    "100,000 lists": b"[" * 100_000,
    "100,000 objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "infinity": b'{"inputs": Infinity}',
    "NaN in a vector": b'{"queries": [[NaN]], "model": "m"}',
    "a number that overflows": b'{"inputs": 1e999}',
    "a low surrogate, escaped": b'{"inputs": "\\udc00"}',
    "two high surrogates, escaped": b'{"inputs": "\\ud83d\\ud83d"}',
    "a surrogate, as bytes": b'{"inputs": "\xed\xa0\x80"}',
    "a pair of surrogates, as bytes": b'{"inputs": "\xed\xa0\xbd\xed\xb8\x80"}',
    "a null byte in a string": b'{"inputs": "a\0b"}',
    "a null byte at the end": b'{"inputs": "a"}\0',
    "null bytes alone": bytes(64),
    "an overlong null": b'{"inputs": "\xc0\x80"}',
    "latin-1": '{"inputs": "Größe"}'.encode("latin-1"),
    "UTF-16": '{"inputs": "red"}'.encode("utf-16"),
    "UTF-16, no mark": '{"inputs": "red"}'.encode("utf-16-be"),
    "UTF-32": '{"inputs": "red"}'.encode("utf-32"),
    "two bodies": b'{"inputs": "red"}{"inputs": "red"}',
    "a comment": b'{"inputs": "red" /* or blue */}',
    "single quotes": b"{'inputs': 'red'}",
    "a form": b"inputs=red",
    "gzip": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xabV\xca\xcc+(-)V\xb2RP*JMQ\xaa\x05\x00",
}


@pytest.mark.parametrize("what", MALFORMED)
@pytest.mark.parametrize("path", FAMILIES)
def test_what_is_no_json_is_refused(service: Service, path: str, what: str) -> None:
    with Wire(service) as wire:
        answer = wire.send(post(path, MALFORMED[what])).answer()
    assert re.search("JSON|not UTF-8", answer.refused(path, 422, "Validation"))


def test_another_encoding_is_not_read_although_it_is_declared(service: Service) -> None:
    body = '{"inputs": "red"}'.encode("utf-16")
    head = "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-16\r\n"
    with Wire(service) as wire:
        wire.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode(), body)
        assert "UTF-8" in wire.answer().refused("/embed", 415, "MediaType")


def test_a_null_character_is_a_character_of_a_text_and_of_no_filter(service: Service) -> None:
    with Wire(service) as wire:
        assert wire.send(post("/embed", b'{"inputs": "a\\u0000b"}')).answer().status == 200
        body = b'{"queries": ["red"], "filter": {"a\\u0000": 1}}'
        assert "U+0000" in wire.send(post("/search", body)).answer().refused("/search", 422, "Validation")


def test_of_equal_names_the_last_counts(service: Service) -> None:
    with Wire(service) as wire:
        wire.send(post("/embed", b'{"inputs": "red", "inputs": 7}'))
        assert "inputs must be" in wire.answer().refused("/embed", 422, "Validation")
        [vector] = json.loads(wire.send(post("/embed", b'{"inputs": 7, "inputs": "red"}')).answer().body)
        [expected] = json.loads(wire.send(post("/embed", b'{"inputs": "red"}')).answer().body)
        assert vector == expected


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "PROPFIND"])
@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/embed", "POST"),
        ("/v1/embeddings", "POST"),
        ("/v2/embed", "POST"),
        ("/documents", "DELETE, GET, HEAD, POST"),
    ],
)
def test_a_method_that_a_path_does_not_take_is_405_and_all_others_are_named(
    service: Service, method: str, path: str, allowed: str
) -> None:
    if method in allowed:
        return
    with Wire(service) as wire:
        answer = wire.send(head(path, method=method)).answer(method)
    assert (answer.status, answer.headers["allow"]) == (405, allowed)
    if method != "HEAD":
        assert allowed in answer.refused(path, 405, "MethodNotAllowed")


ADDRESSES = {
    (422, "Validation"): "/documents/%FF /documents/caf%E9 /documents/%ED%A0%80 /documents?after=%C0%80 "
    "/search?q=caf%E9 /search?q=a&k=%00 /search?q=a&k=1&k=2&k=x /search?q=a&%00=1 /search?&&=&; "
    "/documents/count?filter=%7B%22a%22%3A%22%5Cu0000%22%7D /v1/%FF /v2/%FF "
    "/documents/count?filter=" + "%5B" * 3000,
    (400, "Empty"): "/search?q=%20%09%E3%80%80 /search?q=",
    (404, "NotFound"): "/documents/%00 /documents/% /documents/%zz%2 /documents/ //embed /embed%00 /v1/%00 "
    "/documents/..%2f..%2fetc%2fpasswd /models/%2e%2e%2f/report /models/%00/report /%2e%2e/embed "
    f"/models/{'a' * 5000}/report",
}


@pytest.mark.parametrize(
    ("target", "status", "kind"),
    [(target, *expected) for expected, targets in ADDRESSES.items() for target in targets.split()],
)
def test_an_address_without_sense_is_refused(service: Service, target: str, status: int, kind: str) -> None:
    with Wire(service) as wire:
        wire.send(head(target, method="GET")).answer().refused(target, status, kind)


def test_a_document_is_not_deleted_by_an_id_in_another_encoding(service: Service) -> None:
    assert service.put({"caf\ufffd": "red"}).is_success
    with Wire(service) as wire:
        wire.send(head("/documents/caf%E9", method="DELETE")).answer().refused("/", 422, "Validation")
        wire.send(head("/documents/", method="DELETE")).answer().refused("/", 404, "NotFound")
    assert service.client.get("/documents/caf\ufffd").json()["text"] == "red"


def test_any_bytes_are_a_body_or_refused(running: Service) -> None:
    @settings(max_examples=150, deadline=None)
    @given(st.sampled_from(sorted(VALID)), st.binary(max_size=200), st.data())
    def check(path: str, bytes_: bytes, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(VALID[path])))
        for body in (bytes_, VALID[path][:at] + bytes_ + VALID[path][at + len(bytes_) // 2 :]):
            answer = wire.send(post(path, body)).answer()
            assert answer.status in {200, 400, 404, 409, 422}, (path, body, answer)
            assert isinstance(json.loads(answer.body), dict | list)

    with Wire(running) as wire:
        check()
    check_served(running)


GETS = (
    "/health /ready /metrics /docs /docs/start.js /docs/swagger-ui.css /openapi.json /info /models "
    "/v1/models /collections /documents /documents/count /documents/d /documents/none "
    "/collections/none/documents /feedback /feedback/count /events /events/count /search?q=river "
    "/models/20260101T000000-none-00000000/report /nothing"
).split()
# The lengths of the other answers vary.
SAME_LENGTH = set(GETS) - {"/metrics", "/info", "/models", "/search?q=river"}


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_its_body(service: Service, path: str) -> None:
    with Wire(service) as wire:
        requested = wire.send(head(path, method="HEAD")).answer("HEAD")
        got = wire.send(head(path, method="GET")).answer("GET")
    assert requested.status == got.status
    own = {"x-request-id", "date", "content-length", "etag", "last-modified"}
    kept = {name.lower() for name in got.headers} - own
    assert {name.lower() for name in requested.headers} - own == kept
    if path in SAME_LENGTH:
        assert requested.headers["content-length"] == got.headers["content-length"] == str(len(got.body))


def test_head_is_for_paths_with_get_and_metrics_count_it_by_its_name(service: Service) -> None:
    with Wire(service) as wire:
        answer = wire.send(head("/embed", method="HEAD")).answer("HEAD")
        assert (answer.status, answer.headers["allow"]) == (405, "POST")
        assert wire.send(head("/info")).answer().headers["allow"] == "GET, HEAD"
    paths = service.client.get("/openapi.json").json()["paths"]
    assert not any("head" in operations for operations in paths.values())
    said = service.client.get("/metrics").text
    for path in ("/info", "/documents/{id:anything}", "/openapi.json"):
        assert f'simile_requests_total{{method="HEAD",route="{path}",status="200"}}' in said


def test_no_browser_guesses_what_an_answer_is(service: Service) -> None:
    def said(request: bytes, method: str = "POST") -> Answer:
        with Wire(service) as wire:
            return wire.send(request).answer(method)

    answers = {
        200: said(post("/embed", FAMILIES["/embed"])),
        400: said(b"hello\r\n\r\n"),
        404: said(head("/nothing", method="GET"), "GET"),
        405: said(head("/embed", method="GET"), "GET"),
        413: said(head("/embed", f"Content-Length: {1 << 30}")),
        421: said(head("/embed").replace(b"localhost", b"evil.example.org")),
        422: said(post("/embed", b"{")),
        431: said(head("/embed", "X-A: " + "a" * 100_000)),
    }
    for status, answer in answers.items():
        assert answer.status == status
        assert answer.headers["x-content-type-options"] == "nosniff", status
