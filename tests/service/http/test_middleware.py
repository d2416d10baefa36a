"""The middleware: rejections under overload, before the body is read, and clients that disconnect."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient
from starlette.types import Message, Receive, Scope, Send

from service.app import create_app
from service.batching.request import Lane
from service.errors import Overloaded, ServiceError, Unhealthy
from service.http.middleware import PATHS, Edge, LoadShedder
from service.observability.metrics import Metrics
from service.settings import Settings
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file
from tests.waiting import LIMIT, until

READER = bearer(KEYS["reader"])
NO_JSON = b'{"inputs": '


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    """A client of a service whose queue is full, because no forward pass ends during the tests."""
    folder = tmp_path_factory.mktemp("entrance")
    app = create_app(
        new_settings(folder, tiny_models_dir, max_queue_seconds=1e-4, api_keys_file=keys_file(folder))
    )
    with TestClient(app, headers=READER) as client:
        wait_until_ready(client)
        encoder = app.state.runtime.active.generation.encoder
        forward, release = encoder.forward, threading.Event()

        def held(ids: list[list[int]], *, normalize: bool = True) -> Any:
            release.wait(LIMIT)
            return forward(ids, normalize=normalize)

        encoder.forward = held
        senders: list[threading.Thread] = []

        def overloaded_or_one_more() -> object:
            found = app.state.runtime.batcher.overloaded()
            if found is None and len(senders) < 100:
                body = {"inputs": "word " * 50}
                senders.append(threading.Thread(target=client.post, args=["/embed"], kwargs={"json": body}))
                senders[-1].start()
            return found

        until(overloaded_or_one_more, pause=0.05)
        yield client
        release.set()
        for sender in senders:
            sender.join()
        encoder.forward = forward
        assert client.post("/embed", json={"inputs": "and on it goes"}).status_code == 200


@pytest.fixture
def app(client: TestClient) -> FastAPI:
    app = client.app
    assert isinstance(app, FastAPI)
    return app


@pytest.mark.parametrize("path", [path for path, lane in PATHS.items() if lane is Lane.INTERACTIVE])
def test_what_needs_the_encoder_is_refused_before_its_body_is_parsed(client: TestClient, path: str) -> None:
    answer = client.post(path, content=NO_JSON, headers={"content-type": "application/json"})
    assert answer.status_code == 429
    assert "SIMILE_MAX_QUEUE_SECONDS" in answer.text
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.headers["x-request-id"]


def test_it_counts_with_its_route_and_for_its_key(client: TestClient) -> None:
    def counted() -> list[float]:
        lines = client.get("/metrics").text.splitlines()
        names = (
            'simile_requests_total{method="POST",route="/embed",status="429"}',
            'simile_errors_total{error_type="Overloaded"}',
            'simile_key_requests_total{key="reader"}',
        )
        return [float(line.split()[-1]) for name in names for line in lines if line.startswith(name)]

    assert client.post("/embed", json={"inputs": "one"}).status_code == 429
    before = counted()
    assert len(before) == 3
    assert client.post("/embed", json={"inputs": "one more"}).status_code == 429
    assert [now - then for now, then in zip(counted(), before, strict=True)] == [1, 1, 1]


@pytest.mark.parametrize("key", ["", "Bearer wrong"])
def test_a_stranger_is_told_to_bring_a_key_and_nothing_of_the_queue(client: TestClient, key: str) -> None:
    answer = client.post("/embed", json={"inputs": "x"}, headers={"authorization": key})
    assert answer.status_code == 401
    assert "SIMILE_MAX_QUEUE" not in answer.text


@pytest.mark.parametrize("path", [path for path, lane in PATHS.items() if lane is Lane.RERANK])
def test_pairs_are_refused_early_for_their_own_lane_alone(app: FastAPI, path: str) -> None:
    def only(full: Lane) -> Callable[[Lane], ServiceError | None]:
        return lambda lane: Overloaded("full") if lane is full else None

    headers = [(b"host", b"localhost"), (b"authorization", READER["Authorization"].encode())]
    scope: dict[str, Any] = {"method": "POST", "path": path, "headers": headers}
    assert LoadShedder(only(Lane.RERANK), app).refusal(scope) is not None
    assert LoadShedder(only(Lane.INTERACTIVE), app).refusal(scope) is None


def test_whatever_else_the_service_does_it_goes_on_doing(client: TestClient) -> None:
    assert client.get("/embed").status_code == 405
    assert client.post("/nothing").status_code == 404
    assert client.post("/tokenize", json={"inputs": "red"}).status_code == 200
    assert client.get("/documents/count").status_code == 200
    assert client.get("/ready").status_code == 200


def test_a_refusal_is_free_of_the_frames_it_passed(app: FastAPI) -> None:
    state = app.state
    overloaded = state.runtime.batcher.overloaded
    shedder = LoadShedder(overloaded, app)
    host = (b"host", b"localhost")
    scope: dict[str, Any] = {"method": "POST", "path": "/embed", "headers": [host]}
    stranger = shedder.refusal(scope)
    scope["headers"] = [host, (b"authorization", READER["Authorization"].encode())]
    overloaded = shedder.refusal(scope)
    assert stranger is not None
    assert overloaded is not None
    assert (stranger.status, overloaded.status) == (401, 429)
    assert stranger.__traceback__ is None
    assert overloaded.__traceback__ is None


async def _refuses(scope: Scope, receive: Receive, send: Send) -> None:
    raise Unhealthy("injected")


def test_a_client_that_leaves_while_it_is_refused_ends_the_request_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.http.middleware.WATCH_AFTER_SECONDS", 0)
    shedder: Any = SimpleNamespace(refusal=lambda scope: None)
    edge = Edge(_refuses, Settings(data_dir=tmp_path), Metrics(), shedder)
    scope: dict[str, Any] = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/ready"}
    scope |= {"query_string": b"", "headers": []}
    sent: list[Message] = []

    async def request() -> None:
        listening, left = asyncio.Event(), asyncio.Event()

        async def receive() -> Message:
            listening.set()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                await listening.wait()
                left.set()
                await asyncio.Event().wait()

        await edge(scope, receive, send)

    asyncio.run(request())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
