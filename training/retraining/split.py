"""Split documents and judged queries into three parts: `judge` for the gate, `dev` for settings, and `train`.

    hash of the id ─▶ judge ─▶ without near copies of each other
                  ├▶ dev: for choosing the best step and the best weights
                  └▶ train ─▶ without near copies of other documents

    queries ── documents that answer them ─▶ connected groups ─▶ one part for each group

The part of a document depends only on a hash of its id (`hold_out`). So each run holds out the same
documents, even if new documents arrive. A near copy of a document is in no part, because a model that was
trained on the copy has also seen the document. A document that answers a judged query is moved to the part of
the query (`assign_queries`).

Nearly equal queries are connected, too. So the answer of a query that judges is never a positive of a
training query. The part of a group is that of its document with the smallest hash. A new query on a known
document changes nothing. A new document may have a smaller hash, and two groups may merge. Then queries
change parts. If more than a tenth of all queries are connected, only nearly equal queries and those with the
same answers stay together, and the hash of a query decides. A document that answers queries of several parts
is in the strictest part.

A query that the active version or an earlier one was trained on (`digest_pairs`), or that nearly equals such
a query, is always in the part train. It cannot judge, and the next version should not lose what was learned.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Literal, NamedTuple

from training.mining.dedupe import near_duplicates
from training.mining.pairs import folded
from training.ranking.cross_validation import find_groups
from training.retraining.documents import Document
from training.retraining.grouping import group

Part = Literal["train", "dev", "judge"]
TRAIN: Part = "train"
DEV: Part = "dev"
JUDGE: Part = "judge"
DEV_SHARE = 0.1  # share of dev among the documents that are not held out; chosen by us


class Split(NamedTuple):
    train: tuple[Document, ...]
    held: tuple[Document, ...]  # held-out documents
    copies: Mapping[str, str]  # id of a near copy, which is in no part, to the id of its original
    dev: tuple[Document, ...] = ()

    def moved(self, parts: Mapping[str, Part]) -> Split:
        """Returns the split with documents moved to other parts, and each part sorted by id.

        Args:
            parts: New part of a document by id. Documents that are not in `parts` stay in their part.

        """
        sides = ((TRAIN, self.train), (DEV, self.dev), (JUDGE, self.held))
        now = {document.id: part for part, documents in sides for document in documents}
        ordered = sorted((*self.train, *self.dev, *self.held), key=lambda document: document.id)
        return _split(ordered, {**now, **parts}, self.copies)


def place(id: str) -> float:
    """Returns a hash of an id as a number in [0, 1), which is the same in every run."""
    digest = hashlib.sha256(b"held out\0" + id.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def choose_part(at: float, share: float) -> Part:
    """Returns the part of a document.

    Args:
        at: Hash of the id, 0 to 1, from `place`.
        share: Share of all documents that judge, 0 to 1.

    """
    if at < share:
        return JUDGE
    return DEV if at < share + DEV_SHARE * (1 - share) else TRAIN


def hold_out(documents: Sequence[Document], share: float) -> Split:
    """Splits documents. About `share` of them, 0 to 1, are in the part judge. Parts keep the given order."""
    parts = {document.id: choose_part(place(document.id), share) for document in documents}
    train, held, _, dev = _split(documents, parts, {})
    every = [*held, *dev, *train]
    found = near_duplicates([document.whole for document in held])
    # Near copies that judge are also compared with the others, because a copy of a copy is a copy.
    found += near_duplicates([document.whole for document in every], keep=len(held))
    stands = {every[each.place].id: every[each.first].id for each in found}
    copies = {id: stands.get(first, first) for id, first in stands.items()}
    return _split([document for document in documents if document.id not in copies], parts, copies)


def _split(documents: Sequence[Document], parts: Mapping[str, Part], copies: Mapping[str, str]) -> Split:
    train, held, dev = (
        tuple(document for document in documents if parts[document.id] == part)
        for part in (TRAIN, JUDGE, DEV)
    )
    return Split(train, held, copies, dev)


MIN_DEV = 16  # judged queries. The usual share is 5 %, which is fewer below 320 queries. Chosen by us
MIN_TO_FILL = 50  # judged queries
_STRICT = (JUDGE, DEV, TRAIN)

Relevant = dict[str, list[str]]  # ids of relevant documents, by query


class QueryParts(NamedTuple):
    train: Relevant
    dev: Relevant
    judge: Relevant
    parts: dict[str, Part]  # part of each document that answers a query
    alike: dict[str, str]  # for each query, a text that nearly equal queries share
    known: frozenset[str]  # learned directly, by an answer or by a nearly equal query


def assign_queries(
    relevant: Mapping[str, Sequence[str]],
    share: float,
    may_judge: Collection[str],
    learned: AbstractSet[str] = frozenset(),
    may_choose: Collection[str] = (),
) -> QueryParts:
    """Assigns all judged queries and their documents to parts.

    With at least MIN_TO_FILL queries, queries in `may_choose` are moved from train to dev, until dev has
    MIN_DEV queries, or a third of those that do not judge. With too few queries in dev, searches by titles
    would choose the step of a training, although title pairs are also training rows.

    Args:
        relevant: Ids of the relevant documents of each query.
        share: Share of the queries that judge, 0 to 1.
        may_judge: Queries that may be in the part judge. Other queries in this part are left out.
        learned: Digests of queries and ids on which earlier versions were trained. Queries with such a digest
            never judge.
        may_choose: Queries that may be moved to the part dev.

    """
    alike = dict(zip(relevant, find_alike([*relevant]), strict=True))
    groups = find_groups([*relevant.values()], [*alike.values()]).tolist()
    grouped = dict(zip(relevant, groups, strict=True))
    of_query = _choose_parts(relevant, alike, grouped, share, may_judge)
    names = {alike[query] for query, ids in relevant.items() if {digest(query), *map(digest, ids)} & learned}
    known = {query for query in relevant if alike[query] in names}
    of_query |= dict.fromkeys(known, TRAIN)
    if len(relevant) >= MIN_TO_FILL:
        _fill_dev(of_query, grouped, {*may_choose} - known)
    parts: dict[str, Part] = {}
    for query, ids in relevant.items():
        for id in ids:
            parts[id] = min(of_query[query], parts.get(id, TRAIN), key=_STRICT.index)
    kept: dict[Part, Relevant] = {part: {} for part in _STRICT}
    for query, ids in relevant.items():
        part = of_query[query]
        same = [id for id in ids if parts[id] == part]
        if same and (part != JUDGE or query in may_judge):
            kept[part][query] = same
    return QueryParts(kept[TRAIN], kept[DEV], kept[JUDGE], parts, alike, frozenset(known))


def plain(text: str) -> str:
    """Normalizes white space and case, to compare texts."""
    return folded(text).casefold()


def digest(text: str) -> str:
    """Returns a short digest of a query or an id, which does not reveal the text."""
    return hashlib.sha256(plain(text).encode()).hexdigest()[:12]


def digest_pairs(train: Mapping[str, Iterable[str]]) -> set[str]:
    """Returns the digests of all queries and document ids in the training pairs."""
    return {digest(text) for query, ids in train.items() for text in (query, *ids)}


def find_alike(queries: Sequence[str]) -> list[str]:
    """Returns for each query the first equal or nearly equal query, in lower case."""
    texts = [*map(plain, queries)]
    first = {each.place: each.first for each in near_duplicates(texts)} if texts else {}
    return [texts[first.get(at, at)] for at in range(len(texts))]


def _fill_dev(of_query: dict[str, Part], groups: Mapping[str, int], may_choose: Collection[str]) -> None:
    """Moves groups of queries from the training part to dev, in the order of a hash."""
    counts = Counter(of_query.values())
    missing = min(MIN_DEV, (counts[TRAIN] + counts[DEV]) // 3) - counts[DEV]
    members = group((number, query) for query, number in groups.items() if of_query[query] == TRAIN)
    for some in sorted(members.values(), key=lambda some: place(f"dev\0{min(some)}")):
        if len(some) <= missing and all(query in may_choose for query in some):
            of_query |= dict.fromkeys(some, DEV)
            missing -= len(some)


def _choose_parts(
    relevant: Mapping[str, Sequence[str]],
    alike: Mapping[str, str],
    groups: Mapping[str, int],
    share: float,
    may_judge: Collection[str],
) -> dict[str, Part]:
    names: dict[int, set[str]] = {}  # names that decide: a group's documents, or its queries if it was cut
    for query, ids in relevant.items():
        cut = groups[query] >= len(groups)
        names.setdefault(groups[query], set()).update([alike[query]] if cut else ids)
    judges = {groups[query] for query in may_judge}
    of_group = {
        number: choose_part(
            place(min(some, key=lambda name: place(f"anchor\0{name}"))), share if number in judges else 0.0
        )
        for number, some in names.items()
    }
    return {query: of_group[number] for query, number in groups.items()}
