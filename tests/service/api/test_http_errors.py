"""Every error status with its body. After each error the next request is served."""

import json
import threading
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from service.errors import ServiceError
from service.http.error_responses import response
from service.runtime.runtime import Runtime
from tests.parts.faults import before_passes, broken
from tests.service.conftest import new_settings, serving
from tests.service.fakes import sqlite_of
from tests.waiting import LIMIT, until


def refused(response: object, status: int, error_type: str, *words: str) -> str:
    """Checks a native error body and returns its message."""
    assert response.status_code == status, response.text  # type: ignore[attr-defined]
    assert response.headers["content-type"] == "application/json"  # type: ignore[attr-defined]
    assert response.headers["x-request-id"]  # type: ignore[attr-defined]
    body = response.json()  # type: ignore[attr-defined]
    assert set(body) == {"error", "error_type"}
    assert body["error_type"] == error_type
    for word in words:
        assert word in body["error"]
    return str(body["error"])


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": ["a", " \t\n"]}, "inputs[1]"),
        ("/embed", {"inputs": [[]]}, "inputs[0]"),
        ("/similarity", {"pairs": []}, "pairs"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "sentences"),
        ("/similarity", {"inputs": {"source_sentence": " ", "sentences": ["a"]}}, "source_sentence is empty"),
        ("/search", {"queries": []}, "queries"),
        ("/search", {"queries": ["ok", ""]}, "queries[1]"),
        ("/documents", {"documents": []}, "documents"),
        ("/documents", {"documents": [{"text": "a"}, {"text": "  "}]}, "documents[1]"),
    ],
)
def test_an_empty_input_is_400_and_its_place_is_named(
    client: TestClient, path: str, body: dict[str, object], named: str
) -> None:
    refused(client.post(path, json=body), 400, "Empty", named)


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/embed", {"inputs": [True]}, "inputs"),
        ("/embed", {"inputs": [[2, 1.5, 3]]}, "inputs[0]"),
        ("/embed", {"inputs": ["a"] * 2049}, "SIMILE_MAX_INPUTS"),
        ("/search", {"queries": ["a"] * 51, "k": 1000}, "SIMILE_MAX_HITS"),
        ("/embed", {"inputs": "word " * 500, "truncate": False}, "tokens and the model takes 64"),
        ("/embed", {"inputs": [[999_999]]}, "Input 0"),
        ("/similarity", {}, "pairs"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "pairs": []}, "not both"),
        ("/search", {"queries": ["a"], "mode": "lexical", "min_score": 0.5}, "is a cosine"),
        ("/search", {"queries": ["a"], "mode": "lexical", "prompt_name": "x"}, "asks none"),
        ("/search", {"queries": [[0.1] * 32], "mode": "lexical"}, "no words"),
        ("/search", {"queries": [{"id": "a"}], "mode": "lexical"}, "no words"),
        ("/search", {"queries": [{"id": "a"}], "prompt_name": "x"}, "vectors take none"),
        ("/search", {"queries": [{"id": "a"}, "b"]}, "queries[1]"),
        ("/search", {"queries": [{"id": 7.5}]}, "queries[0]"),
        ("/search", {"queries": [{"id": "a", "text": "b"}]}, "queries[0]"),
        ("/search", {"queries": [7]}, "queries[0]"),
        ("/search", {"queries": ["a"], "offset": -1}, "between 0 and 10000"),
        ("/search", {"queries": ["a"] * 6, "offset": 10_000}, "SIMILE_MAX_HITS"),
        ("/search", {"queries": ["a", "é" * 10_001]}, "Query 1 has 10001 characters"),
        ("/search", {"queries": ["é" * 10_001], "mode": "lexical"}, "SIMILE_MAX_QUERY_CHARACTERS"),
        ("/search", {"queries": ["a" * 9_901] * 101}, "100 times SIMILE_MAX_QUERY_CHARACTERS"),
        ("/search", {"queries": ["a"], "fields": ["text.x"]}, "'text.x'"),
        ("/search", {"queries": ["a"], "fields": ["metadata."]}, "'metadata.'"),
        ("/search", {"queries": ["a"], "fields": "text"}, "fields"),
        ("/search", {"queries": ["a"], "fields": ["text"] * 101}, "at most 100"),
        ("/search", {"queries": ["a"], "fields": ["metadata" + ".x" * 511] * 100}, "fields has 51,100 names"),
        ("/search", {"queries": ["a"], "filter": {"x": {"$near": 1}}}, "$near"),
        ("/search", {"queries": [[0.1] * 32]}, "model"),
        ("/documents", {"documents": [{"text": "a", "title": 7}]}, "title"),
        ("/documents", {"documents": [{"text": "a", "id": "i" * 513}]}, "id"),
    ],
)
def test_a_wrong_field_is_422_and_named(client: TestClient, path: str, body: object, words: str) -> None:
    refused(client.post(path, json=body), 422, "Validation", words)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/search?q=a&id=b", "not both"),
        (f"/search?q={'a' * 10_001}", "SIMILE_MAX_QUERY_CHARACTERS"),
        ("/search?q=a&k=0", "k must be between 1 and 1000, not 0."),
        ("/search?q=a&k=1&k=2", "A parameter comes more than once."),
        ("/search?q=a&offset=10001", "offset must be between 0 and 10000, not 10001."),
        ("/search?q=a&mode=hybrid&min_score=0", "is a cosine"),
        ("/search?q=a&min_score=nan", "min_score must be a finite number, not 'nan'."),
        ("/documents?limit=1001", "limit must be between 1 and 1000, not 1001."),
        ("/feedback?after=-1", "after must be between 0 and 9223372036854775807, not -1."),
        ("/search?q=a&fields=text,topic", "'topic'"),
        ("/search?q=a&filter=[]", "filter"),
        ("/documents/count?after=b", "after"),
    ],
)
def test_a_wrong_parameter_is_422_and_named(client: TestClient, path: str, words: str) -> None:
    refused(client.get(path), 422, "Validation", words)


