"""Bodies, lines, filters and files with deep nesting are rejected, and the service stays healthy."""

import pytest
from starlette.testclient import TestClient

from service.runtime.runtime import Runtime

# orjson parses 1,024 levels, and writes 254.
DEPTHS = (250, 300, 1000, 50_000)


def lists(depth: int) -> str:
    return "[" * depth + "]" * depth


def tables(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


JSON = {"content-type": "application/json"}
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


@pytest.mark.parametrize("name", ["schedule.json", "progress.json", "state.json", "asked.json"])
def test_a_deep_file_beside_the_versions_is_not_shown(
    client: TestClient, runtime: Runtime, name: str
) -> None:
    """json reads more levels than the 254 that orjson writes."""
    file = runtime.store.root / name
    before = file.read_bytes() if file.exists() else None
    for depth in DEPTHS:
        file.write_text(f'{{"started": "2099-01-01T00:00:00+00:00", "deep": {lists(depth)}}}')
        answer = client.get("/models")
        assert answer.status_code == 200, answer.text[:300]
        assert "[[[" not in answer.text
    file.unlink() if before is None else file.write_bytes(before)
