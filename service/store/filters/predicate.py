"""A compiled filter: a condition for SQL, and the lookups of its parts."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class Lookup(NamedTuple):
    """A condition over the table `fields` (field_index.py); `parameters` fill its question marks."""

    sql: str
    parameters: list[Any]


@dataclass(frozen=True)
class Predicate:
    """A condition over the table `documents`, for use after WHERE; `parameters` fill its question marks.

    What passes is also to be had by `kind`:

        scan      from `sql` alone, which reads the metadata of every document
        lookup    from `lookups`: what passes one of them passes
        and, or   from `parts`; of none of them, `and` passes everything
        not       from the one of `parts`
    """

    sql: str
    parameters: list[Any]
    kind: Literal["scan", "lookup", "and", "or", "not"] = "scan"
    parts: tuple["Predicate", ...] = ()
    lookups: tuple[Lookup, ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """True without any condition. One on whether a field is there may bind nothing."""
        return self.kind == "and" and not self.parts

    @property
    def indexed(self) -> bool:
        """True when a part of it need not be scanned for."""
        return self.kind == "lookup" or any(part.indexed for part in self.parts)


def scoped(where: Predicate | None, collection: str) -> tuple[str, list[Any]]:
    """SQL and parameters for the documents of a collection that pass `where`, by a scan."""
    if where is None:
        return "collection = ?", [collection]
    return f"collection = ? AND ({where.sql})", [collection, *where.parameters]
