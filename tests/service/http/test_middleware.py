"""The edge of the service by itself: an ASGI app, its messages handed in and taken here."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.types import Message, Receive, Scope, Send

from service.errors import Unhealthy
from service.http.middleware import Edge
from service.observability.metrics import Metrics
from service.settings import Settings


async def _refuses(scope: Scope, receive: Receive, send: Send) -> None:
    raise Unhealthy("injected")


def test_a_client_that_leaves_while_it_is_refused_ends_the_request_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is told of the hang-up before the answer's last part is out of its hands."""
    monkeypatch.setattr("service.http.middleware.WATCH_AFTER_SECONDS", 0)
    shedder: Any = SimpleNamespace(refusal=lambda scope: None)
    edge = Edge(_refuses, Settings(data_dir=tmp_path), Metrics(), shedder)
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": "GET",
        "path": "/ready",
        "query_string": b"",
        "headers": [],
    }
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
                await asyncio.Event().wait()  # the last part is taken when the client is gone, or never

        await edge(scope, receive, send)

    asyncio.run(request())
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 503
