"""Filters in SQLite's SQL: over the JSON of `documents.metadata`, and over the table `fields`.

Names are compared as `json_each` reports them, because SQLite's JSON paths cannot express a name with a quote
or a backslash. Each condition on a declared field (field_index.py) also says where to look it up; any other
reads each row's JSON.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from service.store.filters.grammar import compile_in
from service.store.filters.operands import RANGES, Among, Compared, Test
from service.store.filters.paths import splits
from service.store.filters.predicate import Lookup, Predicate
from service.store.filters.times import DAY, parse_time
from service.store.sqlite.field_index import (
    FALSE,
    INSTANT,
    MANY,
    NULL,
    NUMBERS_END,
    TEXTS_END,
    TIME_TEXT,
    TIMES_END,
    TRUE,
)

BLOBS = {None: NULL, False: FALSE, True: TRUE}
_NESTED_NAMES = 2  # with more, or with times, nested SQL is too deep for SQLite's parser


_DATE = "[0-9][0-9][0-9][0-9]-[01][0-9]-[0-3][0-9]"
_CLOCK = f"{_DATE}[Tt ][0-2][0-9]:[0-5][0-9]:[0-6][0-9]"
_OFFSET = f"{_CLOCK}*[-+][0-2][0-9]:[0-5][0-9]"
_EPOCH = 719_529 * DAY  # from the day before the year 0 to 1970


def _instant(value: str) -> str:
    """Returns SQL of a text's instant, as times.py defines it; NULL if the text is not a time.

    One flat expression, because SQLite's parser allows few levels of nesting. A product with a condition,
    which is 0 or 1, takes the place of a CASE.
    """
    zone = f"(@ GLOB '*[Zz]') + 6 * (@ GLOB '{_OFFSET}')"
    digits = f"substr(@, 21, max(length(@) - 20 - ({zone}), 0))"
    offset = f"(@ GLOB '{_OFFSET}') * (substr(@, -6, 1) || '60') * (substr(@, -5, 2) * 60 + substr(@, -2))"
    clock = "substr(@, 12, 2) * 3600 + substr(@, 15, 2) * 60 + substr(@, 18, 2)"
    whole = f"strftime('%s', substr(@, 1, 10)) + {_EPOCH} + {clock} - {offset}"
    leap = "substr(@, 1, 4) % 400 = 0 OR substr(@, 1, 4) % 100 <> 0 AND substr(@, 1, 4) % 4 = 0"
    conditions = (
        f"(@ GLOB '{_DATE}' OR @ GLOB '{_CLOCK}*')",
        "substr(@, 6, 2) BETWEEN '01' AND '12' AND substr(@, 9, 2) > '00'",
        "substr(@, 9, 2) <= substr('312931303130313130313031', 2 * substr(@, 6, 2) - 1, 2)",
        # date() of SQLite 3.40 takes 0300-02-29 for a date.
        f"({leap} OR substr(@, 6, 5) <> '02-29')",
        "substr(@, 12, 2) < '24'",
        f"(substr(@, 18, 2) < '60' OR substr(@, 18, 2) = '60' AND ({whole}) % {DAY} = 0)",
        f"(length(@) < 20 + {zone} OR @ GLOB '{_CLOCK}.[0-9]*' AND {digits} NOT GLOB '*[^0-9]*')",
        f"length({digits}) <= 30",
        f"NOT (@ GLOB '{_OFFSET}' AND substr(@, -5, 2) > '23')",
    )
    sql = f"CASE WHEN {' AND '.join(conditions)} THEN printf('%012d', {whole}) || rtrim({digits}, '0') END"
    return sql.replace("@", value)


_INSTANT = _instant("@.value")


class _Sql(NamedTuple):
    """A condition on one JSON value; `@` stands for the row of json_each that holds it.

    `lookups` are the same as conditions on a value in the table `fields`: one of them holds.
    """

    sql: str
    parameters: list[Any]
    lookups: list[Lookup]
    times: bool  # it compares times, which takes much SQL

    def on(self, row: str) -> tuple[str, list[Any]]:
        """Returns the condition on the row, or on one of its members if it is an array."""
        members = f"SELECT 1 FROM json_each({row}.value) AS member WHERE {self.sql.replace('@', 'member')}"
        sql = f"CASE {row}.type WHEN 'array' THEN EXISTS ({members}) ELSE {self.sql.replace('@', row)} END"
        return sql, [*self.parameters, *self.parameters]


class SqliteDialect:
    """declared: the fields that can be looked up."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        one = None if test is None else _among(test) if isinstance(test, Among) else _compared(test)
        name = ".".join(path)
        flat = len(path) == 1 or (len(path) <= _NESTED_NAMES and (one is None or not one.times))
        build = _nested if flat else _walked  # which takes three times as long
        sql, parameters = build("documents.metadata", name, one)
        if name not in self._declared:
            return Predicate(sql, parameters)
        lookups = [Lookup("1", [])] if one is None else one.lookups
        of_field = tuple(Lookup(f"field = ? AND {each}", [name, *bound]) for each, bound in lookups)
        return Predicate(sql, parameters, "lookup", lookups=of_field)

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("documents.id IN (SELECT value FROM json_each(?))", [orjson.dumps(ids).decode()])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Two bounds of a declared field as one lookup, where each by itself might pass almost everything.

        Of several values one may pass the one bound and one the other, so the metadata of documents that have
        several there is read.
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
        # Scanned for, it passes everything: what comes behind it is exact.
        many = Predicate("1", [], "lookup", lookups=(Lookup("field = ? AND value = ?", [field, MANY]),))
        of_many = Predicate(sql, parameters, "and", (many, Predicate(sql, parameters)))
        return Predicate(sql, parameters, "or", (inside, of_many))


