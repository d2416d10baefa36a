"""Events of searches, stored beside the documents: which hit did a user click, open, pass over, or act on?

An event is of a key: one per collection, name of the key, and event_id, so that one sent again changes
nothing. It can be stored only of a document that is there, and is deleted with it; a new text under the same
id keeps it. Old ones are deleted by their time. A number is never used twice.

Here are queries, and jobs for the writer.
"""

from collections.abc import Container, Sequence
from math import inf
from typing import Any

import orjson

from service.errors import Conflict, NotFound, ServiceError
from service.store.connection import Connection
from service.store.selected import condition_of, there_are, within
from service.store.values import Event, EventLimits, Recorded, Selection

SHOWN_CHARACTERS = 80  # of an id in a refusal
_COLUMNS = (
    *("key", "collection", "event_id", "search_id", "query", "id", "type", "position", "shown", "at"),
    *("visitor", "trusted"),
)


def store(
    connection: Connection, events: Sequence[Event], limits: EventLimits, there: Container[str] | None = None
) -> Recorded:
    """Store those that can be stored, and say why the others cannot. All are of one key and collection.

    there: ids of documents that nobody deletes meanwhile; None: there is one writer, so nobody deletes any.
    """
    new: list[int] = []
    refused: dict[int, ServiceError] = {}
    room = _Room(connection, limits, events[0].key, len(events))
    sent_before = "events WHERE key = ? AND collection = ? AND event_id = ?"
    for at, event in enumerate(events):
        if there_are(connection, sent_before, event.key, event.collection, event.event_id):
            continue
        reason = _refusal(connection, event, there) or room.refusal(event)
        if reason is not None:
            refused[at] = reason
            continue
        values = {name: getattr(event, name) for name in _COLUMNS}
        values |= {"shown": orjson.dumps(event.shown).decode(), "trusted": int(event.trusted)}
        connection.execute(
            f"INSERT INTO events ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})",
            [*values.values()],
        )
        new.append(at)
    return Recorded(new, refused)


def _refusal(connection: Connection, event: Event, there: Container[str] | None) -> NotFound | None:
    if there is None:
        found = there_are(connection, "documents WHERE collection = ? AND id = ?", event.collection, event.id)
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
        if most and there_are(self._connection, of_document, *names, more_than=most - 1):
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


def page(
    connection: Connection, after: int, limit: int, selection: Selection, max_bytes: float
) -> tuple[list[tuple[int, Event]], bool]:
    """Events after the number `after`, each with its number, in order; as `selected.within` bounds them."""
    condition, parameters = condition_of(selection, in_order=True)
    rows = connection.execute(
        f"SELECT sequence, {', '.join(_COLUMNS)} FROM events "
        f"WHERE sequence > ? AND {condition} ORDER BY sequence LIMIT ?",
        [after, *parameters, limit + 1],
    )
    found, more = within(rows, limit, max_bytes)
    return [(number, _event(row)) for number, *row in found], more


def _event(row: Sequence[Any]) -> Event:
    values = dict(zip(_COLUMNS, row, strict=True))
    return Event(
        **values | {"shown": tuple(orjson.loads(values["shown"])), "trusted": bool(values["trusted"])}
    )


def count(connection: Connection, selection: Selection) -> int:
    """The number of events that `page` lists in all."""
    condition, parameters = condition_of(selection)
    return int(connection.execute(f"SELECT count(*) FROM events WHERE {condition}", parameters).fetchone()[0])


def forget_document(connection: Connection, collection: str, id: str) -> int:
    """Delete the events of a document that is being deleted. Returns how many there were."""
    sql = "DELETE FROM events WHERE collection = ? AND id = ?"
    return connection.execute(sql, (collection, id)).rowcount
