"""Equal texts are computed once, even if calls are canceled, fail or arrive later."""

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from models.encoder import Tokens
from service.batching.request import Answer, Lane
from service.errors import Backend, Overloaded, Unhealthy, Validation
from tests.parts.batching import Place, placed
from tests.service.fakes import CountingEncoder, until


@placed()
async def test_equal_texts_in_flight_are_computed_once_and_all_are_answered(there: Place) -> None:
    busy = await there.busy()
    twice = there.ask("dog", "cat", "dog")
    others = [there.ask("dog") for _ in range(5)]
    await there.shared(6)
    there.encoder.allow()
    await busy
    assert (await twice).vectors.tolist() == [[1, 3, 100], [1, 3, 99], [1, 3, 100]]
    for other in others:
        answer = await other
        assert (answer.vectors.tolist(), answer.tokens) == ([[1, 3, 100]], [3])
        assert min(answer.timing) >= 0
    assert there.computed == 3  # the texts busy, dog and cat
    assert there.counted("misses") == 3
    assert there.counted("hits") == 0


@placed()
async def test_what_comes_again_is_answered_without_a_worker(there: Place) -> None:
    first = await there.ask("a dog", "x" * 65)
    await there.busy()  # No worker is free from here on.
    again = await there.ask("a dog", "x" * 65)
    assert again.vectors.tolist() == first.vectors.tolist()
    assert (again.tokens, again.truncated) == ([5, 64], [False, True])
    there.encoder.allow()
    assert there.counted("hits") == 2


@placed()
async def test_a_kept_vector_of_a_cut_text_does_not_hide_that_a_text_is_too_long(there: Place) -> None:
    await there.ask("x" * 65)
    with pytest.raises(Validation, match="has 65 tokens"):
        await there.ask("x" * 65, truncate=False)
    left = await there.ask("y" + "x" * 64, left=True)
    assert left.truncated == [True]
    right = await there.ask("y" + "x" * 64)
    assert [answer.vectors[0, 2] for answer in (left, right)] == [ord("x"), ord("y")]


@placed()
async def test_nothing_is_shared_between_encoders_nor_between_options(there: Place) -> None:
    other = CountingEncoder(2)
    other.fingerprint = there.encoder.fingerprint
    await there.busy()
    tasks = [there.ask("dog"), there.ask("dog", encoder=other), there.ask("dog", normalize=False)]
    await there.waiting(3)
    there.encoder.allow()
    answers = await asyncio.gather(*tasks)
    assert [answer.vectors[0, 0] for answer in answers] == [1, 2, 1]
    assert (there.computed, sum(map(len, other.batches))) == (3, 1)
    again = await there.ask("dog", encoder=other)
    assert again.vectors[0, 0] == 2


@placed()
async def test_a_failure_reaches_all_that_joined_and_no_one_else(there: Place) -> None:
    there.encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)
    await there.busy()
    bad = [there.ask("!bad"), there.ask("fine", "!bad"), there.ask("!bad", lane=Lane.BACKGROUND)]
    good = [there.ask("fine"), there.ask("good")]
    await there.waiting(3)
    there.encoder.allow()
    outcomes = await asyncio.gather(*bad, *good, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Backend] * 3 + [Answer] * 2
    there.encoder.failing = lambda ids: False
    assert (await there.ask("!bad")).tokens == [4], "a failure is not kept"


@placed()
async def test_a_vector_that_is_not_finite_is_nobodys_and_is_not_kept(there: Place) -> None:
    forward = there.encoder.forward

    def poisoned(ids, *, normalize=True):  # type: ignore[no-untyped-def]
        vectors = forward(ids, normalize=normalize)
        vectors[[row[0] == ord("n") for row in ids]] = np.nan
        return vectors

    there.encoder.forward = poisoned  # type: ignore[method-assign]
    await there.busy()
    tasks = [there.ask(text) for text in ("nan", "well", "nan", "well")]
    await there.waiting(2)
    there.encoder.allow()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Backend, Answer, Backend, Answer]
    there.encoder.forward = forward  # type: ignore[method-assign]
    assert np.isfinite((await there.ask("nan")).vectors).all()


@placed()
async def test_a_text_is_computed_for_those_that_joined_when_the_first_leaves(there: Place) -> None:
    busy = await there.busy()
    before = there.ask("x" * 60)
    first = there.ask("dog", "only mine")
    joined = [there.ask("dog"), there.ask("dog", "cat")]
    await there.waiting(4)
    there.encoder.allow(1)  # "busy" ends, all texts are tokenized, and the long text is in the next batch.
    await busy
    await there.passes(2)
    assert there.counted("shared") == 2
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    late = there.ask("dog")
    await there.waiting(2)  # the texts dog and cat
    there.encoder.allow()
    for task in (*joined, late):
        assert (await task).vectors.tolist()[0] == [1, 3, 100]
    await before
    assert there.counted("shared") == 3
    assert sorted(length for batch in there.encoder.batches for length in batch) == [3, 3, 4, 60]


