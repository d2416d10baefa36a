"""Highlights the query's terms in the hits of a search, and chooses their snippets. Start at `Highlighting`.

    hits of the page ─▶ `mark`: places of terms, a snippet around the rarest ─▶ a hit without terms:
                        on a reading thread                                     `choose`: its best sentence

A hit without terms was found by its vector. Its snippet is the sentence of its best passage whose vector is
nearest to the query's. This computes at most MAX_SENTENCES vectors for a request. They bypass the cache,
because they would displace those of queries. Instead, the choices of recent searches are remembered.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

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
from models.search.terms import Place
from service.active import Generation
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.corpus.search import Highlight, Hit, Page, Search, Snippet, TermMatch
from service.errors import ServiceError, Timeout
from service.observability.logs import safe_message
from service.ranking import Orders
from service.store.scheduling import Abandoned, pause
from service.store.values import Column

log = logging.getLogger(__name__)

clock = time.monotonic

MARK_SECONDS = 2.0  # Time limit of finding terms, for each query.
SENTENCE_SECONDS = 0.25  # Time limit of choosing sentences, for each request.
MAX_SENTENCES = 64  # Sentences that are embedded for a request.
MAX_HIT_SENTENCES = 16  # The first ones of a hit's best passage.
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
        self._recent: Orders[int] = Orders()  # The best sentence, as a position, of hits of recent searches.

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
        best: dict[tuple[int, int], int] = {}  # Position of the sentence, by those of the page and the hit.
        names: dict[tuple[int, int], int] = {}
        wanted: dict[tuple[int, int], Sequence[Snippet]] = {}
        room = MAX_SENTENCES
        for at, page in enumerate(pages):
            for place, hit in enumerate(page.hits):
                sentences = hit.highlight.sentences if hit.highlight else ()
                if page.vector is None or len(sentences) < 2:
                    continue
                texts = [sentence.text for sentence in sentences]
                names[at, place] = hash((generation.version, page.vector.tobytes(), *texts))
                if (known := self._recent.recall(names[at, place])) is not None:
                    best[at, place] = known
                elif len(sentences) <= room:
                    room -= len(sentences)
                    wanted[at, place] = sentences
        prompt = generation.manifest.document_prompt
        texts = [prompt + sentence.text for sentences in wanted.values() for sentence in sentences]
        if texts:
            answer, fault = await self._batcher.score(
                generation.encoder, texts, SENTENCE_SECONDS, lane=Lane.INTERACTIVE, bypass_cache=True
            )
            start = 0
            for (at, place), sentences in wanted.items():
                rows = slice(start, start + len(sentences))
                start = rows.stop
                page, vector = pages[at], pages[at].vector
                assert vector is not None  # noqa: S101
                pages[at] = page._replace(tokens=[*page.tokens, *answer.tokens[rows]])
                cosines = answer.vectors[rows] @ vector
                if np.isfinite(cosines).all():
                    best[at, place] = int(np.argmax(cosines))
                    self._recent.remember(names[at, place], best[at, place])
                else:
                    pages[at] = pages[at]._replace(highlight_fault=_describe(fault))
        for (at, place), chosen in best.items():
            hits = [*pages[at].hits]
            highlight = hits[place].highlight
            assert highlight is not None  # noqa: S101
            hits[place] = replace(
                hits[place], highlight=highlight._replace(snippet=highlight.sentences[chosen])
            )
            pages[at] = pages[at]._replace(hits=hits)


def _describe(fault: ServiceError | None) -> str:
    """Returns why some snippets are first sentences."""
    reason = f"choosing the best took longer than {SENTENCE_SECONDS:g} s"
    if fault is not None and not isinstance(fault, Timeout):
        reason = f"the best could not be chosen ({fault.message.rstrip('.')})"
    return f"The snippets of some hits without a term of the query are first sentences, because {reason}."


def _mark_page(page: Page, search: Search) -> Page:
    matcher = Matcher(page.terms.terms, page.terms.beginnings) if page.terms else Matcher(())
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
    terms = None
    if search.explain and page.terms:
        places: dict[Column, set[str]] = {
            "title": {place.term for place in titled},
            "text": {place.term for place in found},
        }
        columns = {term: [column for column, each in places.items() if term in each] for term in page.idf}
        terms = [TermMatch(term, idf, columns[term]) for term, idf in page.idf.items() if columns[term]]
    highlight = None
    if search.highlight:
        snippet, sentences = _choose_snippets(text, found, page, hit.passage)
        highlight = Highlight(merge(titled), merge(found), snippet, sentences)
    return replace(hit, terms=terms, highlight=highlight)


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
