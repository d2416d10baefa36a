"""An event as it is sent, and what the service adds to it."""

import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Annotated, Literal

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from service.api.body import validated
from service.api.json_schemas import MAX_K, MAX_OFFSET, USER, DocumentId, EventName, StoredQuery, User
from service.api.selected import Sender
from service.auth.visitors import Visitors
from service.corpus.recent_searches import RecentSearches, SearchShown
from service.errors import Conflict, Empty, NotFound, Validation
from service.settings import Settings
from service.store.values import MAX_SHOWN, Event

MAX_AHEAD_SECONDS = 300  # that a client's clock may be ahead
MAX_SHOWN_SENT = 100  # ids; of more than MAX_SHOWN those around the hit are kept

_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")


def _text(value: object) -> object:
    if not isinstance(value, str) or not _DATE.match(value):  # pydantic takes numbers too
        raise PydanticCustomError("datetime_parsing", "no time")
    return value


_Time = Annotated[
    AwareDatetime, BeforeValidator(_text), WithJsonSchema({"type": "string", "format": "date-time"})
]


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


def event_of(value: object, name: str) -> EventIn:
    """Raises Validation or Empty for what no service could store."""
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


def complete(
    event: EventIn,
    searches: RecentSearches,
    collection: str,
    sender: Sender,
    now: float,
    settings: Settings,
    visitors: Visitors,
) -> Event:
    """The event with what it leaves out.

    Raises:
        NotFound: its search is not remembered.
        Conflict: it is older than events are kept.
        Validation: its time is in the future or before 1970, or its search's query cannot be stored.

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
    # One of each type, search and document, unless the caller tells them apart.
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
    """The ids that were shown, at most MAX_SHOWN and the document's among them, and its position."""
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
