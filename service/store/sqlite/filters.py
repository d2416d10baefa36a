"""Compiles filters for SQLite: to SQL over the JSON of documents, and to lookups in the table `fields`.

    fields (collection, field, value, revision)      in this order, so that equal values lie together

Start reading at `compile_filter` and `matching`. The table `fields` has the values of declared fields
(`SIMILE_INDEXED_FIELDS`). A lookup finds the same documents as a scan of the metadata. Numbers and texts are
stored unchanged; SQLite sorts numbers before texts. Other values are stored as blobs, which sort after both.
The first byte of a blob says what kind of value it is. A text that is a time (times.py) has two rows, both
blobs. One is the instant, which is compared with times. The other is the text, which is compared with other
texts. So rows of type text are never times.
"""

import sqlite3
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson

from service.store.filters.grammar import (
    INT64,
    RANGES,
    Among,
    Compared,
    Lookup,
    Predicate,
    Test,
    compile_in,
    scoped,
    splits,
    values_at,
)
from service.store.filters.times import parse_time
from service.store.sql.connection import fetch_value
from service.store.sql.records import parse_metadata
from service.store.values import Revisions

VALUE_RULES = "2"  # Increase it if the rows of the same documents change.
BLOBS = {True: b"\x01", False: b"\x02", None: b"\x03"}
MANY = b"\x04"  # The field has an array, an object or several values.
INSTANT, TIME_TEXT = b"\x05", b"\x06"
TIMES_END = b"\x07"  # The smallest blob after all times.
NUMBERS_END = "''"  # The smallest text.
TEXTS_END = "x''"  # The smallest blob.

Value: TypeAlias = bytes | str | int | float


def add_values(connection: sqlite3.Connection, names: Iterable[str], revisions: tuple[int, int]) -> None:
    """Stores the field values of the documents in a range of revisions, given by the first and the last."""
    sql = "INSERT OR IGNORE INTO fields (collection, field, value, revision) VALUES (?, ?, ?, ?)"
    connection.executemany(sql, _value_rows(connection, [*names], revisions))


def remove_values(connection: sqlite3.Connection, names: Iterable[str], revision: int) -> None:
    """Removes the field values of a document that still exists."""
    sql = "DELETE FROM fields WHERE collection = ? AND field = ? AND value = ? AND revision = ?"
    connection.executemany(sql, _value_rows(connection, [*names], (revision, revision)))


def remove_damaged_values(connection: sqlite3.Connection, names: Iterable[str], revision: int) -> None:
    """Removes the field values of a document with damaged metadata, by a scan of each field."""
    for name in names:
        connection.execute(
            "DELETE FROM fields WHERE field = ? AND revision = ? AND collection IN "
            "(SELECT name FROM collections)",
            (name, revision),
        )


def count_wrong_values(connection: sqlite3.Connection, name: str) -> int:
    """Counts the values of a field that are missing from the table, or that belong to no document."""
    expected = absent = 0
    for row in _value_rows(connection, [name], (0, INT64 - 1)):
        expected += 1
        there = "SELECT 1 FROM fields WHERE collection = ? AND field = ? AND value = ? AND revision = ?"
        absent += connection.execute(there, row).fetchone() is None
    stored = int(fetch_value(connection, "SELECT count(*) FROM fields WHERE field = ?", name))
    return absent + stored - (expected - absent)


def list_rows(metadata: dict[str, Any], field: str) -> set[Value]:
    """Returns the values that the table `fields` must have for one document and one field."""
    rows: set[Value] = set()
    reached = [*values_at(metadata, field)]
    if len(reached) > 1:
        rows.add(MANY)
    for value in reached:
        if isinstance(value, list):
            rows.add(MANY)
        for member in value if isinstance(value, list) else [value]:
            rows.update(_encoded(member))
    return rows


