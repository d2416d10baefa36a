"""Documents' texts become vectors: the head of each, and of a long one its passages."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from service.batcher import Batcher
from service.calls import Answer, Lane
from service.live import Generation
from service.passages import Split, split
from service.vectors import Embedding, Passage


class DocumentEncoder:
    """The background lane, the model's document prompt, and whether texts are split into passages."""

    def __init__(self, batcher: Batcher, *, passages: bool) -> None:
        self._batcher = batcher
        self.passages = passages

    async def embed(self, generation: Generation, texts: Sequence[str]) -> list[Embedding]:
        """One for each of `texts`.

        The heads come first, and say which texts are too long; only those are looked at again.

        Raises:
            ServiceError: as `Batcher.embed`. Nothing of `texts` is embedded then.

        """
        prompt = generation.manifest.document_prompt
        heads = await self._forward(generation, [prompt + text for text in texts])
        found = [
            Embedding(vector, cut, tokens)
            for vector, cut, tokens in zip(heads.vectors, heads.truncated, heads.tokens, strict=True)
        ]
        if self.passages and any(heads.truncated):
            await self._split(generation, texts, prompt, found)
        return found

    async def _split(
        self, generation: Generation, texts: Sequence[str], prompt: str, found: list[Embedding]
    ) -> None:
        """Put passages behind the heads in `found` that are not the whole of their texts."""

        def places() -> dict[int, Split]:
            cut = [at for at, embedding in enumerate(found) if embedding.truncated]
            split_texts = ((at, split(texts[at], generation.encoder, prompt)) for at in cut)
            return {at: where for at, where in split_texts if where is not None}

        split_at = await asyncio.to_thread(places)
        spans = [(at, span) for at, where in split_at.items() for span in where.others]
        answer = await self._forward(generation, [prompt + texts[at][slice(*span)] for at, span in spans])
        others: dict[int, list[Passage]] = {at: [] for at in split_at}
        tokens = dict.fromkeys(split_at, 0)
        for (at, span), vector, count in zip(spans, answer.vectors, answer.tokens, strict=True):
            others[at].append(Passage(vector, *span))
            tokens[at] += count
        for at, where in split_at.items():
            found[at] = replace(
                found[at],
                truncated=not where.complete,
                tokens=found[at].tokens + tokens[at],
                end=where.head.end,
                others=tuple(others[at]),
            )

    async def _forward(self, generation: Generation, texts: Sequence[str]) -> Answer:
        return await self._batcher.embed(generation.encoder, texts, lane=Lane.BACKGROUND)
