"""Filters in SQLite's words: over the JSON of `documents.metadata`, and over the table `fields`.

Names are compared as `json_each` reports them, because SQLite's JSON paths cannot express a name with a quote
or a backslash. Each condition on a declared field (field_index.py) also says where to look it up; any other
reads each row's JSON.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from service.store.filters.field_index import FALSE, NULL, NUMBERS_END, PRESENT, TEXTS_END, TRUE, levels
from service.store.filters.operands import RANGES, Among, Compared, Test
from service.store.filters.predicate import Lookup, Predicate

BLOBS = {None: NULL, False: FALSE, True: TRUE}


class _Sql(NamedTuple):
    """A condition on one JSON value; `@` stands for the row of json_each that holds it.

    `lookups` are the same as conditions on a value in the table `fields`: one of them holds.
    """

    sql: str
    parameters: list[Any]
    lookups: list[Lookup]

    def on(self, row: str) -> str:
        return self.sql.replace("@", row)


class SqliteDialect:
    """declared: the fields that can be looked up."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        tables, condition = levels(len(path))
        parameters: list[Any] = [*path]
        one = None if test is None else _among(test) if isinstance(test, Among) else _compared(test)
        if one is not None:
            last = f"f{len(path) - 1}"
            members = f"SELECT 1 FROM json_each({last}.value) AS member WHERE {one.on('member')}"
            condition += f" AND CASE {last}.type WHEN 'array' THEN EXISTS ({members}) ELSE {one.on(last)} END"
            parameters += [*one.parameters, *one.parameters]
        sql = f"EXISTS (SELECT 1 FROM {tables} WHERE {condition})"
        name = ".".join(path)
        if name not in self._declared:
            return Predicate(sql, parameters)
        lookups = [Lookup("1", [])] if one is None else one.lookups
        of_field = tuple(Lookup(f"field = ? AND {each}", [name, *bound]) for each, bound in lookups)
        return Predicate(sql, parameters, "lookup", lookups=of_field)

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("documents.id IN (SELECT value FROM json_each(?))", [orjson.dumps(ids).decode()])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Two bounds of a declared field as one lookup, where each by itself might pass almost everything.

        Of an array one member may pass the one bound and one the other, so the metadata of those that have an
        array there is read.
        """
        if field not in self._declared:
            return both
        lower, upper = (sorted(bounds.keys() & {*names}) for names in (("$gt", "$gte"), ("$lt", "$lte")))
        if len(bounds) != 2 or len(lower) != 1 or len(upper) != 1:
            return both
        low, high = bounds[lower[0]], bounds[upper[0]]
        if isinstance(low, str) != isinstance(high, str):
            return both
        sql, parameters = both.sql, both.parameters
        between = f"field = ? AND value {RANGES[lower[0]]} ? AND value {RANGES[upper[0]]} ?"
        inside = Predicate(sql, parameters, "lookup", lookups=(Lookup(between, [field, low, high]),))
        # Scanned for, it passes everything: what comes behind it is exact.
        arrays = Predicate("1", [], "lookup", lookups=(Lookup(f"field = ? AND value = {PRESENT}", [field]),))
        of_arrays = Predicate(sql, parameters, "and", (arrays, Predicate(sql, parameters)))
        return Predicate(sql, parameters, "or", (inside, of_arrays))


def _among(test: Among) -> _Sql:
    tests, parameters, lookups = [], [], []
    for types, listed in (("'text'", test.texts), ("'integer', 'real'", test.numbers)):
        if listed:
            tests.append(f"(@.type IN ({types}) AND @.value IN (SELECT value FROM json_each(?)))")
            parameters.append(orjson.dumps(listed).decode())
            # SQLite would look a listed value up in the order of the list, and one alone by itself.
            one = Lookup("value = ?", [*listed])
            many = Lookup("value IN (SELECT value FROM json_each(?))", parameters[-1:])
            lookups.append(one if len(listed) == 1 else many)
    for other in test.others:
        tests.append(f"@.type = '{orjson.dumps(other).decode()}'")
        lookups.append(Lookup(f"value = {BLOBS[other]}", []))
    return _Sql(f"({' OR '.join(tests) or '0'})", parameters, lookups)


def _compared(test: Compared) -> _Sql:
    sign, bound = test
    if isinstance(bound, str):
        types = "= 'text'"
        end = f" AND value >= {NUMBERS_END}" if sign.startswith("<") else f" AND value < {TEXTS_END}"
    else:
        types = "IN ('integer', 'real')"
        end = "" if sign.startswith("<") else f" AND value < {NUMBERS_END}"
    lookup = Lookup(f"value {sign} ?{end}", [bound])
    return _Sql(f"(@.type {types} AND @.value {sign} ?)", [bound], [lookup])
