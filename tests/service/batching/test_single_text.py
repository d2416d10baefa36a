"""A text that arrives alone is computed by all threads together. Of several texts, each has one thread."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray
from starlette.testclient import TestClient

from service import memory
from service.batching import single_text as alone
from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.batching.single_text import MIN_SINGLE_TEXTS, threads_for_single_text
from service.batching.workers import Layout
from service.settings import Settings
from tests.models.forms import counted
from tests.service.conftest import new_settings, serving
from tests.service.fakes import CountingEncoder, on_loop, run, running, until


class Widening(CountingEncoder):
    """Records the first character of each single text, and the thread count of each opened session."""

    opens_single_text = True
    file_bytes = 0

    def __init__(self, *, ready: bool = False, error: Exception | None = None) -> None:
        """`ready`: the session for single texts is open at first. `error` is raised when it is opened."""
        super().__init__()
        self.has_single_text = ready
        self.alone: list[str] = []
        self.opened: list[int] = []
        self.alone_fails = False
        self._error = error

    def open_single_text(self, threads: int) -> None:
        assert threading.current_thread().name == "open-alone"
        self.opened.append(threads)
        if self._error is not None:
            raise self._error
        self.has_single_text = True

    def drop_single_text(self) -> bool:
        had, self.has_single_text = self.has_single_text, False
        return had

    def forward(
        self, ids: Sequence[Sequence[int]], *, normalize: bool = True, single_text: bool = False
    ) -> NDArray[np.float32]:
        if single_text:
            self.alone += [chr(row[0]) for row in ids]
            if self.alone_fails:
                raise RuntimeError("the second session broke")
        return super().forward(ids, normalize=normalize)


async def ask(batcher: Batcher, encoder: CountingEncoder, texts: str, lane: Lane = Lane.INTERACTIVE) -> None:
    """Embeds each character as a text. Returns when no worker or session-opening thread is busy."""
    answer = await batcher.embed(encoder.as_encoder(), list(texts), lane=lane)
    assert [chr(int(row[2])) for row in answer.vectors] == list(texts)
    await asyncio.to_thread(batcher.single_text.stop)
    await until_busy(batcher, 0)


async def until_busy(batcher: Batcher, workers: int) -> None:
    await until(lambda: sum(worker.job is not None for worker in batcher._workers.all) == workers)


@pytest.mark.parametrize(
    ("setting", "layout", "processors", "threads"),
    [
        (0, (2, 1), 2, 2),
        (0, (16, 1), 16, 4),
        (0, (1, 1), 2, 1),
        (0, (1, 4), 4, 1),
        (0, (4, 1), 1, 1),  # SIMILE_WORKERS=4 in a cgroup with one processor
        (0, (4, 1), 3, 3),
        (1, (2, 1), 2, 1),
        (8, (16, 1), 16, 8),
        (2, (4, 2), 8, 1),
    ],
)
def test_a_lone_text_gets_the_threads_of_all_workers_and_no_more_than_it_can_use(
    setting: int, layout: tuple[int, int], processors: int, threads: int
) -> None:
    assert threads_for_single_text(setting, Layout(*layout, reason=""), processors) == threads


@on_loop
async def test_a_lone_text_is_computed_as_one_and_two_at_once_are_not() -> None:
    encoder = Widening(ready=True)
    async with running(workers=2, single_text_threads=2) as batcher:
        await ask(batcher, encoder, "a")
        assert encoder.alone == ["a"]
        encoder.gate.clear()
        first = asyncio.create_task(ask(batcher, encoder, "b"))
        await until_busy(batcher, 1)
        second = asyncio.create_task(ask(batcher, encoder, "c"))
        await until_busy(batcher, 2)
        encoder.gate.set()
        await asyncio.gather(first, second)
        assert encoder.alone == ["a", "b"]
        await ask(batcher, encoder, "de")
        await ask(batcher, encoder, "f", Lane.BACKGROUND)
        assert encoder.alone == ["a", "b"]


@on_loop
async def test_the_model_is_opened_once_more_when_enough_texts_came_alone() -> None:
    encoder, other = Widening(), Widening()
    async with running(workers=2, single_text_threads=3) as batcher:
        for _ in range(MIN_SINGLE_TEXTS - 1):
            await ask(batcher, encoder, "a")
            await ask(batcher, encoder, "bc")
        assert encoder.opened == []
        for _ in range(2 * MIN_SINGLE_TEXTS):
            await ask(batcher, encoder, "a")
        assert encoder.opened == [3]
        assert len(encoder.alone) == 2 * MIN_SINGLE_TEXTS - 1
        await ask(batcher, other, "a")
        assert other.opened == []


def test_a_model_that_cannot_be_opened_once_more_goes_on_as_before(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        encoder = Widening(error=OSError("its folder is gone"))
        async with running(single_text_threads=2) as batcher:
            for _ in range(3 * MIN_SINGLE_TEXTS):
                await ask(batcher, encoder, "a")
        assert (encoder.opened, encoder.alone) == ([2], [])

    with caplog.at_level(logging.WARNING):
        run(body)
    assert caplog.text.count("its folder is gone") == 1


def test_it_is_opened_once_more_as_soon_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        encoder, free, building = Widening(), [1 << 20], [False]
        encoder.file_bytes = 1 << 20
        monkeypatch.setattr(memory, "free", lambda: free[0])
        async with running(workers=2, single_text_threads=2) as batcher:
            batcher.single_text.has_room = lambda: not building[0]

            async def many() -> list[int]:
                for _ in range(2 * MIN_SINGLE_TEXTS):
                    await ask(batcher, encoder, "a")
                return encoder.opened

            assert await many() == []
            free[0], building[0] = 1 << 30, True
            now = [1e9]
            monkeypatch.setattr(alone, "time", SimpleNamespace(monotonic=lambda: now[0]))
            assert await many() == []
            building[0] = False
            assert await many() == []  # The last attempt was too recent.
            now[0] += alone.RETRY_SECONDS
            assert await many() == [2]

    run(body)


def test_a_text_that_all_threads_fail_on_is_answered_by_one_and_they_are_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def body() -> None:
        encoder = Widening(ready=True)
        encoder.alone_fails = True
        async with running(workers=2, single_text_threads=2) as batcher:
            for _ in range(3 * MIN_SINGLE_TEXTS):
                await ask(batcher, encoder, "a")
            assert (encoder.alone, encoder.has_single_text, encoder.opened) == (["a"], False, [])
            assert batcher.failure(encoder.as_encoder()) is None

    with caplog.at_level(logging.WARNING):
        run(body)
    [said] = [record.message for record in caplog.records]
    assert said.startswith("The session for single texts failed and is closed.")


@on_loop
async def test_the_pace_is_that_of_one_worker_and_learns_nothing_from_all_threads_together() -> None:
    for ready, opens, learnt in ((False, True, 1), (True, True, 0), (True, False, 1)):
        encoder = Widening(ready=ready)
        encoder.opens_single_text = opens
        async with running(workers=2, single_text_threads=2) as batcher:
            await ask(batcher, encoder, "a")
            pace = batcher._executor._throughput._get_pace(encoder.as_encoder())
            assert pace.batches == learnt


@on_loop
async def test_one_thread_for_lone_texts_opens_nothing() -> None:
    encoder = Widening()
    async with running(workers=2) as batcher:
        for _ in range(2 * MIN_SINGLE_TEXTS):
            await ask(batcher, encoder, "a")
    assert (encoder.opened, encoder.alone) == ([], [])


def one_by_one(client: TestClient, count: int) -> NDArray[np.float32]:
    answers = []
    batcher = client.app.state.runtime.batcher  # type: ignore[attr-defined]
    for _ in range(count):
        answers += client.post("/embed", json={"inputs": "the same text"}).json()
        batcher.single_text.stop()
    return np.array(answers, np.float32)


def test_a_service_answers_lone_texts_with_the_vector_that_they_have_in_a_batch(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: Settings = new_settings(tmp_path, tiny_models_dir, workers=2, single_text_threads=2, cache_mb=0)
    with serving(settings) as client:
        encoder = client.app.state.runtime.active.generation.encoder  # type: ignore[attr-defined]
        assert client.get("/info").json()["single_text_threads"] == 2
        inputs = ["the same text", "another one, which is longer"]
        together = np.array(client.post("/embed", json={"inputs": inputs}).json(), np.float32)[0]
        before = one_by_one(client, 3 * MIN_SINGLE_TEXTS)  # Some may find a worker busy.
        computed = counted(encoder._single_text, monkeypatch)
        alone = np.concatenate([before, one_by_one(client, 10)])
        assert 5 <= len(computed) <= 10
        np.testing.assert_allclose(alone, np.broadcast_to(together, alone.shape), atol=1e-6, rtol=0)
