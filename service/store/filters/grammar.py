"""Parses and checks metadata filters, and compiles them to conditions of a store. Start at `compile_in`.

    {"topic": "birds", "year": {"$gte": 1990, "$lt": 2000}, "$or": [{"tags": "owl"}, {"source.page": 7}]}

    filter     {condition, …}                              all conditions hold
    condition  "$and" | "$or": [filter, …]                 at least one filter
               "$ids": [id, …]                             the document has one of these ids
               "field": scalar | {operator: operand, …}    dots lead into objects: "source.page"
    operator   $in [scalar, …]   $ne scalar   $gt $gte $lt $lte number | string   $exists true | false
    scalar     string, number, true, false, null

Comparison is typed: `1` equals `1.0` but neither `true` nor `"1"`, and null equals only null. An array
matches if one of its members matches. `$ne` requires that no member is equal. If a field has several values
(`values_at`), these are compared like the members of an array. A missing field matches only `$ne` and
`{"$exists": false}`. Texts are compared letter by letter, unless both are times (times.py).

Every name and value is a bound parameter. Each store has a `Dialect`, which writes one condition as SQL.
Whole objects or arrays as values, and arrays within arrays, are not supported.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import orjson

from service.store.filters.times import Time, parse_time


class Lookup(NamedTuple):
    """A condition on the table `fields` of SQLite, with the parameters for the question marks in the SQL."""

    sql: str
    parameters: list[Any]


@dataclass(frozen=True)
class Predicate:
    """A condition on the table `documents`, with the parameters for the question marks in the SQL.

    `kind` tells how SQLite can find the matching documents with lookups instead of `sql`:

        scan      no lookup is possible: `sql` reads the metadata of every document
        lookup    documents that match one of `lookups`
        and, or   combined from `parts`. An `and` without parts matches everything
        not       all documents that do not match the single part
    """

    sql: str
    parameters: list[Any]
    kind: Literal["scan", "lookup", "and", "or", "not"] = "scan"
    parts: tuple["Predicate", ...] = ()
    lookups: tuple[Lookup, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """True if the filter has no condition, and matches every document."""
        return self.kind == "and" and not self.parts

    @property
    def indexed(self) -> bool:
        """True if a part of the filter can be looked up in an index."""
        return self.kind == "lookup" or any(part.indexed for part in self.parts)


EVERYTHING = Predicate("TRUE", [], "and")  # The filter `{}`.


def both(first: Predicate | None, second: Predicate | None) -> Predicate | None:
    """Returns the condition that a document matches both filters. None means that any document does."""
    given = [part for part in (first, second) if part is not None and not part.is_empty]
    return _joined("and", given) if given else first or second


def scoped(where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
    """Returns SQL and parameters for the documents in a collection that match a filter, by a scan."""
    if where is None:
        return "collection = ?", [collection]
    return f"collection = ? AND ({where.sql})", [collection, *where.parameters]


MAX_NAME_PARTS = 16  # Parts of a stored name, between its dots.
MAX_FIELD_PARTS = 512  # Parts of a field: the names of 32 nested objects together.


def values_at(metadata: dict[str, Any], field: str) -> Iterator[Any]:
    """Yields each value that a field of a filter refers to. Arrays are not split.

    A dot leads into an object, into the objects in an array, or is part of a name. So `service.name` is the
    name `service.name` itself, the name `name` in the object `service`, and the name `name` in each object in
    the array `service`. A document may have all of these values.
    """
    for name, rest in splits(field):
        if name not in metadata:
            continue
        value = metadata[name]
        if rest is None:
            yield value
            continue
        for inner in objects_in(value):
            yield from values_at(inner, rest)


def splits(field: str) -> Iterator[tuple[str, str | None]]:
    """Yields each name that a field can begin with, and the remaining names of the field.

    If the name is the whole field, the remainder is None.
    """
    dot = field.find(".")
    while dot >= 0:
        yield field[:dot], field[dot + 1 :]
        dot = field.find(".", dot + 1)
    yield field, None


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Returns the objects in a value: the value itself if it is an object, or the objects in an array."""
    members = value if isinstance(value, list) else [value]
    return [member for member in members if isinstance(member, dict)]


MAX_VALUES = 10_000  # Maximum number of values of one $in.
RANGES = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
INT64 = 2**63


