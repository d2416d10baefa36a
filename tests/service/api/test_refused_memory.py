"""A rejected body is freed at once. The test measures the RSS of a real service."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.service.one_gib import resident
from tests.service.process import Service

JSON = {"content-type": "application/json"}
IDS_BYTES = 6 << 20  # More ids are rejected early (SIMILE_MAX_IDS).


class Kind(NamedTuple):
    name: str
    path: str
    body: bytes
    status: int
    headers: dict[str, str] = {}  # noqa: RUF012  never changed


def kinds(size: int, first: int, last: int) -> Iterator[Kind]:
    """Yields bad requests of about `size` bytes. `first` and `last` are the model's special ids."""
    text = "red river " * (size // 10)
    gap = "a " * 300 + " " * size + "a"  # too many tokens, but counted quickly
    texts = ["red river stone"] * (size // 18)
    some = ["red river stone " * (size // 16 // 500)] * 500
    number = 100_000  # larger than the integers that Python shares
    numbers = [number] * (min(size, IDS_BYTES) // 8)
    known = [290] * (min(size, IDS_BYTES) // 5)
    inputs: dict[str, tuple[Any, int]] = {
        "ids out of the vocabulary": ([first, *numbers, last], 422),
        "ids without specials": (known, 422),
        "ids and a truth": ([*known, True], 422),
        "a number among texts": ([*some, 1], 422),
        "an empty text among many": ([*some, ""], 400),
        "half a surrogate pair": (text + "\ud800", 422),
        "too many": (texts + ["a"] * 2048, 422),
        "an object": ({"a": texts}, 422),
    }
    for name, (value, status) in inputs.items():
        yield kind(f"native, {name}", "/embed", {"inputs": value}, status)
        yield kind(f"OpenAI, {name}", "/v1/embeddings", {"input": value}, 400)
        yield kind(f"Cohere, {name}", "/v2/embed", {"texts": value}, 400)
    for path, field in (("/embed", "inputs"), ("/v1/embeddings", "input")):
        long = {field: [first, *known, last], "truncate": False}
        yield kind(f"{path}, ids too long", path, long, 422 if path == "/embed" else 400)
        yield kind(f"{path}, text too long", path, long | {field: gap}, 422 if path == "/embed" else 400)
        sized = {field: some, "dimensions": 100_000}
        yield kind(f"{path}, dimensions", path, sized, 422 if path == "/embed" else 400)
        malformed = json.dumps({field: texts}).encode()[:-1]
        yield Kind(f"{path}, malformed", path, malformed, 422 if path == "/embed" else 400)
    yield kind("Cohere, too long", "/v2/embed", {"texts": [gap], "truncate": "NONE"}, 400)
    yield kind("Cohere, types", "/v2/embed", {"texts": some, "embedding_types": ["a"] * 500}, 400)
    yield kind("a version", "/embed", {"inputs": some}, 409, {"x-model-version": "none"})
    yield kind("too late", "/embed", {"inputs": [text] * 2}, 504, {"x-timeout-ms": "1"})
    yield kind("pairs", "/similarity", {"pairs": [["a", value] for value in (*some, 1)]}, 422)
    yield kind("tokenize", "/tokenize", {"inputs": text + "\ud800"}, 422)
    yield kind("decode", "/decode", {"ids": numbers}, 422)
    yield kind("queries", "/search", {"queries": texts + ["a"] * 2048}, 422)
    yield kind("vectors", "/search", {"queries": [[0.125] * 7] * (size // 56), "model": "none"}, 422)
    yield kind("a filter", "/search", {"queries": ["a"], "filter": {"a": {"$in": numbers}}}, 422)
    yield kind("an operator", "/search", {"queries": some, "filter": {"a": {"$no": some}}}, 422)
    yield kind("a field", "/search", {"queries": some, "more": some}, 422)
    yield kind("fields", "/search", {"queries": ["a"], "fields": texts}, 422)
    yield kind("metadata", "/documents", {"documents": [{"text": text, "metadata": nested(40)}]}, 422)
    wrong = {"text": "a", "metadata": {"a": numbers}}
    yield kind("documents", "/documents", {"documents": [wrong, {"text": 1}]}, 422)
    yield kind("feedback", "/feedback", {"feedback": [{"query": text, "id": "a", "relevant": 1}]}, 422)


def kind(name: str, path: str, body: object, status: int, headers: dict[str, str] | None = None) -> Kind:
    if path.startswith("/v2") and status == 422:
        status = 400
    return Kind(name, path, json.dumps(body).encode(), status, headers or {})


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels else {}


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "bound"), [(128 << 10, 80), pytest.param(2 << 20, 150, marks=pytest.mark.soak)]
)
def test_fifty_refused_bodies_of_each_kind_leave_nothing(
    tmp_path: Path, tiny_models_dir: Path, size: int, bound: float
) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_MAX_QUEUE_SECONDS="0") as service:
        special = [token["id"] for token in service.client.post("/tokenize", json={"inputs": "a"}).json()[0]]
        bodies = [*kinds(size, special[0], special[-1])]
        for given in bodies:
            refuse(service, given)
        before = resident(service.process.pid)
        grown = {}
        for given in bodies:
            start = resident(service.process.pid)
            for _ in range(50):
                refuse(service, given)
            grown[given.name] = (resident(service.process.pid) - start) >> 20
        assert (resident(service.process.pid) - before) >> 20 < bound, grown


def refuse(service: Service, given: Kind) -> None:
    answer = service.client.post(given.path, content=given.body, headers=JSON | given.headers)
    assert answer.status_code == given.status, (given.name, answer.text[:300])
