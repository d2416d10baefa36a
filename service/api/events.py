"""Routes for events, such as clicks on search hits. Retraining learns from the stored events."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StrictInt
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.collections import existing, find_bounds, find_tenant
from service.api.openapi import (
    MAX_K,
    MAX_OFFSET,
    USER,
    Count,
    DocumentId,
    EventName,
    OpenTo,
    Role,
    ShownAs,
    StoredQuery,
    User,
    describe,
    example,
)
from service.api.selection import (
    HASHED,
    SELECTS,
    TRUSTED,
    Forgetting,
    Forgotten,
    Listing,
    Selected,
    Sender,
    build_selection,
    forget,
    get_sender,
    list_rows,
    parse_each,
    to_forget,
)
from service.corpus.recent_searches import SearchShown
from service.errors import Conflict, Empty, NotFound, Overloaded, ServiceError, Storage, Validation
from service.http.bodies import STORED, Slices, json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Runtime, Service
from service.store.values import MAX_SHOWN, Event, EventLimits

router = APIRouter(prefix="/events", route_class=RoleRoute, tags=["events"])

MAX_AHEAD_SECONDS = 300  # A client's clock may be ahead by this time.
MAX_SHOWN_SENT = 100  # If more than MAX_SHOWN ids are sent, those around the hit are stored.

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _text(value: object) -> object:
    if not isinstance(value, str) or not _DATE.match(value):  # pydantic accepts numbers too
        raise PydanticCustomError("datetime_parsing", "no time")
    return value


_Time = Annotated[AwareDatetime, BeforeValidator(_text)]


class EventIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    search_id: EventName
    id: DocumentId = Field(description="The document's id")
    type: Literal["click", "open", "convert", "skip"]
    position: Annotated[StrictInt, Field(ge=1, le=MAX_OFFSET + MAX_K)] | None = Field(
        None, description="Rank of the hit among all hits, from 1"
    )
    query: StoredQuery | None = Field(None, description="Absent: that of the search, if it is remembered")
    shown: Annotated[list[DocumentId], Field(max_length=MAX_SHOWN_SENT)] | None = Field(
        None, description="Ids of the hits on the page, best first. Absent: those of the search"
    )
    at: _Time | None = Field(None, description="Absent: now")
    event_id: EventName | None = Field(None, description="Absent: one event per search, document and type")
    user: User | None = Field(None, description=f"{USER}. Absent: that of the search, if remembered")


class EventsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    events: Annotated[list[Any], ShownAs(Annotated[list[EventIn], Field(min_length=1)])]


class EventsRequest(RootModel[Annotated[dict[str, Any], ShownAs(EventIn | EventsIn)]]):
    """A single event, or a list of events in the field `events`."""

    LIST_FIELD: ClassVar[str] = "events"

    model_config = example(
        {"search_id": "made-up", "query": "money back", "id": "refund", "type": "click", "shown": ["refund"]}
    )


class Refused(BaseModel):
    event: int = Field(description="Index in the list, from 0")
    error: str
    error_type: str


class Recorded(BaseModel):
    stored: int = Field(description="Events that are on disk, including events that were stored before")
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
    key: str = Field(description="The name of the key that sent the event, or empty")
    user: str = Field(description=HASHED)
    trusted: bool = Field(description=TRUSTED)
    sequence: int


class EventsPage(BaseModel):
    events: list[EventOut]
    next: int | None


@router.post(
    "",
    **describe(Role.WRITE, Recorded, open_to=OpenTo.SCOPED, raises=[NotFound, Conflict, Overloaded, Storage]),
)
async def store_events(
    request: Request, runtime: Service, body: Annotated[EventsRequest, STORED]
) -> Response:
    """Store one event or a list of events. After the answer 200 the events are on disk.

    An event that is sent again changes nothing. A malformed event rejects the whole request. If an event of a
    list cannot be stored for another reason, `refused` lists it, and the others are stored. The reasons are:

    - The document is deleted.
    - The search is not remembered, and the event has no `query`.
    - `at` is in the future, before 1970 or too long ago.
    - The query of the search contains U+0000.
    - A limit is reached.

    An event that is sent without a list is answered with the error itself. This is 422 for an `at` in the
    future or before 1970 and for U+0000 in the query, otherwise 404 or 409.

    A long list is stored in steps, and writes of other keys may run between the steps. An error of the
    service (503, 504, 507) reports how many events were handled before the error. Then send all events again.
    The answer is 429 if a key has too many pending events.
    """
    settings, searches = runtime.settings, runtime.searches
    given = await parse_each(body.root, "events", EventsIn, settings.max_inputs, _parse_event)
    if searches is None:
        raise Conflict("This service keeps no events (SIMILE_EVENTS=0). Send none, or set SIMILE_EVENTS=1.")
    collection = await existing(request, runtime)
    now, sender = time.time(), get_sender(request)
    whole: dict[int, Event] = {}
    refused: dict[int, ServiceError] = {}
    slices = Slices()
    for place, event in enumerate(given):
        await slices.rest()
        try:
            search = searches.get(event.search_id, find_tenant(request))
            whole[place] = complete_event(event, runtime, search, collection, sender, now)
        except ServiceError as error:
            refused[place] = error
    if whole:
        limits = EventLimits(settings.events_per_key, settings.events_per_document, settings.max_events)
        with runtime.queued_rows.admitted(len(whole)):
            recorded = await runtime.corpus.store.record_events(
                [*whole.values()], limits, find_bounds(request, runtime)
            )
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


@router.get("", **describe(Role.READ, EventsPage, open_to=OpenTo.SCOPED, raises=SELECTS))
async def list_events(request: Request, runtime: Service, params: Annotated[Listing, Query()]) -> Response:
    """List events in the order of their arrival, after the event number `after`.

    Send `next` as `after` to get the next page.
    """
    read = runtime.corpus.store.list_events

    def moment(event: Event) -> str:  # RFC 3339, with a fraction if the time has one.
        return datetime.fromtimestamp(event.at, UTC).isoformat().replace("+00:00", "Z")

    return await list_rows(request, runtime, params, "events", read, EventOut, at=moment)


@router.get("/count", **describe(Role.READ, Count, open_to=OpenTo.SCOPED, raises=SELECTS))
async def count_events(request: Request, runtime: Service, params: Annotated[Selected, Query()]) -> Response:
    """Count the events that `GET /events` lists with the same parameters, on all pages together."""
    selection = await build_selection(request, runtime, params)
    return json_response({"count": await runtime.corpus.store.count_events(selection)})


@router.delete("", **describe(Role.WRITE, Forgotten, open_to=OpenTo.SCOPED, raises=SELECTS))
async def delete_events(
    request: Request, runtime: Service, params: Annotated[Forgetting, Query()]
) -> Response:
    """Delete the events of a query, a document's id, a key, a user, or a combination of these.

    A key of role write may delete only events that were sent with the same key. To select these events, send
    the name of the key as `key`. If the selection contains events of another key, the answer is 403, and
    nothing is deleted. A key of role admin may delete any events. Events are deleted in steps, and other
    writes may run between the steps. After an error, only some events are deleted. Send the request again to
    delete the rest. Events that arrive during the deletion stay. Without `id` and `key`, the searches that
    `GET /searches` counts are forgotten as well.
    """
    selection = await to_forget(request, runtime, params)
    answer = await forget(request, "delete-events", selection, runtime.corpus.store.forget_events)
    if runtime.searches is not None:
        runtime.searches.forget(selection)
    return answer


def _parse_event(value: object, name: str) -> EventIn:
    """Parses an event.

    Raises:
        Validation: The event is malformed.
        Empty: The query is empty.

    """
    event = validated(EventIn, value, name)
    field = f"{name}.".removeprefix(".")
    if event.query is not None and (not event.query or event.query.isspace()):
        raise Empty(f"{field}query is empty, or white space only. Leave the event out.")
    shown, position = event.shown or [], event.position
    place = shown.index(event.id) + 1 if event.id in shown else 0
    if position is not None and position < place:
        raise Validation(
            f"{field}position is {position}, and the document is number {place} of shown. "
            "position counts all hits from 1, those of earlier pages too."
        )
    return event


def complete_event(
    event: EventIn,
    runtime: Runtime,
    search: SearchShown | None,
    collection: str,
    sender: Sender,
    now: float,
) -> Event:
    """Builds the event to store: takes missing fields from the search that the event names, and adds the key.

    Raises:
        NotFound: The event has no query, and the search is not remembered.
        Conflict: The event is older than SIMILE_EVENTS_DAYS.
        Validation: The time of the event is in the future or before 1970, or the query contains U+0000.

    """
    if search is not None and search.collection != collection:
        search = None
    query = event.query if event.query is not None else search and search.query
    if query is None:
        raise NotFound(
            f"This process does not remember a search {event.search_id!r} in the collection {collection!r}: "
            "another one answered it, it was restarted, or it was long ago. Send query and shown with the "
            "event."
        )
    if "\0" in query:
        raise Validation("The query of the search has the character U+0000, which cannot be stored.")
    shown, position = _placed(event, query, search)
    at = now if event.at is None else event.at.timestamp()
    if at > now + MAX_AHEAD_SECONDS:
        raise Validation(
            f"at is more than {MAX_AHEAD_SECONDS // 60} minutes in the future. Set the clock, or send no at."
        )
    if at < 0:
        raise Validation("at is before 1970. Send the time of the event, or no at.")
    if at < now - runtime.settings.events_seconds:
        raise Conflict(
            f"The event is older than the {runtime.settings.events_days:g} days that events are kept "
            "(SIMILE_EVENTS_DAYS). Leave it out, or raise the setting."
        )
    # One event per type, search and document, unless the client sends an id.
    parts = f"{event.search_id}\0{event.type}\0{event.id}".encode()
    event_id = event.event_id or blake2b(parts, digest_size=16).hexdigest()
    visitor = runtime.hash_visitor(event.user) or (search.visitor if search is not None else "")
    test, side = "", 0
    if event.type != "skip":
        test, side = runtime.live_tests.find_side(event.search_id, event.id, collection, visitor, query)
    return Event(
        search_id=event.search_id,
        query=query,
        id=event.id,
        type=event.type,
        event_id=event_id,
        at=at,
        position=position,
        shown=shown,
        key=sender.key,
        collection=collection,
        visitor=visitor,
        trusted=sender.trusted,
        test=test,
        side=side,
    )


def _placed(event: EventIn, query: str, search: SearchShown | None) -> tuple[tuple[str, ...], int | None]:
    """Returns the document ids that were shown, and the position of the event's document among all hits.

    At most MAX_SHOWN ids are returned, including the id of the event's document if it was shown. The position
    is None if it is unknown.
    """
    shown: Sequence[str] = event.shown or ()
    offset = 0
    if event.shown is None and search is not None and search.query == query:
        shown, offset = search.shown, search.offset
    if event.id not in shown:
        return tuple(shown[:MAX_SHOWN]), event.position
    place = shown.index(event.id)
    first = max(0, place + 1 - MAX_SHOWN)
    position = offset + place + 1 if event.position is None else event.position
    return tuple(shown[first : first + MAX_SHOWN]), position