class FilterError(ValueError):
    """Raised if a filter breaks the grammar. The message names the place and the allowed input."""


class Among(NamedTuple):
    """A test that a value is one of a list of values. Texts that are times are in `times`, not in `texts`."""

    texts: list[str]
    times: list[Time]
    numbers: list[int | float]
    others: list[bool | None]

    @property
    def values(self) -> list[str | float | bool | None]:
        """All values in the list, except times, because a document may write the same time differently."""
        return [*self.texts, *self.numbers, *self.others]


class Compared(NamedTuple):
    """A test that a value has the same type as the operand, and compares to it by `sign`.

    `sign` is `<`, `<=`, `>` or `>=`. `time` is the operand as a time, or None if it is not a time. Times are
    compared as times.
    """

    sign: str
    operand: str | float
    time: Time | None = None


Test: TypeAlias = Among | Compared


def among(key: str, operator: str, operand: object) -> Among:
    return equal(key, operator, _listed(f"Field {shown(key)}: {operator}", "values", operand))


def among_ids(operand: object) -> list[str]:
    """Returns the ids in the operand of `$ids`."""
    ids = _listed("$ids", "document ids", operand)
    for id in ids:
        if not isinstance(id, str):
            raise FilterError(f"$ids needs ids, which are strings, not {get_kind(id)}.")
        plain_text("$ids: an id", id)
    return ids


