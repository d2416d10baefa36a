"""Under overload, what would only wait in vain is refused before its body is read, and nothing else is."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from service.app import create_app
from service.http.connections import BufferedTransport
from service.http.middleware import PATHS, LoadShedder
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.keyed import KEYS, bearer, keys_file
from tests.waiting import LIMIT, until

READER = bearer(KEYS["reader"])
NO_JSON = b'{"inputs": '


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    """A service whose queue is full: no forward pass ends, and calls wait for their turn."""
    folder = tmp_path_factory.mktemp("entrance")
    app = create_app(
        new_settings(folder, tiny_models_dir, max_queue_seconds=1e-4, api_keys_file=keys_file(folder))
    )
    with TestClient(app, headers=READER) as client:
        wait_until_ready(client)
        encoder = app.state.runtime.live.generation.encoder
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


@pytest.mark.parametrize("path", sorted(PATHS))
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


def test_whatever_else_the_service_does_it_goes_on_doing(client: TestClient) -> None:
    assert client.get("/embed").status_code == 405
    assert client.post("/nothing").status_code == 404
    assert client.post("/tokenize", json={"inputs": "red"}).status_code == 200
    assert client.get("/documents/count").status_code == 200
    assert client.get("/ready").status_code == 200


def test_a_refusal_is_free_of_the_frames_it_passed(app: FastAPI) -> None:
    """Or each would be a circle that only the collector of garbage can undo."""
    runtime = app.state.runtime
    state = app.state
    shedder = LoadShedder(
        runtime.batcher.overloaded, state.access, app.routes, state.hosts, state.connections
    )
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


class Recording(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[bytes]] = []
        self.unread = 0
        self.closed = False

    def writelines(self, parts: Any) -> None:
        self.calls.append([*parts])

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def test_what_is_written_in_one_round_of_the_loop_is_one_call() -> None:
    told: list[bool] = []

    async def written() -> Recording:
        inner = Recording()
        corked = BufferedTransport(inner, asyncio.get_running_loop(), lambda: told.append(True))
        corked.write(b"head")
        corked.write(b"body")
        assert corked.get_write_buffer_size() == 8
        assert inner.calls == []
        await asyncio.sleep(0)
        assert told == []
        corked.write(b"second")
        inner.unread = 3
        await asyncio.sleep(0)
        assert told == [True]  # the other side does not read
        corked.write(b"last")
        corked.close()
        corked.write(b"too late")
        await asyncio.sleep(0)
        return inner

    inner = asyncio.run(written())
    assert inner.calls == [[b"head", b"body"], [b"second"], [b"last"]]
    assert inner.closed


def test_what_is_aborted_is_not_written() -> None:
    async def aborted() -> Recording:
        inner = Recording()
        corked = BufferedTransport(inner, asyncio.get_running_loop(), lambda: None)
        corked.write(b"head")
        corked.abort()
        await asyncio.sleep(0)
        return inner

    assert asyncio.run(aborted()).calls == []
