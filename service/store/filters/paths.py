"""Fields of metadata: the values that a name with dots leads to.

A dot leads into an object, into the objects of an array, or is part of a name. So `service.name` is the name
`service.name` itself, the name `name` in the object `service`, and the name `name` in each object of the
array `service`. A document may have several of these, and then it has all of their values.
"""

from collections.abc import Iterator
from typing import Any

MAX_NAME_PARTS = 16  # of one stored name, between its dots
MAX_FIELD_PARTS = 512  # of a field: as many as the names of 32 nested objects can have together


def values_at(metadata: dict[str, Any], field: str) -> Iterator[Any]:
    """Yields each value that `field` leads to, arrays whole."""
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
    """Yields each name that a field can begin with, and the field inside it; None where the name is all."""
    dot = field.find(".")
    while dot >= 0:
        yield field[:dot], field[dot + 1 :]
        dot = field.find(".", dot + 1)
    yield field, None


def objects_in(value: Any) -> list[dict[str, Any]]:
    """Returns an object itself, or the objects of an array."""
    members = value if isinstance(value, list) else [value]
    return [member for member in members if isinstance(member, dict)]
