"""What filters mean, in a few lines that know no SQL; and filters to try, over rows to try them on."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

MISSING = object()
RANGES: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def matches(filter: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """The reference."""
    return all(holds(key, value, metadata) for key, value in filter.items())


def holds(key: str, value: Any, metadata: dict[str, Any]) -> bool:
    if key == "$and":
        return all(matches(part, metadata) for part in value)
    if key == "$or":
        return any(matches(part, metadata) for part in value)
    stored: Any = metadata
    for name in key.split("."):
        stored = stored.get(name, MISSING) if isinstance(stored, dict) else MISSING
    operations = value if isinstance(value, dict) else {"$in": [value]}
    return all(passes(stored, name, operand) for name, operand in operations.items())


def passes(stored: Any, name: str, operand: Any) -> bool:
    if name == "$exists":
        return bool((stored is not MISSING) == operand)
    members = stored if isinstance(stored, list) else [] if stored is MISSING else [stored]
    if name == "$in":
        return any(equal(member, one) for member in members for one in operand)
    if name == "$ne":
        return not any(equal(member, operand) for member in members)
    return any(kind(member) == kind(operand) and RANGES[name](member, operand) for member in members)


def equal(member: Any, operand: Any) -> bool:
    return bool(kind(member) == kind(operand) and member == operand)


def kind(value: Any) -> type:
    return float if type(value) is int else type(value)


odd_names = ["c", "é", 'q"u"o', "back\\slash", "a[0]", " ", "0", "key", "@", "?", "'", "\n"]
names = st.sampled_from(["a", "b"]) | st.sampled_from(odd_names)  # the first two often meet
texts = st.sampled_from(
    ["", "a", "b", "B", "1", "true", "null", "{}", "[1]", "{", "東京", "🦉", "\ufffd", "é", "e\u0301"]
)
numbers = st.sampled_from(
    [0, 1, -1, 2, 1.0, -0.0, 0.1, 1.5, 2**53, 2**53 + 1, 2.0**53, 2**63 - 1, -(2**63), 1e300]
)
text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4)
number = st.integers(-(2**63), 2**63 - 1) | st.floats(-9e18, 9e18)
scalars = (
    st.none() | st.booleans() | texts | numbers.filter(lambda value: abs(value) <= 2**63) | text | number
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
metadatas = st.dictionaries(names, values, max_size=4)
fields = st.lists(names, min_size=1, max_size=3).map(".".join)


def parts_of(value: Any, field: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of some metadata, with each scalar in it."""
    for name, inner in value.items():
        path = f"{field}.{name}" if field else name
        yield from ((path, member) for member in (inner if isinstance(inner, list) else [inner]))
        if isinstance(inner, dict):
            yield from parts_of(inner, path)


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Rows, and a filter that asks mostly for what is in them."""
    rows = draw(st.lists(metadatas, min_size=1, max_size=4))
    stored = [part for row in rows for part in parts_of(row)]
    field, scalar, ordered = fields, scalars, texts | numbers | text | number
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
