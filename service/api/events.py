"""Events of searches: clicks and the like, stored here and read by a retraining."""

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import AwareDatetime, BaseModel, BeforeValidator, ConfigDict, Field, RootModel, StrictInt
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from service.api.collections import existing
from service.api.embedding import check_count
from service.api.openapi import (
    MAX_K,
    MAX_OFFSET,
    USER,
    Count,
    DocumentId,
    EventName,
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
    forget,
    list_rows,
    selection_of,
    sender_of,
    to_forget,
)
from service.auth.access import Visitors
from service.corpus.recent_searches import RecentSearches, SearchShown
from service.errors import Conflict, Empty, NotFound, Overloaded, ServiceError, Storage, Validation
from service.http.bodies import STORED, Slices, json_response, validated
from service.http.routing import RoleRoute
from service.runtime.runtime import Service
from service.settings import Settings
from service.store.values import MAX_SHOWN, Event, EventLimits

router = APIRouter(prefix="/events", route_class=RoleRoute, tags=["events"])

MAX_AHEAD_SECONDS = 300  # A client's clock may be ahead by so much.
MAX_SHOWN_SENT = 100  # Of more than MAX_SHOWN ids, those around the hit are stored.

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _text(value: object) -> object:
    if not isinstance(value, str) or not _DATE.match(value):  # pydantic accepts numbers too
        raise PydanticCustomError("datetime_parsing", "no time")
    return value


_Time = Annotated[AwareDatetime, BeforeValidator(_text)]


class EventIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    search_id: EventName
    id: DocumentId = Field(description="Of the document")
    type: Literal["click", "open", "convert", "skip"]
    position: Annotated[StrictInt, Field(ge=1, le=MAX_OFFSET + MAX_K)] | None = Field(
        None, description="Rank of the hit among all, from 1"
    )
    query: StoredQuery | None = Field(None, description="Absent: as this process remembers the search")
    shown: Annotated[list[DocumentId], Field(max_length=MAX_SHOWN_SENT)] | None = Field(
        None,
        description="Ids of the hits on the page, best first. Absent: as remembered",
    )
    at: _Time | None = Field(None, description="Absent: now")
    event_id: EventName | None = Field(None, description="Absent: one event per search, document and type")
    user: User | None = Field(None, description=f"{USER}. Absent: that of the search, if it is remembered")


class EventsIn(BaseModel):
    model_config = ConfigDict(extra="forbid")
    # Validated one by one, after they were counted.
    events: Annotated[list[Any], ShownAs(Annotated[list[EventIn], Field(min_length=1)])]


class EventsRequest(RootModel[Annotated[dict[str, Any], ShownAs(EventIn | EventsIn)]]):
    """An event, or a list of them as `events`."""

    model_config = example(
        {"search_id": "made-up", "query": "money back", "id": "refund", "type": "click", "shown": ["refund"]}
    )


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


@router.post("", **describe(Role.WRITE, Recorded, raises=[NotFound, Conflict, Overloaded, Storage]))
async def store_events(
    request: Request, runtime: Service, body: Annotated[EventsRequest, STORED]
) -> Response:
    """Store one event or many: on disk when this answers 200. An event sent again changes nothing.

    A malformed event refuses the request. One that cannot be stored for another reason is listed in
    `refused`, and the others are stored: its document is gone, its search is forgotten and it says no
    `query`, its `at` is in the future, before 1970 or too long ago, or there is no room. Alone it is the
    error of the request: 404, 409, or 422 for an `at` in the future or before 1970, and for U+0000 in the
    query of its search.

    A long list is stored in steps, with other keys' writes between them. An error of the service (503, 504,
    507) says how many were handled before it: send all again. 429 where a key has too many events waiting.
    """
    settings, searches = runtime.settings, runtime.searches
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
            whole[place] = _completed(event, searches, collection, sender, now, settings, runtime.visitors)
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
        return [_parse_event(body, "")]
    many = validated(EventsIn, body).events
    check_count(many, limit, "events")
    found, slices = [], Slices()
    for at, value in enumerate(many):
        found.append(_parse_event(value, f"events[{at}]"))
        await slices.rest()
    return found


@router.get("", **describe(Role.READ, EventsPage, raises=SELECTS))
async def list_events(request: Request, runtime: Service, params: Annotated[Listing, Query()]) -> Response:
    """Events in the order in which they came, from the one after the number `after`.

    `next` is the `after` of the following page.
    """
    read = runtime.corpus.store.list_events
    return await list_rows(request, runtime, params, "events", read, EventOut, at=_moment)


def _moment(event: Event) -> str:
    """Returns the time of an event as RFC 3339, with its fraction if it has one."""
    return datetime.fromtimestamp(event.at, UTC).isoformat().replace("+00:00", "Z")


@router.get("/count", **describe(Role.READ, Count, raises=SELECTS))
async def count_events(request: Request, runtime: Service, params: Annotated[Selected, Query()]) -> Response:
    """Number of events that are listed in all."""
    selection = await selection_of(request, runtime, params)
    return json_response({"count": await runtime.corpus.store.count_events(selection)})


@router.delete("", **describe(Role.WRITE, Forgotten, raises=SELECTS))
async def delete_events(
    request: Request, runtime: Service, params: Annotated[Forgetting, Query()]
) -> Response:
    """Delete the events of a query, of a document's id, of a key, of a user, or of these together.

    A key of role write deletes its own, which `key` names; where another key's are among them, all stay and
    the answer is 403. A key of role admin deletes any. In steps, with other writes between them: after an
    error some are deleted, and sending it again deletes the rest. Events that come meanwhile stay.
    """
    selection = await to_forget(request, runtime, params)
    return await forget(request, "delete-events", selection, runtime.corpus.store.forget_events)


def _parse_event(value: object, name: str) -> EventIn:
    """Returns an event as it was sent. Raises Validation or Empty if no service could store it."""
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


def _completed(
    event: EventIn,
    searches: RecentSearches,
    collection: str,
    sender: Sender,
    now: float,
    settings: Settings,
    visitors: Visitors,
) -> Event:
    """Returns the event, with the fields that it leaves out.

    Raises:
        NotFound: Its search is not remembered.
        Conflict: It is older than events are kept.
        Validation: Its time is in the future or before 1970, or its search's query cannot be stored.

    """
    search = searches.get(event.search_id)
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
    if at < now - settings.events_seconds:
        raise Conflict(
            f"The event is older than the {settings.events_days:g} days that events are kept "
            "(SIMILE_EVENTS_DAYS). Leave it out, or raise the setting."
        )
    # One event of each type, search and document, unless the client names them.
    parts = f"{event.search_id}\0{event.type}\0{event.id}".encode()
    event_id = event.event_id or blake2b(parts, digest_size=16).hexdigest()
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
        visitor=visitors.hashed(event.user) or (search.visitor if search is not None else ""),
        trusted=sender.trusted,
    )


def _placed(event: EventIn, query: str, search: SearchShown | None) -> tuple[tuple[str, ...], int | None]:
    """Returns at most MAX_SHOWN of the shown ids, the document's among them, and its position."""
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
