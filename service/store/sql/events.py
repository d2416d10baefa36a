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
from service.store.sql.connection import Connection
from service.store.sql.selection import condition_of, insert, matches, within
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
    key, collection = events[0].key, events[0].collection
    sent_before = "e.key = ? AND e.collection = ? AND e.event_id = given.column1"
    before = matches(
        connection, "events e", "e.event_id", sent_before, (key, collection), [(e.event_id,) for e in events]
    )
    seen = {event_id for (event_id,) in before}
    ids = [(id,) for id in dict.fromkeys(event.id for event in events)]
    if there is None:
        living = "d.collection = ? AND d.id = given.column1"
        there = {id for (id,) in matches(connection, "documents d", "d.id", living, (collection,), ids)}
    room = _Room(connection, limits, key, collection, ids, len(events))
    new: list[int] = []
    refused: dict[int, ServiceError] = {}
    for at, event in enumerate(events):
        if event.event_id in seen:
            continue
        reason = _refusal(event, there) or room.refusal(event)
        if reason is not None:
            refused[at] = reason
            continue
        seen.add(event.event_id)
        new.append(at)
    insert(connection, "events", _COLUMNS, [_row(events[at]) for at in new])
    return Recorded(new, refused)


def _row(event: Event) -> list[object]:
    values = {name: getattr(event, name) for name in _COLUMNS}
    values |= {"shown": orjson.dumps(event.shown).decode(), "trusted": int(event.trusted)}
    return [*values.values()]


def _refusal(event: Event, there: Container[str]) -> NotFound | None:
    if event.id in there:
        return None
    return NotFound(
        f"There is no document {event.id[:SHOWN_CHARACTERS]!r}: never stored, or deleted since the search."
    )


class _Room:
    """Room for more events, by each limit, as one job uses it up."""

    def __init__(
        self,
        connection: Connection,
        limits: EventLimits,
        key: str,
        collection: str,
        ids: Sequence[tuple[str]],
        wanted: int,
    ) -> None:
        """ids: of the documents that the events are about. wanted: how many events there are."""
        self._connection, self._limits, self._key = connection, limits, key
        self._in_all = self._left(limits.in_all, wanted, Selection())
        self._of_key = self._left(limits.per_key, wanted, Selection(key=key))
        self._of_documents: dict[str, int] = {}  # events that are stored, where there is a limit
        if limits.per_document:
            of_documents = "e.collection = ? AND e.id = given.column1 AND e.key = ?"
            of_documents += " GROUP BY e.id"
            self._of_documents = dict(
                matches(connection, "events e", "e.id, count(*)", of_documents, (collection, key), ids)
            )

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
        most, stored = self._limits.per_document, self._of_documents.get(event.id, 0)
        if most and stored >= most:
            about = f"about the document {event.id[:SHOWN_CHARACTERS]!r} from {whose}"
            return _full(most, about, "SIMILE_EVENTS_PER_DOCUMENT")
        self._in_all -= 1
        self._of_key -= 1
        self._of_documents[event.id] = stored + 1
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


def forget_document(connection: Connection, collection: str, id: str, most: int) -> int:
    """Delete events of a document that is being deleted, at most so many. Returns how many there were."""
    some = "SELECT sequence FROM events WHERE collection = ? AND id = ? LIMIT ?"
    sql = f"DELETE FROM events WHERE sequence IN ({some})"
    return connection.execute(sql, (collection, id, most)).rowcount
