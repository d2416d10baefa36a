"""A reference implementation of filters without SQL, and strategies for filters and rows."""

import operator
import re
from collections.abc import Callable, Iterator
from datetime import datetime, time
from fractions import Fraction
from typing import Any

from hypothesis import strategies as st

RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(filter: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """Returns whether the metadata match the filter."""
    return all(holds(key, value, metadata) for key, value in filter.items())


def holds(key: str, value: Any, metadata: dict[str, Any]) -> bool:
    if key == "$and":
        return all(matches(part, metadata) for part in value)
    if key == "$or":
        return any(matches(part, metadata) for part in value)
    stored = [found for path, found in named_values(metadata) if path == key]
    operations = value if isinstance(value, dict) else {"$in": [value]}
    return all(passes(stored, name, operand) for name, operand in operations.items())


def named_values(metadata: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (dotted name, value) for each value at any depth. Objects and arrays are values too."""
    for name, value in metadata.items():
        yield name, value
        for member in value if isinstance(value, list) else [value]:
            if isinstance(member, dict):
                yield from ((f"{name}.{inner}", found) for inner, found in named_values(member))


def passes(stored: list[Any], name: str, operand: Any) -> bool:
    if name == "$exists":
        return bool(operand) == bool(stored)
    members = [member for value in stored for member in (value if isinstance(value, list) else [value])]
    if name == "$in":
        return any(equal(member, one) for member in members for one in operand)
    if name == "$ne":
        return not any(equal(member, operand) for member in members)
    return any(kind(member) == kind(operand) and compared(member, name, operand) for member in members)


def equal(member: Any, operand: Any) -> bool:
    if kind(member) != kind(operand):
        return False
    times = moment(member), moment(operand)
    return bool(member == operand if None in times else times[0] == times[1])


def compared(member: Any, name: str, operand: Any) -> bool:
    times = moment(member), moment(operand)
    return RANGES[name](member, operand) if None in times else RANGES[name](*times)


TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)([Tt ](?P<clock>\d\d:\d\d:\d\d)(?P<fraction>\.\d{1,30})?"
    r"(?P<zone>[Zz]|[+-]\d\d:\d\d)?)?",
    re.ASCII,
)


def moment(value: Any) -> Fraction | None:
    """Returns the seconds of a time since the year 1 (UTC). None for other values, and in the year 0."""
    found = TIME.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return None
    clock, zone = found["clock"] or "00:00:00", found["zone"] or "Z"
    leap = clock.endswith(":60")
    try:
        at = datetime.fromisoformat(f"{found['date']}T{clock[:6]}{'59' if leap else clock[6:]}")
        offset = time.fromisoformat(zone[1:]) if zone not in "Zz" else time()
    except ValueError:
        return None
    seconds = at.toordinal() * 86_400 + (at.hour * 60 + at.minute) * 60 + at.second + leap
    seconds += (offset.hour * 60 + offset.minute) * (60 if zone[0] == "-" else -60)
    return None if leap and seconds % 86_400 else seconds + Fraction(found["fraction"] or 0)


def kind(value: Any) -> type:
    return float if type(value) is int else type(value)


odd_names = ["c", "é", 'q"u"o', "back\\slash", "a[0]", " ", "0", "key", "@", "?", "'", "\n"]
dotted_names = ["a.b", "a.b.c", "b.a", "a.a", "b.c"]
# Nested names from the first two often equal the names with dots.
names = st.sampled_from(["a", "b"]) | st.sampled_from(dotted_names) | st.sampled_from(odd_names)
texts = st.sampled_from(
    ["", "a", "b", "B", "1", "true", "null", "{}", "[1]", "{", "東京", "🦉", "\ufffd", "é", "e\u0301"]
)
times = st.sampled_from(
    [
        "2024-01-01T00:00:00Z",
        "2024-01-01T00:00:00+00:00",
        "2024-01-01",
        "2024-01-01t01:30:00.000+01:30",
        "2023-12-31T23:59:60z",
        "2024-01-01 12:00:00",
        "2024-01-01T00:00:00.5Z",
        "2024-01-01T00:00:00.499999999999999999999999999999-00:00",
        "2023-12-31T20:00:00-05:00",
        "2024-01-02T01:00:00+02:00",
        "0001-01-02T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        # None of these is a time.
        "2024-01-01T24:00:00Z",
        "2023-02-29",
        "2024-01-01T00:00Z",
        "2024-01-01T12:00:60Z",
        "2024-01-01T00:00:00.Z",
        "2024-01-01T00:00:00+0100",
        "2024",
        "2024-01-01x",
        "2024-06-01",
    ]
)
numbers = st.sampled_from(
    [0, 1, -1, 2, 1.0, -0.0, 0.1, 1.5, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 1e300]
)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
number = st.integers(-(2**63), 2**63 - 1) | st.floats(-9e18, 9e18)
scalars = (
    st.none()
    | st.booleans()
    | texts
    | times
    | numbers.filter(lambda value: abs(value) <= 2**63)
    | text
    | number
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
halves = st.integers(-40, 40).map(lambda twice: twice / 2) | st.sampled_from([1e15, -1e15, 1e-7])
deep = st.fixed_dictionaries({"a": st.fixed_dictionaries({"b": st.fixed_dictionaries({"c": halves})})})
metadatas = st.dictionaries(names, values, max_size=4) | deep
fields = st.lists(names, min_size=1, max_size=3).map(".".join)


def parts_of(value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (field, value) for all values of metadata. An array gives its members."""
    for name, inner in named_values(value):
        yield from ((name, member) for member in (inner if isinstance(inner, list) else [inner]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Draws rows and a filter, mostly with values from the rows."""
    rows = draw(st.lists(metadatas, min_size=1, max_size=4))
    stored = [part for row in rows for part in parts_of(row)]
    field, scalar, ordered = fields, scalars, texts | times | numbers | text | number
    if stored:
        field = st.sampled_from([name for name, _ in stored]) | fields
        members = [member for _, member in stored if not isinstance(member, list | dict)]
        scalar = st.sampled_from(members) | scalars if members else scalars
        comparable = [member for member in members if isinstance(member, str) or kind(member) is float]
        ordered = st.sampled_from(comparable) | ordered if comparable else ordered
    operands = {"$in": st.lists(scalar, max_size=3), "$ne": scalar, "$exists": st.booleans()}
    operands |= dict.fromkeys(RANGES, ordered)
    operation = st.sampled_from(sorted(operands)).flatmap(
        lambda name: st.fixed_dictionaries({name: operands[name]})
    )
    two = st.tuples(operation, operation).map(lambda pair: pair[0] | pair[1])
    leaf = st.dictionaries(field, scalar | operation | two, min_size=1, max_size=2)
    joined = st.recursive(
        leaf,
        lambda inner: st.dictionaries(
            st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3), min_size=1
        ),
        max_leaves=4,
    )
    return draw(joined), rows
