"""Filters over jsonb: a dialect of filters/grammar.py.

jsonb compares as the grammar does: 1 equals 1.0 and neither true nor "1", and `@>` finds a value in itself
and among the members of an array. Operands are bound as JSON, since a float8 would be rounded to 15 digits
when it is compared with a number. A field with a dot may have several values (filters/paths.py), so it is
read as an array of them.

Of a declared field the condition also stands in the words of its indexes (field_indexes.py), and PostgreSQL
chooses whether to use them.
"""

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

import orjson

from service.store.filters.operands import RANGES, Compared, Test
from service.store.filters.predicate import Predicate
from service.store.filters.times import Time, parse_time
from service.store.postgres.field_indexes import (
    BEGINNING,
    has_many,
    instant_at,
    number_at,
    paths_of,
    text_at,
    value_at,
    values_of,
)

LOOKED_UP = 100  # values of one field that are looked up; for more all documents are read
_TEXT = "(@ #>> '{}') COLLATE \"C\""
_IN_DAYS = f"left({_TEXT}, 10) BETWEEN ? AND ?"
_INSTANT = "simile_instant(@ #>> '{}') COLLATE \"C\""


class JsonbDialect:
    """declared: the fields that have indexes."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        name = ".".join(path)
        declared = name in self._declared
        value, names = "(metadata -> ?::text)", [name]
        if declared:
            value, names = value_at(name), []
        elif len(path) > 1:
            value, names = values_of(name)
        if test is None:
            paths = paths_of(name) if len(path) > 1 else []
            exists = " OR ".join("jsonb_path_exists(metadata, ?::jsonpath)" for _ in paths)
            return Predicate(f"({exists})", paths) if paths else Predicate(f"{value} IS NOT NULL", names)
        if isinstance(test, Compared):
            exact = _passes(len(path) > 1, value, names, *_compared(test))
            if not declared:
                return exact
            looked_up, operands = _range(name, {test.sign: test.operand})
            return Predicate(f"({looked_up} AND {exact.sql})", [*operands, *exact.parameters], "lookup")
        plain = _among(value, names, [_json(each) for each in test.values], indexed=declared)
        if not test.times:
            return plain
        timed = _passes(len(path) > 1, value, names, *_at_times(test.times))
        if declared:
            looked_up = f"({instant_at(name)} = ANY(?::text[]) OR {has_many(name)})"
            instants = [time.instant for time in test.times]
            timed = Predicate(f"({looked_up} AND {timed.sql})", [instants, *timed.parameters], "lookup")
        if not test.values:
            return timed
        parameters = [*plain.parameters, *timed.parameters]
        return Predicate(f"({plain.sql} OR {timed.sql})", parameters, "or", (plain, timed))

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("id = ANY(?::text[])", [[*ids]])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Two bounds of a declared field as one look, where each by itself might pass almost everything."""
        kinds = {(isinstance(bound, str), parse_time(bound) is None) for bound in bounds.values()}
        if field not in self._declared or len(kinds) > 1 or not bounds.keys() <= RANGES.keys():
            return both
        looked_up, operands = _range(field, {RANGES[name]: bound for name, bound in bounds.items()})
        return Predicate(f"({looked_up} AND {both.sql})", [*operands, *both.parameters], "lookup")


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _among(value: str, names: Sequence[str], values: Sequence[str], *, indexed: bool) -> Predicate:
    if indexed and 0 < len(values) <= LOOKED_UP:
        tests = " OR ".join(f"{value} @> ?::jsonb" for _ in values)
        return Predicate(f"(({tests}) AND {value} IS NOT NULL)", [*values], "lookup")
    return Predicate(f"COALESCE({value} @> ANY(?::jsonb[]), FALSE)", [*names, [*values]])


def _passes(many: bool, value: str, names: Sequence[str], sql: str, operands: Sequence[Any]) -> Predicate:
    """Returns a condition: `sql`, in which @ is a value, holds for the value or a member of an array.

    many: `value` is always an array, or NULL.
    """
    if many:
        members = f"jsonb_array_elements({value}) AS member"
        test, parameters = _filled(sql, "member", [], operands)
        return Predicate(f"EXISTS (SELECT 1 FROM {members} WHERE {test})", [*names, *parameters])
    array, of_array = _filled("CASE jsonb_typeof(@) WHEN 'array' THEN @ ELSE '[]' END", value, names, [])
    alone, of_alone = _filled(sql, value, names, operands)
    test, of_member = _filled(sql, "member", [], operands)
    members = f"SELECT 1 FROM jsonb_array_elements({array}) AS member WHERE {test}"
    return Predicate(f"COALESCE({alone} OR EXISTS ({members}), FALSE)", [*of_alone, *of_array, *of_member])


def _filled(sql: str, value: str, names: Sequence[str], operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Returns `sql` with `value` for each @, and what fills its question marks in their order."""
    left = iter(operands)
    parameters: list[Any] = []
    for sign in re.findall("[@?]", sql):
        parameters += names if sign == "@" else [next(left)]
    return sql.replace("@", value), parameters


def _compared(test: Compared) -> tuple[str, list[Any]]:
    """Returns SQL on a value @, and its operands."""
    if not isinstance(test.operand, str):
        return f"(jsonb_typeof(@) = 'number' AND @ {test.sign} ?::jsonb)", [_json(test.operand)]
    text = f"{_TEXT} {test.sign} ?::text"
    if (time := test.time) is None:
        return f"(jsonb_typeof(@) = 'string' AND {text})", [test.operand]
    compared = f"COALESCE({_INSTANT} {test.sign} ?::text, {text})"
    sql = f"(jsonb_typeof(@) = 'string' AND CASE WHEN {_IN_DAYS} THEN {compared} ELSE {text} END)"
    return sql, [time.earliest, time.latest, time.instant, test.operand, test.operand]


def _at_times(times: Sequence[Time]) -> tuple[str, list[Any]]:
    """Returns SQL that holds if a value @ is one of `times`, and its operands."""
    sql = f"(jsonb_typeof(@) = 'string' AND CASE WHEN {_IN_DAYS} THEN {_INSTANT} = ANY(?::text[]) END)"
    earliest, latest = min(time.earliest for time in times), max(time.latest for time in times)
    return sql, [earliest, latest, [time.instant for time in times]]


def _range(field: str, bounds: Mapping[str, Any]) -> tuple[str, list[str]]:
    """SQL by the indexes of a field, and its operands: what passes the bounds, by sign, and some more.

    All bounds are of one kind: numbers, times or other texts.
    """
    tests, instants = [], []
    operands, instant_operands = [], []
    for sign, bound in bounds.items():
        if not isinstance(bound, str):
            tests.append(f"{number_at(field)} {sign} ?::numeric")
            operands.append(_json(bound))
            continue
        # The index has the beginnings of texts alone.
        tests.append(f"{text_at(field)} {sign.rstrip('=')}= ?::text")
        operands.append(bound[:BEGINNING])
        if (time := parse_time(bound)) is not None:
            instants.append(f"{instant_at(field)} {sign} ?::text")
            instant_operands.append(time.instant)
    ways = [" AND ".join(each) for each in (tests, instants) if each]
    return (
        f"({' OR '.join(f'({way})' for way in ways)} OR {has_many(field)})",
        [*operands, *instant_operands],
    )
