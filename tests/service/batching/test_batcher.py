"""Many small requests, few encoder calls, and nobody suffers for another."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from service.batching.batcher import Batcher
from service.batching.request import Lane
from service.errors import Backend, Overloaded, Tokenizer, Unhealthy, Validation
from tests.service.fakes import CountingEncoder, run, running, until


def waiting(batcher: Batcher) -> int:
    """Texts that wait, of both lanes."""
    return sum(batcher._scheduler.lanes[lane].texts for lane in Lane)


def test_every_text_gets_its_own_vector_whatever_it_was_batched_with() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running(workers=2) as batcher:
            texts = [chr(65 + at % 60) * (1 + at % 50) for at in range(500)]
            parts = [texts[at : at + 1 + at % 7] for at in range(0, 500, 7)]
            answers = await asyncio.gather(*(batcher.embed(encoder.as_encoder(), part) for part in parts))
        for part, answer in zip(parts, answers, strict=True):
            expected = [[1, len(text), ord(text[0])] for text in part]
            np.testing.assert_array_equal(answer.vectors, expected)
            assert answer.tokens == [len(text) for text in part]
        assert len(encoder.batches) < 250

    run(body)


def test_what_waits_together_is_computed_together() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            encoder.gate.clear()
            first = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 1)
            rest = [asyncio.create_task(batcher.embed(encoder.as_encoder(), ["bb"])) for _ in range(20)]
            await until(lambda: waiting(batcher) == 20)
            encoder.gate.set()
            await asyncio.gather(first, *rest)
        assert [len(batch) for batch in encoder.batches] == [1, 20]

    run(body)


def test_a_batch_never_mixes_two_encoders() -> None:
    async def body() -> None:
        old, new = CountingEncoder(1), CountingEncoder(2)
        async with running(workers=2) as batcher:
            calls = [batcher.embed((old, new)[at % 2].as_encoder(), [f"text {at}"] * 3) for at in range(100)]
            answers = await asyncio.gather(*calls)
        for at, answer in enumerate(answers):
            assert set(answer.vectors[:, 0]) == {1 + at % 2}

    run(body)


def test_a_failed_batch_fails_its_own_callers_and_the_next_is_served() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)
        async with running() as batcher:
            encoder.gate.clear()
            tasks = [asyncio.create_task(batcher.embed(encoder.as_encoder(), ["warm"]))]
            await until(lambda: len(encoder.begun) == 1)
            calls = [batcher.embed(encoder.as_encoder(), [text]) for text in ("good", "!bad!", "fine")]
            tasks += [asyncio.create_task(call) for call in calls]
            await until(lambda: waiting(batcher) == 3)
            encoder.gate.set()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(outcome).__name__ for outcome in outcomes] == [
                "Answer",
                "Answer",
                "Backend",
                "Answer",
            ]
            encoder.failing = lambda ids: False
            again = await batcher.embed(encoder.as_encoder(), ["!bad!"])
            assert again.vectors[0].tolist() == [1, 5, ord("!")]
            assert batcher.failure(encoder.as_encoder()) is None

    run(body)


def test_a_failing_model_is_remembered_until_a_pass_succeeds() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            assert batcher.failure(encoder.as_encoder()) is not None, "nothing has run yet"
            await batcher.embed(encoder.as_encoder(), ["a"])
            assert batcher.failure(encoder.as_encoder()) is None
            encoder.failing = lambda ids: True
            with pytest.raises(Backend):
                await batcher.embed(encoder.as_encoder(), ["a"])
            assert batcher.failure(encoder.as_encoder()) == "the model failed: RuntimeError"

    run(body)


def test_who_fails_and_leaves_is_not_taken_for_another() -> None:
    """The text that a pass fails on is of a caller who left meanwhile: who was beside it is no culprit."""

    async def body() -> None:
        encoder = CountingEncoder()
        encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)
        async with running() as batcher:
            encoder.gate.clear()
            warm = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["warm"]))
            await until(lambda: len(encoder.begun) == 1)
            bad = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["!bad"]))
            good = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["good"]))
            await until(lambda: waiting(batcher) == 2)
            encoder.allow(1)
            await warm
            await until(lambda: encoder.begun[1:] == [[4, 4]])  # both are in one batch now
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)
            encoder.allow()
            assert (await good).tokens == [4]
        assert encoder.batches == [[4], [4, 4], [4]]

    run(body)


def test_a_vector_that_is_not_finite_fails_its_text_alone() -> None:
    async def body() -> None:
        class Poisoned(CountingEncoder):
            def forward(self, ids, *, normalize=True):  # type: ignore[no-untyped-def]
                vectors = super().forward(ids, normalize=normalize)
                vectors[[row[0] == ord("n") for row in ids], 1] = np.nan
                return vectors

        encoder = Poisoned()
        async with running() as batcher:
            encoder.gate.clear()
            tasks = [asyncio.create_task(batcher.embed(encoder.as_encoder(), ["warm"]))]
            await until(lambda: len(encoder.begun) == 1)
            calls = [batcher.embed(encoder.as_encoder(), [text]) for text in ("abc", "nan", "abd")]
            tasks += [asyncio.create_task(call) for call in calls]
            await until(lambda: waiting(batcher) == 3)
            encoder.gate.set()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome).__name__ for outcome in outcomes] == [
            "Answer",
            "Answer",
            "Backend",
            "Answer",
        ]

    run(body)


def test_a_text_that_cannot_be_tokenised_fails_alone() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            calls = [batcher.embed(encoder.as_encoder(), [text]) for text in ("one", "untokenisable", "two")]
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(outcomes[1], Tokenizer)
        assert [type(outcome).__name__ for outcome in outcomes[::2]] == ["Answer", "Answer"]

    run(body)


def test_a_text_too_long_is_refused_with_its_own_position() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            with pytest.raises(Validation, match="Input 2 has 65 tokens and the model takes 64"):
                await batcher.embed(encoder.as_encoder(), ["a", "b", "c" * 65], truncate=False)
            cut = await batcher.embed(encoder.as_encoder(), ["a" + "b" * 64], left=True)
            assert cut.truncated == [True]
            assert cut.vectors[0].tolist() == [1, 64, ord("b")]

    run(body)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running(max_queue_tokens=50) as batcher:
            encoder.gate.clear()
            first = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 1)
            huge = asyncio.create_task(
                batcher.embed(encoder.as_encoder(), ["b" * 64] * 9)
            )  # alone it is let in
            await until(lambda: waiting(batcher) == 9)
            with pytest.raises(Overloaded, match="SIMILE_MAX_QUEUE_TOKENS") as refused:
                await batcher.embed(encoder.as_encoder(), ["c"])
            assert int(refused.value.headers["retry-after"]) >= 1
            encoder.gate.set()
            await asyncio.gather(first, huge)
            await batcher.embed(encoder.as_encoder(), ["c"])

    run(body)


def test_who_has_left_costs_no_batch_and_no_place_in_the_queue() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running(max_queue_tokens=100) as batcher:
            encoder.gate.clear()
            first = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 1)
            left = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["gone" * 10] * 5))
            await until(lambda: waiting(batcher) == 5)
            left.cancel()
            await until(lambda: waiting(batcher) == 0)
            encoder.gate.set()
            await first
            after = await batcher.embed(encoder.as_encoder(), ["here"])
            assert after.vectors[0].tolist() == [1, 4, ord("h")]
        assert encoder.batches == [[1], [4]]

    run(body)


def test_a_call_of_many_texts_delays_a_call_of_one_by_a_batch_and_not_by_all_of_its_own() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        encoder.max_length = 512
        async with running() as batcher:
            encoder.allow(5)
            huge = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["h" * 500] * 300))
            await until(lambda: len(encoder.begun) == 6)
            one = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["one"]))
            await asyncio.sleep(0)  # it waits
            encoder.allow(3)  # the one in hand is the first of them
            await one
            assert not huge.done()
            encoder.allow()
            await huge
        assert sum(map(len, encoder.batches)) == 301

    run(body)


def test_calls_of_many_texts_take_turns() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        encoder.max_length = 512
        order: list[int] = []
        forward = encoder.forward

        def noted(ids: Sequence[Sequence[int]], *, normalize: bool = True) -> NDArray[np.float32]:
            order.append(ids[0][0])
            return forward(ids, normalize=normalize)

        encoder.forward = noted  # type: ignore[method-assign]
        async with running() as batcher:
            encoder.gate.clear()
            tasks = [
                asyncio.create_task(batcher.embed(encoder.as_encoder(), [name * 500] * 20)) for name in "abc"
            ]
            await until(lambda: bool(order))
            encoder.gate.set()
            await asyncio.gather(*tasks)
        turns = "".join(map(chr, order[1:]))
        assert len(turns) == 59
        for at in range(0, 54, 3):
            assert set(turns[at : at + 3]) == set("abc"), turns

    run(body)


def test_who_leaves_frees_the_places_of_all_its_rows_at_once() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running(max_queue_tokens=100) as batcher:
            encoder.gate.clear()
            running_now = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 1)
            behind = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["b" * 60] * 6))
            await until(lambda: waiting(batcher) == 6)
            with pytest.raises(Overloaded):
                await batcher.embed(encoder.as_encoder(), ["c" * 60] * 6)
            behind.cancel()
            await asyncio.gather(behind, return_exceptions=True)
            assert batcher._scheduler.lanes[Lane.INTERACTIVE].tokens == 0
            encoder.gate.set()
            await batcher.embed(encoder.as_encoder(), ["d" * 60] * 6)
            await running_now

    run(body)


def test_an_encoder_closed_under_a_batch_that_nobody_waits_for_is_no_failure() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            await batcher.embed(encoder.as_encoder(), ["well"])
            encoder.gate.clear()
            encoder.failing = lambda ids: True
            left = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 2)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            encoder.gate.set()
            await asyncio.to_thread(batcher.stop)  # every batch has ended
            assert len(encoder.batches) == 2
            assert batcher.failure(encoder.as_encoder()) is None

    run(body)


def test_background_work_gets_a_batch_in_ten_and_no_more_than_that() -> None:
    async def body() -> None:
        encoder = CountingEncoder(seconds=0.001)
        order: list[str] = []
        forward = encoder.forward

        def noted(ids, *, normalize=True):  # type: ignore[no-untyped-def]
            order.append("background" if ids[0][0] == ord("b") else "interactive")
            return forward(ids, normalize=normalize)

        encoder.forward = noted  # type: ignore[method-assign]
        async with running() as batcher:
            encoder.gate.clear()
            warm = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["i"]))
            await until(lambda: len(encoder.begun) == 1)
            # 64 tokens each: 16 make one interactive batch, 4 one small background batch.
            fast = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["i" * 64] * 16 * 30))
            slow = asyncio.create_task(
                batcher.embed(encoder.as_encoder(), ["b" * 64] * 4 * 3, lane=Lane.BACKGROUND)
            )
            await until(lambda: waiting(batcher) == 16 * 30 + 4 * 3)
            encoder.gate.set()
            await asyncio.gather(warm, fast, slow)
        positions = [at for at, lane in enumerate(order) if lane == "background"]
        assert len(positions) == 3
        assert positions[0] <= 9
        assert [later - sooner for sooner, later in pairwise(positions)] == [10, 10]

    run(body)


def test_a_long_text_does_not_wait_behind_a_stream_of_short_ones() -> None:
    async def body() -> None:
        encoder = CountingEncoder(seconds=0.001)
        done: list[str] = []

        async def one(text: str) -> None:
            await batcher.embed(encoder.as_encoder(), [text])
            done.append(text)

        async with running() as batcher:
            encoder.gate.clear()
            tasks = [asyncio.create_task(one("s" * 3)) for _ in range(40)]
            tasks.append(asyncio.create_task(one("l" * 64)))
            await until(lambda: len(encoder.begun) == 1)
            tasks += [asyncio.create_task(one("s" * 3)) for _ in range(400)]
            await until(lambda: waiting(batcher) == 441 - len(encoder.begun[0]))
            encoder.gate.set()
            await asyncio.gather(*tasks)
        assert done.index("l" * 64) < 260

    run(body)


def test_stopping_fails_what_waits_and_finishes_what_runs() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        async with running() as batcher:
            encoder.gate.clear()
            in_hand = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 1)
            behind = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["b"]))
            await until(lambda: waiting(batcher) == 1)
            stop = asyncio.create_task(asyncio.to_thread(batcher.stop))
            await until(lambda: batcher._scheduler.stopping)
            with pytest.raises(Unhealthy):
                await batcher.embed(encoder.as_encoder(), ["c"])
            encoder.gate.set()
            await stop
            assert (await in_hand).vectors[0].tolist() == [1, 1, ord("a")]
            with pytest.raises(Unhealthy):
                await behind

    run(body)