@placed(workers=2)
async def test_who_leaves_a_batch_does_not_take_it_from_those_that_joined(there: Place) -> None:
    there.encoder.gate.clear()
    first = there.ask("dog", "dot")
    await there.passes(1)
    joined = [there.ask("dog"), there.ask("dog", lane=Lane.BACKGROUND)]
    await there.shared(2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    late = there.ask("dog")
    await there.shared(3)
    there.encoder.allow()
    for task in (*joined, late):
        assert (await task).vectors.tolist() == [[1, 3, 100]]
    assert there.encoder.batches == [[3, 3]]


@placed()
async def test_a_tokenized_text_that_all_have_left_is_not_computed(there: Place) -> None:
    busy = await there.busy()
    before = there.ask("x" * 60)
    tasks = [there.ask("dog") for _ in range(3)]
    await there.waiting(2)
    there.encoder.allow(1)
    await busy
    await there.passes(2)
    for task in reversed(tasks):
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert there.batcher._scheduler.lanes[Lane.INTERACTIVE].texts == 0
    there.encoder.allow()
    await before
    assert there.computed == 2


@placed()
async def test_when_all_have_left_nothing_is_computed_and_the_next_is_served(there: Place) -> None:
    await there.busy()
    tasks = [there.ask("dog") for _ in range(3)]
    await there.waiting(1)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    there.encoder.allow()
    await there.ask("cat")
    assert there.computed == 2
    assert (await there.ask("dog")).tokens == [3]


@placed()
async def test_an_interactive_text_does_not_wait_for_the_turn_of_a_background_one(there: Place) -> None:
    there.encoder.max_length = 300
    first = await there.busy()
    documents = [f"{name}" * 200 for name in "abcdefghijklmnop"]
    build = there.ask(*documents, lane=Lane.BACKGROUND)
    await there.waiting(len(documents))
    there.encoder.allow(1)
    await first
    await there.passes(2)
    requested = there.ask(documents[-1])
    await asyncio.sleep(0)  # Lets the call join the queue.
    there.encoder.allow(3)  # fewer passes than documents before the requested one
    assert (await requested).vectors[0, 2] == ord("p")
    there.encoder.allow()
    answer = await build
    assert answer.vectors[:, 2].tolist() == list(map(ord, "abcdefghijklmnop"))
    assert there.computed == 1 + len(documents)


@placed()
async def test_background_work_neither_reads_nor_fills_the_cache(there: Place) -> None:
    await there.ask("document", lane=Lane.BACKGROUND)
    assert there.batcher.cache is not None
    assert len(there.batcher.cache) == 0
    await there.ask("document")
    assert len(there.batcher.cache) == 1
    await there.ask("document", lane=Lane.BACKGROUND)
    assert there.computed == 3
    assert (there.counted("hits"), there.counted("misses")) == (0, 1)


@placed()
async def test_a_call_that_bypasses_the_cache_gets_a_pass_of_its_own(there: Place) -> None:
    await there.ask("well?")
    await there.ask("well?", "well?", bypass_cache=True)
    assert there.computed == 3
    there.encoder.failing = lambda ids: True
    with pytest.raises(Backend):
        await there.ask("well?", bypass_cache=True)
    assert (await there.ask("well?")).tokens == [5], "what is kept is right, however ill the model is"


@placed(cache=False)
async def test_without_a_cache_every_text_is_computed(there: Place) -> None:
    await there.busy()
    tasks = [there.ask("dog") for _ in range(4)]
    await there.waiting(4)
    there.encoder.allow()
    await asyncio.gather(*tasks)
    await there.ask("dog")
    assert there.computed == 6


@placed(workers=2, hang_seconds=0.2)
async def test_who_joined_a_batch_that_hangs_is_answered_with_it_and_the_next_equal_text_is_not(
    there: Place,
) -> None:
    there.encoder.gate.clear()
    tasks = [there.ask("hangs")]
    await there.passes(1)
    tasks.append(there.ask("hangs"))
    await there.shared(1)
    for _ in range(30):
        there.batcher.check(0.2)
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Backend] * 2
    there.encoder.allow()
    assert (await there.ask("hangs")).tokens == [5]


