"""ASGI middleware around all routes. Start reading at `Edge.__call__` and `RequestContext.run`.

The middleware sets the request id, limits the size of bodies, enforces the deadline, cancels the work after a
disconnect, counts and times requests, and turns errors into answers. It is a single ASGI layer, because each
further layer would slow down every request.
"""

import asyncio
import contextlib
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import memory
from service.auth.access import Access, Account
from service.batching.request import Lane
from service.errors import Internal, ServiceError, Timeout, Validation, release_frames
from service.http.bodies import MEGABYTE, STREAMED, BodyBudget, StreamedBody
from service.http.connections import Connections
from service.http.error_responses import NOSNIFF, response
from service.http.hosts import Hosts
from service.http.routing import RoleRoute, check_utf8
from service.observability import outages
from service.observability.logs import RequestRecord, Step, choose_request_id, request_id, steps
from service.observability.metrics import UNMATCHED, Metrics
from service.settings import Settings
from service.store.scheduling import Answers, Share, share

log = logging.getLogger(__name__)

METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}  # Values of the metrics' label.
# A task that watches for a disconnect starts after this time. Most requests end earlier.
WATCH_AFTER_SECONDS = 0.25
HEAVY_BYTES = MEGABYTE  # After a request of this size, freed memory is returned to the system.
MAX_NAME_CHARACTERS = 80  # of an ignored field, in the header
MAX_DRAINED_BYTES, DRAIN_SECONDS = 256 * MEGABYTE, 10.0
_MILLISECONDS = re.compile("(?!0+$)[0-9]{1,12}")
GONE = 499  # Status in logs and metrics if the client disconnected before an answer.


# Routes that always need a model, with the lane of their calls.
PATHS = dict.fromkeys(
    ("/", "/embed", "/similarity", "/embeddings", "/v1/embeddings", "/v2/embed"), Lane.INTERACTIVE
) | dict.fromkeys(("/rerank", "/v1/rerank", "/v2/rerank", "/predict"), Lane.RERANK)
METHOD = "POST"
# Routes for monitoring, which also work on spare connections.
WATCHED = {"/health", "/ready", "/metrics"}


class LoadShedder:
    """Rejects requests before their route runs.

    A request is rejected if its host is not allowed, or if it needs a model whose queue is full. On a spare
    connection, only monitoring requests are served.

    Args:
        overloaded: Returns the error for a new text in a lane, or None if the queue has room.
        app: The application. Its `state` contains the access control, the allowed hosts and the connections.

    """

    def __init__(self, overloaded: Callable[[Lane], ServiceError | None], app: FastAPI) -> None:
        self._overloaded = overloaded
        self._access: Access | None = app.state.access
        self._hosts: Hosts = app.state.hosts
        self._connections: Connections = app.state.connections
        direct = (
            route for route in app.routes if isinstance(route, RoleRoute) and METHOD in (route.methods or ())
        )
        self._routes = {route.path: route for route in direct if route.path in PATHS}

    def refusal(self, scope: Scope) -> ServiceError | None:
        """Returns the error for a request, or None if the request may proceed.

        If the queue is full, clients without a valid key get the error for their key, so they learn nothing
        about the queue. A request that is rejected because of the queue counts against the limit of its key.
        """
        refusal = self._hosts.refusal(scope["headers"])
        if refusal is not None:
            return refusal
        if scope.get("spare") and scope["path"] not in WATCHED:
            return self._connections.refusal()
        route = self._routes.get(scope["path"])
        if route is None or scope["method"] != METHOD:
            return None
        overloaded = self._overloaded(PATHS[route.path])
        if overloaded is None:
            return None
        scope["route"] = route
        try:
            if self._access is not None and route.role is not None:
                self._access.admit(scope, route.role)
        except ServiceError as error:
            return error.with_traceback(None)  # See Batcher.overloaded.
        return overloaded


