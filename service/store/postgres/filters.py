"""Filters over jsonb: a dialect of filters/grammar.py.

jsonb compares as the grammar does: 1 equals 1.0 and neither true nor "1". Operands are bound as JSON, since a
float8 would be rounded to 15 digits when it is compared with a number. `-> text` leads into objects alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from service.store.filters.operands import Among, Compared, Test
from service.store.filters.predicate import Predicate


class JsonbDialect:
    """No field is looked up: every condition reads the metadata."""

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        value = "metadata" + " -> ?::text" * len(path)
        if test is None:
            return Predicate(f"({value}) IS NOT NULL", [*path])
        sql, parameters = _test(test)
        members = f"SELECT 1 FROM jsonb_array_elements(v) AS member WHERE {sql.replace('@', 'member')}"
        return Predicate(
            f"COALESCE((SELECT CASE jsonb_typeof(v) WHEN 'array' THEN EXISTS ({members}) "
            f"ELSE {sql.replace('@', 'v')} END FROM (SELECT {value} AS v) AS at_path), FALSE)",
            [*parameters, *parameters, *path],
        )

    def named(self, ids: Sequence[str]) -> Predicate:
        return Predicate("id = ANY(?::text[])", [[*ids]])

    def between(self, both: Predicate, _field: str, _bounds: Mapping[str, Any]) -> Predicate:
        return both


def _test(test: Among | Compared) -> tuple[str, list[Any]]:
    """SQL on a value @, and what fills its question marks."""
    if isinstance(test, Among):
        return "@ = ANY(?::jsonb[])", [[orjson.dumps(value).decode() for value in test.values]]
    if isinstance(test.operand, str):
        sql = f"(jsonb_typeof(@) = 'string' AND (@ #>> '{{}}') COLLATE \"C\" {test.sign} ?::text)"
        return sql, [test.operand]
    sql = f"(jsonb_typeof(@) = 'number' AND @ {test.sign} ?::jsonb)"
    return sql, [orjson.dumps(test.operand).decode()]
