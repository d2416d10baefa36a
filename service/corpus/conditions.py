"""Finds the documents that meet the conditions of a query with syntax. Start at `restrict`."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from models.search.syntax import Condition, has_phrase
from models.search.terms import get_terms
from service.errors import Validation
from service.store.protocol import FilterMatches, Snapshot
from service.store.scheduling import pause
from service.store.values import MAX_READ, Revisions, TooMany

TOGETHER = 1000  # Titles that are read at a time.


def restrict(
    snapshot: Snapshot, conditions: Sequence[Condition], allowed: FilterMatches | None, collection: str
) -> FilterMatches | None:
    """Returns the documents that match a filter and meet all conditions.

    Args:
        snapshot: The store.
        conditions: The conditions.
        allowed: The documents that match the filter; None for all.
        collection: Name of the collection.

    Raises:
        Validation: Too many documents must be read to evaluate a condition.
    """
    if not conditions:
        return allowed
    return snapshot.restricted(allowed, *find_documents(snapshot, conditions, collection), collection)


def find_documents(
    snapshot: Snapshot, conditions: Sequence[Condition], collection: str
) -> tuple[Revisions | None, Revisions]:
    """Returns the documents that all conditions require, or None for all, and those that they exclude.

    Raises:
        Validation: As `restrict`.
    """
    required: list[Revisions] = []
    excluded = np.empty(0, np.int64)
    for condition in conditions:
        pause()
        found = _find(snapshot, condition, collection)
        if condition.is_excluded:
            excluded = np.union1d(excluded, found)
        else:
            required.append(found)
    return reduce(np.intersect1d, required) if required else None, excluded


def _find(snapshot: Snapshot, condition: Condition, collection: str) -> Revisions:
    try:
        found = snapshot.documents_with_phrase(condition.words, condition.terms, collection)
    except TooMany:
        raise _refuse(condition) from None
    if not condition.in_title:
        return found
    if len(found) > MAX_READ:
        raise _refuse(condition)
    kept: list[int] = []
    for start in range(0, len(found), TOGETHER):
        pause()
        titles = snapshot.titles(found[start : start + TOGETHER].tolist())
        kept += [at for at, title in titles.items() if has_phrase(get_terms(title), condition.words)]
    return np.sort(np.array(kept, np.int64))


def _refuse(condition: Condition) -> Validation:
    said = " ".join(condition.words)
    return Validation(
        f"More than {MAX_READ} documents have the words {said[:80]!r}: too many to read. Add a rarer word "
        "inside the quotes, or leave syntax out."
    )
