"""Records of answered requests, for the access log and traces.

They contain names of routes and keys, numbers and the request id. They never contain texts, paths or query
strings, because those contain users' texts.
"""

import logging
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import NamedTuple

log = logging.getLogger("simile.access")
log.setLevel(logging.INFO)  # SIMILE_LOG_LEVEL does not apply. SIMILE_ACCESS_LOG turns the access log on.

TRACED = {"started", "traceparent", "tracestate", "steps"}  # fields for traces only
MAX_STEPS = 300  # Limit per request, because an import has thousands of steps.


class Step(NamedTuple):
    """A part of the work, which started at `started` (`time.monotonic()`) and took `seconds`."""

    name: str
    started: float
    seconds: float


# Steps of the current request. None if requests are not observed.
steps: ContextVar[list[Step] | None] = ContextVar("steps", default=None)


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """An answered request. `status` is 499 if the client had disconnected."""

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


def write_line(record: RequestRecord) -> None:
    found = {field.name: getattr(record, field.name) for field in fields(record) if field.name not in TRACED}
    found["seconds"] = round(record.seconds, 6)
    shown = {name: value for name, value in found.items() if value is not None}
    log.info("answered", extra={"fields": shown})
