"""The batcher scores pairs for a reranker in a lane of their own, beside the work of the active encoder."""

import asyncio

import numpy as np
import pytest

from models.tokens.pairs import Pair
from service.batching.cache import Cache
from service.batching.request import EmbedCall, Item, Lane, estimate, measure
from service.batching.scheduler import Scheduler
from service.errors import Backend, Hung, Overloaded, Timeout
from service.observability.metrics import Metrics
from tests.parts.batching import Place, placed
from tests.service.batching.test_cache import call_of
from tests.service.fakes import QUEUED, CountingEncoder, call_in, until

PAIRS = [Pair("q", "one"), Pair("q", "four"), Pair("q", "eleven")]
DIFFERENT: list[list[Pair | str]] = [
    [Pair("ab", "c"), Pair("a", "bc")],
    [Pair("", "abc"), Pair("abc", "")],
    [Pair("1 a", "b"), Pair("1", " ab")],
    [Pair("a", "b"), Pair("b", "a")],
    [Pair("a", "b"), Pair("a", "b ")],
    [Pair("a", "b"), Pair("a", "b"), Pair("aa", "b")],
    [Pair("ä", "b"), Pair("a", "\u0308b")],
    [Pair("a", "b"), "ab", "1 ab", "a"],
    [Pair("a", "x"), Pair("b", "x"), Pair("a", "y")],
]


def ask(there: Place, *pairs: Pair, reranker: CountingEncoder) -> asyncio.Task[object]:
    scored = there.batcher.embed(reranker.as_encoder(), pairs, lane=Lane.RERANK)
    return asyncio.create_task(scored)


@pytest.mark.parametrize("pairs", DIFFERENT)
def test_pairs_share_a_key_only_if_both_texts_are_equal(pairs: list[Pair | str]) -> None:
    call: EmbedCall = call_of(QUEUED)
    keys = Cache(2**20, Metrics()).space(QUEUED).text_keys(call, pairs)
    assert len(set(keys)) == len(set(pairs))
    assert None not in keys


@pytest.mark.parametrize(
    ("pair", "characters", "tokens"),
    [
        (Pair("", ""), 0, 2),
        (Pair("abcd", ""), 4, 3),
        (Pair("", "abcd"), 4, 3),
        (Pair("abcd", "efgh"), 8, 4),
        (Pair("a" * 1000, "b"), 1001, 64),
        (Pair("a", "b" * 1000), 1001, 64),
    ],
)
def test_both_texts_of_a_pair_count(pair: Pair, characters: int, tokens: int) -> None:
    assert measure(pair) == characters
    assert estimate(pair, QUEUED) == tokens


@placed()
async def test_pairs_are_scored_in_their_order_and_equal_ones_once(there: Place) -> None:
    reranker = CountingEncoder(7)
    first = await there.batcher.embed(reranker.as_encoder(), [*PAIRS, *PAIRS], lane=Lane.RERANK)
    assert first.vectors[:, 1].tolist() == [4, 5, 7] * 2
    assert sum(map(len, reranker.batches)) == 3
    again = await there.batcher.embed(reranker.as_encoder(), PAIRS, lane=Lane.RERANK)
    assert np.array_equal(again.vectors, first.vectors[:3])
    assert sum(map(len, reranker.batches)) == 3, "they come from the cache"


@pytest.mark.parametrize(
    ("embed", "rerank", "lanes"),
    [
        (3, 3, "iririr"),
        (3, 0, "iii"),
        (0, 3, "rrr"),
        (1, 4, "irrrr"),
        (4, 1, "iriii"),
        (2, 5, "irirrrr"),
    ],
)
def test_pairs_and_texts_take_turns(embed: int, rerank: int, lanes: str) -> None:
    scheduler = Scheduler()
    for lane, calls in ((Lane.INTERACTIVE, embed), (Lane.RERANK, rerank)):
        for _ in range(calls):
            call = call_in(lane)
            item = Item(call, "x", 512, [(call, 0)], ids=[1] * 512)
            scheduler.lanes[lane].wait(item)
    found = ""
    while (job := scheduler.next_job()) is not None:
        found += job.items[0].call.lane[0]
    assert found == lanes


def test_the_spare_worker_takes_no_pairs() -> None:
    scheduler = Scheduler()
    call = call_in(Lane.RERANK)
    scheduler.lanes[Lane.RERANK].wait(Item(call, "x", 1, [(call, 0)], ids=[1]))
    assert scheduler.next_job(aside=False) is None
    assert scheduler.next_job() is not None


