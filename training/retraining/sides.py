"""Assign each judged query, with the documents that answer it, to one part (side): train, dev or judge.

    queries ── documents that answer them ─▶ connected components ─▶ one part for each component

Queries and documents that are connected by answers form a component. Nearly equal queries are connected as
well. All of a component is in the same part. So the answer of a query that judges is never a positive of a
training query.

A hash decides the part, so it is the same in every run: the part of a component is that of its document with
the smallest hash, called the anchor of the component. A new query on a known document changes nothing. A new
document may become the anchor, and two components may merge. Then queries change parts.

A query that the active version or an earlier one was trained on (`learned`), or that nearly equals such a
query, is always in the part train. It cannot judge, and the next version should not lose what was learned.

A component with more than a tenth of all queries is cut into pieces of nearly equal queries. The part of such
a query depends on its own hash. A document that answers queries of several parts is in the strictest part.
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
    """Assigns all judged queries and their documents to parts.

    Args:
        relevant: Ids of the relevant documents of each query.
        share: Share of the queries that judge, 0 to 1.
        may_judge: Queries whose judgments are trusted.
        learned: Digests of queries and ids on which earlier versions were trained. These never judge.

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
    """Returns the queries of a part that may judge and were never trained on, nor any of their answers."""
    known, may = frozenset(learned), frozenset(may_judge)
    return {
        query: ids
        for query, ids in part.items()
        if query in may and not {digest(query), *map(digest, ids)} & known
    }


def digest(text: str) -> str:
    """Returns a short digest of a query or an id, which does not reveal the text."""
    return hashlib.sha256(" ".join(text.casefold().split()).encode()).hexdigest()[:12]


def learned(train: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the digests of all queries and document ids in the training pairs."""
    return {digest(text) for query, ids in train.items() for text in (query, *ids)}


def _parts(
    relevant: Mapping[str, Sequence[str]],
    groups: Mapping[str, int],
    cut: Collection[int],
    share: float,
    may_judge: Collection[str],
) -> dict[str, Part]:
    """Returns the part of each query by its component, or by its piece if the component is cut."""
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
    """Finds groups of queries: components, and pieces of components that were cut.

    Returns:
        The group of each query, the groups that are pieces of a cut component, and the piece of each query. A
        piece consists of nearly equal queries.

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
    """Returns pairs of indices of queries that are equal or nearly equal."""
    first: dict[str, int] = {}
    equal = [
        (first.setdefault(" ".join(query.casefold().split()), at), at) for at, query in enumerate(queries)
    ]
    return [*equal, *((each.first, each.place) for each in near_duplicates(queries))] if queries else []


def _labels(size: int, edges: Sequence[tuple[int, int]]) -> np.ndarray:
    """Returns a label for each of `size` nodes, shape (size,). Connected nodes have equal labels."""
    from scipy.sparse import coo_array  # noqa: PLC0415  a quarter of a second
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    rows, columns = np.array(edges, np.int64).reshape(-1, 2).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(size, size))
    labels: np.ndarray = connected_components(graph, directed=False)[1]
    return labels