@dataclass(eq=False)
class Edge:
    """The only ASGI middleware around the routes, except `Cors`.

    Args:
        observers: Functions that receive the record of each finished request.

    """

    _app: ASGIApp
    _settings: Settings
    _metrics: Metrics
    _shedder: LoadShedder
    observers: Sequence[Callable[[RequestRecord], None]] = ()
    _in_flight = 0

    def __post_init__(self) -> None:
        self.bodies = BodyBudget(self._settings)
        self.answers = Answers(self._settings.max_answers_mb)
        self._metrics.admitted_bytes.set_function(lambda: self.bodies.admitted_bytes)
        self._metrics.in_flight.set_function(lambda: self._in_flight)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = RequestContext(self, scope, receive, send)
        self._in_flight += 1
        try:
            refusal = self._shedder.refusal(scope)
            if refusal is None:
                await context.run(self._app)
            else:
                await context.refuse(refusal)
        finally:
            self._in_flight -= 1
            context.end(self._metrics)
            if context.read_bytes + context.sent_bytes >= HEAVY_BYTES:
                memory.give_back()
            if self.observers:
                record = context.record()
                for observe in self.observers:
                    try:
                        observe(record)
                    except Exception:  # The client already has its answer.
                        log.exception("A request could not be logged or traced")

    def deadline_seconds(self, requested_ms: str | None) -> float:
        """Returns the time limit of a request in seconds.

        This is the setting, or the header `x-timeout-ms` (`requested_ms`) if it is sent and lower.

        Raises:
            Validation: The header is not a positive number of milliseconds.

        """
        own = self._settings.timeout_seconds
        if requested_ms is None:
            return own
        if not _MILLISECONDS.fullmatch(requested_ms):
            raise Validation(
                f"x-timeout-ms must be a number of milliseconds above 0, not {requested_ms[:20]!r}."
            )
        return min(own, int(requested_ms) / 1000)


def _as_header(names: Sequence[str]) -> bytes:
    """Joins the names of fields, which are cut if they are long, to a header value.

    Characters other than printable ASCII become question marks.
    """
    shown = (name[:MAX_NAME_CHARACTERS].encode("ascii", "replace").decode() for name in names)
    return ", ".join("".join(c if c.isprintable() else "?" for c in name) for name in shown).encode()


