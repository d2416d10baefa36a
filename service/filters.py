"""Metadata filters, compiled to SQL.

    {"topic": "birds", "year": {"$gte": 1990, "$lt": 2000}, "$or": [{"tags": "owl"}, {"source.page": 7}]}

    filter     {condition, …}                              all of them hold
    condition  "$and" | "$or": [filter, …]                 one filter at least
               "field": scalar | {operator: operand, …}    dots lead into objects: "source.page"
    operator   $in [scalar, …]   $ne scalar   $gt $gte $lt $lte number | string   $exists true | false
    scalar     string, number, true, false, null

Comparison is typed: `1` equals `1.0` but neither `true` nor `"1"`, and null equals only null. An array is
compared by its members: one that matches is enough, and `$ne` wants none that is equal. A field that is
missing passes `$ne` and `{"$exists": false}` only.

Every name and value is a bound parameter. Names are compared as `json_each` reports them, because SQLite's
JSON paths cannot express a name with a quote or a backslash.

Not here: an index over a field (each row's JSON is read), a name that itself has a dot, whole objects or
arrays as values, and members of objects within arrays.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import orjson

MAX_DEPTH = 16  # of $and and $or, and of the names in one field
MAX_CONDITIONS = 256
MAX_VALUES = 10_000  # in one $in
RANGES = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
OPERATORS = ("$in", "$ne", *RANGES, "$exists")
JOINS = {"$and": " AND ", "$or": " OR "}
EXAMPLE = '{"topic": "birds"}'
INT64 = 2**63

Scalar: TypeAlias = str | int | float | bool | None


class FilterError(ValueError):
    """The filter does not follow the grammar; the message names the place and what is allowed there."""


@dataclass(frozen=True)
class Where:
    """A condition over the table `documents`, for use after WHERE; `parameters` fill its question marks."""

    sql: str
    parameters: list[Any]


class _Test(NamedTuple):
    """A condition on one JSON value; `@` stands for the row of json_each that holds it."""

    sql: str
    parameters: list[Any]

    def on(self, row: str) -> str:
        return self.sql.replace("@", row)


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


def compile_filter(filter: object) -> Where:
    """`filter` as SQL. `{}` has no condition, so every document passes.

    Raises:
        FilterError: it breaks the grammar above, or a limit.

    """
    return _Compiler().all_of(_object(filter), depth=0)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FilterError(f"A filter is an object such as {EXAMPLE}, not {_kind(value)}.")
    return value


class _Compiler:
    """Counts the conditions of one filter."""

    def __init__(self) -> None:
        self._conditions = 0

    def all_of(self, filter: dict[str, Any], depth: int) -> Where:
        return _joined(" AND ", [self._condition(key, value, depth) for key, value in filter.items()])

    def _condition(self, key: object, value: object, depth: int) -> Where:
        if not isinstance(key, str) or not key:
            raise FilterError("A field name is a string of at least one character.")
        if key in JOINS:
            return self._join(key, value, depth + 1)
        if key.startswith("$"):
            raise FilterError(
                f"{_shown(key)} cannot stand in the place of a field; allowed there are $and and $or. "
                f'Operators follow a field: {{"year": {{"$gt": 1990}}}}.'
            )
        path = _path(key)
        if not isinstance(value, dict):
            return self._exists(path, _equal(key, "equality", [value]))
        if not value:
            raise FilterError(f"Field {_shown(key)}: {{}} has no operator. Allowed are {_listed(OPERATORS)}.")
        return _joined(
            " AND ", [self._operation(key, path, name, operand) for name, operand in value.items()]
        )

    def _operation(self, key: str, path: Sequence[str], operator: object, operand: object) -> Where:
        if operator == "$in":
            return self._exists(path, _in(key, operand))
        if operator == "$ne":
            return _not(self._exists(path, _equal(key, "$ne", [operand])))
        if operator == "$exists":
            if not isinstance(operand, bool):
                raise FilterError(f"Field {_shown(key)}: $exists needs true or false, not {_kind(operand)}.")
            present = self._exists(path, None)
            return present if operand else _not(present)
        if isinstance(operator, str) and operator in RANGES:
            return self._exists(path, _compare(key, operator, operand))
        raise FilterError(
            f"Field {_shown(key)}: unknown operator {_shown(operator)}. Allowed are {_listed(OPERATORS)}; "
            "a value inside an object is named with dots, such as source.page."
        )

    def _exists(self, path: Sequence[str], test: _Test | None) -> Where:
        """Whether there is a value at `path`; with a `test`, whether it, or a member of the array, passes."""
        self._conditions += 1
        if self._conditions > MAX_CONDITIONS:
            raise FilterError(
                f"There are more than {MAX_CONDITIONS} conditions; one $in takes {MAX_VALUES} values."
            )
        # CASE, because json_each fails on a string, and WHERE promises no order.
        tables = ["json_each(documents.metadata) AS f0"]
        for number, outer in enumerate(f"f{number}" for number in range(len(path) - 1)):
            inside = f"CASE {outer}.type WHEN 'object' THEN {outer}.value ELSE '{{}}' END"
            tables.append(f"json_each({inside}) AS f{number + 1}")
        conditions = [f"f{number}.key = ?" for number in range(len(path))]
        parameters: list[Any] = [*path]
        if test is not None:
            last = f"f{len(path) - 1}"
            members = f"SELECT 1 FROM json_each({last}.value) AS member WHERE {test.on('member')}"
            conditions.append(
                f"CASE {last}.type WHEN 'array' THEN EXISTS ({members}) ELSE {test.on(last)} END"
            )
            parameters += [*test.parameters, *test.parameters]
        return Where(
            f"EXISTS (SELECT 1 FROM {', '.join(tables)} WHERE {' AND '.join(conditions)})", parameters
        )

    def _join(self, key: str, value: object, depth: int) -> Where:
        if depth > MAX_DEPTH:
            raise FilterError(f"$and and $or are nested more than {MAX_DEPTH} deep.")
        if not isinstance(value, list) or not value:
            given = "an empty one" if value == [] else _kind(value)
            raise FilterError(f"{key} needs a list of at least one filter, not {given}.")
        for part in value:
            if not _object(part):
                raise FilterError(f"{key} holds an empty filter; leave it out.")
        return _joined(JOINS[key], [self.all_of(part, depth) for part in value])


def _joined(word: str, parts: Sequence[Where]) -> Where:
    if len(parts) == 1:
        return parts[0]
    sql = f"({word.join(part.sql for part in parts)})" if parts else "1"
    return Where(sql, [parameter for part in parts for parameter in part.parameters])


def _not(where: Where) -> Where:
    return Where(f"NOT {where.sql}", where.parameters)


def _path(key: str) -> list[str]:
    path = key.split(".")
    if not all(path):
        raise FilterError(f"Field {_shown(key)}: there is no name before or after a dot.")
    if len(path) > MAX_DEPTH:
        raise FilterError(f"Field {_shown(key)} leads more than {MAX_DEPTH} objects deep.")
    for name in path:
        _text(f"The field name {_shown(key)}", name)
    return path


def _in(key: str, operand: object) -> _Test:
    if not isinstance(operand, list):
        raise FilterError(f"Field {_shown(key)}: $in needs a list of values, not {_kind(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(f"Field {_shown(key)}: $in has {len(operand)} values; {MAX_VALUES} are allowed.")
    return _equal(key, "$in", operand)


def _equal(key: str, operator: str, values: Sequence[object]) -> _Test:
    """Whether a value is one of `values`."""
    texts: list[str] = []
    numbers: list[int | float] = []
    others: set[str] = set()
    for value in values:
        if isinstance(value, str):
            texts.append(_text(f"Field {_shown(key)}: the value", value))
        elif value is None or isinstance(value, bool):
            others.add(orjson.dumps(value).decode())
        elif isinstance(value, int | float):
            # SQLite keeps a larger number as a float, and two that differ would be equal.
            numbers.append(_number(key, value, exact=True))
        else:
            raise FilterError(
                f"Field {_shown(key)}: {operator} compares with a string, number, true, false or null, not "
                f"{_kind(value)}. For one value of several use $in; dots lead into objects."
            )
    tests, parameters = [], []
    for types, listed in (("'text'", texts), ("'integer', 'real'", numbers)):
        if listed:
            tests.append(f"(@.type IN ({types}) AND @.value IN (SELECT value FROM json_each(?)))")
            parameters.append(orjson.dumps(listed).decode())
    tests.extend(f"@.type = '{other}'" for other in sorted(others))
    return _Test(f"({' OR '.join(tests) or '0'})", parameters)


def _compare(key: str, operator: str, operand: object) -> _Test:
    if isinstance(operand, str):
        text = _text(f"Field {_shown(key)}: the value", operand)
        return _Test(f"(@.type = 'text' AND @.value {RANGES[operator]} ?)", [text])
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        number = _number(key, operand, exact=False)
        return _Test(f"(@.type IN ('integer', 'real') AND @.value {RANGES[operator]} ?)", [number])
    raise FilterError(
        f"Field {_shown(key)}: {operator} compares with a number or a string, not {_kind(operand)}."
    )


def _number(key: str, value: float, *, exact: bool) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise FilterError(f"Field {_shown(key)}: a number must be finite, not {value}.")
    # A whole number below all of 64 bits is parsed as the float that equals the lowest of them.
    lowest = isinstance(value, float) and value == -INT64
    if (lowest or not -INT64 <= value < INT64) and (exact or isinstance(value, int)):
        raise FilterError(
            f"Field {_shown(key)}: a number does not fit in 64 bits, so it cannot be compared exactly; "
            "store and compare such numbers as strings."
        )
    return value


def _text(noun: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"{noun} has half a surrogate pair; no stored text can have one.") from error
    if "\0" in text:  # SQLite's JSON functions end a string there
        raise FilterError(f"{noun} has the character U+0000, which cannot be compared.")
    return text


def _kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    names = ((str, "a string"), (int | float, "a number"), (list, "a list"))
    return next((name for type_, name in names if isinstance(value, type_)), "an object")


def _shown(name: object) -> str:
    return repr(name if len(str(name)) <= 80 else f"{str(name)[:80]}…")


def _listed(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
