"""Completes what a user types: `GET /suggest`. Start at `Suggestions.suggest` and `complete`.

    titles    of documents that begin with the text, or that have a word with this beginning
    terms     words that begin like the last word of the text, from sampled documents that also have the words
              before it
    queries   of clicked searches, by a minimum number of different visitors

An index in memory, `Candidates`, finds candidates. It may be older than the store. So each candidate is
checked in the state of the request. At least one document that it comes from must still exist, and match the
filter. For a query, events of enough visitors must still exist.
"""

import asyncio
import heapq
import re
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from operator import attrgetter, itemgetter
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from models.search.terms import CJK_RUN, FUNCTION_WORDS, fold_case
from service.store.filters.grammar import Predicate
from service.store.protocol import DocumentStore, Snapshot
from service.store.scheduling import pause
from service.store.values import ClickedQuery, Revisions

clock = time.monotonic

KEY_BYTES = 32  # Bytes of a folded beginning that the index compares.
KEY_TYPE = f"S{KEY_BYTES}"
MAX_TITLES = 1_000_000  # Maximum documents whose titles are in a collection's index, and maximum beginnings.
MAX_TITLE = 200  # Characters. Longer titles are not suggested.
TITLE_WORDS = 4  # Words of a title at which a completion may begin, in collections of MAX_TITLES / 4 or less.
SAMPLED, SAMPLED_CHARACTERS = 2000, 2000  # Documents whose beginnings are read for terms.
MIN_DOCUMENTS = 2  # Minimum number of sampled documents with a term.
MAX_TERM = 32  # Maximum characters of a term.
MAX_QUERIES = 10_000
MAX_INDEX_BYTES = 64 << 20  # Memory of the indexes of all collections.
STEP = 500  # Titles that are read at a time.
RENEW_SECONDS = 30.0  # An index is built again after this, or RENEW_SHARE times its build time if longer.
RENEW_SHARE = 50
WAITED_SECONDS = 0.05  # After a pause, a request waits for new candidates if the last build was faster.
LOOK_SECONDS = 1.0
CHECKED_TITLES = (32, 512)  # Best candidates that are checked, until enough of them match.
MAX_CHECKED_TITLES = 4096  # Matching titles that are read if these were not enough.
CHECKED_QUERIES = 4  # Queries that are checked, as a multiple of the number of completions.
CHECKED_TERMS, CHECKED_DOCUMENTS = 16, 16  # Terms that are checked, and documents of each.
_WORD_BYTES = 200  # Memory of a term, in addition to its characters.
# Runs of letters, digits and marks. Signs outside of ASCII disappear when the run is folded.
_WRITTEN = re.compile("[^\\s\\x00-/:-@\\[-`{-\\xbf\u2000-\u206f\u3000-\u303f\uff01-\uff0f\uff1a-\uff20]+")

Kind = Literal["query", "title", "term"]
Check = Callable[[Revisions], Revisions]
Keys = NDArray[np.bytes_]


class Suggestion(NamedTuple):
    text: str
    kind: Kind


class _Beginnings(NamedTuple):
    """Texts sorted by their first KEY_BYTES bytes."""

    keys: Keys

    def find(self, prefix: str) -> slice:
        """Returns the places of texts whose first KEY_BYTES bytes match a prefix."""
        encoded = prefix.encode()[:KEY_BYTES]
        first = int(np.searchsorted(self.keys, encoded))
        last = int(np.searchsorted(self.keys, encoded.ljust(KEY_BYTES, b"\xff"), side="right"))
        return slice(first, last)


@dataclass(frozen=True, slots=True)
class _Titles:
    """The beginnings of titles and of words in them.

    Attributes:
        keys: First bytes of each beginning.
        revisions: The document of each of them.
        ranks: A smaller number is suggested first.
        sums: Checksums of the titles.
        read: The documents whose titles were read.
        words: Number of words at which a title has a beginning.
    """

    keys: Keys
    revisions: Revisions
    ranks: NDArray[np.int32]
    sums: NDArray[np.uint32]
    read: Revisions
    words: int

    @property
    def nbytes(self) -> int:
        return sum(column.nbytes for column in (self.keys, self.revisions, self.ranks, self.sums))

    def select(self, rows: NDArray[Any] | slice) -> "_Titles":
        columns = self.keys[rows], self.revisions[rows], self.ranks[rows], self.sums[rows]
        return _Titles(*columns, read=self.read, words=self.words)

    def find(self, prefix: str) -> "_Titles":
        """Returns the beginnings whose first KEY_BYTES bytes match a prefix."""
        return self.select(_Beginnings(self.keys).find(prefix))


