"""Canary queries: how much of what is found changes when another version comes to live.

A few queries are answered by the version in service and by the one that is ready to take its place; the
mean share of common ids among the first ten is the overlap. It says how different the new one is, not how
good: nobody has judged these hits.

Every collection is asked and has an overlap of its own, since a version may change one and leave another as
it was. The queries are those of SIMILE_CANARY_FILE, else the beginnings of the collection's documents: those
whose ids have the smallest hashes, so that the same documents give the same queries and a few writes change
few of them. Many collections share MOST_QUERIES. Embedded in the background lane, searched one by one between
other readers.
"""

import asyncio
import heapq
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from service.corpus.corpus import Corpus
from service.corpus.search import Hit, Query, Search
from service.errors import Overloaded, Unusable
from service.live import Generation
from service.observability.logs import safe_message
from service.settings import Settings

log = logging.getLogger(__name__)

K = 10
_TOP = Search(k=K, columns=())
WORDS, CHARACTERS = 12, 100
LEAST_WORDS = 3  # before a full stop is the end of a sentence: "Dr. Who" goes on
ATTEMPTS, RETRY_SECONDS = 5, 2.0  # while the background lane is full
HEAD_CHARACTERS = 2000  # of a text: its beginning is in them, unless it begins with so much white space
MOST_QUERIES = 2000  # of all collections together
LISTED = 20  # collections
MAX_CANARY_LINES = 1000


@dataclass(frozen=True, slots=True)
class InCollection:
    """Overlap of two versions' answers in one collection."""

    collection: str
    queries: int
    overlap_at_10: float


@dataclass(frozen=True, slots=True)
class Canary:
    """Overlap of two versions' answers: `overlap_at_10` is 1 when all hits are common, 0 when none is.

    It is the mean over all queries; `collections` are those with the lowest overlap, lowest first.
    """

    queries: int
    overlap_at_10: float
    collections: tuple[InCollection, ...]

    @property
    def lowest(self) -> InCollection:
        return self.collections[0]


def _below(lowest: InCollection, least: float) -> str | None:
    """Returns why the version waits if a collection's overlap is below `least`, else None."""
    if lowest.overlap_at_10 >= least:
        return None
    return (
        f"of what it finds only {lowest.overlap_at_10:g} is what the live version finds in the "
        f"collection {lowest.collection!r} (SIMILE_CANARY_MIN_OVERLAP={least:g})"
    )


async def compared(corpus: Corpus, new: Generation, settings: Settings) -> tuple[float | None, str | None]:
    """Returns the overlap of the active version and `new`, and why `new` waits. None: no overlap, no reason.

    The store keeps the comparison. A failure is no reason to wait.
    """

    async def ask() -> dict[str, Any] | None:
        try:
            found = await compare(corpus, new, settings)
        except Exception as error:  # noqa: BLE001  A failure is logged, and no reason to wait.
            log.warning("The canary queries could not be asked of %s: %s", new.version, safe_message(error))
            return None
        return None if found is None else asdict(found)

    found = await corpus.store.compare_once(new.version, new.number, corpus.live.generation.number, ask)
    if found is None:
        return None, None
    overlap, [lowest, *_] = found["overlap_at_10"], found["collections"]
    below = _below(InCollection(**lowest), settings.canary_min_overlap)
    return overlap, below and f"{below}; POST /models/{new.version}/activate makes it live"


async def compare(corpus: Corpus, new: Generation, settings: Settings) -> Canary | None:
    """The version in service and `new`, which is whole; None when there is nothing to ask or to find.

    Raises:
        ServiceError: the live index is not whole, a model fails, the queue stays full, or the disk fails.
        ValueError: the file of queries cannot be read any more.

    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await _compare(corpus, new, settings)
        except Overloaded:
            await asyncio.sleep(RETRY_SECONDS)
    return await _compare(corpus, new, settings)


async def _compare(corpus: Corpus, new: Generation, settings: Settings) -> Canary | None:
    queries = await canary_queries(corpus, settings)
    with corpus.live.borrow() as old:
        await corpus.check_complete(old, active=True)
        asked = {name: some for name, some in queries.items() if some and old.indexes.of(name).documents}
        if not asked:
            return None
        distinct = list(dict.fromkeys(query for some in asked.values() for query in some))
        vectors = {}
        for generation in (old, new):
            rows = await corpus.embed_queries(generation, distinct)
            vectors[generation] = dict(zip(distinct, rows, strict=True))
        shares: dict[str, list[float]] = {}
        for name, some in asked.items():
            search = replace(_TOP, collection=name)
            for query in some:
                found: list[set[str]] = []
                for generation, vector_of in vectors.items():
                    asked_for = [Query(vector=vector_of[query])]
                    found.append(await corpus.search(generation, asked_for, search, _ids, kept=True))
                if any(found):  # else it was emptied meanwhile
                    common = len(found[0] & found[1]) / max(map(len, found))
                    shares.setdefault(name, []).append(common)
    if not shares:
        return None
    each = [InCollection(name, len(some), _mean(some)) for name, some in shares.items()]
    each.sort(key=lambda one: (one.overlap_at_10, one.collection))
    every = [share for some in shares.values() for share in some]
    canary = Canary(len(every), _mean(every), tuple(each[:LISTED]))
    log.info(
        "%s finds %.0f %% of what %s finds, by %d canary queries in %d collections; least in %s: %.0f %%",
        new.version,
        100 * canary.overlap_at_10,
        old.version,
        canary.queries,
        len(each),
        canary.lowest.collection,
        100 * canary.lowest.overlap_at_10,
    )
    return canary


def _ids(found: list[list[Hit]]) -> set[str]:
    """The ids of one query's hits."""
    [hits] = found
    return {hit.document.id for hit in hits}


def _mean(shares: Sequence[float]) -> float:
    return round(sum(shares) / len(shares), 4)


async def canary_queries(corpus: Corpus, settings: Settings) -> dict[str, list[str]]:
    """The queries to ask in each collection; empty when canaries are off, or when there are no documents."""
    if not settings.canary_queries:
        return {}
    lines = None
    if settings.canary_file is not None:
        lines = await asyncio.to_thread(canary_lines, settings.canary_file)
    sizes = [(name, size) for name, size in await corpus.store.collections() if size]
    largest = heapq.nlargest(MOST_QUERIES, sizes, key=lambda found: found[1])
    share = max(1, MOST_QUERIES // max(1, len(largest)))
    if lines is not None:
        return {name: lines[:share] for name, _ in largest}
    count, found = min(settings.canary_queries, share), {}
    for name, _ in largest:
        texts = await corpus.store.sample(count, HEAD_CHARACTERS, name)
        found[name] = list(dict.fromkeys(filter(None, map(beginning, texts))))
    return found


def beginning(text: str) -> str:
    """The title or the first sentence of a text, a dozen words at most."""
    line = text.strip().partition("\n")[0]
    words: Sequence[str] = line.split(maxsplit=WORDS)[:WORDS]
    for at, word in enumerate(words, 1):
        if at >= LEAST_WORDS and word.endswith((".", "!", "?")):
            words = words[:at]
            break
    return " ".join(words)[:CHARACTERS]


def canary_lines(file: Path) -> list[str]:
    """The queries of a canary file, one per line; empty lines do not count.

    Raises:
        Unusable: it cannot be read, or holds no query or too many.

    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"it cannot be read ({error}). Name a UTF-8 file, one query per line.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not 1 <= len(queries) <= MAX_CANARY_LINES:
        raise Unusable(f"it holds {len(queries)} queries; write 1 to {MAX_CANARY_LINES}, one per line.")
    return queries