@pytest.mark.parametrize("value", ["0", "-5", "soon", "1.5", "9" * 40])
def test_a_bad_deadline_is_422(client: TestClient, value: str) -> None:
    refused(client.get("/info", headers={"x-timeout-ms": value}), 422, "Validation", "x-timeout-ms")


def test_documents_are_counted_before_they_are_validated(client: TestClient) -> None:
    body = b'{"documents": [' + b",".join([b"{}"] * 450_000) + b"]}"
    response = client.post("/documents", content=body, headers={"content-type": "application/json"})
    refused(response, 422, "Validation", "SIMILE_MAX_INPUTS")


def test_a_failing_model_is_424_and_health_is_red_until_a_pass_succeeds(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.runtime.health.ASK_SECONDS", 20)
    assert client.get("/health").status_code == 200
    with monkeypatch.context() as patch:
        patch.setattr(runtime.active.generation.encoder, "forward", broken)
        refused(client.post("/embed", json={"inputs": "a"}), 424, "Backend", "injected")
        refused(client.get("/search", params={"q": "a"}), 424, "Backend")
        red = client.get("/health")
        refused(red, 503, "Unhealthy", "the model failed: RuntimeError")  # The full message may quote a text.
        assert red.headers["retry-after"]
        assert "simile_healthy 0.0" in client.get("/metrics").text
    trying = runtime.health._trying
    until(lambda: trying is None or trying.done())  # Waits for a check that began earlier.
    assert client.get("/health").status_code == 200
    assert "simile_healthy 1.0" in client.get("/metrics").text


def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Blocks forward passes until the returned event is set."""
    release = threading.Event()
    before_passes(monkeypatch, lambda *_: release.wait(LIMIT))
    return release


def test_too_many_bytes_in_flight_are_429(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"inputs": "word " * 100_000}  # half a megabyte
    with serving(new_settings(tmp_path, tiny_models_dir, max_admitted_mb=1)) as client:
        runtime: Runtime = client.app.state.runtime  # type: ignore[attr-defined]
        release = held(monkeypatch)
        first = threading.Thread(target=client.post, args=["/embed"], kwargs={"json": body})
        second = threading.Thread(target=client.post, args=["/embed"], kwargs={"json": body})
        for sender in (first, second):
            sender.start()
        metrics = runtime.metrics.registry
        until(lambda: (metrics.get_sample_value("simile_admitted_bytes") or 0) > 1_000_000)
        refused(client.post("/embed", json=body), 429, "Overloaded", "SIMILE_MAX_ADMITTED_MB")
        release.set()
        first.join()
        second.join()
        assert client.post("/embed", json=body).status_code == 200


def test_a_bug_of_ours_is_500_with_the_request_id(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime.corpus, "search", lambda *arguments, **options: 1 // 0)
    response = client.get("/search", params={"q": "a"}, headers={"x-request-id": "find-me"})
    refused(response, 500, "Internal", "find-me")
    assert response.headers["x-request-id"] == "find-me"


def test_a_stopping_service_is_503(client: TestClient, runtime: Runtime) -> None:
    runtime.stopping = True
    try:
        response = client.post("/embed", json={"inputs": "a"})
        refused(response, 503, "Unhealthy", "stopping")
        assert response.headers["retry-after"] == "1"
        refused(client.get("/ready"), 503, "Unhealthy", "stopping")
    finally:
        runtime.stopping = False


def test_a_search_before_the_index_is_whole_is_503(client: TestClient, runtime: Runtime) -> None:
    runtime.active.generation.is_complete = False
    try:
        refused(client.get("/search", params={"q": "a"}), 503, "Unhealthy", "rebuilt")
        refused(client.get("/ready"), 503, "Unhealthy")
        assert client.post("/embed", json={"inputs": "a"}).status_code == 200
    finally:
        runtime.active.generation.is_complete = True


def test_a_passed_deadline_is_504_and_its_work_is_dropped(
    client: TestClient, runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = held(monkeypatch)
    started = time.monotonic()
    response = client.post("/embed", json={"inputs": "a"}, headers={"x-timeout-ms": "150"})
    refused(response, 504, "Timeout", "x-timeout-ms")
    assert time.monotonic() - started < 15
    refused(
        client.post(
            "/documents", json={"documents": [{"id": "late", "text": "a"}]}, headers={"x-timeout-ms": "150"}
        ),
        504,
        "Timeout",
    )
    release.set()
    assert client.get("/documents/late").status_code == 404


@pytest.mark.sqlite("a full disk is injected into its writer")
def test_a_store_that_cannot_be_written_is_507_but_is_read(client: TestClient, runtime: Runtime) -> None:
    document = {"documents": [{"id": "kept", "text": "red river"}]}
    assert client.post("/documents", json=document).status_code == 200
    sqlite_of(runtime.corpus).connection.execute("PRAGMA query_only = 1")
    try:
        changed = {"documents": [{"id": "kept", "text": "green garden"}]}
        refused(client.post("/documents", json=changed), 507, "Storage", "disk")
        refused(client.delete("/documents/kept"), 507, "Storage")
        assert client.get("/documents/kept").json()["text"] == "red river"
        assert client.get("/search", params={"q": "river"}).json()["hits"][0]["text"] == "red river"
    finally:
        sqlite_of(runtime.corpus).connection.execute("PRAGMA query_only = 0")
    assert client.delete("/documents/kept").json()["deleted"] == 1


@pytest.mark.parametrize("kind", ServiceError.__subclasses__())
def test_each_family_words_each_refusal_in_its_own_body(kind: type[ServiceError]) -> None:
    error = kind("what and what to do", retry_after_seconds=1.2)
    native = response("/embed", error)
    assert native.status_code == kind.status
    assert json.loads(bytes(native.body)) == {"error": "what and what to do", "error_type": kind.error_type}
    assert native.headers["retry-after"] == "2"
    openai = response("/v1/embeddings", error)
    assert json.loads(bytes(openai.body))["error"]["message"] == "what and what to do"
    cohere = response("/v2/embed", error)
    assert json.loads(bytes(cohere.body)) == {"message": "what and what to do"}
    expected = {422: 400, 424: 500}.get(kind.status, kind.status)
    assert openai.status_code == cohere.status_code == expected


def test_each_refusal_has_its_own_name() -> None:
    names = [kind.error_type for kind in ServiceError.__subclasses__()]
    assert len(names) == len(set(names))
