"""Operands of filters, checked: the tests of a JSON value, in the words of no database."""

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import orjson

from service.store.filters.times import Time, parse_time

MAX_VALUES = 10_000  # in one $in
RANGES = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
INT64 = 2**63


class FilterError(ValueError):
    """The filter does not follow the grammar; the message names the place and what is allowed there."""


class Among(NamedTuple):
    """The value is one of these. No text of `texts` is a time."""

    texts: list[str]
    times: list[Time]
    numbers: list[int | float]
    others: list[bool | None]

    @property
    def values(self) -> list[str | float | bool | None]:
        """All but the times, which equal texts that are written differently."""
        return [*self.texts, *self.numbers, *self.others]


class Compared(NamedTuple):
    """The value is of the operand's type, and on this side of it: <, <=, > or >=.

    time: The operand, if it is a time; then it is compared as such with values that are times.
    """

    sign: str
    operand: str | float
    time: Time | None = None


Test: TypeAlias = Among | Compared


def among(key: str, operator: str, operand: object) -> Among:
    if not isinstance(operand, list):
        raise FilterError(f"Field {shown(key)}: {operator} needs a list of values, not {kind_of(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(
            f"Field {shown(key)}: {operator} has {len(operand)} values; {MAX_VALUES} are allowed."
        )
    return equal(key, operator, operand)


def among_ids(operand: object) -> list[str]:
    """The ids of an $ids."""
    if not isinstance(operand, list):
        raise FilterError(f"$ids needs a list of document ids, not {kind_of(operand)}.")
    if len(operand) > MAX_VALUES:
        raise FilterError(f"$ids has {len(operand)} ids; {MAX_VALUES} are allowed.")
    for id in operand:
        if not isinstance(id, str):
            raise FilterError(f"$ids needs ids, which are strings, not {kind_of(id)}.")
        plain_text("$ids: an id", id)
    return operand


def equal(key: str, operator: str, values: Sequence[object]) -> Among:
    """Condition: a value is one of `values`."""
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
            # SQLite keeps a larger number as a float, and two that differ would be equal.
            numbers.append(_number(key, value, exact=True))
        else:
            raise FilterError(
                f"Field {shown(key)}: {operator} compares with a string, number, true, false or null, not "
                f"{kind_of(value)}. For one value of several use $in; dots lead into objects."
            )
    return Among(texts, times, numbers, sorted(others, key=str))


def compare(key: str, operator: str, operand: object) -> Compared:
    if isinstance(operand, str):
        text = plain_text(f"Field {shown(key)}: the value", operand)
        return Compared(RANGES[operator], text, parse_time(text))
    if isinstance(operand, int | float) and not isinstance(operand, bool):
        return Compared(RANGES[operator], _number(key, operand, exact=False))
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
