"""Filters over jsonb: a dialect of filters/grammar.py.

jsonb compares as the grammar does: 1 equals 1.0 and neither true nor "1", and `@>` finds a value in itself
and among the members of an array. Operands are bound as JSON, since a float8 would be rounded to 15 digits
when it is compared with a number. `-> text` leads into objects alone.

Of a declared field the condition also stands in the words of its indexes (field_indexes.py), and PostgreSQL
chooses whether to use them.
"""

from collections.abc import Container, Mapping, Sequence
from typing import Any

import orjson

from service.store.filters.operands import RANGES, Among, Compared, Test
from service.store.filters.predicate import Predicate
from service.store.postgres.field_indexes import BEGINNING, is_array, number_at, text_at, value_at

LOOKED_UP = 100  # values of one field that are looked up; for more all documents are read


class JsonbDialect:
    """declared: the fields that have indexes."""

    def __init__(self, declared: Container[str]) -> None:
        self._declared = declared

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        name = ".".join(path)
        declared = name in self._declared
        value, names = (
            (value_at(name), []) if declared else ("(metadata" + " -> ?::text" * len(path) + ")", path)
        )
        if test is None:
            return Predicate(f"{value} IS NOT NULL", [*names])
        if isinstance(test, Among):
            return _among(value, names, [_json(each) for each in test.values], indexed=declared)
        sql, operand = _compared(test)
        exact = (
            f"COALESCE({sql.replace('@', value)} OR EXISTS (SELECT 1 FROM jsonb_array_elements("
            f"CASE WHEN {is_array(value)} THEN {value} ELSE '[]' END) AS member "
            f"WHERE {sql.replace('@', 'member')}), FALSE)"
        )
        # In the order of the question marks: the first comparison has the value twice.
        bound = [*names, *names, operand, *names, *names, operand]
        if not declared:
            return Predicate(exact, bound)
        looked_up, operands = _range(name, {test.sign: test.operand})
        return Predicate(f"({looked_up} AND {exact})", [*operands, *bound], "lookup")

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("id = ANY(?::text[])", [[*ids]])

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any]) -> Predicate:
        """Two bounds of a declared field as one look, where each by itself might pass almost everything."""
        kinds = {isinstance(bound, str) for bound in bounds.values()}
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
    return Predicate(f"({value} @> ANY(?::jsonb[]) AND {value} IS NOT NULL)", [*names, [*values], *names])


def _compared(test: Compared) -> tuple[str, str]:
    """SQL on a value @, which stands there twice, and its operand behind both."""
    if isinstance(test.operand, str):
        text = "(@ #>> '{}') COLLATE \"C\""
        return f"(jsonb_typeof(@) = 'string' AND {text} {test.sign} ?::text)", test.operand
    return f"(jsonb_typeof(@) = 'number' AND @ {test.sign} ?::jsonb)", _json(test.operand)


def _range(field: str, bounds: Mapping[str, Any]) -> tuple[str, list[str]]:
    """SQL by the indexes of a field, and its operands: what passes the bounds, by sign, and some more."""
    value = value_at(field)
    tests, operands = [], []
    for sign, bound in bounds.items():
        if isinstance(bound, str):  # the index has the beginnings of texts alone
            tests.append(f"{text_at(field)} {sign.rstrip('=')}= ?::text")
            operands.append(bound[:BEGINNING])
        else:
            tests.append(f"{number_at(field)} {sign} ?::numeric")
            operands.append(_json(bound))
    return f"(({' AND '.join(tests)}) OR {is_array(value)})", operands
