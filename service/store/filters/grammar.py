"""Metadata filters, compiled to the SQL of a store.

    {"topic": "birds", "year": {"$gte": 1990, "$lt": 2000}, "$or": [{"tags": "owl"}, {"source.page": 7}]}

    filter     {condition, …}                              all of them hold
    condition  "$and" | "$or": [filter, …]                 one filter at least
               "$ids": [id, …]                             the document is one of these
               "field": scalar | {operator: operand, …}    dots as in paths.py: "source.page"
    operator   $in [scalar, …]   $ne scalar   $gt $gte $lt $lte number | string   $exists true | false
    scalar     string, number, true, false, null

Comparison is typed: `1` equals `1.0` but neither `true` nor `"1"`, and null equals only null. An array is
compared by its members: one that matches is enough, and `$ne` wants none that is equal. A field with several
values (paths.py) is compared as an array of them. A field that is missing passes `$ne` and
`{"$exists": false}` only. Texts are compared letter by letter, unless both are times (times.py).

Every name and value is a bound parameter. Each store has a `Dialect`, which writes one condition as SQL.

Not here: whole objects or arrays as values, and arrays within arrays.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import orjson

from service.store.filters.operands import (
    MAX_VALUES,
    RANGES,
    Test,
    among,
    among_ids,
    compare,
    equal,
    kind_of,
    listed_in_words,
    plain_text,
    shown,
)
from service.store.filters.operands import FilterError as FilterError  # noqa: PLC0414  who uses filters finds it here
from service.store.filters.paths import MAX_FIELD_PARTS
from service.store.filters.predicate import Predicate

MAX_DEPTH = 16  # of $and and $or
MAX_CONDITIONS = 256
MAX_INDEXED_FIELDS = 32
MAX_BYTES = 2 << 20  # of the whole as JSON: five times as much as 10,000 UUIDs
IDS = "$ids"
JOINS: dict[str, Literal["and", "or"]] = {"$and": "and", "$or": "or"}
EXAMPLE = '{"topic": "birds"}'


class Operator(NamedTuple):
    """An operator on a field.

    Args:
        operand: The kind of its operand.
        test: Makes the test of an operand, given the field and the operator. None: it asks for any value.
        negated: A document matches if no value passes the test.

    """

    operand: Literal["scalar", "scalars", "bound", "boolean"]
    test: Callable[[str, str, object], Test] | None
    negated: bool = False


# The OpenAPI document, the page (ui/filter.js) and docs/SEARCH.md name each of these, as a test checks.
OPERATORS: dict[str, Operator] = {
    "$in": Operator("scalars", among),
    "$ne": Operator("scalar", lambda key, name, operand: equal(key, name, [operand]), negated=True),
    **{name: Operator("bound", compare) for name in RANGES},
    "$exists": Operator("boolean", None),
}


def parse_filter(text: str) -> dict[str, Any]:
    """The filter in a query parameter.

    Raises:
        FilterError: it is no JSON object.

    """
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FilterError(f"This is not JSON ({error}). Give an object such as {EXAMPLE}.") from error
    return _object(parsed)


class Dialect(Protocol):
    """A store's SQL for one condition."""

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """There is a value at `path`; with a `test`, it or a member of the array passes."""

    def named(self, ids: Sequence[str]) -> Predicate:
        """The document's id is one of these."""

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any], /) -> Predicate:
        """Several operators on one field, which `both` joins; what `bounds` they are may be of use."""


def compile_in(dialect: Dialect, filter: object) -> Predicate:
    """`filter` as SQL. `{}` has no condition, so every document passes.

    Raises:
        FilterError: it breaks the grammar above, or a limit.

    """
    conditions = _object(filter)
    _check_size(conditions)
    return _Compiler(dialect).all_of(conditions, depth=0)


def _check_size(filter: dict[str, Any]) -> None:
    try:
        size = len(orjson.dumps(filter))
    except orjson.JSONEncodeError:  # what cannot be JSON breaks the grammar, which says where
        return
    if size > MAX_BYTES:
        raise FilterError(f"It has {size} bytes of JSON; at most {MAX_BYTES >> 20} MiB are looked through.")


def check_field(name: str) -> None:
    """Refuse a field that no filter can name.

    Raises:
        FilterError: it cannot.

    """
    if name.startswith("$"):
        raise FilterError(f"{shown(name)} begins as an operator does.")
    _path(name)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FilterError(f"A filter is an object such as {EXAMPLE}, not {kind_of(value)}.")
    return value


