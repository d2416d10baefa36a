"""Records of answered requests, for the access log and the traces.

Names of routes and keys, numbers and the caller's own request id: never a text, never a path or a query
string, since both hold what people wrote.
"""

import logging
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import NamedTuple

log = logging.getLogger("simile.access")
log.setLevel(logging.INFO)  # whatever SIMILE_LOG_LEVEL is; SIMILE_ACCESS_LOG turns it on

TRACED = {"started", "traceparent", "tracestate", "steps"}  # fields of a record that no line shows
MAX_STEPS = 300  # of one request; an import embeds thousands of times


class Step(NamedTuple):
    """A part of the work, from `started` (time.monotonic) on, for so many seconds."""

    name: str
    started: float
    seconds: float


# Of the request in hand; None while requests are not observed.
steps: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """An answered request. `started` is of time.monotonic; `status` is 499 when the client had left."""

    request_id: str
    method: str
    route: str
    status: int
    started: float
    seconds: float
    bytes: int  # of its body
    error_type: str | None
    key: str | None  # the name of the caller's key
    model_version: str | None  # that made the answer
    tokens: int | None
    traceparent: str  # of the caller, and below; empty when it sent none
    tracestate: str
    steps: list[Step]


def write_line(record: RequestRecord) -> None:
    """Write a line of the access log."""
    found = {field.name: getattr(record, field.name) for field in fields(record) if field.name not in TRACED}
    found["seconds"] = round(record.seconds, 6)
    shown = {name: value for name, value in found.items() if value is not None}
    log.info("answered", extra={"fields": shown})
