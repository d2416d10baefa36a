"""Configures logging, and records answered requests. Start reading at `install` and `RequestRecord`.

Each line of the log contains the id of the current request, which http/middleware.py sets.

The log must never contain texts of users, but messages of exceptions may quote such texts. Therefore an
exception is logged with its type and traceback. The message is added only if it cannot contain a user's text
(`safe_message`). Records of requests contain no paths or query strings for the same reason.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal, NamedTuple, TextIO

from models.errors import ModelError
from service.errors import Overloaded, StartupError, Storage, Unusable
from service.observability import outages

log = logging.getLogger(__name__)
access_log = logging.getLogger("simile.access")
access_log.setLevel(logging.INFO)  # SIMILE_LOG_LEVEL does not apply. SIMILE_ACCESS_LOG turns it on.

TRACED = {
    "started",
    "traceparent",
    "tracestate",
    "steps",
    "collection",
}  # fields of a request's record for traces only
MAX_STEPS = 300  # Limit per request, because an import has thousands of steps.

request_id: ContextVar[str] = ContextVar("request_id", default="")
_OWN_IDS = os.urandom(8).hex()  # Prefix of this process's request ids. A counter follows.
_counted = count()

# Exceptions whose messages contain paths, codes and names, but never a user's text.
_OPEN_BUILTINS = (OSError, MemoryError, ImportError, AttributeError, NameError)
_OPEN = (*_OPEN_BUILTINS, ModelError, StartupError, Unusable, Overloaded, Storage)
_OPEN_MODULES = ("onnxruntime", "sqlite3")  # Their messages name operators, shapes, token ids and tables.


def choose_request_id(given: bytes | None) -> str:
    """Returns the client's request id if it has 1 to 128 printable ASCII characters, otherwise a new id."""
    text = "" if given is None else given.decode("latin-1")
    if 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    return f"{_OWN_IDS}{next(_counted):016x}"


def safe_message(error: BaseException) -> str:
    """Returns the type of an exception, and the message if it cannot contain a user's text."""
    name = type(error).__name__
    if not isinstance(error, _OPEN) and type(error).__module__.partition(".")[0] not in _OPEN_MODULES:
        return name
    return f"{name}: {error}"


def traced(error: BaseException) -> str:
    """Formats the tracebacks and safe messages of an exception and its causes, with the first cause first."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    places = "".join(traceback.format_tb(error.__traceback__))
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    parts = [] if before is None else [traced(before), "This led to:"]
    return "\n".join([*parts, f"{places}{safe_message(error)}", *map(traced, members)])


class Lines(logging.Formatter):
    """Formats log records as lines of text."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        error = _error(record)
        return f"{self.formatMessage(record)}{fields}" + ("" if error is None else f"\n{traced(error)}")


class Objects(logging.Formatter):
    """Formats log records as JSON, one object per line."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": moment.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        error = _error(record)
        if error is not None:
            line["exception"] = traced(error)
        return json.dumps(line, default=str)  # ASCII only, so no encoding can damage the line.


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if here := request_id.get():
        fields.setdefault("request_id", here)
    return fields


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


class Stderr(logging.StreamHandler[TextIO]):
    """Writes log lines to stderr.

    If a line cannot be written, reports this without the content of the line.
    """

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(f"A line of {record.name} could not be written\n")


def install(level: str, form: Literal["text", "json"]) -> None:
    """Sends all logs, warnings and uncaught exceptions of this process to stderr.

    Args:
        level: Name of the lowest level to log.
        form: Format of the lines.

    """
    handler = Stderr()
    handler.setFormatter(Objects() if form == "json" else Lines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda kind, error, trace: log.critical(
        "The process ends by an exception", exc_info=(kind, error, trace)
    )
    threading.excepthook = _on_thread


def _on_thread(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None:
        name = "unnamed" if hook.thread is None else hook.thread.name
        log.error("The thread %s ended by an exception", name, exc_info=hook.exc_value)


def on_loop(loop: asyncio.AbstractEventLoop, context: Mapping[str, Any]) -> None:
    """Logs exceptions of the event loop. The default handler would also log futures with their results."""
    error = context.get("exception")
    # Without file descriptors, asyncio tries to accept connections a thousand times a second.
    if error is None or outages.refusal(log, context["message"], error) is None:
        log.error("%s", context["message"], exc_info=error)


class Step(NamedTuple):
    """A part of the work for a request. `started` is a value of `time.monotonic()`."""

    name: str
    started: float
    seconds: float


# Steps of the current request. None if requests are not observed.
steps: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """Facts about an answered request, for the log and for traces.

    `status` is 499 if the client disconnected.
    """

    request_id: str
    method: str
    route: str
    status: int
    started: float  # time.monotonic()
    seconds: float
    bytes: int  # size of the request's body
    error_type: str | None
    key: str | None  # name of the API key
    model_version: str | None
    tokens: int | None
    traceparent: str  # This header and the next come from the client, or are empty.
    tracestate: str
    steps: list[Step]
    collection: str | None  # of the path; it may not exist


def write_line(record: RequestRecord) -> None:
    found = {field.name: getattr(record, field.name) for field in fields(record) if field.name not in TRACED}
    found["seconds"] = round(record.seconds, 6)
    shown = {name: value for name, value in found.items() if value is not None}
    access_log.info("answered", extra={"fields": shown})