@dataclass(frozen=True, slots=True)
class Candidates:
    """The possible suggestions in a collection. Immutable.

    Attributes:
        revisions: All documents.
        titles: Beginnings of titles and of words in titles, in order.
        terms: Beginnings of the terms.
        folded: The terms, folded.
        written: The terms as documents write them.
        starts: For each term, the start of its documents in `documents`. Then the end of the last term.
        documents: Places in `sampled`.
        sampled: The sampled documents.
        queries: Folded queries in order.
        built: Time when this was built, by `time.monotonic`.
        seconds: Duration of the build in seconds.
    """

    revisions: Revisions
    titles: _Titles
    terms: _Beginnings
    folded: Sequence[str]
    written: Sequence[str]
    starts: NDArray[np.int64]
    documents: NDArray[np.int32]
    sampled: Revisions
    queries: Sequence[tuple[str, ClickedQuery]]
    built: float
    seconds: float

    @property
    def nbytes(self) -> int:
        arrays = self.titles, self.revisions, self.documents, self.sampled
        texts = len(self.folded) + len(self.queries)  # A query takes about as much memory as a term.
        return sum(array.nbytes for array in arrays) + _WORD_BYTES * texts

    def list_documents(self, term: str) -> NDArray[np.int32]:
        """Returns the places of the sampled documents that have a folded term."""
        at = bisect_left(self.folded, term)
        if at == len(self.folded) or self.folded[at] != term:
            return self.documents[:0]
        return self.documents[self.starts[at] : self.starts[at + 1]]

    @property
    def is_old(self) -> bool:
        return clock() > self.built + max(RENEW_SECONDS, RENEW_SHARE * self.seconds)


