"""Events of searches: clicks and the like, stored here and read by a retraining."""

import time
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, RootModel, WithJsonSchema
from starlette.responses import Response

from service.api.body import Slices, parameters, read_body, validated
from service.api.collections import existing
from service.api.contract import Role, describe
from service.api.event_in import EventIn, complete, event_of
from service.api.inference import check_count
from service.api.json_schemas import Count
from service.api.responses import json_response
from service.api.selected import (
    HASHED,
    SELECTS,
    TRUSTED,
    Forgetting,
    Forgotten,
    Listing,
    Selected,
    forget,
    selection_of,
    sender_of,
    shown_as,
    to_forget,
    trusted_now,
)
from service.errors import Conflict, NotFound, Overloaded, ServiceError, Storage
from service.http.routing import Direct
from service.runtime.runtime import runtime_of
from service.store.values import Event, EventLimits

router = APIRouter(prefix="/events", route_class=Direct, tags=["events"])

_ONE = EventIn.model_json_schema()
_MANY = {"type": "array", "items": _ONE, "minItems": 1}


class EventsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    events: Annotated[list[Any], WithJsonSchema(_MANY)]


class EventsRequest(
    RootModel[Annotated[dict[str, Any], WithJsonSchema({"anyOf": [_ONE, EventsIn.model_json_schema()]})]]
):
    """An event, or a list of them as `events`."""


class Refused(BaseModel):
    event: int = Field(description="Its place in the list, from 0")
    error: str
    error_type: str


class Recorded(BaseModel):
    stored: int = Field(description="Events that are on disk, those stored before included")
    refused: list[Refused]


class EventOut(BaseModel):
    collection: str
    search_id: str
    query: str
    id: str
    type: str
    position: int | None
    shown: list[str]
    at: str
    event_id: str
    key: str = Field(description="The name of the key that sent it; empty when there was none")
    user: str = Field(description=HASHED)
    trusted: bool = Field(description=TRUSTED)
    sequence: int


class EventsPage(BaseModel):
    events: list[EventOut]
    next: int | None


@router.post(
    "", **describe(Role.WRITE, EventsRequest, Recorded, raises=[NotFound, Conflict, Overloaded, Storage])
)
async def record_events(request: Request) -> Response:
    """Store one event or many: on disk when this answers 200. An event sent again changes nothing.

    A malformed event refuses the request. One that cannot be stored for another reason is listed in
    `refused`, and the others are stored: its document is gone, its search is forgotten and it says no
    `query`, its `at` is in the future, before 1970 or too long ago, or there is no room. Alone it is the
    error of the request: 404, 409, or 422 for an `at` in the future or before 1970, and for U+0000 in the
    query of its search.

    A long list is stored in steps, with other keys' writes between them. An error of the service (503, 504,
    507) says how many were handled before it: send all again. 429 where a key has too many events waiting.
    """
    runtime = runtime_of(request)
    settings, searches = runtime.settings, runtime.searches
    body = await read_body(request, EventsRequest, stored=True)
    given = await _events(body.root, settings.max_inputs)
    if searches is None:
        raise Conflict("This service keeps no events (SIMILE_EVENTS=0). Send none, or set SIMILE_EVENTS=1.")
    collection = await existing(request, runtime)
    now, sender = time.time(), sender_of(request)
    whole: dict[int, Event] = {}
    refused: dict[int, ServiceError] = {}
    slices = Slices()
    for place, event in enumerate(given):
        await slices.rest()
        try:
            whole[place] = complete(event, searches, collection, sender, now, settings, runtime.visitors)
        except ServiceError as error:
            refused[place] = error
    if whole:
        limits = EventLimits(settings.events_per_key, settings.events_per_document, settings.max_events)
        with runtime.queued_rows.admitted(len(whole)):
            recorded = await runtime.corpus.store.record_events([*whole.values()], limits)
        places = [*whole]
        refused |= {places[at]: error for at, error in recorded.refused.items()}
        for at in recorded.new:
            runtime.metrics.events.labels(whole[places[at]].type).inc()
    runtime.metrics.events_refused.inc(len(refused))
    if refused and "events" not in body.root:
        raise refused[0]
    said = [
        {"event": at, "error": error.message, "error_type": error.error_type}
        for at, error in sorted(refused.items())
    ]
    return json_response({"stored": len(given) - len(refused), "refused": said})


async def _events(body: dict[str, Any], limit: int) -> list[EventIn]:
    if "events" not in body:
        return [event_of(body, "")]
    many = validated(EventsIn, body).events
    check_count(many, limit, "events")
    found, slices = [], Slices()
    for at, value in enumerate(many):
        found.append(event_of(value, f"events[{at}]"))
        await slices.rest()
    return found


@router.get("", **describe(Role.READ, None, EventsPage, query=Listing, raises=SELECTS))
async def list_events(request: Request) -> Response:
    """Events in the order in which they came, from the one behind the number `after`.

    `next` is the `after` of the following page.
    """
    runtime = runtime_of(request)
    asked = parameters(request, Listing)
    selection = await selection_of(request, runtime, asked)
    most = runtime.settings.max_answer_bytes
    shown, more = await runtime.corpus.store.list_events(asked.after, asked.limit, selection, most)
    following = shown[-1][0] if more else None
    rows = [
        shown_as(
            EventOut,
            event,
            sequence=number,
            at=_moment(event.at),
            user=event.visitor,
            trusted=trusted_now(request, event),
        )
        for number, event in shown
    ]
    return json_response({"events": rows, "next": following})


def _moment(at: float) -> str:
    """Unix time as RFC 3339, with its fraction where there is one."""
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")


@router.get("/count", **describe(Role.READ, None, Count, query=Selected, raises=SELECTS))
async def count_events(request: Request) -> Response:
    """Number of events that are listed in all."""
    runtime = runtime_of(request)
    selection = await selection_of(request, runtime, parameters(request, Selected))
    return json_response({"count": await runtime.corpus.store.count_events(selection)})


@router.delete("", **describe(Role.WRITE, None, Forgotten, query=Forgetting, raises=SELECTS))
async def delete_events(request: Request) -> Response:
    """Delete the events of a query, of a document's id, of a key, of a user, or of these together.

    A key of role write deletes its own, which `key` names; where another key's are among them, all stay and
    the answer is 403. A key of role admin deletes any. In steps, with other writes between them: after an
    error some are deleted, and sending it again deletes the rest. Events that come meanwhile stay.
    """
    runtime = runtime_of(request)
    selection = await to_forget(request, runtime, parameters(request, Forgetting))
    return await forget(request, "delete-events", selection, runtime.corpus.store.forget_events)