@placed()
async def test_stopping_finishes_what_runs_and_fails_what_waits_or_comes_later(there: Place) -> None:
    busy = await there.busy()
    waiting = [there.ask("dog") for _ in range(3)]
    await there.waiting(1)
    stop = asyncio.create_task(asyncio.to_thread(there.batcher.stop))
    await until(lambda: there.batcher._scheduler.stopping)
    with pytest.raises(Unhealthy):
        await there.ask("late")
    there.encoder.allow()
    await stop
    assert (await busy).tokens == [4]
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [Unhealthy] * 3


@placed()
async def test_an_interactive_text_joins_a_background_one_that_is_being_tokenized_in_its_own_lane(
    there: Place,
) -> None:
    tokenize, gate = there.encoder.tokenize, threading.Event()
    seen: list[list[str]] = []

    def held(texts: Sequence[Any], **options: bool) -> list[Tokens]:
        seen.append(list(texts))
        gate.wait()
        return tokenize(texts, **options)

    there.encoder.tokenize = held  # type: ignore[method-assign]
    build = there.ask("dog", lane=Lane.BACKGROUND)
    await until(lambda: seen == [["dog"]])
    requested = there.ask("dog")
    await there.shared(1)
    scheduler = there.batcher._scheduler
    assert [scheduler.lanes[lane].texts for lane in Lane] == [1, 0, 0, 0]
    build.cancel()
    gate.set()
    assert (await requested).tokens == [3]
    assert there.computed == 1


@placed()
async def test_a_write_takes_a_candidates_text_into_its_own_lane(there: Place) -> None:
    busy = await there.busy()
    candidate = there.ask("dog", lane=Lane.CANDIDATE)
    await there.waiting(1)
    write = there.ask("dog", lane=Lane.BACKGROUND)
    await there.shared(1)
    scheduler = there.batcher._scheduler
    assert [scheduler.lanes[lane].texts for lane in Lane] == [0, 0, 1, 0]
    there.encoder.allow()
    for task in (busy, candidate, write):
        await task
    assert there.computed == 2  # the texts busy and dog


@placed()
async def test_a_text_that_is_refused_is_named_to_each_call_by_its_own_position(there: Place) -> None:
    await there.busy()
    long = "x" * 65
    tasks = [there.ask(long, truncate=False), there.ask("a", "b", long, truncate=False)]
    await there.shared(1)
    there.encoder.allow()
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [str(outcome)[:7] for outcome in outcomes] == ["Input 0", "Input 2"]


@placed(max_queue_tokens=10)
async def test_a_call_that_is_refused_counts_nothing_and_leaves_nothing_to_join(there: Place) -> None:
    await there.ask("known")
    await there.busy()
    waits = there.ask("dog" * 10)
    await there.waiting(1)
    before = [there.counted(name) for name in ("hits", "misses", "shared")]
    with pytest.raises(Overloaded):
        await there.ask("known", "dog" * 10, "cat" * 10)
    assert [there.counted(name) for name in ("hits", "misses", "shared")] == before
    joins = there.ask("dog" * 10)  # Joining adds no tokens to the queue.
    await there.shared(1)
    there.encoder.allow()
    assert (await waits).tokens == (await joins).tokens == [30]
    assert (await there.ask("cat" * 10)).tokens == [30]
    assert there.computed == 4


@pytest.mark.parametrize("seed", range(4))
@placed(workers=3)
async def test_whoever_asks_and_leaves_at_random_gets_its_own_vectors_and_nothing_is_left_behind(
    there: Place, seed: int
) -> None:
    chance = random.Random(seed)
    there.encoder.seconds = 0.001
    there.encoder.failing = lambda ids: any(row[0] == ord("!") for row in ids)

    async def one() -> int:
        await asyncio.sleep(chance.random() / 4)
        texts = [chance.choice("abc!") * chance.randint(1, 12) for _ in range(chance.randint(1, 4))]
        task = there.ask(
            *texts,
            lane=chance.choice(list(Lane)),
            normalize=chance.random() < 0.8,
            bypass_cache=chance.random() < 0.1,
        )
        if chance.random() < 0.3:
            await asyncio.sleep(chance.random() / 50)
            task.cancel()
        try:
            answer = await task
        except asyncio.CancelledError:
            return 0
        except Backend:
            assert any(text[0] == "!" for text in texts), f"{texts}: somebody else's failure"
            return 0
        assert not any(text[0] == "!" for text in texts)
        assert answer.vectors.tolist() == [[1, len(text), ord(text[0])] for text in texts]
        assert answer.tokens == [len(text) for text in texts]
        return len(texts)

    answered = sum(await asyncio.gather(*(one() for _ in range(400))))
    assert answered > 100
    assert there.counted("shared")
    assert there.counted("hits")
    assert there.counted("misses")
