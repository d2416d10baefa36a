"""JSON bodies: values are counted before parsing, and deep nesting is rejected."""

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from pydantic import BaseModel, ValidationError
from starlette.testclient import TestClient

from models.files import exact_json
from service.api.cohere import EmbedByTypeRequest
from service.api.feedback import FeedbackRequest, JudgmentIn
from service.api.search import SearchRequest
from service.errors import Validation
from service.http import bodies
from service.http.bodies import CONTAINER_VALUES, KEY_VALUES, validated, values_in
from service.settings import Settings

JSON = {"content-type": "application/json"}
LARGEST = (16 << 20) - 100  # bytes
LETTERS = 'a"\\[]{},:é\n'


def weighed(value: object) -> int:
    if isinstance(value, list):
        return CONTAINER_VALUES + max(0, len(value) - 1) + sum(map(weighed, value))
    if isinstance(value, dict):
        members = KEY_VALUES * len(value) + max(0, len(value) - 1)
        return CONTAINER_VALUES + members + sum(map(weighed, value.values()))
    return 0


def any_value(rng: random.Random, depth: int = 0) -> Any:
    def text() -> str:
        return "".join(rng.choices(LETTERS, k=rng.randrange(9)))

    makers: list[Callable[[], Any]] = [text, rng.random]
    if depth < 5:
        makers.append(lambda: [any_value(rng, depth + 1) for _ in range(rng.randrange(5))])
        makers.append(lambda: {text(): any_value(rng, depth + 1) for _ in range(rng.randrange(5))})
    return rng.choice(makers)()


@pytest.mark.parametrize("slice_bytes", [1, 2, 3, 7, 1 << 20])
def test_values_are_counted_outside_of_texts(slice_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_json, "_SLICE_BYTES", slice_bytes)
    rng = random.Random(slice_bytes)
    for _ in range(200):
        value = [any_value(rng)]
        body = json.dumps(value, separators=(",", ":")).encode()
        assert values_in(body, weighed(value)) == weighed(value)
        assert values_in(body, weighed(value) - 1) > weighed(value) - 1


def test_megabytes_of_backslashes_are_read_once() -> None:
    body = b'["' + rb"\\" * (1 << 21) + b'a",' + b"[]," * 100 + b"1]"
    expected = CONTAINER_VALUES * 101 + 101
    assert values_in(body, expected - 1) == expected
    assert values_in(body.replace(b"a", b"[{"), expected) == expected


def filled(before: bytes, unit: bytes, after: bytes) -> bytes:
    count = (LARGEST - len(before) - len(after)) // (len(unit) + 1)
    return before + (unit + b",") * (count - 1) + unit + after


HOSTILE = {
    "lists": filled(b'{"inputs": [', b"[]", b"]}"),
    "objects": filled(b'{"inputs": [', b"{}", b"]}"),
    "ids": filled(b'{"inputs": [', b"1", b"]}"),
    "nested": filled(b'{"inputs": [', b"[" * 1000 + b"]" * 1000, b"]}"),
    "a field that is not read": filled(b'{"inputs": "a", "more": [', b"{}", b"]}"),
    "one key": filled(b'{"inputs": "a", ', b'"a":1', b"}"),
    "no JSON": filled(b"", b"[", b""),
}


