"""Canary queries: how much of what is found changes when another version comes to live.

A few queries are answered by the version in service and by the one that is ready to take its place; the
mean share of common ids among the first ten is the overlap. It says how different the new one is, not how
good: nobody has judged these hits.

The queries are those of SIMILE_CANARY_FILE, else the beginnings of stored documents: those whose ids have the
smallest hashes, so that the same documents give the same queries and a few writes change few of them.
Embedded in the background lane, searched one by one between other readers.
"""

import asyncio
import heapq
import logging
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b

from service.documents import DEFAULT_COLLECTION, heads
from service.errors import Overloaded
from service.library import Library
from service.live import Generation
from service.searching import Hit, Query, Search
from service.settings import Settings, canary_lines

log = logging.getLogger(__name__)

K = 10
_TOP = Search(k=K, with_text=False, with_metadata=False)
WORDS, CHARACTERS = 12, 100
LEAST_WORDS = 3  # before a full stop is the end of a sentence: "Dr. Who" goes on
ATTEMPTS, RETRY_SECONDS = 5, 2.0  # while the background lane is full
HEAD_CHARACTERS = 2000  # of a text: its beginning is in them, unless it begins with so much white space
PAGE = 1000  # ids looked at in one go: about a millisecond


@dataclass(frozen=True, slots=True)
class Canary:
    """How alike two versions answer: `overlap_at_10` is 1 when all hits are common, 0 when none is."""

    queries: int
    overlap_at_10: float


async def compare(library: Library, new: Generation, settings: Settings) -> Canary | None:
    """The version in service and `new`, which is whole; None when there is nothing to ask or to find.

    Raises:
        ServiceError: the live index is not whole, a model fails, the queue stays full, or the disk fails.
        ValueError: the file of queries cannot be read any more.

    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await _compare(library, new, settings)
        except Overloaded:
            await asyncio.sleep(RETRY_SECONDS)
    return await _compare(library, new, settings)


async def _compare(library: Library, new: Generation, settings: Settings) -> Canary | None:
    queries = await canary_queries(library, settings)
    shares = []
    with library.live.borrow() as old:
        library.check_whole(old)
        if not queries or not old.indexes.of(DEFAULT_COLLECTION).documents:
            return None
        generations = (old, new)
        vectors = [await library.embed_queries(generation, queries) for generation in generations]
        for at in range(len(queries)):
            found: list[set[str]] = []
            for generation, rows in zip(generations, vectors, strict=True):
                found.append(await library.search(generation, [Query(vector=rows[at])], _TOP, _ids))
            shares.append(len(found[0] & found[1]) / max(*map(len, found), 1))
    canary = Canary(len(queries), round(sum(shares) / len(shares), 4))
    log.info(
        "%s finds %.0f %% of what %s finds, by %d canary queries",
        new.version,
        100 * canary.overlap_at_10,
        old.version,
        canary.queries,
    )
    return canary


def _ids(found: list[list[Hit]]) -> set[str]:
    """The ids of one query's hits."""
    [hits] = found
    return {hit.document.id for hit in hits}


async def canary_queries(library: Library, settings: Settings) -> list[str]:
    """What to ask; empty when it is turned off, or when there are no documents."""
    if not settings.canary_queries:
        return []
    if settings.canary_file is not None:
        return await asyncio.to_thread(canary_lines, settings.canary_file)
    chosen: list[tuple[bytes, str]] = []
    after: str | None = ""
    while after is not None:
        page, after = await library.documents.own(
            partial(_smallest, after=after, count=settings.canary_queries)
        )
        chosen = heapq.nsmallest(settings.canary_queries, [*chosen, *page])
    ids = [id for _, id in chosen]
    found = await library.documents.own(partial(heads, ids=ids, characters=HEAD_CHARACTERS))
    queries = [beginning(found[id]) for id in ids if id in found]
    return list(dict.fromkeys(filter(None, queries)))


def beginning(text: str) -> str:
    """The title or the first sentence of a text, a dozen words at most."""
    line = text.strip().partition("\n")[0]
    words: Sequence[str] = line.split(maxsplit=WORDS)[:WORDS]
    for at, word in enumerate(words, 1):
        if at >= LEAST_WORDS and word.endswith((".", "!", "?")):
            words = words[:at]
            break
    return " ".join(words)[:CHARACTERS]


def _smallest(
    connection: sqlite3.Connection, after: str, count: int
) -> tuple[list[tuple[bytes, str]], str | None]:
    """Of the next ids those with the smallest hashes, and the last one looked at, None at the end."""
    rows = connection.execute(
        "SELECT id FROM documents WHERE collection = ? AND id > ? ORDER BY id LIMIT ?",
        (DEFAULT_COLLECTION, after, PAGE),
    ).fetchall()
    hashed = [(blake2b(id.encode(), digest_size=8).digest(), id) for (id,) in rows]
    return heapq.nsmallest(count, hashed), rows[-1][0] if len(rows) == PAGE else None