class Suggestions:
    """Suggests completions in all collections.

    Args:
        store: The document store.
        min_visitors: Different visitors that must have clicked after a query. 0: no query is suggested.
        trusts: Returns whether the key with this name is trusted.
    """

    def __init__(self, store: DocumentStore, min_visitors: int, trusts: Callable[[str], bool]) -> None:
        self._store = store
        self._min_visitors = min_visitors
        self._trusts = trusts
        self._candidates: OrderedDict[str, Candidates] = OrderedDict()  # By last use.
        self._used: set[str] = set()  # Collections with a request since their candidates were built.
        self._building = asyncio.Lock()

    async def suggest(self, text: str, k: int, where: Predicate | None, collection: str) -> list[Suggestion]:
        """Returns at most `k` completions of a text.

        With a filter, titles and terms come from matching documents only, and no query is suggested.
        """
        try:
            if self._is_overdue(collection):
                async with self._building:
                    if self._is_overdue(collection):
                        await self._build(collection)
        finally:  # Also if the request is canceled, so that `keep` builds old candidates again.
            self._used.add(collection)
        candidates = self._candidates[collection]
        self._candidates.move_to_end(collection)
        work = partial(complete, candidates=candidates, text=text, k=k, where=where, collection=collection)
        return await self._store.search(work, heavy=where is not None and not where.indexed)

    def _is_overdue(self, collection: str) -> bool:
        """Returns whether a request waits for new candidates: the first ones, or those that build quickly."""
        candidates = self._candidates.get(collection)
        if candidates is None:
            return True
        return candidates.is_old and collection not in self._used and candidates.seconds < WAITED_SECONDS

    async def keep(self) -> None:
        """Builds old candidates again if they are used, one collection at a time, until it is canceled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            for collection in [*self._used]:
                candidates = self._candidates.get(collection)
                if candidates is not None and candidates.is_old:
                    try:
                        async with self._building:
                            await self._build(collection)
                    finally:
                        self._used.discard(collection)

    async def _build(self, collection: str) -> None:
        chosen = self._min_visitors, self._trusts, self._candidates.get(collection)
        self._candidates[collection] = await self._store.search(
            lambda snapshot: build(snapshot, collection, *chosen), heavy=True
        )
        self._candidates.move_to_end(collection)
        while len(self._candidates) > 1 and sum(map(_get_size, self._candidates.values())) > MAX_INDEX_BYTES:
            self._candidates.popitem(last=False)


def _get_size(candidates: Candidates) -> int:
    return candidates.nbytes


def _normalize(text: str) -> str:
    return " ".join(fold_case(text).split())


def _give_way() -> None:
    """Lets other threads run. Without it, each would wait a few milliseconds for the interpreter."""
    time.sleep(0)
    pause()


def build(
    snapshot: Snapshot,
    collection: str,
    min_visitors: int,
    trusts: Callable[[str], bool],
    before: Candidates | None = None,
) -> Candidates:
    """Builds the candidates of a collection.

    Args:
        snapshot: The store.
        collection: Name of the collection.
        min_visitors: Different visitors that must have clicked after a query. 0: no query is suggested.
        trusts: Returns whether the key with this name is trusted.
        before: Earlier candidates of the collection. Only titles of new documents are read, because a
            revision never changes.
    """
    began = clock()
    revisions = snapshot.list_matching(None, collection)
    clicked = partial(snapshot.clicked_queries, collection, min_visitors, MAX_QUERIES, trusts)
    queries = _sort_queries(clicked() if min_visitors else [])
    if before is not None and np.array_equal(revisions, before.revisions):
        return replace(before, queries=queries, built=clock(), seconds=clock() - began)
    titles = _read_titles(snapshot, revisions[:MAX_TITLES], None if before is None else before.titles)
    sampled = revisions[:: max(1, -(-len(revisions) // SAMPLED))].copy()
    found = _sample_terms(snapshot, sampled)
    folded = sorted(term for term, (_, documents) in found.items() if len(documents) >= MIN_DOCUMENTS)
    lists = [found[term][1] for term in folded]
    return Candidates(
        revisions=revisions,
        titles=titles,
        terms=_Beginnings(np.array([term.encode()[:KEY_BYTES] for term in folded], KEY_TYPE)),
        folded=folded,
        written=[found[term][0] for term in folded],
        starts=np.cumsum([0, *map(len, lists)]),
        documents=np.concatenate([np.empty(0, np.int32), *(np.array(each, np.int32) for each in lists)]),
        sampled=sampled,
        queries=queries,
        built=clock(),
        seconds=clock() - began,
    )


def _read_titles(snapshot: Snapshot, revisions: Revisions, before: _Titles | None) -> _Titles:
    words = max(1, min(TITLE_WORDS, MAX_TITLES // max(1, len(revisions))))
    parts, new = [], revisions
    if before is not None and before.words == words:
        parts = [before.select(np.isin(before.revisions, revisions))]
        new = np.setdiff1d(revisions, before.read, assume_unique=True)
    for at in range(0, max(1, len(new)), STEP):
        parts.append(_index_titles(_fold_titles(snapshot, new[at : at + STEP].tolist()), words))
    joined = _Titles(
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.revisions for part in parts]),
        np.concatenate([part.ranks for part in parts]),
        np.concatenate([part.sums for part in parts]),
        read=revisions,
        words=words,
    )
    return joined.select(np.argsort(joined.keys, kind="stable"))


def _fold_titles(snapshot: Snapshot, revisions: Sequence[int]) -> Iterator[tuple[int, str]]:
    """Yields the folded titles of documents."""
    for at, (revision, title) in enumerate(snapshot.get_titles(revisions).items()):
        if at % 50 == 0:
            _give_way()
        if 0 < len(title) <= MAX_TITLE:
            yield revision, _normalize(title)


def _index_titles(titles: Iterable[tuple[int, str]], words: int) -> _Titles:
    """Returns the beginnings of titles at their first words."""
    rows = [
        (title[start:].encode()[:KEY_BYTES], revision, (place > 0) * MAX_TITLE + len(title), sums)
        for revision, title in titles
        for sums in [crc32(title.encode())]
        for place, start in enumerate(_find_starts(title)[:words])
    ]
    keys, revisions, ranks, sums = zip(*rows, strict=True) if rows else ((), (), (), ())
    return _Titles(
        np.array(keys, KEY_TYPE),
        np.array(revisions, np.int64),
        np.array(ranks, np.int32),
        np.array(sums, np.uint32),
        read=np.empty(0, np.int64),
        words=words,
    )


def _find_starts(title: str) -> list[int]:
    """Returns where the words of a folded title begin."""
    return [0, *(found.end() for found in re.finditer(" ", title))]


def _sample_terms(snapshot: Snapshot, sampled: Revisions) -> dict[str, tuple[str, list[int]]]:
    """Returns the words of documents: folded, as they are written, and the places of their documents."""
    found: dict[str, tuple[str, list[int]]] = {}
    known: dict[str, list[tuple[str, str]]] = {}
    for start in range(0, len(sampled), STEP):
        some = sampled[start : start + STEP].tolist()
        contents = snapshot.beginnings(some, SAMPLED_CHARACTERS)
        for place, revision in enumerate(some, start):
            _give_way()
            if (content := contents.get(revision)) is None:
                continue
            for word in {*_WRITTEN.findall(content.whole)}:
                if (terms := known.get(word)) is None:
                    terms = known[word] = [*_split(word)]
                for folded, written in terms:
                    before, documents = found.get(folded, (written, []))
                    # A word in lower case is probably neither a name nor the first word of a sentence.
                    chosen = written if written.islower() and not before.islower() else before
                    if not documents or documents[-1] != place:
                        documents.append(place)
                    found[folded] = chosen, documents
    return found


def _split(word: str) -> Iterator[tuple[str, str]]:
    """Yields the terms of a word, folded and as written: pairs of characters in Chinese, Japanese, Korean."""
    parts = [word]
    if run := CJK_RUN.search(word):
        parts = [run[0][at : at + 2] for at in range(len(run[0]) - 1)]
    for part in parts:
        folded = _normalize(part)
        if 1 < len(folded) <= MAX_TERM and " " not in folded and folded not in FUNCTION_WORDS:
            yield folded, part


def _sort_queries(queries: Iterable[ClickedQuery]) -> list[tuple[str, ClickedQuery]]:
    """Returns folded queries in order. Of equal folded queries, the query with most visitors counts."""
    found: dict[str, ClickedQuery] = {}
    for each in queries:  # Queries with most visitors come first.
        if folded := _normalize(each.query):
            found.setdefault(folded, each)
    return sorted(found.items())


def complete(
    snapshot: Snapshot, candidates: Candidates, text: str, k: int, where: Predicate | None, collection: str
) -> list[Suggestion]:
    """Returns the completions of a text: queries, titles and terms in turn.

    Args:
        snapshot: The store at the moment of the request.
        candidates: The candidates of the collection.
        text: The beginning that a user has typed.
        k: Maximum number of completions.
        where: A filter that the documents of titles and terms must match.
        collection: Name of the collection.
    """
    prefix = _normalize(text)
    if not prefix:
        return []
    check = partial(snapshot.among, where, collection=collection)
    lists: list[list[Suggestion]] = [
        [] if where is not None else _complete_queries(snapshot, candidates, prefix, k),
        _complete_titles(snapshot, candidates, prefix, k, where, collection),
        _complete_terms(snapshot, candidates, text, prefix, k, check, filtered=where is not None),
    ]
    chosen: dict[str, Suggestion] = {}
    for some in zip_longest(*lists):
        for suggestion in some:
            if suggestion is not None and (folded := _normalize(suggestion.text)) != prefix:
                chosen.setdefault(folded, suggestion)
    return [*chosen.values()][:k]


def _complete_queries(snapshot: Snapshot, candidates: Candidates, prefix: str, k: int) -> list[Suggestion]:
    queries = candidates.queries
    first, last = (bisect_left(queries, end, key=itemgetter(0)) for end in (prefix, prefix + "\U0010ffff"))
    some = (each for _, each in queries[first:last])
    best = heapq.nlargest(CHECKED_QUERIES * (k + 1), some, key=attrgetter("visitors"))
    there = snapshot.existing_events([event for each in best for event in each.events]) if best else set()
    shown = (each for each in best if there.issuperset(each.events))
    return [Suggestion(" ".join(each.query.split()), "query") for each in islice(shown, k + 1)]


def _complete_titles(
    snapshot: Snapshot, candidates: Candidates, prefix: str, k: int, where: Predicate | None, collection: str
) -> list[Suggestion]:
    titles = candidates.titles.find(prefix)
    revisions, ranks = titles.revisions, titles.ranks
    # The numbers differ, so that each step includes the candidates of the step before.
    order = ranks.astype(np.int64) * max(1, len(ranks)) + np.arange(len(ranks))
    found: dict[str, Suggestion] = {}

    def read(some: Revisions) -> None:
        there = snapshot.among(where, np.unique(some), collection)
        written = snapshot.get_titles(there.tolist())
        for revision in some.tolist():
            title = " ".join(written.get(revision, "").split())
            folded = _normalize(title)
            if folded != prefix and f" {prefix}" in f" {folded}":
                found.setdefault(folded, Suggestion(title, "title"))

    done = 0
    for most in CHECKED_TITLES:
        best = np.argpartition(order, most)[:most] if len(order) > most else np.arange(len(order))
        read(revisions[best[np.argsort(order[best])][done:]])
        if len(found) >= k or len(order) <= most:
            return [*found.values()][:k]
        done = most
    # The best candidates have too few different titles, or too few match. One document per title is enough.
    matching = np.flatnonzero(np.isin(revisions, snapshot.list_matching(where, collection)))
    names = titles.sums[matching].astype(np.int64) << 16 | ranks[matching]
    _, firsts = np.unique(names, return_index=True)
    best = matching[firsts]
    read(revisions[best[np.argsort(order[best])][:MAX_CHECKED_TITLES]])
    return [*found.values()][:k]


def _complete_terms(
    snapshot: Snapshot,
    candidates: Candidates,
    text: str,
    prefix: str,
    k: int,
    check: Check,
    *,
    filtered: bool,
) -> list[Suggestion]:
    *before, last = prefix.split(" ")
    head = text.split()[:-1]
    places = candidates.terms.find(last)
    if places.start == places.stop or len(head) != len(before):  # Signs in the text were folded to spaces.
        return []
    sampled = candidates.sampled
    inside = np.isin(sampled, check(sampled)) if filtered else np.ones(len(sampled), bool)
    for word in before:
        if word not in FUNCTION_WORDS:
            having = np.zeros(len(sampled), bool)
            having[candidates.list_documents(word)] = True
            inside &= having
    starts = candidates.starts[places.start : places.stop + 1]
    flags = inside[candidates.documents[starts[0] : starts[-1]]]
    counts = np.add.reduceat(flags.astype(np.int32), starts[:-1] - starts[0])
    order = np.argsort(-counts, kind="stable")[:CHECKED_TERMS]
    terms = [places.start + at for at in order.tolist() if counts[at] >= MIN_DOCUMENTS]
    documents: dict[int, Revisions] = {}
    terms = [at for at in terms if candidates.folded[at] != last and candidates.folded[at].startswith(last)]
    for at in terms:
        having = candidates.documents[candidates.starts[at] : candidates.starts[at + 1]]
        documents[at] = sampled[having[inside[having]][:CHECKED_DOCUMENTS]]
    there = check(np.unique(np.concatenate([sampled[:0], *documents.values()])))
    owners = {at: having[np.isin(having, there)] for at, having in documents.items()}
    chosen = [at for at in terms if len(owners[at])][:k]
    written = {candidates.folded[at]: candidates.written[at] for at in chosen}
    if filtered:  # Documents that do not match may write the terms in another way.
        shown = np.unique([owners[at][0] for at in chosen])
        found = _sample_terms(snapshot, shown) if chosen else {}
        written = {term: found[term][0] for term in written if term in found}
    return [
        Suggestion(" ".join([*head, written[term]]), "term")
        for at in chosen
        if (term := candidates.folded[at]) in written
    ]
