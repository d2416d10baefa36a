"""Embeds documents: the first passage (head) of each text, and the other passages of long texts."""

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from models.encoder import Encoder
from models.manifest import ENGLISH, get_language
from models.search.content import Content
from models.search.passages import Split, learned_tokens, passage_tokens, split
from models.tokens.reading import MIN_WORDS, Count, count_english, foreign
from models.tokens.reading import count as count_words
from service import memory
from service.active import Generation
from service.batching.batcher import Batcher
from service.batching.executor import LONG_CHARACTERS
from service.batching.request import Lane
from service.store.values import Embedding, Passage

SPLITTERS = 2  # threads per lane
_TEXTS, _CHARACTERS = 16, 500  # checked per write, which takes a few milliseconds

log = logging.getLogger(__name__)


class DocumentEncoder:
    """Embeds documents with the document prompt, and splits long texts if `passages` is set.

    Each lane has its own threads for splitting. Versions that are not active use the candidate lane. So if
    the tokenizer of such a version hangs, the active version can still split texts.
    """

    def __init__(self, batcher: Batcher, *, passages: bool) -> None:
        self._batcher = batcher
        self.passages = passages
        self._readability = Readability()
        self._splitting = {
            lane: ThreadPoolExecutor(SPLITTERS, thread_name_prefix=f"split-{lane}") for lane in Lane
        }

    def close(self) -> None:
        for pool in self._splitting.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def embed(
        self, generation: Generation, contents: Sequence[Content], collections: Sequence[str], lane: Lane
    ) -> list[Embedding]:
        """Embeds documents. Returns an embedding for each of `contents`.

        The heads are embedded first. The number of tokens in each head shows whether the text must be split.

        Args:
            generation: The model that embeds. The manifest has the passage length of each collection.
            contents: Titles and texts.
            collections: The collection of each document.
            lane: Lane of the batcher.

        Raises:
            ServiceError: See `Batcher.embed`. No document is embedded then.
        """
        prompt = generation.manifest.document_prompt
        texts = [prompt + each.whole for each in contents]
        heads = await self._batcher.embed(generation.encoder, texts, lane=lane)
        found = [
            Embedding(vector, cut, tokens, unknown=unknown)
            for vector, cut, tokens, unknown in zip(
                heads.vectors, heads.truncated, heads.tokens, heads.unknown, strict=True
            )
        ]
        if self.passages:
            long = {
                at: learned_tokens(generation.manifest.search.get(collection))
                for at, (embedding, collection) in enumerate(zip(found, collections, strict=True))
                if embedding.truncated or embedding.tokens > passage_tokens(generation.manifest, collection)
            }
            if long:
                await self._split(generation, contents, prompt, long, found, lane)
        if not all(self._readability.knows(generation.version, name) for name in {*collections}):
            texts = [each.whole for each in contents]
            look = partial(self._readability.look, generation.encoder, texts, collections)
            await asyncio.get_running_loop().run_in_executor(self._splitting[lane], look)
        return found

    async def _split(
        self,
        generation: Generation,
        contents: Sequence[Content],
        prompt: str,
        long: Mapping[int, int | None],
        found: list[Embedding],
        lane: Lane,
    ) -> None:
        """Splits long texts, embeds the passages after the head, and adds their vectors to `found`.

        The splitting thread stops soon after the request is canceled.

        Args:
            generation: The model that embeds.
            contents: Titles and texts.
            prompt: The document prompt.
            long: Positions of texts that may be long, each with the learned number of tokens per passage.
            found: Embeddings of the heads, by position. Replaced by embeddings with passages.
            lane: Lane of the batcher.
        """
        left = threading.Event()

        def places() -> dict[int, Split]:
            each = (
                (at, split(contents[at], generation.encoder, prompt, lambda: not left.is_set(), size))
                for at, size in long.items()
                if not left.is_set()
            )
            try:
                return {at: where for at, where in each if where is not None}
            finally:
                if sum(len(contents[at].whole) for at in long) > LONG_CHARACTERS:
                    memory.give_back()  # The request may have ended before this thread.

        try:
            split_at = await asyncio.get_running_loop().run_in_executor(self._splitting[lane], places)
        finally:
            left.set()
        spans = [(at, span) for at, where in split_at.items() for span in where.others]
        parts = [prompt + split_at[at].lead + contents[at].text[slice(*span)] for at, span in spans]
        answer = await self._batcher.embed(generation.encoder, parts, lane=lane)
        others: dict[int, list[Passage]] = {at: [] for at in split_at}
        tokens, unknown = dict.fromkeys(split_at, 0), dict.fromkeys(split_at, 0)
        for n, (at, span) in enumerate(spans):
            others[at].append(Passage(answer.vectors[n], *span))
            tokens[at] += answer.tokens[n]
            unknown[at] += answer.unknown[n]
        for at, where in split_at.items():
            found[at] = replace(
                found[at],
                truncated=not where.complete,
                tokens=found[at].tokens + tokens[at],
                end=where.head.end,
                others=tuple(others[at]),
                unknown=found[at].unknown + unknown[at],
            )


class Readability:
    """Measures whether a model's vocabulary suits the documents of a collection. Thread-safe."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], Count] = {}  # by version and collection
        self._english: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    def knows(self, version: str, collection: str) -> bool:
        found = self._counts.get((version, collection))
        return found is not None and found.words >= MIN_WORDS

    def look(self, encoder: Encoder, texts: Sequence[str], collections: Sequence[str]) -> None:
        """Counts words and tokens at the start of some `texts`. Warns at most once per collection."""
        version = encoder.manifest.version
        pairs = zip(texts, collections, strict=True)
        checked = [(text, name) for text, name in pairs if not self.knows(version, name)][:_TEXTS]
        for collection in dict.fromkeys(name for _, name in checked):
            starts = [text[:_CHARACTERS] for text, name in checked if name == collection]
            seen = count_words(starts, lambda rows: [[one.id for one in encoder.pieces(row)] for row in rows])
            with self._lock:
                if self.knows(version, collection):
                    continue
                known = self._counts.get((version, collection), Count())
                found = self._counts[version, collection] = known + seen
                english = self._english.get((version, collection), 0) + count_english(starts)
                self._english[version, collection] = english
                reason = found.unreadable()
                if not reason and get_language(encoder.manifest.origin) == ENGLISH:
                    reason = foreign(found, english)
                if found.words >= MIN_WORDS and reason:
                    log.warning(
                        "%s cannot read the documents of the collection %s: %s. Use keyword search, or a "
                        "model of their language (docs/MODELS.md), or retrain it (docs/RETRAINING.md).",
                        version,
                        collection,
                        reason,
                    )
