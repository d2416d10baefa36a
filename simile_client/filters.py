"""Parts of filters (docs/SEARCH.md) that the integrations share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from simile_client.calls import Filter

_JOINS = {"$and": "$or", "$or": "$and"}


def join(operator: str, filters: Sequence[Filter]) -> dict[str, Any]:
    """Joins filters by `$and` or `$or`. A single filter stays as it is."""
    return dict(filters[0]) if len(filters) == 1 else {operator: [*filters]}


def exclude(field: str, values: Sequence[Any]) -> dict[str, Any]:
    """Returns the filter for documents whose field has none of the values."""
    if not values:
        raise ValueError(f"The filter on {field!r} excludes an empty list. Leave the condition out.")
    return join("$and", [{field: {"$ne": value}} for value in values])


def negate(filter: Filter) -> dict[str, Any]:
    """Returns the filter for the documents that do not match `filter`.

    Raises:
        ValueError: The filter has a range or ids, whose negation filters cannot express.
    """
    return join("$or", [_negate_condition(field, condition) for field, condition in filter.items()])


def _negate_condition(field: str, condition: Any) -> dict[str, Any]:
    if field in _JOINS:
        return join(_JOINS[field], [negate(part) for part in condition])
    if not isinstance(condition, dict):
        if not field.startswith("$"):
            return {field: {"$ne": condition}}
        raise ValueError(f"A filter cannot negate {field!r}. Leave the condition out.")
    return join("$or", [_negate_operator(field, *each) for each in condition.items()])


def _negate_operator(field: str, operator: str, operand: Any) -> dict[str, Any]:
    if operator == "$ne":
        return {field: operand}
    if operator == "$in":
        return exclude(field, operand)
    if operator == "$exists":
        return {field: {"$exists": not operand}}
    raise ValueError(
        f"A filter cannot negate {operator!r} on {field!r}: documents without the field would have to match. "
        "Use the opposite comparison."
    )
