"""Stores judgments and events of hits in the tables `feedback` and `events`.

Start reading at `store_judgments` and `store_events`. Each row belongs to an API key, or to NO_KEY. If a key
judges a query and a document again, the new judgment replaces the old one and gets the next number. An event
that is sent again changes nothing. Numbers are never used twice, so a reader can continue after the last
number that it has read.

A judgment can be made only of a document that exists. Updates of the document keep the judgment. If the
document is deleted, the judgment is no longer listed, until a document is stored under that id again. The
judgment then still has the old number, so a reader that needs all judgments begins at 0. Events and
clicked answers are deleted with their document. Models learn from judgments, so limits apply to each key
separately.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from itertools import chain, groupby
from math import inf
from operator import itemgetter
from secrets import token_hex
from typing import Any, Literal

import orjson

from service.errors import Conflict, Forbidden, NotFound, ServiceError
from service.store.filters.grammar import EVERYTHING, Predicate
from service.store.sql.connection import Connection, fact, fetch_column, fetch_value, note
from service.store.sql.records import Reading, find_among
from service.store.values import (
    NO_KEY,
    ClickedQuery,
    Event,
    EventLimits,
    Judgment,
    JudgmentSummary,
    Limits,
    Recorded,
    Selection,
)

Table = Literal["feedback", "events"]
DELETED_ROWS = 4096  # Rows of one step: a write waits some tens of milliseconds for it.
TOGETHER = 256  # Tuples of texts in one statement.
MAX_PARAMETERS = 900  # Parameters of one statement; older builds of SQLite accept 999.
MAX_TRUSTED = 500  # Keys whose events count for suggestions.
MAX_SUGGESTED_CHARACTERS = 100  # Of a query that is suggested to other visitors.
NAMED = 10  # Unknown ids in a message.
SHOWN_CHARACTERS = 80  # Characters of a query or an id in a message.
_STATE = "judgments/"  # Begins the names of the facts that change with a collection's judgments and clicks.
LIVE_TEST = "live test"  # Name of the fact with the state of the last live test.
_CLICKED = "clicked/"  # Begins the names of the facts with clicked answers: `clicked/COLLECTION/ID`.
_JUDGMENT_COLUMNS = ("query", "id", "relevant", "key", "collection", "visitor", "trusted")
_EVENT_COLUMNS = (
    *("key", "collection", "event_id", "search_id", "query", "id", "type", "position", "shown", "at"),
    *("visitor", "trusted", "test", "side"),
)
_LIVING = "EXISTS (SELECT 1 FROM documents d WHERE d.collection = f.collection AND d.id = f.id)"


def store_judgments(
    connection: Connection,
    judgements: Sequence[Judgment],
    collection: str,
    key: str = NO_KEY,
    limits: Limits | None = None,
    within: Predicate | None = None,
) -> tuple[int, set[str]]:
    """Stores the judgments of a key. The last judgment of a query and a document counts.

    Documents that do not match the filter `within` count as missing.

    Returns:
        The number of the last judgment, and the ids of documents that do not exist. Judgments of these
        documents are not stored.

    Raises:
        NotFound: None of the documents exists.
        Conflict: The key would have more judgments than a limit allows.
    """
    ids = [*dict.fromkeys(judgment.id for judgment in judgements)]
    there = _living(connection, collection, ids, within)
    unknown = [id for id in ids if id not in there]
    if not there:
        more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
        raise NotFound(
            f"There is no document {', '.join(map(repr, unknown[:NAMED]))}{more}: never stored, or deleted "
            "since the search. Nothing was stored; leave its judgments out."
        )
    last: dict[tuple[str, str], Judgment] = {}
    for given in judgements:
        if given.id in there:
            # A dict keeps the place of an existing key, but the new judgment must come last.
            last.pop((given.query, given.id), None)
            last[given.query, given.id] = given
    same = "f.collection = ? AND f.key = ? AND f.query = given.column1 AND f.id = given.column2"
    before = _matches(connection, "feedback f", "f.sequence, f.query, f.id", same, (collection, key), [*last])
    connection.executemany("DELETE FROM feedback WHERE sequence = ?", [(row[0],) for row in before])
    rows = [
        (each.query, each.id, int(each.relevant), key, collection, each.visitor, int(each.trusted))
        for each in last.values()
    ]
    _insert(connection, "feedback", _JUDGMENT_COLUMNS, rows)
    _change_state(connection, collection)
    replaced = {(query, id) for _, query, id in before}
    new = [each for name, each in last.items() if name not in replaced]
    if limits is not None and new:  # A refusal rolls back what the job has written.
        _refuse_too_many(connection, new, collection, key, limits)
    return int(fetch_value(connection, "SELECT max(sequence) FROM feedback")), {*unknown}


def _living(
    connection: Connection, collection: str, ids: Sequence[str], within: Predicate | None
) -> set[str]:
    """Returns those of some ids whose documents exist and match the filter `within`."""
    where = within or EVERYTHING
    return {*find_among(connection, ids, collection, where.sql, *where.parameters)}


def _whose(key: str) -> str:
    return f"the key {key!r}" if key else "callers without a key"


def _refuse_too_many(
    connection: Connection, judgements: Sequence[Judgment], collection: str, key: str, limits: Limits
) -> None:
    def refuse(limit: int, what: str, setting: str) -> None:
        raise Conflict(
            f"With these there would be more than {limit} judgments {what} from {_whose(key)} "
            f"(SIMILE_FEEDBACK_PER_{setting}). Nothing was stored; delete some (DELETE /feedback) or "
            "raise the setting."
        )

    sql = "SELECT 1 FROM feedback WHERE key = ? LIMIT 1 OFFSET ?"
    if limits.per_key and connection.execute(sql, (key, limits.per_key)).fetchone() is not None:
        refuse(limits.per_key, "in all", "KEY")
    for column, noun, limit in (
        ("query", "query", limits.per_query),
        ("id", "document", limits.per_document),
    ):
        if not limit:
            continue
        full = (
            f"f.collection = ? AND f.key = ? AND f.{column} = given.column1 "
            f"GROUP BY f.{column} HAVING count(*) > ?"
        )
        names = [(getattr(each, column),) for each in judgements]
        given = [*dict.fromkeys(names)]
        found = _matches(connection, "feedback f", f"f.{column}", full, (collection, key, limit), given)
        if found:
            first = next(name for name in given if name in {*found})[0]
            refuse(limit, f"of the {noun} {first[:SHOWN_CHARACTERS]!r}", noun.upper())


def list_judgments(
    connection: Connection, after: int, limit: int, selection: Selection, max_bytes: float
) -> tuple[list[tuple[int, Judgment]], bool]:
    """Returns judgments of documents that exist, as `protocol.Feedback.judgements` says."""
    rows, more = _page(connection, "feedback f", _JUDGMENT_COLUMNS, (after, limit, max_bytes), selection)
    return [(number, Judgment(**row | {"relevant": bool(row["relevant"])})) for number, row in rows], more


def judgment_state(connection: Connection, collection: str) -> str:
    """Returns the state of the judgments of a collection, as `protocol.Snapshot.judgment_state` says."""
    return fact(connection, f"{_STATE}{collection}") or ""


def forget_judgment_state(connection: Connection, collection: str) -> None:
    """Deletes the state of a collection that has no judgments."""
    connection.execute("DELETE FROM facts WHERE name = ?", (f"{_STATE}{collection}",))


def _change_state(connection: Connection, collection: str) -> None:
    # Random, because counters of concurrent transactions would be equal.
    note(connection, f"{_STATE}{collection}", token_hex(8))


def judged_collections(connection: Connection) -> list[str]:
    """Returns the collections that have judgments or clicked answers."""
    sql = (
        "SELECT collection AS name FROM feedback UNION SELECT c.name FROM collections c WHERE EXISTS "
        "(SELECT 1 FROM facts f WHERE f.name > ? || c.name || '/' AND f.name < ? || c.name || '0') "
        "ORDER BY name"
    )
    return fetch_column(connection, sql, _CLICKED, _CLICKED)


def replace_clicked(
    connection: Connection, answers: Mapping[str, Mapping[str, float]], collection: str
) -> int:
    """Replaces the clicked answers of a collection.

    An answer is stored only if its document has events. Events are deleted with their document. So a new
    document with the id of a deleted one does not inherit answers that were computed before the deletion.

    Args:
        connection: A connection to SQLite or PostgreSQL.
        answers: By document id, its queries and their gains.
        collection: Name of the collection.

    Returns:
        The number of stored answers.
    """
    clicked = "e.collection = ? AND e.id = given.column1 GROUP BY e.id"
    given = [(id,) for id in answers]
    ids = [id for (id,) in _matches(connection, "events e", "e.id", clicked, (collection,), given)]
    new = {
        f"{_CLICKED}{collection}/{id}": orjson.dumps(answers[id], option=orjson.OPT_SORT_KEYS).decode()
        for id in ids
    }
    old = dict(_clicked_facts(connection, collection))
    changed = [(name, value) for name, value in new.items() if old.get(name) != value]
    gone = [name for name in old if name not in new]
    _delete_facts(connection, [*gone, *(name for name, _ in changed)])
    _insert(connection, "facts", ("name", "value"), changed)
    if gone or changed:
        _change_state(connection, collection)
    return sum(len(answers[id]) for id in ids)


def forget_clicked(connection: Connection, collection: str, ids: Iterable[str]) -> None:
    """Deletes the clicked answers of documents."""
    if _delete_facts(connection, [f"{_CLICKED}{collection}/{id}" for id in ids]):
        _change_state(connection, collection)


def _clicked_facts(connection: Connection, collection: str) -> Iterable[tuple[str, str]]:
    begin = f"{_CLICKED}{collection}"  # `0` follows `/` in the order of characters.
    sql = "SELECT name, value FROM facts WHERE name > ? AND name < ? ORDER BY name"
    return connection.execute(sql, (f"{begin}/", f"{begin}0"))


def _delete_facts(connection: Connection, names: Sequence[str]) -> int:
    deleted = 0
    for first in range(0, len(names), MAX_PARAMETERS):
        some = names[first : first + MAX_PARAMETERS]
        sql = f"DELETE FROM facts WHERE name IN ({', '.join('?' * len(some))})"
        deleted += connection.execute(sql, some).rowcount
    return deleted


def remembered(
    connection: Connection, collection: str, limit: int
) -> tuple[str, list[Judgment], dict[str, dict[str, float]]]:
    """Returns the latest judgments and the clicked answers, as `protocol.Feedback.remembered` says."""
    state = judgment_state(connection, collection)
    rows = connection.execute(
        "SELECT query, id, relevant, key, visitor FROM feedback WHERE collection = ? AND trusted = 1 "
        "ORDER BY sequence DESC LIMIT ?",
        (collection, limit),
    )
    judged = [
        Judgment(query, id, bool(relevant), key, collection, visitor)
        for query, id, relevant, key, visitor in rows
    ]
    clicked: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for name, value in _clicked_facts(connection, collection):
        id = name.removeprefix(f"{_CLICKED}{collection}/")
        for query, gain in orjson.loads(value).items():
            clicked[query][id] = gain
    return state, judged, clicked


def count_judgments(connection: Connection, selection: Selection) -> int:
    """Returns the number of judgments that `list_judgments` would list."""
    condition, parameters = _condition(selection, in_order=True)
    sql = f"SELECT count(*) FROM feedback f WHERE {condition} AND {_LIVING}"
    return int(fetch_value(connection, sql, *parameters))


def sum_up_judgments(connection: Connection, selection: Selection) -> JudgmentSummary:
    """Counts the judgments that `list_judgments` would list, and their queries."""
    condition, parameters = _condition(selection, in_order=True)
    sql = (
        "SELECT count(*), coalesce(sum(relevant), 0), count(DISTINCT collection || '/' || query), "
        "count(DISTINCT CASE WHEN relevant = 1 THEN collection || '/' || query END) "
        f"FROM feedback f WHERE {condition} AND {_LIVING}"
    )
    return JudgmentSummary(*connection.execute(sql, parameters).fetchone())


def store_events(
    connection: Connection,
    events: Sequence[Event],
    limits: EventLimits,
    within: Predicate | None = None,
    there: Container[str] | None = None,
) -> Recorded:
    """Stores events of one key and collection. Returns which are new, and why others were rejected.

    Args:
        connection: A connection to SQLite or PostgreSQL.
        events: Events of one key and collection.
        limits: Limits on stored events.
        within: A filter. Documents that do not match it count as missing.
        there: Ids of the existing documents, which are locked against deletes. None if no other writer
            exists; the ids are then looked up here.
    """
    key, collection = events[0].key, events[0].collection
    sent_before = "e.key = ? AND e.collection = ? AND e.event_id = given.column1"
    before = _matches(
        connection, "events e", "e.event_id", sent_before, (key, collection), [(e.event_id,) for e in events]
    )
    seen = {event_id for (event_id,) in before}
    if there is None:
        there = _living(connection, collection, [*dict.fromkeys(event.id for event in events)], within)
    room = _Room(connection, limits, events)
    new: list[int] = []
    refused: dict[int, ServiceError] = {}
    for at, event in enumerate(events):
        if event.event_id in seen:
            continue
        if event.id not in there:
            id = event.id[:SHOWN_CHARACTERS]
            refused[at] = NotFound(f"There is no document {id!r}: never stored, or deleted since the search.")
        elif reason := room.refusal(event):
            refused[at] = reason
        else:
            seen.add(event.event_id)
            new.append(at)
    _insert(connection, "events", _EVENT_COLUMNS, [_event_row(events[at]) for at in new])
    return Recorded(new, refused)


def _event_row(event: Event) -> list[object]:
    values = {name: getattr(event, name) for name in _EVENT_COLUMNS}
    values |= {"shown": orjson.dumps(event.shown).decode(), "trusted": int(event.trusted)}
    return [*values.values()]


class _Room:
    """Counts how many more events a job may store under each limit.

    Args:
        connection: A connection to SQLite or PostgreSQL.
        limits: Limits on stored events.
        events: The events of the job, of one key and collection.
    """

    def __init__(self, connection: Connection, limits: EventLimits, events: Sequence[Event]) -> None:
        key, collection = events[0].key, events[0].collection
        self._connection, self._limits, self._key = connection, limits, key
        self._in_all = self._left(limits.in_all, len(events), Selection())
        self._of_key = self._left(limits.per_key, len(events), Selection(key=key))
        self._of_documents: dict[str, int] = {}  # Stored events of each document, if that has a limit.
        if limits.per_document:
            of_documents = "e.collection = ? AND e.id = given.column1 AND e.key = ? GROUP BY e.id"
            given = [(id,) for id in dict.fromkeys(event.id for event in events)]
            self._of_documents = dict(
                _matches(connection, "events e", "e.id, count(*)", of_documents, (collection, key), given)
            )

    def _left(self, limit: int, count: int, selection: Selection) -> float:
        sql = "SELECT coalesce(max(sequence) - min(sequence) + 1, 0) FROM events"
        # Numbers only grow, so their span is a cheap upper bound of the number of rows.
        if not limit or fetch_value(self._connection, sql) + count <= limit:
            return inf
        return limit - count_events(self._connection, selection)

    def refusal(self, event: Event) -> Conflict | None:
        """Checks an event against the limits, and counts it if it fits.

        Returns the reason if it does not fit, or None.
        """
        if self._in_all <= 0:
            return _full(self._limits.in_all, "in all", "SIMILE_MAX_EVENTS")
        if self._of_key <= 0:
            return _full(self._limits.per_key, f"from {_whose(self._key)}", "SIMILE_EVENTS_PER_KEY")
        most, stored = self._limits.per_document, self._of_documents.get(event.id, 0)
        if most and stored >= most:
            about = f"about the document {event.id[:SHOWN_CHARACTERS]!r} from {_whose(self._key)}"
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


def clicked_queries(
    connection: Connection, collection: str, min_visitors: int, limit: int, trusts: Callable[[str], bool]
) -> list[ClickedQuery]:
    """Returns queries after which visitors clicked, as `protocol.Snapshot.clicked_queries` says."""
    clicked = "collection = ? AND trusted = 1 AND visitor <> '' AND type <> 'skip'"
    keys = fetch_column(connection, f"SELECT DISTINCT key FROM events WHERE {clicked}", collection)
    trusted = [key for key in keys if trusts(key)][:MAX_TRUSTED]
    if not trusted:
        return []
    rows = connection.execute(
        "SELECT query, visitors, sequence FROM (SELECT query, max(sequence) AS sequence, "
        "count(*) OVER (PARTITION BY query) AS visitors, "
        "row_number() OVER (PARTITION BY query ORDER BY max(sequence) DESC) AS place "
        f"FROM events WHERE {clicked} AND length(query) <= ? AND key IN ({', '.join('?' * len(trusted))}) "
        "GROUP BY query, visitor) AS found WHERE visitors >= ? AND place <= ? "
        "ORDER BY visitors DESC, query LIMIT ?",
        (collection, MAX_SUGGESTED_CHARACTERS, *trusted, min_visitors, min_visitors, limit * min_visitors),
    )
    return [
        ClickedQuery(query, visitors, tuple(sequence for *_, sequence in some))
        for (query, visitors), some in groupby(rows, key=itemgetter(0, 1))
    ]


def list_outcomes(connection: Connection, test: str) -> list[tuple[int, str, str, str, str]]:
    """Returns the outcomes of a live test, as `protocol.LiveTesting.list_outcomes` says."""
    sql = (
        "SELECT side, collection, query, visitor, key FROM events "
        "WHERE test = ? AND test <> '' AND trusted = 1 ORDER BY sequence"
    )
    return list(connection.execute(sql, (test,)))


def replace_live_test(connection: Connection, before: str | None, after: str) -> bool:
    """Replaces the state of live tests, as `protocol.LiveTesting.replace_live_test` says."""
    if before is None:
        sql = "INSERT INTO facts (name, value) VALUES (?, ?) ON CONFLICT (name) DO NOTHING"
        return connection.execute(sql, (LIVE_TEST, after)).rowcount == 1
    sql = "UPDATE facts SET value = ? WHERE name = ? AND value = ?"
    return connection.execute(sql, (after, LIVE_TEST, before)).rowcount == 1


def existing_events(connection: Reading, sequences: Sequence[int]) -> set[int]:
    """Returns those of some events that still exist, as `protocol.Snapshot.existing_events` says."""
    sql = f"SELECT sequence FROM events WHERE sequence {connection.AMONG}"
    return {sequence for (sequence,) in connection.execute(sql, (connection.listed(sequences),))}


def list_events(
    connection: Connection, after: int, limit: int, selection: Selection, max_bytes: float
) -> tuple[list[tuple[int, Event]], bool]:
    """Returns events, as `protocol.Events.list_events` says."""
    rows, more = _page(connection, "events", _EVENT_COLUMNS, (after, limit, max_bytes), selection)
    found = [(number, Event(**row | {"shown": tuple(orjson.loads(row["shown"]))})) for number, row in rows]
    return found, more


def count_events(connection: Connection, selection: Selection) -> int:
    """Returns the number of events that `list_events` would list."""
    condition, parameters = _condition(selection)
    return int(fetch_value(connection, f"SELECT count(*) FROM events WHERE {condition}", *parameters))


def _page(
    connection: Connection,
    table: str,
    columns: Sequence[str],
    bounds: tuple[int, int, float],
    selection: Selection,
) -> tuple[list[tuple[int, dict[str, Any]]], bool]:
    """Returns selected rows in the order of their numbers, and whether more rows follow.

    Each row is the number, and the values of `columns` by name.

    Args:
        connection: A connection to SQLite or PostgreSQL.
        table: `events`, or `feedback f`. Rows of `feedback` are returned only if their document exists.
        columns: The columns to read besides the number.
        bounds: The number after which to start, the maximum number of rows, and the maximum size of their
            texts in bytes. The first row is returned in any case.
        selection: Which rows.
    """
    after, limit, max_bytes = bounds
    condition, parameters = _condition(selection, in_order=True)
    living = f" AND {_LIVING}" if table == "feedback f" else ""
    rows: Iterable[tuple[Any, ...]] = connection.execute(
        f"SELECT sequence, {', '.join(columns)} FROM {table} "
        f"WHERE sequence > ? AND {condition}{living} ORDER BY sequence LIMIT ?",
        [after, *parameters, limit + 1],
    )
    found: list[tuple[int, dict[str, Any]]] = []
    for number, *row in rows:
        max_bytes -= sum(len(value.encode()) for value in row if isinstance(value, str))
        if len(found) == limit or (found and max_bytes < 0):
            return found, True
        values = dict(zip(columns, row, strict=True))
        found.append((number, values | {"trusted": bool(values["trusted"])}))
    return found, False


def _condition(selection: Selection, *, in_order: bool = False) -> tuple[str, list[str]]:
    """Returns an SQL condition that selects rows of a table, and the parameters.

    Args:
        selection: Which rows.
        in_order: Whether the rows are read in the order of their numbers. The condition then has an
            expression instead of the column `collection`. Otherwise the database might use the index on that
            column, and sort all rows for each page.
    """
    columns = {
        "collection || ''" if in_order else "collection": selection.collection,
        "query": selection.query,
        "id": selection.id,
        "key": selection.key,
        "visitor": selection.visitor,
    }
    given = {name: value for name, value in columns.items() if value is not None}
    return " AND ".join(f"{name} = ?" for name in given) or "TRUE", [*given.values()]


def _matches(
    connection: Connection,
    table: str,
    columns: str,
    condition: str,
    parameters: Sequence[object],
    given: Sequence[tuple[str, ...]],
) -> list[tuple[Any, ...]]:
    """Returns columns of the rows that match any tuple in `given`. Each statement handles TOGETHER tuples.

    Args:
        connection: A connection to SQLite or PostgreSQL.
        table: The table to search, with its alias, such as `feedback f`.
        columns: SQL of the columns to return.
        condition: SQL that matches a row with a tuple, whose texts are `given.column1`, `given.column2` and
            so on.
        parameters: Values for the question marks in `condition`.
        given: Tuples of texts, all of the same length. A text may contain the character U+0000, so SQLite's
            JSON functions cannot be used.

    """
    found: list[tuple[Any, ...]] = []
    for first in range(0, len(given), TOGETHER):
        some = given[first : first + TOGETHER]
        # With CROSS JOIN, SQLite begins with the few texts and not with all rows.
        sql = f"SELECT {columns} FROM (VALUES {_places(some)}) AS given CROSS JOIN {table} WHERE {condition}"
        found += connection.execute(sql, [*chain.from_iterable(some), *parameters]).fetchall()
    return found


def _insert(
    connection: Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[object]]
) -> None:
    together = MAX_PARAMETERS // len(columns)
    for first in range(0, len(rows), together):
        some = rows[first : first + together]
        sql = f"INSERT INTO {table} ({', '.join(columns)}) VALUES {_places(some)}"
        connection.execute(sql, [*chain.from_iterable(some)])


def _places(rows: Sequence[Sequence[object]]) -> str:
    return ", ".join([f"({', '.join('?' * len(rows[0]))})"] * len(rows))


def delete_rows(connection: Connection, table: Table, condition: str, *parameters: object) -> int:
    """Deletes at most DELETED_ROWS of the rows that match a condition. Returns the number of deleted rows."""
    sql = f"DELETE FROM {table} WHERE sequence IN (SELECT sequence FROM {table} WHERE {condition} LIMIT ?)"
    return connection.execute(sql, (*parameters, DELETED_ROWS)).rowcount


def drop_judgments(connection: Connection, collection: str) -> bool:
    """Deletes at most DELETED_ROWS judgments of a collection. Returns whether more may exist."""
    deleted = delete_rows(connection, "feedback", "collection = ?", collection)
    _change_state(connection, collection)
    return deleted == DELETED_ROWS


def expire_events(connection: Connection, before: float) -> bool:
    """Deletes at most DELETED_ROWS older events. Returns whether more may exist."""
    return delete_rows(connection, "events", "at < ?", before) == DELETED_ROWS


def forget(
    table: Table, connection: Connection, selection: Selection, own: str | None, last: int | None
) -> tuple[Counter[str], int]:
    """Deletes at most DELETED_ROWS of the selected rows.

    Args:
        table: The table of the rows.
        connection: A connection to SQLite or PostgreSQL.
        selection: Which rows.
        own: Name of the calling key, if the key may delete only its own rows. None if it may delete all.
        last: The number that the first step returned; rows with higher numbers stay. None in the first step.

    Returns:
        The number of deleted rows of each key, by the name of the key, and `last` for the next step.

    Raises:
        Forbidden: In the first step, some rows belong to another key than `own`. Nothing was deleted.
    """
    condition, parameters = _condition(selection)
    execute = connection.execute
    if last is None:
        others = f"SELECT 1 FROM {table} WHERE {condition} AND key <> ? LIMIT 1"
        if own is not None and execute(others, [*parameters, own]).fetchone() is not None:
            noun = "judgments" if table == "feedback" else "events"
            raise Forbidden(
                f"Some of these {noun} are not of the key {own!r}, and deleting another's needs "
                f"a key of role admin. Nothing was deleted; key={own} deletes your own."
            )
        last = int(fetch_value(connection, f"SELECT coalesce(max(sequence), 0) FROM {table}"))
    rows = execute(
        f"DELETE FROM {table} WHERE sequence IN "
        f"(SELECT sequence FROM {table} WHERE {condition} AND sequence <= ? LIMIT ?) "
        "RETURNING key, collection",
        [*parameters, last, DELETED_ROWS],
    ).fetchall()
    if table == "feedback":
        for collection in sorted({collection for _, collection in rows}):  # One order, against deadlocks.
            _change_state(connection, collection)
    return Counter(key for key, _ in rows), last
