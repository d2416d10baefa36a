"""Finds the documents that meet the conditions of a query with syntax. Start at `find_documents`."""

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np

from models.search.syntax import Condition, has_phrase
from models.search.terms import get_terms
from service.errors import Validation
from service.store.protocol import Snapshot
from service.store.scheduling import pause
from service.store.values import MAX_READ, Budget, Revisions, TooMany

TOGETHER = 1000  # Titles that are read at a time.


class Met(NamedTuple):
    """The documents that meet conditions.

    Attributes:
        required: The documents that meet all required conditions, or None without such conditions.
        excluded: Documents that meet an excluded condition. Documents that are not required may be missing.
    """

    required: Revisions | None
    excluded: Revisions


def find_documents(snapshot: Snapshot, conditions: Sequence[Condition], collection: str) -> Met:
    """Evaluates all conditions of a query.

    Raises:
        Validation: Too many documents must be read.
    """
    budget = Budget(MAX_READ)
    found: list[Revisions] = []
    for condition in conditions:
        pause()
        try:
            found.append(snapshot.documents_with_phrase(condition.words, condition.terms, collection, budget))
        except TooMany:
            raise _refuse(condition) from None
    met = _combine(conditions, found)
    if not any(condition.in_title for condition in conditions):
        return met
    return _combine(conditions, _keep_titled(snapshot, conditions, found, met.required, budget))


def _combine(conditions: Sequence[Condition], found: Sequence[Revisions]) -> Met:
    """Combines the documents that meet each condition."""
    required = [some for condition, some in zip(conditions, found, strict=True) if not condition.is_excluded]
    excluded = [some for condition, some in zip(conditions, found, strict=True) if condition.is_excluded]
    return Met(
        reduce(np.intersect1d, required) if required else None,
        reduce(np.union1d, excluded, np.empty(0, np.int64)),
    )


def _keep_titled(
    snapshot: Snapshot,
    conditions: Sequence[Condition],
    found: Sequence[Revisions],
    required: Revisions | None,
    budget: Budget,
) -> list[Revisions]:
    """Removes documents that meet a title condition outside of their titles. Reads each title once.

    Args:
        snapshot: The store.
        conditions: The conditions.
        found: The documents that meet each condition in their title and text together.
        required: Only the titles of these documents are read. None for all documents.
        budget: The number of titles that may be read.
    """
    titled = {at: condition for at, condition in enumerate(conditions) if condition.in_title}
    needed = np.unique(np.concatenate([found[at] for at in titled]))
    if required is not None:
        needed = np.intersect1d(needed, required, assume_unique=True)
    try:
        budget.take(len(needed))
    except TooMany:
        raise _refuse(titled[max(titled, key=lambda at: len(found[at]))]) from None
    kept: dict[int, list[int]] = {at: [] for at in titled}
    for start in range(0, len(needed), TOGETHER):
        pause()
        for revision, title in snapshot.titles(needed[start : start + TOGETHER].tolist()).items():
            terms = get_terms(title)
            known = {*terms}
            for at, condition in titled.items():
                if known.issuperset(condition.terms) and has_phrase(terms, condition.words):
                    kept[at].append(revision)
    return [
        np.intersect1d(some, np.array(kept[at], np.int64)) if at in kept else some
        for at, some in enumerate(found)
    ]


def _refuse(condition: Condition) -> Validation:
    said = " ".join(condition.words)
    return Validation(
        f"The phrases and title words of the query would read more than {MAX_READ:,} documents, many of them "
        f"for {said[:80]!r}. Choose rarer or fewer words for them, or leave syntax out."
    )
