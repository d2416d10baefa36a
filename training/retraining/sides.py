"""The side of each judged query and of the documents that answer it: train, dev or judge, never two.

    queries ── documents that answer them ─▶ connected components ─▶ the side of a component's anchor

Queries that are equal but for case and white space, or nearly so, belong together. So a document that answers
a query that judges was no positive of any other query in training, and its queries are judged together.

The anchor is the document of a component with the least hash, and a second hash of its id is its side: the
same every night. A new query on a known document changes nothing. A new document may become the anchor, and
of two components that merge one follows the other: then queries change sides. Those that begin to train stop
judging what is trained on them. Those that would judge or choose (dev) train, if the active version or one
before it learned from them (`learned`), as from all where few were cross-fitted: what it learned is not lost
in the next one. So do those that are nearly equal to one of them.

A component of more than a tenth of all queries would leave nothing to one side, so it is cut: there each
query has the side of its own hash, and a document that answers queries on several sides is on the strictest.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from training.mining.dedupe import near_duplicates
from training.retraining.heldout import DEV, JUDGE, TRAIN, Part, choose_part, place

LARGEST = 0.1  # share of all queries that a component may have and stay whole; chosen by us
SMALL = 10  # queries, that may belong together whatever their share is
_STRICT = (JUDGE, DEV, TRAIN)

Relevant = dict[str, list[str]]  # ids of relevant documents, by query


class Sides(NamedTuple):
    train: Relevant
    dev: Relevant
    judge: Relevant
    parts: dict[str, Part]  # of each document that answers a query
    groups: dict[str, int]  # of each query: those of one group are one piece of evidence
    known: frozenset[str]  # queries that were learned, by themselves or by an answer, or nearly equal one


def sides(
    relevant: Mapping[str, Sequence[str]],
    share: float,
    may_judge: Collection[str],
    learned: Collection[str] = (),
) -> Sides:
    """share: of the queries, how many judge, 0 to 1. may_judge: the queries whose judgements are trusted.

    learned: digests of queries and ids that the models so far have learned from; no query of these judges.
    """
    groups, cut, alike = _groups(relevant)
    of_query = _parts(relevant, groups, cut, share, may_judge)
    every = {query: [*ids] for query, ids in relevant.items()}
    pieces = {alike[query] for query in every.keys() - unlearned(every, learned, every).keys()}
    known = {query for query in every if alike[query] in pieces}
    of_query |= dict.fromkeys(known, TRAIN)
    parts: dict[str, Part] = {}
    for query, ids in relevant.items():
        for id in ids:
            parts[id] = min(of_query[query], parts.get(id, TRAIN), key=_STRICT.index)
    kept: dict[Part, Relevant] = {part: {} for part in _STRICT}
    for query, ids in relevant.items():
        part = of_query[query]
        same = [id for id in ids if part == JUDGE or parts[id] == part]
        if same and (part != JUDGE or query in may_judge):
            kept[part][query] = same
    return Sides(kept[TRAIN], kept[DEV], kept[JUDGE], parts, groups, frozenset(known))


def unlearned(part: Relevant, learned: Collection[str], may_judge: Collection[str]) -> Relevant:
    """The queries of a part that may judge: neither they nor an answer of theirs is in `learned`."""
    known, may = frozenset(learned), frozenset(may_judge)
    return {
        query: ids
        for query, ids in part.items()
        if query in may and not {digest(query), *map(digest, ids)} & known
    }


def digest(text: str) -> str:
    """A short name of a query or an id, that does not show it."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:12]


def learned(train: Mapping[str, Iterable[str]]) -> set[str]:
    """Digests of the queries and documents of the pairs that are trained on."""
    return {digest(text) for query, ids in train.items() for text in (query, *ids)}


def _parts(
    relevant: Mapping[str, Sequence[str]],
    groups: Mapping[str, int],
    cut: Collection[int],
    share: float,
    may_judge: Collection[str],
) -> dict[str, Part]:
    """The part of each query."""
    names: dict[int, set[str]] = {}  # that decide for a group: its documents, or where it is cut its queries
    judges = {groups[query] for query in may_judge}
    for query, ids in relevant.items():
        group = groups[query]
        names.setdefault(group, set()).update([query.casefold()] if group in cut else ids)
    of_group = {
        group: choose_part(
            place(min(some, key=lambda name: place(f"anchor\0{name}"))), share if group in judges else 0.0
        )
        for group, some in names.items()
    }
    return {query: of_group[groups[query]] for query in relevant}


def _groups(relevant: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], set[int], dict[str, int]]:
    """The group of each query, the groups that are pieces of a component that was cut, and the piece of each.

    A piece are queries that are nearly equal.
    """
    queries = list(relevant)
    alike = _alike(queries)
    documents = {
        id: len(queries) + at for at, id in enumerate({id: 0 for ids in relevant.values() for id in ids})
    }
    answers = [(at, documents[id]) for at, query in enumerate(queries) for id in relevant[query]]
    size = len(queries) + len(documents)
    whole = _labels(size, [*alike, *answers])[: len(queries)]
    pieces = _labels(size, alike)[: len(queries)] + size  # numbers that no component has
    counted = Counter(whole.tolist())
    large = {label for label, count in counted.items() if count > max(SMALL, LARGEST * len(queries))}
    groups = {
        query: piece if label in large else label
        for query, label, piece in zip(queries, whole.tolist(), pieces.tolist(), strict=True)
    }
    named = dict(zip(queries, pieces.tolist(), strict=True))
    return groups, {group for group in groups.values() if group >= size}, named


def _alike(queries: Sequence[str]) -> list[tuple[int, int]]:
    """Places of queries that are the same, or nearly so."""
    first: dict[str, int] = {}
    equal = [
        (first.setdefault(" ".join(query.casefold().split()), at), at) for at, query in enumerate(queries)
    ]
    return [*equal, *((each.first, each.place) for each in near_duplicates(queries))] if queries else []


def _labels(size: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """(size,): equal numbers for what is connected."""
    from scipy.sparse import coo_array  # noqa: PLC0415  a quarter of a second
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    rows, columns = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    labels: np.ndarray = connected_components(graph, directed=False)[1]
    return labels
