"""Operands of filters: checked, and as conditions on a JSON value and on one in `fields`."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import orjson

from service.store.filters.field_index import FALSE, NULL, NUMBERS_END, TEXTS_END, TRUE
from service.store.filters.predicate import Lookup

MAX_VALUES = 10_000  # in one $in
RANGES = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
INT64 = 2**63
BLOBS = {None: NULL, False: FALSE, True: TRUE}


class FilterError(ValueError):
    """The filter does not follow the grammar; the message names the place and what is allowed there."""


class Test(NamedTuple):
    """A condition on one JSON value; `@` stands for the row of json_each that holds it.

    `lookups` are the same as conditions on a value in the table `fields`: one of them holds.
    """

    sql: str
    parameters: list[Any]
    lookups: list[Lookup]

    def on(self, row: str) -> str:
        return self.sql.replace("@", row)


def among(key: str, operand: object) -> Test:
    if not isinstance(operand, list):
        raise FilterError(f"Field {shown(key)}: $in needs a list of values, not {kind_of(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(f"Field {shown(key)}: $in has {len(operand)} values; {MAX_VALUES} are allowed.")
    return equal(key, "$in", operand)


def among_ids(operand: object) -> tuple[str, list[Any]]:
    """SQL and parameters of the condition that a document's id is one of `operand`."""
    if not isinstance(operand, list):
        raise FilterError(f"$ids needs a list of document ids, not {kind_of(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(f"$ids has {len(operand)} ids; {MAX_VALUES} are allowed.")
    for id in operand:
        if not isinstance(id, str):
            raise FilterError(f"$ids needs ids, which are strings, not {kind_of(id)}.")
        plain_text("$ids: an id", id)
    return "documents.id IN (SELECT value FROM json_each(?))", [orjson.dumps(operand).decode()]


def equal(key: str, operator: str, values: Sequence[object]) -> Test:
    """Condition: a value is one of `values`."""
    texts: list[str] = []
    numbers: list[int | float] = []
    others: set[bool | None] = set()
    for value in values:
        if isinstance(value, str):
            texts.append(plain_text(f"Field {shown(key)}: the value", value))
        elif value is None or isinstance(value, bool):
            others.add(value)
        elif isinstance(value, int | float):
            # SQLite keeps a larger number as a float, and two that differ would be equal.
            numbers.append(_number(key, value, exact=True))
        else:
            raise FilterError(
                f"Field {shown(key)}: {operator} compares with a string, number, true, false or null, not "
                f"{kind_of(value)}. For one value of several use $in; dots lead into objects."
            )
    tests, parameters, lookups = [], [], []
    for types, listed in (("'text'", texts), ("'integer', 'real'", numbers)):
        if listed:
            tests.append(f"(@.type IN ({types}) AND @.value IN (SELECT value FROM json_each(?)))")
            parameters.append(orjson.dumps(listed).decode())
            # SQLite would look a listed value up in the order of the list, and one alone by itself.
            one = Lookup("value = ?", [*listed])
            many = Lookup("value IN (SELECT value FROM json_each(?))", parameters[-1:])
            lookups.append(one if len(listed) == 1 else many)
    for other in sorted(others, key=str):
        tests.append(f"@.type = '{orjson.dumps(other).decode()}'")
        lookups.append(Lookup(f"value = {BLOBS[other]}", []))
    return Test(f"({' OR '.join(tests) or '0'})", parameters, lookups)


def compare(key: str, operator: str, operand: object) -> Test:
    if isinstance(operand, str):
        text = plain_text(f"Field {shown(key)}: the value", operand)
        end = f"value >= {NUMBERS_END}" if operator in {"$lt", "$lte"} else f"value < {TEXTS_END}"
        lookup = Lookup(f"value {RANGES[operator]} ? AND {end}", [text])
        return Test(f"(@.type = 'text' AND @.value {RANGES[operator]} ?)", [text], [lookup])
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        number = _number(key, operand, exact=False)
        end = "" if operator in {"$lt", "$lte"} else f" AND value < {NUMBERS_END}"
        lookup = Lookup(f"value {RANGES[operator]} ?{end}", [number])
        sql = f"(@.type IN ('integer', 'real') AND @.value {RANGES[operator]} ?)"
        return Test(sql, [number], [lookup])
    raise FilterError(
        f"Field {shown(key)}: {operator} compares with a number or a string, not {kind_of(operand)}."
    )


def _number(key: str, value: float, *, exact: bool) -> int | float:
    if isinstance(value, float) and not math.isfinite(value):
        raise FilterError(f"Field {shown(key)}: a number must be finite, not {value}.")
    # A whole number below all of 64 bits is parsed as the float that equals the lowest of them.
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
    if "\0" in text:  # SQLite's JSON functions end a string there
        raise FilterError(f"{noun} has the character U+0000, which cannot be compared.")
    return text


def kind_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return orjson.dumps(value).decode()
    names = ((str, "a string"), (int | float, "a number"), (list, "a list"))
    return next((name for type_, name in names if isinstance(value, type_)), "an object")


def shown(name: object) -> str:
    return repr(name if len(str(name)) <= 80 else f"{str(name)[:80]}…")


def listed_in_words(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"
