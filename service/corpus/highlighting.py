"""Highlights the query's terms in the hits of a search, and chooses their snippets. Start at `Highlighting`.

    hits of the page ─▶ `mark`: places of terms, a snippet around the rarest ─▶ a hit without terms:
                        on a reading thread                                     `choose`: its best sentence

A hit without terms was found by its vector. Its snippet is the sentence of its best passage whose vector is
nearest to the query's. This computes at most MAX_SENTENCES vectors for a request. They are cached like those
of queries, so other searches with the same hits compute fewer.
"""

import logging
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain

import numpy as np
import orjson

from models.search.highlights import (
    Matcher,
    Range,
    choose_snippet,
    cut_snippet,
    merge,
    split_sentences,
)
from models.search.terms import NO_TERMS, Place
from service.active import Generation
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.corpus.query import Highlight, Hit, Page, Search, Snippet, TermMatch
from service.errors import ServiceError, Timeout
from service.observability.logs import safe_message
from service.store.scheduling import Abandoned, pause
from service.store.values import Column

log = logging.getLogger(__name__)

clock = time.monotonic

MARK_SECONDS = 2.0  # Time limit of finding terms, for each query.
SENTENCE_SECONDS = 0.1  # Time limit of choosing sentences, for each request.
MAX_SENTENCES = 32  # Sentences that are embedded for a request.
MAX_HIT_SENTENCES = 8  # The first ones of a hit's best passage.
_LATE = f"Finding the terms took longer than {MARK_SECONDS:g} s. The last hits have no highlights."
_FAILED = "Highlighting failed; the log says why. Some hits have no highlights."


class _Late(Exception):
    """Finding terms has no time left."""


class Highlighting:
    """Adds highlights, snippets and matched terms to hits. A fault never fails a search.

    Args:
        batcher: Embeds sentences.
    """

    def __init__(self, batcher: Batcher) -> None:
        self._batcher = batcher

    def mark(self, search: Search, pages: Sequence[Page]) -> list[Page]:
        """Returns pages whose hits have highlights or terms, as the search requests."""
        return [_mark_page(page, search) for page in pages] if search.is_marked else [*pages]

    async def choose(self, generation: Generation, pages: Sequence[Page]) -> list[Page]:
        """Returns pages with the best sentences as snippets of hits without terms."""
        found = [*pages]
        try:
            await self._choose(generation, found)
        except Exception as error:  # noqa: BLE001  a fault of snippets must not fail a search
            log.warning("Choosing snippets failed: %s", safe_message(error))
            found = [page._replace(highlight_fault=page.highlight_fault or _FAILED) for page in found]
        return found

    async def _choose(self, generation: Generation, pages: list[Page]) -> None:
        """Replaces pages by those with the best sentences."""
        wanted: list[tuple[int, int, Sequence[Snippet]]] = []  # Positions of page and hit, and sentences.
        room = MAX_SENTENCES
        for at, page in enumerate(pages):
            for place, hit in enumerate(page.hits):
                sentences = hit.highlight.sentences if hit.highlight else ()
                if page.vector is not None and 1 < len(sentences) <= room:
                    room -= len(sentences)
                    wanted.append((at, place, sentences))
        if not wanted:
            return
        prompt = generation.manifest.document_prompt
        answer, fault = await self._batcher.score(
            generation.encoder,
            [prompt + sentence.text for _, _, sentences in wanted for sentence in sentences],
            SENTENCE_SECONDS,
            lane=Lane.INTERACTIVE,
        )
        start = 0
        for at, place, sentences in wanted:
            page, rows = pages[at], slice(start, start + len(sentences))
            start = rows.stop
            vector, highlight = page.vector, page.hits[place].highlight
            assert vector is not None  # noqa: S101
            assert highlight is not None  # noqa: S101
            page = page._replace(tokens=[*page.tokens, *answer.tokens[rows]])
            cosines = answer.vectors[rows] @ vector
            if np.isfinite(cosines).all():
                best = highlight._replace(snippet=sentences[int(np.argmax(cosines))])
                page.hits[place] = replace(page.hits[place], highlight=best)
            else:
                page = page._replace(highlight_fault=_describe(fault))
            pages[at] = page


def _describe(fault: ServiceError | None) -> str:
    """Returns why some snippets are first sentences."""
    reason = f"choosing the best took longer than {SENTENCE_SECONDS:g} s"
    if fault is not None and not isinstance(fault, Timeout):
        reason = f"the best could not be chosen ({fault.message.rstrip('.')})"
    return f"The snippets of some hits without a term of the query are first sentences, because {reason}."


def _mark_page(page: Page, search: Search) -> Page:
    every = (page.terms or NO_TERMS).add(chain.from_iterable(page.groups))
    matcher = Matcher(every.terms, every.beginnings)
    ends, hits, fault = clock() + MARK_SECONDS, [*page.hits], ""

    def check() -> None:
        pause()
        if clock() > ends:
            raise _Late

    for at, hit in enumerate(page.hits):
        try:
            check()
            hits[at] = _mark(hit, page, search, matcher, check)
        except _Late:
            fault = _LATE
            break
        except Abandoned:
            raise
        except Exception as error:  # noqa: BLE001  a fault of highlights must not fail a search
            log.warning("Highlighting a hit failed: %s", safe_message(error))
            fault = _FAILED
    return page._replace(hits=hits, highlight_fault=fault)


def _mark(hit: Hit, page: Page, search: Search, matcher: Matcher, check: Callable[[], None]) -> Hit:
    title: str = orjson.loads(hit.document.title_json or b'""')
    text: str = orjson.loads(hit.document.text_json or b'""')
    titled, found = matcher.find(title, check=check), matcher.find(text, hit.passage, check)
    if page.groups:
        counted = _find_counted(page, {place.term for place in (*titled, *found)})
        titled, found = ([place for place in part if place.term in counted] for part in (titled, found))
    terms = None
    if search.explain and page.terms:
        places: dict[Column, set[str]] = {
            "title": {place.term for place in titled},
            "text": {place.term for place in found},
        }
        columns = {term: [column for column, each in places.items() if term in each] for term in page.idf}
        terms = [
            TermMatch(term, page.sources.get(term), idf if search.where is None else None, columns[term])
            for term, idf in page.idf.items()
            if columns[term]
        ]
    highlight = None
    if search.highlight:
        snippet, sentences = _choose_snippets(text, found, page, hit.passage)
        highlight = Highlight(merge(titled), merge(found), snippet, sentences)
    return replace(hit, terms=terms, highlight=highlight)


def _find_counted(page: Page, present: AbstractSet[str]) -> set[str]:
    """Returns the terms for which keyword search finds a hit with the terms `present`."""
    assert page.terms is not None  # noqa: S101
    whole = (group for group in page.groups if present >= {*group})
    return {*page.terms.terms, *page.terms.beginnings}.union(*whole)


def _choose_snippets(
    text: str, places: Sequence[Place], page: Page, passage: Range | None
) -> tuple[Snippet | None, list[Snippet]]:
    """Returns the snippet of a text, and the sentences among which a text without terms has a better one."""
    if places:
        return _cut(text, choose_snippet(text, places, page.idf, passage)), []
    sentences = split_sentences(text, passage or (0, len(text)))[:MAX_HIT_SENTENCES]
    snippets = [_cut(text, cut_snippet(text, (start, start), (start, end))) for start, end in sentences]
    return (snippets[0] if snippets else None), snippets


def _cut(text: str, part: Range) -> Snippet:
    return Snippet(*part, text[slice(*part)])