def _listed(what: str, noun: str, operand: object) -> list[Any]:
    if not isinstance(operand, list):
        raise FilterError(f"{what} needs a list of {noun}, not {get_kind(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(f"{what} has {len(operand)} {noun}; {MAX_VALUES} are allowed.")
    return operand


def equal(key: str, operator: str, values: Sequence[object]) -> Among:
    """Returns the test that a value is one of `values`."""
    texts: list[str] = []
    times: list[Time] = []
    numbers: list[int | float] = []
    others: set[bool | None] = set()
    for value in values:
        if isinstance(value, str):
            text = plain_text(f"Field {shown(key)}: the value", value)
            if (time := parse_time(text)) is None:
                texts.append(text)
            else:
                times.append(time)
        elif value is None or isinstance(value, bool):
            others.add(value)
        elif isinstance(value, int | float):
            # SQLite stores a larger number as a float, so different numbers would be equal.
            numbers.append(_number(key, value, exact=True))
        else:
            raise FilterError(
                f"Field {shown(key)}: {operator} compares with a string, number, true, false or null, not "
                f"{get_kind(value)}. For one value of several use $in; dots lead into objects."
            )
    return Among(texts, times, numbers, sorted(others, key=str))


def compare(key: str, operator: str, operand: object) -> Compared:
    if isinstance(operand, str):
        text = plain_text(f"Field {shown(key)}: the value", operand)
        return Compared(RANGES[operator], text, parse_time(text))
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        return Compared(RANGES[operator], _number(key, operand, exact=False))
    raise FilterError(
        f"Field {shown(key)}: {operator} compares with a number or a string, not {get_kind(operand)}."
    )


def _number(key: str, value: float, *, exact: bool) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise FilterError(f"Field {shown(key)}: a number must be finite, not {value}.")
    # orjson parses an integer below -2^63 as a float, which may equal -2^63.
    lowest = isinstance(value, float) and value == -INT64
    if (lowest or not -INT64 <= value < INT64) and (exact or isinstance(value, int)):
        raise FilterError(
            f"Field {shown(key)}: a number does not fit in 64 bits, so it cannot be compared exactly; "
            "store and compare such numbers as strings."
        )
    return value


def plain_text(noun: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise FilterError(f"{noun} has half a surrogate pair; no stored text can have one.") from error
    if "\0" in text:  # SQLite's JSON functions end a string there.
        raise FilterError(f"{noun} has the character U+0000, which cannot be compared.")
    return text


def get_kind(value: object) -> str:
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    names = ((str, "a string"), (int | float, "a number"), (list, "a list"))
    return next((name for type_, name in names if isinstance(value, type_)), "an object")


def shown(name: object) -> str:
    return repr(name if len(str(name)) <= 80 else f"{str(name)[:80]}…")


def listed_in_words(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


MAX_DEPTH = 16  # Maximum number of nested $and and $or.
MAX_CONDITIONS = 256
MAX_INDEXED_FIELDS = 32
MAX_BYTES = 2 << 20  # Bytes of a filter as JSON: five times as many as 10,000 UUIDs have.
IDS = "$ids"
JOINS: dict[str, Literal["and", "or"]] = {"$and": "and", "$or": "or"}
EXAMPLE = '{"topic": "birds"}'


class Operator(NamedTuple):
    """An operator on a field.

    Args:
        operand: The kind of the operand.
        test: Creates the test for a field, an operator and an operand. None if any value passes.
        negated: True if a document matches when no value passes the test.
    """

    operand: Literal["scalar", "scalars", "bound", "boolean"]
    test: Callable[[str, str, object], Test] | None
    negated: bool = False


# The OpenAPI document, the page (ui/filter.js) and docs/SEARCH.md name each operator. A test checks this.
OPERATORS: dict[str, Operator] = {
    "$in": Operator("scalars", among),
    "$ne": Operator("scalar", lambda key, name, operand: equal(key, name, [operand]), negated=True),
    **{name: Operator("bound", compare) for name in RANGES},
    "$exists": Operator("boolean", None),
}


def parse_filter(text: str) -> dict[str, Any]:
    """Parses the filter of a query parameter.

    Raises:
        FilterError: The text is not a JSON object.
    """
    try:
        parsed = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise FilterError(f"This is not JSON ({error}). Give an object such as {EXAMPLE}.") from error
    return _object(parsed)


class Dialect(Protocol):
    """Interface of a class that writes the conditions of a filter as the SQL of one store."""

    def condition(self, path: Sequence[str], test: Test | None) -> Predicate:
        """Returns the condition that a document has a value at `path`.

        With a test, the value, or a member if the value is an array, must pass the test.
        """

    def named(self, ids: Sequence[str]) -> Predicate:
        """Returns the condition that a document has one of `ids`."""

    def between(self, both: Predicate, field: str, bounds: Mapping[str, Any], /) -> Predicate:
        """Returns a faster condition than `both` if an index can find the whole range, and otherwise `both`.

        Args:
            both: The conjunction of the conditions of all operators on one field.
            field: The field.
            bounds: The operators with their operands.
        """


def compile_in(dialect: Dialect, filter: object) -> Predicate:
    """Compiles a filter to a condition. The filter `{}` matches every document.

    Raises:
        FilterError: The filter breaks the grammar or a limit.
    """
    conditions = _object(filter)
    with suppress(orjson.JSONEncodeError):  # The grammar rejects it later, with the place.
        if (size := len(orjson.dumps(conditions))) > MAX_BYTES:
            most = MAX_BYTES >> 20
            raise FilterError(f"It has {size} bytes of JSON; at most {most} MiB are looked through.")
    return _Compiler(dialect).parse_all(conditions, depth=0)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FilterError(f"A filter is an object such as {EXAMPLE}, not {get_kind(value)}.")
    return value


class _Compiler:
    """Compiles one filter, and counts the conditions to limit their number."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._conditions = 0

    def parse_all(self, filter: dict[str, Any], depth: int) -> Predicate:
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
            raise FilterError(f"Field {shown(key)}: {name} needs true or false, not {get_kind(operand)}.")
        present = self._exists(path, None)
        return present if operand else _not(present)

    def _exists(self, path: Sequence[str], test: Test | None) -> Predicate:
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
            given = "an empty one" if value == [] else get_kind(value)
            raise FilterError(f"{key} needs a list of at least one filter, not {given}.")
        for part in value:
            if not _object(part):
                raise FilterError(f"{key} holds an empty filter; leave it out.")
        return _joined(JOINS[key], [self.parse_all(part, depth) for part in value])


def _joined(kind: Literal["and", "or"], parts: Sequence[Predicate]) -> Predicate:
    if len(parts) == 1:
        return parts[0]
    # SQLite's parser accepts deeper nesting at the beginning of a list.
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


def check_field(name: str) -> None:
    """Checks the name of a field.

    Raises:
        FilterError: The name is not allowed in a filter.
    """
    if name.startswith("$"):
        raise FilterError(f"{shown(name)} begins as an operator does.")
    _path(name)


def indexed_fields(text: str) -> list[str]:
    """Returns the distinct fields in a value of `SIMILE_INDEXED_FIELDS`.

    Raises:
        ValueError: A name is not allowed in a filter, or the list is too long.
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