def compile_filter(filter: object, declared: Container[str] = ()) -> Predicate:
    """Compiles a filter to SQLite's SQL.

    Args:
        filter: Parsed JSON of the grammar.
        declared: The fields that the table `fields` indexes.

    Raises:
        FilterError: The filter breaks the grammar or a limit.

    """
    return compile_in(SqliteDialect(declared), filter)


def _nested(container: str, field: str, one: _Sql | None, depth: int = 0) -> tuple[str, list[Any]]:
    """Returns SQL that holds if an object has a value at a field. Each way to split its names is tried."""
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
    """Returns what `_nested` does, for a field of any number of names: `rest` is what is left of it."""
    sql, bound = ("1", []) if one is None else one.on("walk")
    return (
        "EXISTS (WITH RECURSIVE walk (type, value, rest) AS ("
        # The plus: without it `value` has the affinity of the column, and fractions are compared as texts.
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
            # SQLite would look a listed value up in the order of the list, and one alone by itself.
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
        Lookup(f"value {sign} ?{_FIRST_OF[region] if sign[0] == '<' else _LAST_OF[region]}", [end])
        for region, end in _ends(bound).items()
    ]
    return _Sql(f"(@.type {types} AND {compared})", parameters, lookups, time is not None)


# What keeps a range inside one kind of value in the table `fields`.
_NUMBERS, _TEXTS, _INSTANTS, _TIME_TEXTS = range(4)
_FIRST_OF = {
    _NUMBERS: "",
    _TEXTS: f" AND value >= {NUMBERS_END}",
    _INSTANTS: f" AND value >= x'{INSTANT.hex()}'",
    _TIME_TEXTS: f" AND value >= x'{TIME_TEXT.hex()}'",
}
_LAST_OF = {
    _NUMBERS: f" AND value < {NUMBERS_END}",
    _TEXTS: f" AND value < {TEXTS_END}",
    _INSTANTS: f" AND value < x'{TIME_TEXT.hex()}'",
    _TIME_TEXTS: f" AND value < x'{TIMES_END.hex()}'",
}


def _ends(bound: str | float) -> dict[int, Any]:
    """Returns a bound as the table `fields` has it, in each kind of values that it is compared with."""
    if not isinstance(bound, str):
        return {_NUMBERS: bound}
    if (time := parse_time(bound)) is not None:
        return {_TEXTS: bound, _INSTANTS: INSTANT + time.instant.encode()}
    return {_TEXTS: bound, _TIME_TEXTS: TIME_TEXT + bound.encode()}