class _Compiler:
    """Counts the conditions of one filter."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._conditions = 0

    def all_of(self, filter: dict[str, Any], depth: int) -> Predicate:
        return _joined("and", [self._condition(key, value, depth) for key, value in filter.items()])

    def _condition(self, key: object, value: object, depth: int) -> Predicate:
        if not isinstance(key, str) or not key:
            raise FilterError("A field name is a string of at least one character.")
        if key in JOINS:
            return self._join(key, value, depth + 1)
        if key == IDS:
            return self._counted(self._dialect.named(among_ids(value)))
        if key.startswith("$"):
            raise FilterError(
                f"{shown(key)} cannot stand in the place of a field; allowed there are $and, $or and $ids. "
                f'Operators follow a field: {{"year": {{"$gt": 1990}}}}.'
            )
        path = _path(key)
        if not isinstance(value, dict):
            return self._exists(path, equal(key, "equality", [value]))
        if not value:
            raise FilterError(
                f"Field {shown(key)}: {{}} has no operator. Allowed are {listed_in_words([*OPERATORS])}."
            )
        both = _joined("and", [self._operation(key, path, name, operand) for name, operand in value.items()])
        return self._dialect.between(both, key, value)

    def _operation(self, key: str, path: Sequence[str], name: str, operand: object) -> Predicate:
        operator = OPERATORS.get(name)
        if operator is None:
            raise FilterError(
                f"Field {shown(key)}: unknown operator {shown(name)}. Allowed are "
                f"{listed_in_words([*OPERATORS])}; a value inside an object is named with dots, such as "
                "source.page."
            )
        if operator.test is not None:
            found = self._exists(path, operator.test(key, name, operand))
            return _not(found) if operator.negated else found
        if not isinstance(operand, bool):
            raise FilterError(f"Field {shown(key)}: {name} needs true or false, not {kind_of(operand)}.")
        present = self._exists(path, None)
        return present if operand else _not(present)

    def _exists(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Condition: there is a value at `path`; with a `test`, it or a member of the array passes."""
        return self._counted(self._dialect.condition(path, test))

    def _counted(self, condition: Predicate) -> Predicate:
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise FilterError(
                f"There are more than {MAX_CONDITIONS} conditions; one $in takes {MAX_VALUES} values."
            )
        return condition

    def _join(self, key: str, value: object, depth: int) -> Predicate:
        if depth > MAX_DEPTH:
            raise FilterError(f"$and and $or are nested more than {MAX_DEPTH} deep.")
        if not isinstance(value, list) or not value:
            given = "an empty one" if value == [] else kind_of(value)
            raise FilterError(f"{key} needs a list of at least one filter, not {given}.")
        for part in value:
            if not _object(part):
                raise FilterError(f"{key} holds an empty filter; leave it out.")
        return _joined(JOINS[key], [self.all_of(part, depth) for part in value])


def _joined(kind: Literal["and", "or"], parts: Sequence[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    # SQLite's parser takes deeper nesting at the beginning of a list than behind other conditions.
    parts = sorted(parts, key=_depth, reverse=True)
    sql = f"({f' {kind.upper()} '.join(part.sql for part in parts)})" if parts else "TRUE"
    return Predicate(sql, [parameter for part in parts for parameter in part.parameters], kind, tuple(parts))


def _depth(where: Predicate) -> int:
    return 1 + max(map(_depth, where.parts), default=0)


def _not(where: Predicate) -> Predicate:
    return Predicate(f"NOT {where.sql}", where.parameters, "not", (where,))


def _path(key: str) -> list[str]:
    path = key.split(".")
    if not all(path):
        raise FilterError(f"Field {shown(key)}: there is no name before or after a dot.")
    if len(path) > MAX_FIELD_PARTS:
        raise FilterError(f"Field {shown(key)} has more than {MAX_FIELD_PARTS} names between its dots.")
    for name in path:
        plain_text(f"The field name {shown(key)}", name)
    return path


def indexed_fields(text: str) -> list[str]:
    """The fields of `SIMILE_INDEXED_FIELDS`, each once.

    Raises:
        ValueError: a name that no filter can have, or too many.

    """
    names = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(names) > MAX_INDEXED_FIELDS:
        raise ValueError(
            f"SIMILE_INDEXED_FIELDS names {len(names)} fields; at most {MAX_INDEXED_FIELDS}, because each "
            "of them is written with every document."
        )
    for name in names:
        try:
            check_field(name)
        except FilterError as error:
            raise ValueError(f"SIMILE_INDEXED_FIELDS: {error}") from error
    return names
