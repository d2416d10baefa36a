"""The log: lines for people, or one JSON object per line.

    install()       once per process: all goes the same way, libraries' messages too
    request_id      of the request in hand, set by the edge; each line written on its behalf names it
    request_id_of() the caller's, or a new one
    safe_message()  an exception in words that may be logged

Never a user's text. An exception's message may quote one (a tokenizer's, a parser's), so an exception is
logged by its type and its place in the code, and by its message only where that speaks of the machine.
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
from datetime import UTC, datetime
from itertools import count
from typing import Any, Literal, TextIO

from models.errors import ModelError
from service.errors import Overloaded, StartupError, Storage, Unusable
from service.observability import outages

log = logging.getLogger(__name__)

request_id: ContextVar[str] = ContextVar("request_id", default="")
_OWN_IDS = os.urandom(8).hex()  # of this process; a count follows
_counted = count()

# Their messages are the system's, the interpreter's or our own, and of no text: a path, a code, a name.
_OPEN = (
    OSError,
    MemoryError,
    ImportError,
    AttributeError,
    NameError,
    ModelError,
    StartupError,
    Unusable,
    Overloaded,
    Storage,
)
_OPEN_MODULES = ("onnxruntime", "sqlite3")  # operators, shapes, token ids; tables and codes


def request_id_of(given: bytes | None) -> str:
    """The caller's id when it is at most 128 printable characters, else a new one."""
    text = "" if given is None else given.decode("latin-1")
    if 0 < len(text) <= 128 and text.isascii() and text.isprintable():
        return text
    return f"{_OWN_IDS}{next(_counted):016x}"


def safe_message(error: BaseException) -> str:
    """`error` in a few words: its type, and its message where that can hold no user's text."""
    name = type(error).__name__
    if not isinstance(error, _OPEN) and type(error).__module__.partition(".")[0] not in _OPEN_MODULES:
        return name
    return f"{name}: {error}"


def traced(error: BaseException) -> str:
    """`error` and what led to it, the first cause first: where in the code, and in words."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    places = "".join(traceback.format_tb(error.__traceback__))
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    parts = [] if before is None else [traced(before), "This led to:"]
    return "\n".join([*parts, f"{places}{safe_message(error)}", *map(traced, members)])


class Lines(logging.Formatter):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        record.asctime = self.formatTime(record)
        fields = "".join(f" {name}={value}" for name, value in _fields(record).items())
        error = _error(record)
        return f"{self.formatMessage(record)}{fields}" + ("" if error is None else f"\n{traced(error)}")


class Objects(logging.Formatter):
    """For programs: one JSON object per line."""

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
        return json.dumps(line, default=str)  # in ASCII, so that no byte of it can be lost on the way


def _fields(record: logging.LogRecord) -> Mapping[str, Any]:
    """Named values of a line: `extra={"fields": …}` of the caller, and the request."""
    fields: dict[str, Any] = dict(getattr(record, "fields", {}))
    if here := request_id.get():
        fields.setdefault("request_id", here)
    return fields


def _error(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if isinstance(record.exc_info, tuple) else None


class Stderr(logging.StreamHandler[TextIO]):
    """Writes lines; one that cannot be written is lost, and shows nothing of what it held."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(f"A line of {record.name} could not be written\n")


def install(level: str, form: Literal["text", "json"]) -> None:
    """Send everything that this process logs to stderr, and also what would be printed there otherwise."""
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
    """An event loop's exception handler; the loop's own would print futures with what they hold."""
    error = context.get("exception")
    # Accepting a connection without a file descriptor is tried some thousand times a second.
    if error is None or outages.refusal(log, context["message"], error) is None:
        log.error("%s", context["message"], exc_info=error)