def _value_rows(
    connection: sqlite3.Connection, names: Sequence[str], revisions: tuple[int, int]
) -> Iterator[tuple[str, str, Value, int]]:
    if not names:
        return
    documents = connection.execute(
        "SELECT collection, metadata, revision FROM documents WHERE revision BETWEEN ? AND ?", revisions
    )
    for collection, text, revision in documents:
        metadata = parse_metadata(text)
        for name in names:
            for value in list_rows(metadata, name):
                yield collection, name, value, revision


def _encoded(value: Any) -> tuple[Value, ...]:
    if isinstance(value, str):
        time = parse_time(value)
        return (value,) if time is None else (INSTANT + time.instant.encode(), TIME_TEXT + value.encode())
    if value is None or isinstance(value, bool):
        return (BLOBS[value],)
    if isinstance(value, int):  # A larger integer is a float in SQLite.
        return (value if -INT64 <= value < INT64 else float(value),)
    return (value if isinstance(value, float) else MANY,)


_NESTED_NAMES = 2  # With more names, or with times, nested SQL is too deep for SQLite's parser.


_INSTANT = "simile_instant(CAST(@.value AS BLOB))"


def instant(text: bytes) -> str | None:
    """The SQL function simile_instant: returns the instant of a text, or NULL if it is not a time."""
    time = parse_time(text.decode(errors="replace"))
    return None if time is None else time.instant


class _Sql(NamedTuple):
    """A condition on one JSON value. In `sql`, `@` stands for the row of json_each that has the value.

    `lookups` are conditions on a value in the table `fields`. The value matches if one of them holds.
    """

    sql: str
    parameters: list[Any]
    lookups: list[Lookup]
    times: bool  # It compares times, which nests deeper.

    def on(self, row: str) -> tuple[str, list[Any]]:
        """Returns SQL for a row of json_each: its value, or a member if the value is an array, must match."""
        members = f"SELECT 1 FROM json_each({row}.value) AS member WHERE {self.sql.replace('@', 'member')}"
        sql = f"CASE {row}.type WHEN 'array' THEN EXISTS ({members}) ELSE {self.sql.replace('@', row)} END"
        return sql, [*self.parameters, *self.parameters]


