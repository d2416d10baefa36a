"""The batcher without a cache: batches, turns and failures."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from service.batching.request import Lane
from service.errors import Backend
from tests.parts.batching import Place, placed
from tests.service.fakes import CountingEncoder


def firsts_of(encoder: CountingEncoder) -> list[str]:
    """Returns a list. Each later forward pass appends the first character of its first text."""
    noted: list[str] = []
    forward = encoder.forward

    def noting(ids: Sequence[Sequence[int]], *, normalize: bool = True) -> NDArray[np.float32]:
        noted.append(chr(ids[0][0]))
        return forward(ids, normalize=normalize)

    encoder.forward = noting  # type: ignore[method-assign]
    return noted


@placed(workers=2, cache=False)
async def test_every_text_gets_its_own_vector_whatever_it_was_batched_with(there: Place) -> None:
    texts = [chr(65 + at % 60) * (1 + at % 50) for at in range(500)]
    parts = [texts[at : at + 1 + at % 7] for at in range(0, 500, 7)]
    answers = await asyncio.gather(*(there.ask(*part) for part in parts))
    for part, answer in zip(parts, answers, strict=True):
        np.testing.assert_array_equal(answer.vectors, [[1, len(text), ord(text[0])] for text in part])
        assert answer.tokens == [len(text) for text in part]
    assert len(there.encoder.batches) < 250


@placed(cache=False)
async def test_what_waits_together_is_computed_together(there: Place) -> None:
    first = await there.busy()
    rest = [there.ask("bb") for _ in range(20)]
    await there.waiting(20)
    there.encoder.allow()
    await asyncio.gather(first, *rest)
    assert [len(batch) for batch in there.encoder.batches] == [1, 20]


@placed(workers=2, cache=False)
async def test_a_batch_never_mixes_two_encoders(there: Place) -> None:
    encoders = CountingEncoder(1), CountingEncoder(2)
    calls = [there.ask(*[f"text {at}"] * 3, encoder=encoders[at % 2]) for at in range(100)]
    for at, answer in enumerate(await asyncio.gather(*calls)):
        assert set(answer.vectors[:, 0]) == {1 + at % 2}


@placed(cache=False)
async def test_a_failed_batch_fails_its_own_callers_and_the_next_is_served(there: Place) -> None:
    there.encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)
    tasks = [await there.busy(), *(there.ask(text) for text in ("good", "!bad!", "fine"))]
    await there.waiting(3)
    there.encoder.allow()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [isinstance(outcome, Backend) for outcome in outcomes] == [False, False, True, False]
    there.encoder.failing = lambda ids: False
    assert (await there.ask("!bad!")).vectors[0].tolist() == [1, 5, ord("!")]
    assert there.failure is None


@placed(cache=False)
async def test_a_failing_model_is_remembered_until_a_pass_succeeds(there: Place) -> None:
    assert there.failure is not None, "nothing has run yet"
    await there.ask("a")
    assert there.failure is None
    there.encoder.failing = lambda ids: True
    with pytest.raises(Backend):
        await there.ask("a")
    assert there.failure == "the model failed: RuntimeError"


@placed(cache=False)
async def test_who_fails_and_leaves_is_not_taken_for_another(there: Place) -> None:
    """If a canceled text makes its batch fail, the other texts of the batch still succeed."""
    there.encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)
    warm = await there.busy()
    bad, good = there.ask("!bad"), there.ask("good")
    await there.waiting(2)
    there.encoder.allow(1)
    await warm
    await there.passes(2)
    bad.cancel()
    await asyncio.gather(bad, return_exceptions=True)
    there.encoder.allow()
    assert (await good).tokens == [4]
    assert there.encoder.batches == [[4], [4, 4], [4]]


@placed(cache=False)
async def test_a_text_that_cannot_be_tokenized_fails_alone(there: Place) -> None:
    calls = [there.ask(text) for text in ("one", "untokenizable", "two")]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Answer", "Tokenizer", "Answer"]


@placed(cache=False, max_queue_tokens=100)
async def test_who_has_left_costs_no_batch_and_no_place_in_the_queue(there: Place) -> None:
    first = await there.busy()
    left = there.ask(*["gone" * 10] * 5)
    await there.waiting(5)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert there.batcher._scheduler.lanes[Lane.INTERACTIVE].tokens == 0
    there.encoder.allow()
    await first
    assert (await there.ask("here")).vectors[0].tolist() == [1, 4, ord("h")]
    assert there.encoder.batches == [[4], [4]]


@placed(cache=False)
async def test_a_call_of_many_texts_delays_a_call_of_one_by_a_batch_and_not_by_all_of_its_own(
    there: Place,
) -> None:
    there.encoder.max_length = 512
    there.encoder.allow(5)
    huge = there.ask(*["h" * 500] * 300)
    await there.passes(6)
    one = there.ask("one")
    await asyncio.sleep(0)  # Lets the call join the queue.
    there.encoder.allow(3)  # The running batch is the first of the three.
    await one
    assert not huge.done()
    there.encoder.allow()
    await huge
    assert there.computed == 301


@placed(cache=False)
async def test_calls_of_many_texts_take_turns(there: Place) -> None:
    there.encoder.max_length = 512
    order = firsts_of(there.encoder)
    there.encoder.gate.clear()
    tasks = [there.ask(*[name * 500] * 20) for name in "abc"]
    await there.passes(1)
    there.encoder.allow()
    await asyncio.gather(*tasks)
    turns = order[1:]
    assert len(turns) == 59
    for at in range(0, 54, 3):
        assert set(turns[at : at + 3]) == set("abc"), turns


@placed(cache=False)
async def test_an_encoder_closed_under_a_batch_that_nobody_waits_for_is_no_failure(there: Place) -> None:
    await there.ask("well")
    there.encoder.failing = lambda ids: True
    left = await there.busy()
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    there.encoder.allow()
    await asyncio.to_thread(there.batcher.stop)  # Waits until every batch has ended.
    assert len(there.encoder.batches) == 2
    assert there.failure is None


@placed(cache=False)
async def test_background_work_gets_a_batch_in_ten_and_no_more_than_that(there: Place) -> None:
    there.encoder.seconds = 0.001
    order = firsts_of(there.encoder)
    warm = await there.busy()
    # 64 tokens each: 16 make one interactive batch, 4 one small background batch.
    fast = there.ask(*["i" * 64] * 16 * 30)
    slow = there.ask(*["s" * 64] * 4 * 3, lane=Lane.BACKGROUND)
    await there.waiting(16 * 30 + 4 * 3)
    there.encoder.allow()
    await asyncio.gather(warm, fast, slow)
    positions = [at for at, first in enumerate(order) if first == "s"]
    assert len(positions) == 3
    assert positions[0] <= 9
    assert [later - sooner for sooner, later in pairwise(positions)] == [10, 10]


@placed(cache=False)
async def test_a_long_text_does_not_wait_behind_a_stream_of_short_ones(there: Place) -> None:
    there.encoder.seconds = 0.001
    done: list[str] = []

    async def one(text: str) -> None:
        await there.ask(text)
        done.append(text)

    there.encoder.gate.clear()
    tasks = [asyncio.create_task(one("s" * 3)) for _ in range(40)]
    tasks.append(asyncio.create_task(one("l" * 64)))
    await there.passes(1)
    tasks += [asyncio.create_task(one("s" * 3)) for _ in range(400)]
    await there.waiting(441 - len(there.encoder.begun[0]))
    there.encoder.allow()
    await asyncio.gather(*tasks)
    assert done.index("l" * 64) < 260
