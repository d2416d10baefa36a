"""A running batcher, and an encoder that tests can block with a gate. Start reading at `placed`."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import wraps
from inspect import Signature, signature
from typing import Any

from service.batching.batcher import Batcher
from service.batching.cache import Cache
from service.batching.request import Answer, Lane
from service.observability.metrics import Metrics
from tests.service.fakes import CountingEncoder, run, until


class Place:
    """A batcher, its metrics, and an encoder that counts its batches."""

    def __init__(self, batcher: Batcher, metrics: Metrics) -> None:
        self.batcher = batcher
        self.metrics = metrics
        self.encoder = CountingEncoder()

    def ask(
        self, *texts: str, encoder: CountingEncoder | None = None, **options: Any
    ) -> asyncio.Task[Answer]:
        requested = (encoder or self.encoder).as_encoder()
        return asyncio.create_task(self.batcher.embed(requested, texts, **options))

    async def busy(self) -> asyncio.Task[Answer]:
        """Closes the gate, and waits until a worker has begun a batch. Returns the task of the batch."""
        self.encoder.gate.clear()
        begun = len(self.encoder.begun)
        first = self.ask("busy")
        await self.passes(begun + 1)
        return first

    async def passes(self, begun: int) -> None:
        """Waits until `begun` forward passes have begun."""
        await until(lambda: len(self.encoder.begun) == begun)

    async def waiting(self, texts: int) -> None:
        """Waits until `texts` texts are pending, in all lanes together."""
        scheduler = self.batcher._scheduler
        await until(lambda: sum(scheduler.lanes[lane].texts for lane in Lane) == texts)

    async def shared(self, texts: int) -> None:
        """Waits until `texts` texts share the computation of an equal text."""
        await until(lambda: self.counted("shared") == texts)

    @property
    def computed(self) -> int:
        """Number of texts in all forward passes."""
        return sum(map(len, self.encoder.batches))

    @property
    def failure(self) -> str | None:
        return self.batcher.failure(self.encoder.as_encoder())

    def counted(self, name: str) -> float:
        return self.metrics.registry.get_sample_value(f"simile_cache_{name}_total") or 0.0


@asynccontextmanager
async def place(
    workers: int = 1, cache: bool = True, hang_seconds: float = 0, max_queue_tokens: int = 10**6
) -> AsyncIterator[Place]:
    metrics = Metrics()
    batcher = Batcher(
        metrics,
        workers=workers,
        max_queue_tokens=max_queue_tokens,
        hang_seconds=hang_seconds,
        cache=Cache(2**20, metrics) if cache else None,
    )
    batcher.start()
    there = Place(batcher, metrics)
    try:
        yield there
    finally:
        there.encoder.allow()
        await asyncio.to_thread(batcher.stop)
        assert not batcher._in_flight._items, "an item without a worker can still be joined"
        lanes = batcher._scheduler.lanes.values()
        assert all((lane.texts, lane.tokens) == (0, 0) for lane in lanes)


def placed(**options: Any) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Decorates an asynchronous test, which gets a `Place` as its first argument. `options` go to `place`."""

    def decorated(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(test)
        def on_loop(**fixtures: Any) -> None:
            async def body() -> None:
                async with place(**options) as there:
                    await test(there, **fixtures)

            run(body)

        _, *fixtures = signature(test).parameters.values()
        on_loop.__signature__ = Signature(fixtures)  # type: ignore[attr-defined]
        return on_loop

    return decorated