@placed(max_queue_tokens=200)
async def test_a_full_lane_of_pairs_rejects_pairs_and_no_texts(there: Place) -> None:
    reranker = CountingEncoder(7)
    first = await there.busy()
    waits = ask(there, *[Pair("q", f"{at:063}") for at in range(9)], reranker=reranker)
    await there.waiting(9)
    with pytest.raises(Overloaded, match="SIMILE_MAX_QUEUE_TOKENS"):
        await there.batcher.embed(reranker.as_encoder(), [Pair("q", "x" * 300)], lane=Lane.RERANK)
    assert there.batcher.overloaded() is None
    text = there.ask("a text")
    await there.waiting(10)
    there.encoder.allow()
    await asyncio.gather(first, waits, text)


@placed(workers=2, hang_seconds=1)
async def test_a_reranker_that_hangs_fails_its_calls_alone_and_its_threads_are_replaced(there: Place) -> None:
    reranker = CountingEncoder(7)
    reranker.gate.clear()
    hung = []
    try:
        hung.append(ask(there, Pair("q", "one"), reranker=reranker))
        await until(lambda: len(reranker.begun) == 1)
        hung.append(ask(there, Pair("q", "two"), reranker=reranker))
        await until(lambda: len(reranker.begun) == 2)
        hung += [ask(there, Pair("q", text), reranker=reranker) for text in ("three", "four")]
        await there.waiting(2)
        # Both workers hang, and are not overdue yet. The spare worker embeds.
        assert (await there.ask("a text")).vectors.shape == (1, 3)
        await until(lambda: all(worker.job is None for worker in there.batcher._workers.all if worker.spare))
        there.batcher.check(3600)  # the first check of this step
        assert there.batcher.check(3600) is None, "the service is well"
        for call in hung:
            with pytest.raises(Hung):
                await call
        assert len(reranker.begun) == 2, "no pending pair begins"
        with pytest.raises(Hung):
            await ask(there, Pair("q", "later"), reranker=reranker)
        answer, fault = await there.batcher.score(reranker.as_encoder(), PAIRS, 60)
        assert isinstance(fault, Hung)
        assert np.isnan(answer.vectors).all()
        assert there.failure is None
        assert (await there.ask("another text")).vectors.shape == (1, 3)
    finally:
        reranker.gate.set()


@placed()
async def test_scores_that_are_not_ready_in_time_are_nan_and_the_rest_is_kept(there: Place) -> None:
    reranker = CountingEncoder(7)
    await there.batcher.embed(reranker.as_encoder(), PAIRS[:1], lane=Lane.RERANK)
    reranker.gate.clear()
    answer, fault = await there.batcher.score(reranker.as_encoder(), PAIRS, 0.01)
    assert isinstance(fault, Timeout)
    assert np.isnan(answer.vectors).all(axis=1).tolist() == [False, True, True]
    reranker.gate.set()
    answer, fault = await there.batcher.score(reranker.as_encoder(), PAIRS, 60)
    assert fault is None
    assert np.isfinite(answer.vectors).all()


@placed()
async def test_a_pair_on_which_the_model_fails_costs_only_its_own_score(there: Place) -> None:
    reranker = CountingEncoder(7)
    reranker.failing = lambda ids: any(len(row) == 5 for row in ids)
    answer, fault = await there.batcher.score(reranker.as_encoder(), PAIRS, 60)
    assert isinstance(fault, Backend)
    assert np.isnan(answer.vectors).all(axis=1).tolist() == [False, True, False]
    assert there.failure is not None, "no pass of the encoder has run"
    await there.ask("a text")
    assert there.failure is None


@placed()
async def test_without_free_places_nothing_is_scored_and_nothing_raised(there: Place) -> None:
    reranker = CountingEncoder(7)
    there.batcher._admission.max_tokens = 1
    first = await there.busy()
    waits = ask(there, Pair("q", "x" * 63), reranker=reranker)
    await there.waiting(1)
    answer, fault = await there.batcher.score(reranker.as_encoder(), PAIRS, 60)
    assert isinstance(fault, Overloaded)
    assert np.isnan(answer.vectors).all()
    there.encoder.allow()
    await asyncio.gather(first, waits)
