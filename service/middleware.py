"""The edge of the service: what happens to every request before and after its route.

Request id in and out, the body's size enforced while it is read, bytes in flight bounded, one deadline over
everything, work dropped when its client hangs up, counters and seconds, and a 500 with the request id for a
bug of ours. Plain ASGI, because each layer of a framework's middleware costs every request.
"""

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import Internal, Overloaded, ServiceError, Timeout, TooLarge, Validation, response
from service.metrics import Metrics
from service.settings import Settings

log = logging.getLogger(__name__)

MEGABYTE = 1 << 20
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}  # what may be a label
# Most requests end sooner; only then is it worth a task that listens for the client hanging up.
WATCH_AFTER_SECONDS = 0.25


class Edge:
    """Wraps the app; `admitted_bytes` are the bodies read and not yet answered."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        self.admitted_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = Exchange(self, scope, receive, send)
        try:
            await exchange.run(self._app)
        finally:
            self.admitted_bytes -= exchange.read_bytes
            exchange.count(self._metrics)

    def admit(self, count: int, read_bytes: int) -> None:
        """Refuse `count` more bytes of a body of which `read_bytes` were read, when they are too many."""
        limit = self._settings.max_body_mb
        if read_bytes + count > limit * MEGABYTE:
            raise TooLarge(f"The body is larger than {limit} MiB (SIMILE_MAX_BODY_MB). Send it in parts.")
        total = self._settings.max_admitted_mb
        if self.admitted_bytes + count > total * MEGABYTE:
            raise Overloaded(
                f"Requests of more than {total} MiB together wait for answers (SIMILE_MAX_ADMITTED_MB). "
                "Send again later.",
                retry_after_seconds=1,
            )

    def deadline_seconds(self, asked_ms: str | None) -> float:
        """Seconds that a request may take: the caller's `x-timeout-ms`, at most the server's own."""
        own = self._settings.timeout_seconds
        if asked_ms is None:
            return own
        if not (asked_ms.isascii() and asked_ms.isdigit() and len(asked_ms) <= 12 and int(asked_ms)):
            raise Validation(f"x-timeout-ms must be a number of milliseconds above 0, not {asked_ms[:20]!r}.")
        return min(own, int(asked_ms) / 1000)


class Exchange:
    """One request and its answer."""

    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self._edge = edge
        self._scope = scope
        self._receive = receive
        self._send = send
        headers = dict(scope["headers"])
        self._length = headers.get(b"content-length")
        self._timeout_ms = headers.get(b"x-timeout-ms")
        self._request_id = _request_id(headers.get(b"x-request-id"))
        self._body_read = asyncio.Event()
        if self._length in {None, b"0"} and b"transfer-encoding" not in headers:
            self._body_read.set()  # there is none, and no route will ask for it
        self._gone = False
        self._status = 0
        self._error_type = ""
        self._started = time.monotonic()
        self.read_bytes = 0

    async def run(self, app: ASGIApp) -> None:
        """Run `app`; answer what it refuses, what took too long, and what broke."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  an ASGI app always runs in a task
        watch = _Later(WATCH_AFTER_SECONDS, lambda: self._watch(task))
        try:
            if self._length is not None and self._length.isdigit():
                self._edge.admit(int(self._length), 0)
            timeout_ms = None if self._timeout_ms is None else self._timeout_ms.decode("latin-1")
            async with asyncio.timeout(self._edge.deadline_seconds(timeout_ms)):
                await app(self._scope, self._read, self._write)
        except TimeoutError:
            await self._refuse(Timeout("The deadline passed (x-timeout-ms, or SIMILE_TIMEOUT_SECONDS)."))
        except ServiceError as error:
            await self._refuse(error)
        except asyncio.CancelledError:
            if not self._gone:
                raise
            task.uncancel()
        except ClientDisconnect:  # in the middle of its body: nobody is left to answer
            self._gone = True
        except Exception:
            log.exception("Request %s failed: %s %s", self._request_id, self._scope["method"], self._route)
            await self._refuse(
                Internal(f"A bug of ours. Please report it with request id {self._request_id}.")
            )
        finally:
            watch.cancel()

    async def _read(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            self._edge.admit(count, self.read_bytes)
            self.read_bytes += count
            self._edge.admitted_bytes += count
            if not message.get("more_body", False):
                self._body_read.set()
        return message

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", self._request_id.encode("latin-1")),
            ]
        await self._send(message)

    async def _refuse(self, error: ServiceError) -> None:
        self._error_type = error.error_type
        if not self._status:  # an answer that has begun cannot be changed
            await response(self._scope["path"], error)(self._scope, self._receive, self._write)

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        """Cancel `task` when its client hangs up: nobody waits for the work."""
        await self._body_read.wait()  # until then the route itself is listening
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        task.cancel()

    @property
    def _route(self) -> str:
        """The route's template, so that a path never becomes a label."""
        return getattr(self._scope.get("route"), "path", "unmatched")

    def count(self, metrics: Metrics) -> None:
        """One more request answered."""
        status = str(self._status) if self._status else "499"  # the client left before an answer began
        method = self._scope["method"] if self._scope["method"] in METHODS else "other"
        metrics.requests.labels(method, self._route, status).inc()
        metrics.request_seconds.labels(self._route).observe(time.monotonic() - self._started)
        if self._error_type:
            metrics.errors.labels(self._error_type).inc()


class _Later:
    """Start a task after some seconds, unless cancelled before: then it has cost one timer."""

    def __init__(self, seconds: float, start: Callable[[], Awaitable[None]]) -> None:
        self._task: asyncio.Future[None] | None = None
        self._start = start
        self._timer = asyncio.get_running_loop().call_later(seconds, self._begin)

    def _begin(self) -> None:
        self._task = asyncio.ensure_future(self._start())

    def cancel(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()


def _request_id(given: bytes | None) -> str:
    """The caller's id when it is at most 128 printable characters, else a new one."""
    text = "" if given is None else given.decode("latin-1")
    if 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    return os.urandom(16).hex()