class RequestContext:
    def __init__(self, edge: Edge, scope: Scope, receive: Receive, send: Send) -> None:
        self._edge = edge
        method = scope["method"]
        self._method = method if method in METHODS else "other"
        if method == "HEAD":  # Handled like GET. uvicorn drops the body.
            scope = {**scope, "method": "GET"}
        self._scope = scope
        self._receive = receive
        self._send = send
        headers = dict(scope["headers"])
        self._length = headers.get(b"content-length")
        self._timeout_ms = headers.get(b"x-timeout-ms")
        self._request_id = scope["request_id"] = choose_request_id(headers.get(b"x-request-id"))
        self._flow: StreamedBody | None = None
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in STREAMED:
            self._flow = scope["flow"] = StreamedBody(edge.bodies)
        self._body_read = asyncio.Event()
        if self._length in {None, b"0"} and b"transfer-encoding" not in headers:
            self._body_read.set()  # The request has no body.
        self._gone = False
        self._watching: asyncio.Task[None] | None = None
        self._status = 0
        self._error_type = ""
        self._started = time.monotonic()
        self._answered: dict[bytes, bytes] = {}  # The answer's headers, kept for observers only.
        self._steps: list[Step] = []
        self.read_bytes = 0
        self.sent_bytes = 0
        request_id.set(self._request_id)
        self._share = Share(edge.answers)
        share.set(self._share)
        if edge.observers:
            steps.set(self._steps)

    async def run(self, app: ASGIApp) -> None:
        """Calls the app to answer the request. If the client disconnects, the work is cancelled."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  an ASGI app always runs in a task
        watch = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._begin_watch, task)
        try:
            await self._answer(app)
        except asyncio.CancelledError as error:
            if not self._gone:
                raise
            release_frames(error)
            task.uncancel()
        finally:
            watch.cancel()
            if self._watching is not None:
                self._watching.cancel()

    async def _answer(self, app: ASGIApp) -> None:
        try:
            timeout_ms = None if self._timeout_ms is None else self._timeout_ms.decode("latin-1")
            seconds = self._edge.deadline_seconds(timeout_ms)
            self._scope["ends"] = time.monotonic() + seconds
            async with asyncio.timeout(seconds) as deadline:
                if self._flow is not None:
                    self._flow.begin(deadline, seconds)
                check_utf8(self._scope)
                await app(self._scope, self._read, self._write)
        except TimeoutError as error:
            release_frames(error)
            late = Timeout("The deadline passed (x-timeout-ms, or SIMILE_TIMEOUT_SECONDS).")
            await self.refuse(late if self._flow is None else self._flow.timeout())
        except ServiceError as error:
            release_frames(error)
            await self.refuse(error)
        except ClientDisconnect as error:  # The client disconnected while it sent the body.
            release_frames(error)
            self._gone = True
        except Exception as error:
            refusal = outages.refusal(log, "Requests fail", error)
            if refusal is None:
                log.exception("Request %s failed: %s %s", self._request_id, self._method, self._route)
                refusal = Internal(f"A bug in Simile. Please report it with request id {self._request_id}.")
            release_frames(error)
            await self.refuse(refusal)

    async def _read(self) -> Message:
        bodies = self._edge.bodies
        if self._flow is not None:
            message = await self._flow.read(self._receive)
        else:
            declared, self._length = self._length, None
            if declared is not None and declared.isdigit():  # Reject a large body before reading it.
                bodies.admit(int(declared), 0)
            message = await self._receive()
        if message["type"] == "http.request":
            count = len(message.get("body", b""))
            if self._flow is None:
                bodies.admit(count, self.read_bytes)
                bodies.admitted_bytes += count
            self.read_bytes += count
            if not message.get("more_body", False):
                self._body_read.set()
        return message

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            if self._edge.observers:
                self._answered = dict(message.get("headers", ()))
            account: Account | None = self._scope.get("account")
            if account is not None:
                account.charge(message["headers"])
            own = [(b"x-request-id", self._request_id.encode("latin-1")), NOSNIFF]
            if ignored := self._scope.get("ignored_fields"):
                own.append((b"x-ignored-fields", _as_header(ignored)))
            message["headers"] = [*message.get("headers", ()), *own]
        else:
            self.sent_bytes += len(message.get("body", b""))
        await self._send(message)

    async def refuse(self, error: ServiceError) -> None:
        """Answers with `error`, unless an answer has already begun."""
        self._error_type = error.error_type
        if self._status:
            return
        answer = response(self._scope["path"], error)
        # A connection that stays open discards the rest of the body by itself.
        if self._body_read.is_set() or not (self._closes or self._flow):
            await answer(self._scope, self._receive, self._write)
            return
        # Closing a connection with unread bytes resets it, and the client may never see the answer.
        start = {"status": answer.status_code, "headers": answer.raw_headers}
        await self._write({"type": "http.response.start", **start})
        await self._send({"type": "http.response.body", "body": answer.body, "more_body": True})
        await _drain(self._receive)
        await self._send({"type": "http.response.body", "body": b""})

    @property
    def _closes(self) -> bool:
        connection = dict(self._scope["headers"]).get(b"connection", b"").lower()
        return b"close" in connection or self._scope["http_version"] == "1.0"

    def _begin_watch(self, task: asyncio.Task[Any]) -> None:
        self._watching = asyncio.create_task(self._watch(task))

    async def _watch(self, task: asyncio.Task[Any]) -> None:
        await self._body_read.wait()  # Until then the route itself receives messages.
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        task.cancel()

    @property
    def _route(self) -> str:
        """The path template of the route. A raw path must never become a metrics label."""
        return getattr(self._scope.get("route"), "path", UNMATCHED)

    def end(self, metrics: Metrics) -> None:
        """Counts the finished request, and releases the memory budgets of the body and the answer."""
        status = self._status or GONE
        metrics.requests.labels(self._method, self._route, str(status)).inc()
        metrics.request_seconds.labels(self._route).observe(time.monotonic() - self._started)
        if self._error_type:
            metrics.errors.labels(self._error_type).inc()
        if self._flow is None:
            self._edge.bodies.admitted_bytes -= self.read_bytes
        else:
            self._flow.release(self._flow.held_bytes)
        self._share.let_go()

    def record(self) -> RequestRecord:
        headers = dict(self._scope["headers"])
        account: Account | None = self._scope.get("account")
        version = self._answered.get(b"x-model-version")
        tokens = self._answered.get(b"x-compute-tokens")
        return RequestRecord(
            request_id=self._request_id,
            method=self._method,
            route=self._route,
            status=self._status or GONE,
            started=self._started,
            seconds=time.monotonic() - self._started,
            bytes=self.read_bytes,
            error_type=self._error_type or None,
            key=None if account is None else account.key.name,
            model_version=None if version is None else version.decode("latin-1"),
            tokens=None if tokens is None else int(tokens),
            traceparent=headers.get(b"traceparent", b"").decode("latin-1"),
            tracestate=headers.get(b"tracestate", b"").decode("latin-1"),
            steps=self._steps,
            collection=self._scope.get("path_params", {}).get("collection"),
        )


async def _drain(receive: Receive) -> None:
    """Reads and discards the rest of a rejected body, up to MAX_DRAINED_BYTES or DRAIN_SECONDS."""
    left = MAX_DRAINED_BYTES
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DRAIN_SECONDS):
            while left > 0 and (message := await receive()).get("more_body", False):
                left -= len(message["body"])
