"""Roles of keys for every route and every kind of caller, over real HTTP; the audit log."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from starlette.routing import Route
from starlette.testclient import TestClient

from service.app import create_app
from service.errors import Storage
from service.settings import Settings
from service.store.sql import feedback, methods
from tests.parts.rerankers import publish_reranker
from tests.service.conftest import new_settings, wait_until_active, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file, line
from tests.service.process import Service
from tests.service.raw import Wire, chunked, head
from tests.service.swapping import published
from tests.waiting import LIMIT, until

# Embedding, similarity, tokens, search and reading need read. Writing documents and judgments needs write.
# Changes of models and of clicked answers need admin. Health, readiness, metrics, the description and the
# page are open.
TABLE = """
open GET /health /ready /metrics /docs /docs/{file} / /ui /ui/{file:path} /openapi.json
open HEAD /openapi.json
read POST / /embed /similarity /tokenize /decode /embeddings /v1/embeddings /v2/embed /search
read POST /rerank /v1/rerank /v2/rerank /predict /mcp
read GET /v1/models /search /suggest /documents /documents/count /documents/{id:anything} /feedback
read GET /feedback/count /feedback/summary /me /map /events /events/count /info /examples /models /collections
read GET /collections/{collection}/synonyms
read GET /models/{version} /models/{version}/test
read GET /retraining /models/{version}/report /models/{version}/report/{file}
write POST /documents /files /files/preview /feedback /events
write DELETE /documents /documents/{id:anything} /feedback /events /collections/{collection}
write PUT /collections/{collection}/synonyms
write DELETE /collections/{collection}/synonyms
admin POST /retraining /models/{version}/activate /models/{version}/keep /models/rollback
admin POST /models/deactivate /models/{version}/test
admin DELETE /models/{version}/test
admin PUT /collections/{collection}/clicked
admin GET /searches
"""
ROUTES = {
    (method, path): role
    for role, method, *paths in map(str.split, TABLE.strip().splitlines())
    for path in paths
}
ROUTES |= {
    (method, "/collections/{collection}" + path): role
    for (method, path), role in ROUTES.items()
    if path.startswith(("/search", "/suggest", "/documents", "/files", "/feedback", "/events", "/map"))
}
CALLERS: dict[str, tuple[str | None, set[str]]] = {
    "no key": (None, {"open"}),
    "wrong key": ("sk-never-made", {"open"}),
    "read": (KEYS["reader"], {"open", "read"}),
    "write": (KEYS["writer"], {"open", "read", "write"}),
    "admin": (KEYS["boss"], {"open", "read", "write", "admin"}),
}
# Statuses of routes for an empty request with the right key.
LET_IN = {200, 307, 404, 409, 415, 422}


def build_path(template: str) -> str:
    for part, value in (
        ("{id:anything}", "no/such"),
        ("{collection}", "nowhere"),
        ("{version}", "20260101T000000-none-00000000"),
        ("{file}", "report.md"),
        ("{file:path}", "app.js"),
    ):
        template = template.replace(part, value)
    assert "{" not in template, template
    return template


def message_of(path: str, answer: httpx2.Response) -> str:
    body = answer.json()
    if path.startswith("/v1") or path == "/embeddings":
        assert set(body["error"]) == {"message", "type", "param", "code"}
        return str(body["error"]["message"])
    if path.startswith("/v2"):
        assert set(body) == {"message"}
        return str(body["message"])
    assert set(body) == {"error", "error_type"}
    return str(body["error"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("keyed")
    with Service(folder, tiny_models_dir, SIMILE_API_KEYS_FILE=str(keys_file(folder))) as service:
        yield service


def test_the_table_names_every_route_of_the_app_and_no_other(tmp_path: Path) -> None:
    app: FastAPI = create_app(Settings(data_dir=tmp_path / "never-made"))
    found = set()
    for route in app.routes:
        assert isinstance(route, Route), f"{route} is of a kind that this table does not know"
        found |= {(method, route.path) for method in route.methods or ()}
    assert found == set(ROUTES)


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_every_route_lets_in_whom_it_should(service: Service, method: str, path: str, caller: str) -> None:
    key, allowed = CALLERS[caller]
    needed = ROUTES[method, path]
    path = build_path(path)
    answer = service.client.request(method, path, headers=bearer(key))
    if needed in allowed:
        assert answer.status_code in LET_IN, answer.text
    elif caller in {"no key", "wrong key"}:
        assert answer.status_code == 401, answer.text
        assert answer.headers["www-authenticate"] == "Bearer"
        assert ("needs a key" if key is None else "not known") in message_of(path, answer)
        assert "sk-never-made" not in answer.text
    else:
        assert answer.status_code == 403, answer.text
        assert f"role {needed}" in message_of(path, answer)
    assert answer.headers["x-request-id"]


def test_openai_clients_are_told_in_their_own_words(service: Service) -> None:
    error = service.client.post("/v1/embeddings", json={"input": "a"}).json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")


@pytest.mark.parametrize("path", ["/nothing", "/v1/nothing", "/documentsx", "/ui/../models"])
def test_a_stranger_does_not_learn_which_paths_there_are(service: Service, path: str) -> None:
    assert service.client.get(path).status_code == 401
    assert service.client.get(path, headers=bearer("guess")).status_code == 401


def test_whoever_has_a_key_is_told_what_is_wrong_with_a_path_or_a_method(service: Service) -> None:
    headers = bearer(KEYS["reader"])
    assert service.client.get("/nothing", headers=headers).status_code == 404
    for method, path in (("DELETE", "/embed"), ("PATCH", "/documents"), ("PUT", "/models/rollback")):
        assert service.client.request(method, path).status_code == 401
        answer = service.client.request(method, path, headers=headers)
        assert answer.status_code == 405, "a wrong method is wrong for every role"
    assert service.client.post("/health").status_code == 405, "an open path has nothing to hide"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (f"Bearer {KEYS['reader']}", 200),
        (f"bearer {KEYS['reader']}", 200),
        (f"BEARER   {KEYS['reader']} ", 200),
        (KEYS["reader"], 401),
        (f"Basic {KEYS['reader']}", 401),
        (f"Bearer {KEYS['reader']}x", 401),
        (f"Bearer {KEYS['reader'][:-1]}", 401),
        (f"Bearer {KEYS['reader']} {KEYS['reader']}", 401),
        (f"Bearer {KEYS['reader'].upper()}", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("", 401),
        ("Bearer \xff\xfe", 401),
        (f"Bearer {'a' * 20_000}", 401),
    ],
)
def test_a_key_is_a_bearer_token_and_taken_to_the_letter(service: Service, value: str, status: int) -> None:
    with Wire(service) as wire:
        assert wire.send(head("/info", f"Authorization: {value}", method="GET")).answer().status == status


def test_the_hash_of_a_key_is_no_key_and_two_keys_are_refused(service: Service) -> None:
    hashed = line("x", "read", KEYS["boss"]).rpartition(":")[2]
    assert service.client.get("/info", headers=bearer(hashed)).status_code == 401
    both = [("Authorization", f"Bearer {KEYS['reader']}"), ("Authorization", f"Bearer {KEYS['boss']}")]
    assert service.client.get("/info", headers=both).status_code == 400


@pytest.mark.parametrize(
    ("caller", "length", "kind", "status"),
    [
        ("nobody", 1000, "application/json", 401),
        ("nobody", 900_000_000, "application/json", 401),
        ("reader", 1000, "application/json", 403),
        ("writer", 1000, "text/plain", 415),
        ("writer", 900_000_000, "application/json", 413),
    ],
)
def test_a_refusal_does_not_wait_for_a_single_byte_of_the_body(
    service: Service, caller: str, length: int, kind: str, status: int
) -> None:
    key = KEYS.get(caller, "wrong")
    headers = f"Content-Type: {kind}\r\nContent-Length: {length}\r\nAuthorization: Bearer {key}"
    with Wire(service) as wire:
        wire.send(f"POST /documents HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n\r\n".encode())
        assert wire.answer().status == status


MANY = 64 << 20


@pytest.mark.parametrize("ends", ["keep-alive", "close", "HTTP/1.0"])
@pytest.mark.parametrize("framing", ["Transfer-Encoding: chunked", f"Content-Length: {MANY}"])
@pytest.mark.parametrize(("key", "status"), [(KEYS["writer"], 413), ("wrong", 401)])
def test_who_writes_a_large_body_to_its_end_can_read_the_refusal(
    service: Service, ends: str, framing: str, key: str, status: int
) -> None:
    version = ends if ends == "HTTP/1.0" else "HTTP/1.1"
    if "chunked" in framing and version == "HTTP/1.0":
        pytest.skip("HTTP/1.0 has no chunks")
    sent = [f"POST /documents {version}", "Host: localhost", "Content-Type: application/json", framing]
    sent += [f"Authorization: Bearer {key}", *([f"Connection: {ends}"] if version == "HTTP/1.1" else [])]
    blocks = [b" " * (1 << 20)] * (MANY >> 20)
    with Wire(service) as wire:
        wire.send("\r\n".join([*sent, "\r\n"]).encode(), chunked(blocks) if "chunked" in framing else blocks)
        answer = wire.answer()
        assert answer.status == status
        assert status == 401 or b"SIMILE_MAX_BODY_MB" in answer.body
        if ends == "keep-alive":
            assert wire.send(head("/health", method="GET")).answer("GET").status == 200


def test_whoever_expects_100_continue_is_refused_without_being_asked_for_the_body(service: Service) -> None:
    with Wire(service) as wire:
        wire.send(head("/documents", "Content-Length: 50", "Expect: 100-continue"))
        assert wire.line().startswith(b"HTTP/1.1 401 "), "not 100"


def test_no_key_and_no_hash_ever_reaches_the_log_or_the_check(service: Service, tmp_path: Path) -> None:
    service.client.get("/info", headers=bearer("sk-never-made"))
    said = service.log.read_text() + service.client.get("/metrics").text
    for key in [*KEYS.values(), "sk-never-made"]:
        assert key not in said
        assert line("x", "read", key).rpartition(":")[2] not in said


def test_the_description_says_which_operations_need_a_key(service: Service) -> None:
    document = service.client.get("/openapi.json").json()
    assert document["components"]["securitySchemes"] == {"key": {"type": "http", "scheme": "bearer"}}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            needs = operation.get("security") == [{"key": []}]
            assert needs == (operation["x-role"] != "open"), (method, path)


def audited(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    records = [record for record in caplog.records if record.name == "simile.audit"]
    return [{"action": record.getMessage(), **record.__dict__["fields"]} for record in records]


@pytest.mark.parametrize("keyed", [True, False])
def test_what_changes_models_or_deletes_by_filter_is_audited(
    tmp_path: Path, tiny_models_dir: Path, caplog: pytest.LogCaptureFixture, keyed: bool
) -> None:
    keys = keys_file(tmp_path) if keyed else None
    app = create_app(new_settings(tmp_path, tiny_models_dir, api_keys_file=keys, log_level="error"))
    boss = bearer(KEYS["boss"]) if keyed else {}
    with TestClient(app, headers=boss) as client:
        wait_until_ready(client)
        texts = [{"id": f"d{at}", "text": "red river", "metadata": {"team": "Secret"}} for at in range(3)]
        client.post("/documents", json={"documents": texts})
        version = client.get("/info").json()["model_version"]
        assert audited(caplog) == [], "reading and writing are not audited"
        filtered, named = {"filter": '{"team": "Secret"}'}, {"x-request-id": "tickets"}
        client.delete("/documents", params=filtered, headers={"x-request-id": "mine"})
        client.post("/collections/tickets/documents", json={"documents": texts[:2]})
        client.post("/collections/tickets/documents", json={"documents": [{"id": "kept", "text": "stone"}]})
        client.delete("/collections/tickets/documents", params=filtered, headers=named)
        client.delete("/collections/tickets", headers={"x-request-id": "c"})
        assert client.delete("/documents").status_code == 422
        assert client.delete("/documents/d1").status_code == 200
        client.post(f"/models/{version}/activate", headers={"x-request-id": "second"})
        assert client.post("/models/nothing/activate").status_code == 404
        assert client.post("/models/rollback").status_code == 409
        assert client.post("/models/deactivate").status_code == 409
        reranker = publish_reranker(tmp_path / "models")
        client.post(f"/models/{reranker}/activate", headers={"x-request-id": "third"})
        client.post("/models/deactivate", headers={"x-request-id": "off"})
    who = "boss" if keyed else "-"
    assert audited(caplog) == [
        {"action": "delete", "key": who, "collection": "default", "deleted": 3, "request_id": "mine"},
        {"action": "delete", "key": who, "collection": "tickets", "deleted": 2, "request_id": "tickets"},
        {"action": "delete-collection", "key": who, "collection": "tickets", "deleted": 1, "request_id": "c"},
        {"action": "activate", "key": who, "version": version, "request_id": "second"},
        {"action": "activate", "key": who, "version": reranker, "request_id": "third"},
        {"action": "deactivate", "key": who, "request_id": "off"},
    ]


@pytest.mark.parametrize("status", [507, 504])
def test_a_deletion_that_ends_half_way_is_audited(
    tmp_path: Path,
    tiny_models_dir: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
) -> None:
    """The deletion's third step fails, or goes on after the deadline of the request."""
    answered, steps, step = threading.Event(), 0, feedback.forget

    def failing(*arguments: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps == 3 and status == 507:
            raise Storage("The disk is full.")
        if steps == 3:
            answered.wait(LIMIT)
        return step(*arguments)

    monkeypatch.setattr(methods, "forget", failing)
    for module in (methods, feedback):
        monkeypatch.setattr(module, "DELETED_ROWS", 2)
    app = create_app(new_settings(tmp_path, tiny_models_dir, api_keys_file=keys_file(tmp_path)))
    with TestClient(app, headers=bearer(KEYS["boss"])) as client, contextlib.ExitStack() as stack:
        stack.callback(answered.set)
        wait_until_ready(client)
        documents = [{"id": f"{at}", "text": "red river"} for at in range(8)]
        assert client.post("/documents", json={"documents": documents}).status_code == 200
        bodies: dict[str, Any] = {
            "feedback": {"relevant": True},
            "events": {"search_id": "s", "type": "click"},
        }
        for path, about in bodies.items():
            rows = [{"query": "red", "id": f"{at}", **about} for at in range(8)]
            assert client.post(f"/{path}", json={path: rows}).status_code == 200
            steps = 0
            answered.clear()
            headers = {"x-request-id": path} | ({"x-timeout-ms": "1000"} if status == 504 else {})
            refused = client.delete(f"/{path}", params={"query": "red"}, headers=headers)
            assert refused.status_code == status, refused.text
            line = {"action": f"delete-{path}", "key": "boss", "collection": "default", "owner": "boss"}
            line["request_id"] = path
            assert audited(caplog) == [line | {"deleted": 4}]
            answered.set()
            if status == 504:
                until(lambda: len(audited(caplog)) == 2)
                assert audited(caplog)[1] == line | {"deleted": 2}
            left = client.get(f"/{path}/count").json()["count"]
            assert left == 8 - sum(each["deleted"] for each in audited(caplog))
            caplog.clear()


@pytest.mark.long
def test_a_rollback_is_audited(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = published(tmp_path / "models", 2)
    keys = keys_file(tmp_path)
    folders: dict[str, Any] = {"data_dir": tmp_path / "data", "models_dir": tmp_path / "models"}
    settings = Settings(**folders, cache_mb=0, api_keys_file=keys)
    with TestClient(create_app(settings), headers=bearer(KEYS["boss"])) as client:
        wait_until_ready(client)
        client.post(f"/models/{second}/activate")
        wait_until_active(client, second)
        assert client.post("/models/rollback", headers={"x-request-id": "back"}).status_code == 202
    assert audited(caplog)[-1] == {
        "action": "rollback",
        "key": "boss",
        "version": first,
        "request_id": "back",
    }