@pytest.mark.parametrize("shape", HOSTILE)
@pytest.mark.parametrize("path", ["/embed", "/v1/embeddings", "/v2/embed", "/documents"])
def test_millions_of_values_are_refused_before_they_are_parsed(
    client: TestClient, path: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(bodies, "_parse", None)
        answer = client.post(path, content=HOSTILE[shape], headers=JSON)
    assert answer.status_code == (400 if path.startswith("/v") else 422)
    assert "SIMILE_MAX_VALUES" in answer.text


def test_text_in_quotes_is_no_value(client: TestClient) -> None:
    for mark in (b"[", b",", b'\\"'):
        text = b'{"inputs": "' + mark * (LARGEST // len(mark)) + b'"}'
        answer = client.post("/embed", content=text, headers=JSON)
        assert answer.status_code == 200, mark
        assert answer.headers["x-truncated"] == "1", mark


def test_as_many_values_as_are_allowed_are_read(client: TestClient, settings: Settings) -> None:
    left = settings.max_values - 100
    more = b",".join([b"[]"] * (left // (1 + CONTAINER_VALUES)))
    body = b'{"inputs": "a", "more": [' + more + b"]}"
    assert client.post("/embed", content=body, headers=JSON).status_code == 200


def test_a_large_body_is_parsed_off_the_loop(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def loads(content: bytes, *, stored: bool) -> Any:
        assert not stored, "vectors are not kept"
        seen.append(threading.current_thread().name)
        return orjson.loads(content)

    with monkeypatch.context() as patch:
        patch.setattr(bodies, "_parse", loads)
        for size in (100, bodies.LARGE_BYTES):
            assert client.post("/embed", json={"inputs": "a" * size}).status_code == 200
    small, large = seen
    assert client.portal is not None
    assert small == client.portal.call(threading.current_thread).name != large


@pytest.mark.parametrize(
    ("model", "value"),
    [
        (SearchRequest, {"queries": ["a"], "fields": [1] * 10_000}),
        (EmbedByTypeRequest, {"texts": ["a"], "embedding_types": [1] * 10_000}),
    ],
)
def test_of_many_wrong_members_one_is_reported(model: type[BaseModel], value: object) -> None:
    """An error for each member of a 16 MiB body took 39 s and 9 GB of memory."""
    with pytest.raises(ValidationError) as refused:
        model.model_validate(value)
    assert refused.value.error_count() == 1


@pytest.mark.parametrize("model", [SearchRequest, JudgmentIn, FeedbackRequest])
def test_many_unknown_fields_are_refused_by_their_number(model: type[BaseModel]) -> None:
    with pytest.raises(Validation, match="10000 fields"):
        validated(model, {f"field {at}": 1 for at in range(10_000)})


def test_a_long_name_is_not_repeated_in_full(client: TestClient) -> None:
    for body in ({"queries": ["a"], "b" * 100_000: 1}, {"queries": ["a"], "mode": "b" * 100_000}):
        answer = client.post("/search", json=body)
        assert answer.status_code == 422
        assert len(answer.content) < 1000


# orjson parses at most 1,024 levels of nesting, and writes at most 254.
DEPTHS = (250, 300, 1000, 50_000)


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def tables(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


BODIES = [
    ("/embed", '{"inputs": DEEP}'),
    ("/embed", "DEEP"),
    ("/", '{"inputs": DEEP}'),
    ("/similarity", '{"inputs": {"source_sentence": "a", "sentences": DEEP}}'),
    ("/tokenize", '{"inputs": DEEP}'),
    ("/decode", '{"ids": DEEP}'),
    ("/v1/embeddings", '{"input": DEEP, "model": "m"}'),
    ("/v2/embed", '{"texts": DEEP, "model": "m", "input_type": "search_query"}'),
    ("/search", '{"queries": DEEP}'),
    ("/search", '{"queries": ["a"], "filter": DEEP}'),
    ("/documents", '{"documents": DEEP}'),
    ("/documents", '{"documents": [{"id": "a", "text": "b", "metadata": {"a": DEEP}}]}'),
    ("/feedback", '{"query": DEEP, "id": "a", "relevant": true}'),
    ("/feedback", '{"feedback": DEEP}'),
    ("/events", '{"events": DEEP}'),
    ("/events", '{"search_id": "s", "id": "a", "type": "click", "shown": DEEP}'),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_a_deep_body_is_refused(client: TestClient, path: str, body: str) -> None:
    for depth in DEPTHS:
        for deep in (lists(depth), tables(depth)):
            answer = client.post(path, content=body.replace("DEEP", deep), headers=JSON)
            assert 400 <= answer.status_code < 500, (depth, answer.text[:300])
            assert len(answer.content) < 2000


@pytest.mark.parametrize("path", ["/search?q=a&filter=", "/documents?filter=", "/documents/count?filter="])
def test_a_deep_filter_is_refused(client: TestClient, path: str) -> None:
    for depth in (100, 250, 1000, 4000):
        joined = '{"$and":[' * depth + '{"a":1}' + "]}" * depth
        for deep in (lists(depth), tables(depth), joined, '{"a":{"$in":' + lists(depth) + "}}"):
            answer = client.get(path + deep)
            assert answer.status_code in (200, 400, 414, 422, 431), (depth, answer.text[:300])


def test_a_deep_line_fails_and_the_others_are_stored(client: TestClient) -> None:
    lines = ['{"id": "first", "text": "red river"}']
    lines += [
        f'{{"id": "deep", "text": "x", "metadata": {{"a": {deep(depth)}}}}}'
        for depth in DEPTHS
        for deep in (lists, tables)
    ]
    lines += ['{"id": "last", "text": "blue stone"}']
    answer = client.post(
        "/documents", content="\n".join(lines), headers={"content-type": "application/x-ndjson"}
    )
    assert answer.status_code == 200
    assert client.get("/documents/first").status_code == client.get("/documents/last").status_code == 200
    assert client.get("/documents/deep").status_code == 404