class SqliteDialect:
    """Writes conditions as SQL of SQLite. `declared` are the fields that can be looked up."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Returns the condition that a document has a value at `path` that passes `test`.

        Names are compared in `json_each`, because JSON paths cannot express names with quotes or backslashes.
        """
        one = None if test is None else _among(test) if isinstance(test, Among) else _compared(test)
        name = ".".join(path)
        flat = len(path) == 1 or (len(path) <= _NESTED_NAMES and (one is None or not one.times))
        build = _nested if flat else _walked  # `_walked` takes three times as long.
        sql, parameters = build("documents.metadata", name, one)
        if name not in self._declared:
            return Predicate(sql, parameters)
        lookups = [Lookup("1", [])] if one is None else one.lookups
        of_field = tuple(Lookup(f"field = ? AND {each}", [name, *bound]) for each, bound in lookups)
        return Predicate(sql, parameters, "lookup", lookups=of_field)

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("documents.id IN (SELECT value FROM json_each(?))", [orjson.dumps(ids).decode()])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Combines a lower and an upper bound of a declared field into one lookup.

        Each bound alone may match almost everything. Returns `both` if the bounds cannot be combined.

        If a field has several values, one of them may match the lower bound and another one the upper bound.
        So the metadata of documents with several values is read.
        """
        if field not in self._declared:
            return both
        lower, upper = (sorted(bounds.keys() & {*names}) for names in (("$gt", "$gte"), ("$lt", "$lte")))
        if len(bounds) != 2 or len(lower) != 1 or len(upper) != 1:
            return both
        low, high = (_ends(bounds[name]) for name in (lower[0], upper[0]))
        if low.keys() != high.keys():
            return both
        sql, parameters = both.sql, both.parameters
        between = f"field = ? AND value {RANGES[lower[0]]} ? AND value {RANGES[upper[0]]} ?"
        lookups = tuple(Lookup(between, [field, low[region], high[region]]) for region in low)
        inside = Predicate(sql, parameters, "lookup", lookups=lookups)
        # The SQL of this part matches everything, because the next part is exact.
        many = Predicate("1", [], "lookup", lookups=(Lookup("field = ? AND value = ?", [field, MANY]),))
        of_many = Predicate(sql, parameters, "and", (many, Predicate(sql, parameters)))
        return Predicate(sql, parameters, "or", (inside, of_many))


def compile_filter(filter: object, declared: Container[str] = ()) -> Predicate:
    """Compiles a filter to SQL of SQLite.

    Args:
        filter: Parsed JSON (filters/grammar.py).
        declared: The fields whose values are in the table `fields`.

    Raises:
        FilterError: The filter breaks the grammar or a limit.
    """
    return compile_in(SqliteDialect(declared), filter)


def _nested(container: str, field: str, one: _Sql | None, depth: int = 0) -> tuple[str, list[Any]]:
    """Returns SQL that tests whether an object has a value at a field, and the parameters.

    A dot may be part of a name, so each way to split the field into names is tried.

    Args:
        container: SQL of the object.
        field: The field.
        one: The condition on the value, or None if any value matches.
        depth: Number of enclosing objects.
    """
    row = f"f{depth}"
    parameters: list[Any] = []
    ways = []
    for name, rest in splits(field):
        parameters.append(name)
        if rest is None:
            sql, bound = ("1", []) if one is None else one.on(row)
        else:
            inside, bound = _nested(f"{row}.value", rest, one, depth + 1)
            within, again = _nested(f"m{depth}.value", rest, one, depth + 1)
            members = f"json_each({row}.value) AS m{depth} WHERE m{depth}.type = 'object' AND {within}"
            sql = (
                f"CASE {row}.type WHEN 'object' THEN {inside} "
                f"WHEN 'array' THEN EXISTS (SELECT 1 FROM {members}) ELSE 0 END"
            )
            bound = [*bound, *again]
        ways.append(f"({row}.key = ? AND {sql})")
        parameters += bound
    return f"EXISTS (SELECT 1 FROM json_each({container}) AS {row} WHERE {' OR '.join(ways)})", parameters


def _walked(container: str, field: str, one: _Sql | None) -> tuple[str, list[Any]]:
    """Returns the same as `_nested`, but as a recursive query, for a field with any number of names.

    In the SQL, `rest` is the part of the field that is not resolved yet.
    """
    sql, bound = ("1", []) if one is None else one.on("walk")
    return (
        "EXISTS (WITH RECURSIVE walk (type, value, rest) AS ("
        # Without the plus, `value` has the affinity of the column, and fractions are compared as texts.
        f"SELECT 'object', +{container}, ? UNION ALL "
        "SELECT inner.type, inner.value, "
        "CASE walk.type WHEN 'object' THEN substr(walk.rest, length(inner.key) + 2) ELSE walk.rest END "
        "FROM walk, json_each(CASE WHEN walk.rest <> '' AND walk.type IN ('object', 'array') "
        "THEN walk.value ELSE '[]' END) AS inner WHERE CASE walk.type WHEN 'object' "
        "THEN substr(walk.rest || '.', 1, length(inner.key) + 1) = inner.key || '.' "
        "ELSE inner.type = 'object' END) "
        f"SELECT 1 FROM walk WHERE rest = '' AND {sql})"
    ), [field, *bound]


def _among(test: Among) -> _Sql:
    tests, parameters, lookups = [], [], []
    for types, listed in (("'text'", test.texts), ("'integer', 'real'", test.numbers)):
        if listed:
            tests.append(f"(@.type IN ({types}) AND @.value IN (SELECT value FROM json_each(?)))")
            parameters.append(orjson.dumps(listed).decode())
            # SQLite looks up the values of a list in their order. A single value needs no list.
            one = Lookup("value = ?", [*listed])
            many = Lookup("value IN (SELECT value FROM json_each(?))", parameters[-1:])
            lookups.append(one if len(listed) == 1 else many)
    if test.times:
        instants = orjson.dumps([time.instant for time in test.times]).decode()
        days = [min(time.earliest for time in test.times), max(time.latest for time in test.times)]
        tests.append(
            "(@.type = 'text' AND CASE WHEN substr(@.value, 1, 10) BETWEEN ? AND ? "
            f"THEN ifnull({_INSTANT} IN (SELECT value FROM json_each(?)), 0) ELSE 0 END)"
        )
        parameters += [*days, instants]
        looked_up = f"value IN (SELECT CAST(char({INSTANT[0]}) || value AS BLOB) FROM json_each(?))"
        lookups.append(Lookup(looked_up, [instants]))
    for other in test.others:
        tests.append(f"@.type = '{orjson.dumps(other).decode()}'")
        lookups.append(Lookup("value = ?", [BLOBS[other]]))
    return _Sql(f"({' OR '.join(tests) or '0'})", parameters, lookups, bool(test.times))


def _compared(test: Compared) -> _Sql:
    sign, bound, time = test
    types = "= 'text'" if isinstance(bound, str) else "IN ('integer', 'real')"
    compared, parameters = f"@.value {sign} ?", [bound]
    if time is not None:
        compared = (
            "CASE WHEN substr(@.value, 1, 10) BETWEEN ? AND ? "
            f"THEN ifnull({_INSTANT} {sign} ?, @.value {sign} ?) ELSE @.value {sign} ? END"
        )
        parameters = [time.earliest, time.latest, time.instant, bound, bound]
    lookups = [
        Lookup(f"value {sign} ?{_REGIONS[region][sign[0] == '>']}", [end])
        for region, end in _ends(bound).items()
    ]
    return _Sql(f"(@.type {types} AND {compared})", parameters, lookups, time is not None)


# Bounds that keep a range inside one kind of value in the table `fields`.
_NUMBERS, _TEXTS, _INSTANTS, _TIME_TEXTS = range(4)
_REGIONS = {  # SQL that keeps a comparison inside its region, below and above a bound.
    _NUMBERS: ("", f" AND value < {NUMBERS_END}"),
    _TEXTS: (f" AND value >= {NUMBERS_END}", f" AND value < {TEXTS_END}"),
    _INSTANTS: (f" AND value >= x'{INSTANT.hex()}'", f" AND value < x'{TIME_TEXT.hex()}'"),
    _TIME_TEXTS: (f" AND value >= x'{TIME_TEXT.hex()}'", f" AND value < x'{TIMES_END.hex()}'"),
}


def _ends(bound: str | float) -> dict[int, Any]:
    """Returns a bound in the format of each kind of value in `fields` that it is compared with."""
    if not isinstance(bound, str):
        return {_NUMBERS: bound}
    if (time := parse_time(bound)) is not None:
        return {_TEXTS: bound, _INSTANTS: INSTANT + time.instant.encode()}
    return {_TEXTS: bound, _TIME_TEXTS: TIME_TEXT + bound.encode()}


DIRECT_READS = 1000  # Documents whose metadata is read faster than a lookup.
COUNTED = 1000  # Values that are counted to compare two lookups.


def matching(connection: sqlite3.Connection, where: Predicate, collection: str) -> Revisions:
    """Returns the revisions in a collection that match a filter, in ascending order."""
    return Lookups(connection, collection).matching(where, None)


class Lookups:
    """Finds the documents of a collection that match a filter, by lookups where possible.

    For an `and`, the lookups run first, beginning with the rarest. Then the metadata of the documents found
    so far is read for the other parts.
    """

    def __init__(self, connection: sqlite3.Connection, collection: str) -> None:
        self._connection = connection
        self._collection = collection

    def matching(self, where: Predicate, among: Revisions | None) -> Revisions:
        """Returns the revisions that match, in ascending order.

        Searches only `among`, or all revisions if `among` is None.
        """
        if among is not None and not len(among):
            return among
        if not where.indexed or (among is not None and len(among) <= DIRECT_READS):
            return self.scan(where, among)
        if where.kind == "lookup":
            found = self._looked_up(where.lookups)
            return found if among is None else found[np.isin(found, among, assume_unique=True)]
        if where.kind == "and":
            for part in sorted(where.parts, key=self._cost):
                among = self.matching(part, among)
            return self._all() if among is None else among
        if where.kind == "or":
            return _rising(np.concatenate([self.matching(part, among) for part in where.parts]))
        among = self._all() if among is None else among
        [part] = where.parts
        return np.setdiff1d(among, self.matching(part, among), assume_unique=True)

    def _cost(self, where: Predicate) -> int:
        """Returns a number that orders the parts of an `and`.

        The part with the smallest number is evaluated first.
        """
        if where.kind == "lookup":
            return sum(self._count(lookup, COUNTED) for lookup in where.lookups)
        return COUNTED * 1000 if where.indexed else COUNTED * 2000

    def bound(self, where: Predicate, most: int) -> float:
        """Returns an upper bound on the number of matching documents.

        Counts at most `most` + 1 rows per lookup.
        """
        if where.kind == "lookup":
            return sum(self._count(lookup, most + 1) for lookup in where.lookups)
        if where.kind in ("and", "or"):
            bounds = (self.bound(part, most) for part in where.parts)
            return min(bounds, default=inf) if where.kind == "and" else sum(bounds)
        return inf

    def _count(self, lookup: Lookup, most: int) -> int:
        sql = f"SELECT count(*) FROM (SELECT 1 FROM fields WHERE collection = ? AND {lookup.sql} LIMIT ?)"
        return int(fetch_value(self._connection, sql, self._collection, *lookup.parameters, most))

    def _looked_up(self, lookups: Sequence[Lookup]) -> Revisions:
        found = [
            self._revisions(f"fields WHERE collection = ? AND {sql}", [self._collection, *parameters])
            for sql, parameters in lookups
        ]
        return _rising(np.concatenate([np.empty(0, np.int64), *found]))

    def scan(self, where: Predicate | None, among: Revisions | None) -> Revisions:
        """Returns the same as `matching`, but without lookups. Best for a few revisions. None: all match."""
        sql, parameters = scoped(where, self._collection)
        if among is None:
            return np.sort(self._revisions(f"documents WHERE {sql}", parameters))
        listed = orjson.dumps(among, option=orjson.OPT_SERIALIZE_NUMPY).decode()
        # The plus makes SQLite start with the listed revisions, not with all of the collection.
        some = f"documents WHERE revision IN (SELECT value FROM json_each(?)) AND +{sql}"
        return np.sort(self._revisions(some, [listed, *parameters]))

    def _all(self) -> Revisions:
        return np.sort(self._revisions("documents WHERE collection = ?", [self._collection]))

    def _revisions(self, source: str, parameters: list[Any]) -> Revisions:
        return read_revisions(self._connection, "revision", source, parameters)


def read_revisions(
    connection: sqlite3.Connection, column: str, source: str, parameters: Sequence[Any]
) -> Revisions:
    """Returns a column of a query's rows, which has revisions.

    SQLite returns all revisions as one text, because one row per revision takes three times as long.

    Args:
        connection: A connection to the store.
        column: Name of the column.
        source: The SQL after FROM.
        parameters: Parameters of the SQL.
    """
    text = fetch_value(connection, f"SELECT group_concat({column}) FROM {source}", *parameters)
    return np.empty(0, np.int64) if text is None else np.fromstring(text, np.int64, sep=",")


def _rising(revisions: Revisions) -> Revisions:
    """Returns each revision once, in ascending order. np.unique would take a hundred times as long."""
    ordered = np.sort(revisions)
    return ordered[np.diff(ordered, prepend=-1) > 0]
