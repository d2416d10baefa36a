"""Events of searches, stored beside the documents: which hit did a user click, open, pass over, or act on?

An event is of a key: one per collection, name of the key, and event_id, so that one sent again changes
nothing. It can be stored only of a document that is there, and is deleted with it; a new text under the same
id keeps it. Old ones are deleted by their time (`expire`). A number is never used twice.

Here are queries, and jobs for the writer.
"""

from collections.abc import Container, Sequence
from math import inf

import orjson

from service.errors import Conflict, NotFound, ServiceError
from service.store import selected
from service.store.connection import Connection
from service.store.selected import condition_of, within
from service.store.values import Event, EventLimits, Recorded, Selection

SHOWN_CHARACTERS = 80  # of an id in a refusal
EXPIRE_ROWS = 4096  # of one step: a write waits some tens of milliseconds for it


def store(
    connection: Connection, events: Sequence[Event], limits: EventLimits, there: Container[str] | None = None
) -> Recorded:
    """Store those that can be stored, and say why the others cannot. All are of one key and collection.

    there: ids of documents that nobody deletes meanwhile; None: there is one writer, so nobody deletes any.
    """
    new: list[int] = []
    refused: dict[int, ServiceError] = {}
    room = _Room(connection, limits, events[0].key, len(events))
    for at, event in enumerate(events):
        if _one(connection, "events WHERE key = ? AND collection = ? AND event_id = ?", *_name(event)):
            continue
        reason = _refusal(connection, event, there) or room.refusal(event)
        if reason is not None:
            refused[at] = reason
            continue
        connection.execute(
            "INSERT INTO events (key, collection, event_id, search_id, query, id, type, position, shown, at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *_name(event),
                event.search_id,
                event.query,
                event.id,
                event.type,
                event.position,
                orjson.dumps(event.shown).decode(),
                event.at,
            ),
        )
        new.append(at)
    return Recorded(new, refused)


def _name(event: Event) -> tuple[str, str, str]:
    return event.key, event.collection, event.event_id


def _refusal(connection: Connection, event: Event, there: Container[str] | None) -> NotFound | None:
    if there is None:
        found = _one(connection, "documents WHERE collection = ? AND id = ?", event.collection, event.id)
    else:
        found = event.id in there
    if found:
        return None
    return NotFound(
        f"There is no document {event.id[:SHOWN_CHARACTERS]!r}: never stored, or deleted since the search."
    )


class _Room:
    """Room for more events, by each limit, as one job uses it up."""

    def __init__(self, connection: Connection, limits: EventLimits, key: str, wanted: int) -> None:
        self._connection, self._limits, self._key = connection, limits, key
        self._in_all = self._left(limits.in_all, wanted, Selection())
        self._of_key = self._left(limits.per_key, wanted, Selection(key=key))

    def _left(self, limit: int, wanted: int, selection: Selection) -> float:
        sql = "SELECT coalesce(max(sequence) - min(sequence) + 1, 0) FROM events"
        # Numbers only grow, so their span is a bound that costs nothing; few services come near a limit.
        if not limit or self._connection.execute(sql).fetchone()[0] + wanted <= limit:
            return inf
        return limit - count(self._connection, selection)

    def refusal(self, event: Event) -> Conflict | None:
        """Why one more cannot be stored; None: it can, and takes its room."""
        whose = f"the key {self._key!r}" if self._key else "callers without a key"
        if self._in_all <= 0:
            return _full(self._limits.in_all, "in all", "SIMILE_MAX_EVENTS")
        if self._of_key <= 0:
            return _full(self._limits.per_key, f"from {whose}", "SIMILE_EVENTS_PER_KEY")
        most = self._limits.per_document
        of_document = "events WHERE collection = ? AND id = ? AND key = ?"
        names = event.collection, event.id, event.key
        if most and _one(self._connection, of_document, *names, offset=most - 1):
            about = f"about the document {event.id[:SHOWN_CHARACTERS]!r} from {whose}"
            return _full(most, about, "SIMILE_EVENTS_PER_DOCUMENT")
        self._in_all -= 1
        self._of_key -= 1
        return None


def _full(limit: int, what: str, setting: str) -> Conflict:
    return Conflict(
        f"There are {limit} events {what} ({setting}). Delete some (DELETE /events), keep them for fewer "
        "days (SIMILE_EVENTS_DAYS), or raise the setting."
    )


def _one(connection: Connection, rows: str, *parameters: str, offset: int = 0) -> bool:
    """True when there are more than `offset` such rows."""
    row = connection.execute(f"SELECT 1 FROM {rows} LIMIT 1 OFFSET ?", (*parameters, offset)).fetchone()
    return row is not None


def page(
    connection: Connection, after: int, limit: int, selection: Selection, max_bytes: float
) -> tuple[list[tuple[int, Event]], bool]:
    """Events after the number `after`, each with its number, in order; as `selected.within` bounds them."""
    condition, parameters = condition_of(selection, in_order=True)
    rows = connection.execute(
        "SELECT sequence, search_id, query, id, type, event_id, at, position, shown, key, collection "
        f"FROM events WHERE sequence > ? AND {condition} ORDER BY sequence LIMIT ?",
        [after, *parameters, limit + 1],
    )
    found, more = within(rows, limit, max_bytes)
    events = [
        (
            number,
            Event(
                search_id=search_id,
                query=query,
                id=id,
                type=type,
                event_id=event_id,
                at=at,
                position=position,
                shown=tuple(orjson.loads(shown)),
                key=key,
                collection=collection,
            ),
        )
        for number, search_id, query, id, type, event_id, at, position, shown, key, collection in found
    ]
    return events, more


def count(connection: Connection, selection: Selection) -> int:
    """The number of events that `page` lists in all."""
    condition, parameters = condition_of(selection)
    return int(connection.execute(f"SELECT count(*) FROM events WHERE {condition}", parameters).fetchone()[0])


def forget(connection: Connection, selection: Selection, own: str | None = None) -> int:
    """Delete events, as `selected.forget` does."""
    return selected.forget(connection, "events", selection, own)


def forget_document(connection: Connection, collection: str, id: str) -> int:
    """Delete the events of a document that is being deleted. Returns how many there were."""
    sql = "DELETE FROM events WHERE collection = ? AND id = ?"
    return connection.execute(sql, (collection, id)).rowcount


def expire(connection: Connection, before: float) -> bool:
    """Delete some events from before a Unix time. Returns whether there are more."""
    deleted = connection.execute(
        "DELETE FROM events WHERE sequence IN (SELECT sequence FROM events WHERE at < ? LIMIT ?)",
        (before, EXPIRE_ROWS),
    ).rowcount
    return deleted == EXPIRE_ROWS
