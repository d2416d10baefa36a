"""Runs canary queries, which compare the answers of the candidate and the active version.

Start at `compared`.

Both versions answer the same queries. The overlap is the mean share of common ids among the first ten hits.
It measures how much the answers change, but not whether they get better, because no judgments exist for these
hits.

The overlap is computed for each collection, because a version may change the answers in one collection and
not in another. The queries come from SIMILE_CANARY_FILE. Without this file, they are the beginnings of some
documents of the collection. These are the documents whose ids have the smallest hashes, so the queries stay
the same unless documents change. All collections together have at most MAX_QUERIES queries. The queries are
embedded in the background lane and searched one at a time.
"""

import asyncio
import heapq
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from service.active import Generation
from service.corpus.corpus import Corpus
from service.corpus.query import Page, Query, Search
from service.errors import Overloaded, Unusable
from service.observability.logs import safe_message
from service.settings import Settings

log = logging.getLogger(__name__)

K = 10
_TOP = Search(k=K, columns=(), kept=True)
WORDS, CHARACTERS = 12, 100
MIN_WORDS = 3  # A full stop after fewer words does not end a sentence, as in "Dr. Who".
HEAD_CHARACTERS = 2000  # read from each text, enough for its beginning
MAX_QUERIES = 2000  # for all collections together
LISTED = 20  # collections in the result
MAX_CANARY_LINES = 1000


async def compared(corpus: Corpus, new: Generation, settings: Settings) -> tuple[float | None, str | None]:
    """Compares the active version with the generation `new`. The store keeps the result for `GET /models`.

    Returns:
        A tuple of the overlap and a reason. The overlap is None if the versions were not compared. The reason
        says why `new` must wait for a decision, or is None. If the comparison fails, the failure is logged
        and both are None.

    Raises:
        Overloaded: The background lane is full.

    """

    async def ask() -> dict[str, Any] | None:
        try:
            return await _compare(corpus, new, settings)
        except Overloaded:
            raise
        except Exception as error:  # noqa: BLE001  A failed comparison must not stop a swap.
            log.warning("The canary queries could not be asked of %s: %s", new.version, safe_message(error))
            return None

    found = await corpus.store.compare_once(new.version, new.number, corpus.active.generation.number, ask)
    if found is None:
        return None, None
    overlap, lowest = found["overlap_at_10"], found["collections"][0]
    if lowest["overlap_at_10"] >= settings.canary_min_overlap:
        return overlap, None
    return overlap, (
        f"of what it finds only {lowest['overlap_at_10']:g} is what the active version finds in the "
        f"collection {lowest['collection']!r} (SIMILE_CANARY_MIN_OVERLAP={settings.canary_min_overlap:g}); "
        f"POST /models/{new.version}/activate activates it"
    )


async def _compare(corpus: Corpus, new: Generation, settings: Settings) -> dict[str, Any] | None:
    """Compares the active version with the generation `new`, whose index is complete.

    Returns:
        `queries` and `overlap_at_10` for all collections together. `collections` contains the same values for
        up to LISTED collections, with the lowest overlap first. The result is None if there are no queries,
        or if no query has hits.

    Raises:
        ServiceError: The active index is incomplete, a model or the disk fails, or the queue is full.
        ValueError: The file with canary queries cannot be read.

    """
    queries = await canary_queries(corpus, settings)
    with corpus.active.borrow() as old:
        await corpus.check_complete(old, active=True)
        given = {name: some for name, some in queries.items() if some and old.indexes.of(name).documents}
        if not given:
            return None
        distinct = list(dict.fromkeys(query for some in given.values() for query in some))
        vectors = {}
        for generation in (old, new):
            rows = await corpus.embed_queries(generation, distinct)
            vectors[generation] = dict(zip(distinct, rows, strict=True))
        shares: dict[str, list[float]] = {}
        for name, some in given.items():
            search = replace(_TOP, collection=name)
            for query in some:
                found = [
                    await corpus.search(generation, [Query(vector=rows[query])], search, _ids)
                    for generation, rows in vectors.items()
                ]
                if any(found):  # Without hits, the collection was emptied meanwhile.
                    common = len(found[0] & found[1]) / max(map(len, found))
                    shares.setdefault(name, []).append(common)
    if not shares:
        return None
    each = [{"collection": name, **_figures(some)} for name, some in shares.items()]
    each.sort(key=lambda entry: (entry["overlap_at_10"], entry["collection"]))
    canary = _figures([share for some in shares.values() for share in some])
    log.info(
        "%s finds %.0f %% of what %s finds, by %d canary queries in %d collections; least in %s: %.0f %%",
        new.version,
        100 * canary["overlap_at_10"],
        old.version,
        canary["queries"],
        len(each),
        each[0]["collection"],
        100 * each[0]["overlap_at_10"],
    )
    return {**canary, "collections": each[:LISTED]}


def _ids(found: list[Page]) -> set[str]:
    """Returns the ids of one query's hits."""
    [page] = found
    return {hit.document.id for hit in page.hits}


def _figures(shares: Sequence[float]) -> dict[str, Any]:
    return {"queries": len(shares), "overlap_at_10": round(sum(shares) / len(shares), 4)}


async def canary_queries(corpus: Corpus, settings: Settings) -> dict[str, list[str]]:
    """Returns the canary queries of each collection.

    The result is empty if canary queries are turned off or no documents exist.
    """
    if not settings.canary_queries:
        return {}
    lines = None
    if settings.canary_file is not None:
        lines = await asyncio.to_thread(canary_lines, settings.canary_file)
    sizes = [(name, size) for name, size in await corpus.store.collections() if size]
    largest = heapq.nlargest(MAX_QUERIES, sizes, key=lambda found: found[1])
    share = max(1, MAX_QUERIES // max(1, len(largest)))
    if lines is not None:
        return {name: lines[:share] for name, _ in largest}
    count, found = min(settings.canary_queries, share), {}
    for name, _ in largest:
        texts = await corpus.store.sample(count, HEAD_CHARACTERS, name)
        found[name] = list(dict.fromkeys(filter(None, map(beginning, texts))))
    return found


def beginning(text: str) -> str:
    """Returns the first line or sentence of a text, but at most WORDS words and CHARACTERS characters."""
    line = text.strip().partition("\n")[0]
    words: Sequence[str] = line.split(maxsplit=WORDS)[:WORDS]
    for at, word in enumerate(words, 1):
        if at >= MIN_WORDS and word.endswith((".", "!", "?")):
            words = words[:at]
            break
    return " ".join(words)[:CHARACTERS]


def canary_lines(file: Path) -> list[str]:
    """Reads the queries in a canary file, one per line. Empty lines are skipped.

    Raises:
        Unusable: The file cannot be read, or contains no queries or too many.

    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Unusable(f"it cannot be read ({error}). Name a UTF-8 file, one query per line.") from error
    queries = [line.strip() for line in lines if line.strip()]
    if not 1 <= len(queries) <= MAX_CANARY_LINES:
        raise Unusable(f"it holds {len(queries)} queries; write 1 to {MAX_CANARY_LINES}, one per line.")
    return queries
