"""Which texts share a batch, on a processor and on a GPU."""

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import SimpleNamespace
from typing import Any, cast

import pytest

from models.encoder import Encoder
from models.engines.form import CPU, FP32, Form, Place
from models.engines.opening import INT8
from service.batching.planner import (
    GPU,
    GROUP_OVERHEAD_TOKENS,
    PROCESSOR,
    Costs,
    Sizes,
    compute_cost,
    group_of_oldest,
    sizes_on,
)
from service.batching.request import EmbedCall, Item, Job, Lane
from service.batching.scheduler import Scheduler
from service.batching.workers import Worker
from tests.service.fakes import call_in
from tests.waiting import LIMIT, until


def cost(lengths: Sequence[int], packed: bool) -> float:
    """Returns the cost of a batch in tokens, by a formula from measurements. `packed`: without padding."""
    longest = max(lengths)
    return sum(lengths) + len(lengths) * longest**2 / 920 if packed else len(lengths) * longest


def cheapest(lengths: tuple[int, ...], budget: int, packed: bool) -> float:
    """Returns the least total cost over all ways to cut the sorted lengths into batches, by brute force."""
    ordered = sorted(lengths)

    @cache
    def best(begin: int) -> float:
        if begin == len(ordered):
            return 0.0
        options = []
        for end in range(begin + 1, len(ordered) + 1):
            tokens = cost(ordered[begin:end], packed)
            if tokens > budget and end > begin + 1:
                break
            options.append(GROUP_OVERHEAD_TOKENS + tokens + best(end))
        return min(options)

    return best(0)


def cost_of_running_all(lengths: list[int], budget: int, packed: bool) -> float:
    """Returns the cost of running planned groups until no text is pending. `lengths` are in arrival order."""
    total = 0.0
    waiting = list(lengths)
    while waiting:
        group = group_of_oldest(waiting, budget, Costs(packed=packed))
        total += GROUP_OVERHEAD_TOKENS + cost([waiting[at] for at in group], packed)
        waiting = [length for at, length in enumerate(waiting) if at not in set(group)]
    return total


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_plan_costs_no_more_than_the_best_of_all_cuts(seed: int, packed: bool) -> None:
    rng = random.Random(seed)
    lengths = [
        rng.choice([4, 9, 16, 17, 40, 120, 256]) + rng.randrange(3) for _ in range(rng.randrange(1, 24))
    ]
    expected = cheapest(tuple(lengths), 512, packed)
    assert cost_of_running_all(lengths, 512, packed) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("packed", [False, True])
def test_the_cost_of_a_batch_is_that_of_the_plan(packed: bool) -> None:
    rng = random.Random(3)
    for _ in range(50):
        lengths = [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]
        assert compute_cost(lengths, Costs(packed=packed)) == round(cost(lengths, packed))


def test_the_oldest_text_is_always_in_the_group() -> None:
    rng = random.Random(7)
    for _ in range(200):
        lengths = [rng.randrange(1, 300) for _ in range(rng.randrange(1, 60))]
        assert 0 in group_of_oldest(lengths, 1024)


def test_a_text_longer_than_the_budget_goes_alone() -> None:
    assert group_of_oldest([600, 5, 6], 512) == [0]


def test_without_padding_texts_of_all_lengths_fill_a_batch() -> None:
    lengths = [8, 44, 12, 30, 17, 9, 25, 16] * 3
    assert len(group_of_oldest(lengths, 512)) < 10
    assert len(group_of_oldest(lengths, 512, Costs(packed=True))) > 14
    assert 1 not in group_of_oldest([8, 256, 9, 250, 8, *[10] * 20], 1024, Costs(packed=True))


@pytest.mark.parametrize("waiting", [1, 16, 17, 18, 35, 52, 103, 128])
def test_among_texts_of_one_length_the_oldest_is_in_a_full_group(waiting: int) -> None:
    """A full group is computed first. Texts that arrive meanwhile can still join the rest."""
    assert len(group_of_oldest([30] * waiting, 512)) == min(waiting, 17)


def test_a_dearer_batch_is_worth_more_padding() -> None:
    lengths = [8, 8, 24, 24, 8, 24]
    assert group_of_oldest(lengths, 512, Costs(overhead_tokens=24)) == [0, 1, 4]
    assert group_of_oldest(lengths, 512, Costs(overhead_tokens=500)) == [0, 1, 4, 2, 3, 5]


def test_what_is_padded_to_one_length_costs_the_same_attention() -> None:
    stepped = Costs(packed=True, step=16)
    assert compute_cost([17], stepped) == round(17 + 32**2 / 920)
    assert compute_cost([17, 9], stepped) == compute_cost([20, 6], stepped)
    assert compute_cost([17, 9], stepped) > compute_cost([16, 10], stepped)


def encoder_of(file_bytes: int) -> Encoder:
    return cast(
        "Encoder", SimpleNamespace(packs=False, max_length=64, form=FP32, step=1, file_bytes=file_bytes)
    )


ENCODER = encoder_of(90_000_000)


def batch(
    sizes: Sizes,
    lengths: list[int],
    lane: Lane = Lane.INTERACTIVE,
    recent: bool = False,
    encoder: Encoder = ENCODER,
) -> list[int]:
    """Returns the sorted token counts of the first batch. `recent`: interactive work has just arrived."""
    unused: Any = None
    scheduler = Scheduler(sizes=sizes, clock=lambda: 0.0)
    if recent:
        scheduler.put(
            EmbedCall(ENCODER, Lane.INTERACTIVE, True, False, True, unused, unused, [], [], 0, 0.0), []
        )
    call = EmbedCall(encoder, lane, True, False, True, unused, unused, [], [], len(lengths), 0.0)
    scheduler.put(call, [Item(call, "x", length, [(call, at)]) for at, length in enumerate(lengths)])
    while (job := scheduler.next_job()) is not None and not job.embed:
        for item in job.items:
            item.ids = [1] * item.cost
        scheduler.tokenized(job)
    assert job is not None
    return sorted(len(item.ids) for item in job.items)


def test_a_gpu_is_given_larger_batches_of_more_texts() -> None:
    assert (sizes_on(CPU), sizes_on(Place("cuda", 1))) == (PROCESSOR, GPU)
    assert len(batch(PROCESSOR, [30] * 1000)) == 17
    assert len(batch(GPU, [30] * 1000)) == 256
    assert len(batch(GPU._replace(window=1000), [30] * 1000)) == 512, "16,384 tokens in rows of 32"


@pytest.mark.parametrize(("sizes", "texts"), [(PROCESSOR, 8), (GPU, 128)])
def test_a_background_batch_is_small_while_interactive_work_is_recent(sizes: Sizes, texts: int) -> None:
    sizes = sizes._replace(window=1000)
    assert len(batch(sizes, [32] * 1000, Lane.BACKGROUND, recent=True)) == texts
    assert len(batch(sizes, [32] * 1000, Lane.BACKGROUND)) > texts


def test_a_batch_of_a_large_model_is_smaller_but_never_less_than_a_quarter() -> None:
    sizes = PROCESSOR._replace(window=1000)
    for gigabytes, texts, beside in ((0.4, 16, 8), (0.8, 8, 4), (1.6, 4, 2), (20, 4, 2)):
        encoder = encoder_of(int(gigabytes * 1e9))
        assert len(batch(sizes, [32] * 1000, encoder=encoder)) == texts
        assert len(batch(sizes, [32] * 1000, Lane.BACKGROUND, recent=True, encoder=encoder)) == beside
    assert batch(sizes, [500, 8], encoder=encoder_of(10**10)) == [500], "a long text goes by itself"
    assert len(batch(GPU._replace(window=1000), [30] * 1000, encoder=encoder_of(10**10))) == 512


def test_what_a_gpu_computes_at_one_length_is_not_kept_apart() -> None:
    """A GPU pads 9 and 16 tokens both to 16."""
    assert batch(PROCESSOR._replace(overhead_tokens=1), [9, 16, 9, 16]) == [9, 9]
    assert batch(GPU._replace(overhead_tokens=1), [9, 16, 9, 16, 17]) == [9, 9, 16, 16]
    assert [GPU.length(tokens, 60) for tokens in (1, 8, 9, 59)] == [8, 8, 16, 60]
    assert PROCESSOR.length(9, 60) == 9


def test_int8_counts_attention_by_what_its_own_tokens_cost() -> None:
    """Linear layers of int8 are cheap but attention is fp32, so long texts cost relatively more."""
    lengths = [12] * 12 + [44]

    def first(form: Form) -> int:
        encoder = cast("Encoder", SimpleNamespace(packs=True, form=form, step=1))
        return len(group_of_oldest(lengths, 512, PROCESSOR.costs(encoder)))

    assert (first(FP32), first(INT8)) == (13, 12)


def test_a_gpu_gets_two_batches_at_once_while_other_workers_tokenize() -> None:
    workers = [Worker() for _ in range(4)]
    scheduler = Scheduler(sizes=GPU, workers=workers)
    call = call_in(Lane.INTERACTIVE, 2000)
    scheduler.put(call, [Item(call, "x", 65, [(call, at)]) for at in range(2000)])
    jobs = []
    for worker in workers:
        job = taken(scheduler, worker)
        while not job.embed and scheduler.lanes[call.lane].ahead < 600:
            tokenize_all(scheduler, job)
            job = taken(scheduler, worker)
        jobs.append(job)
    assert [job.embed for job in jobs] == [True, True, False, False]
    workers[0].hangs = True
    tokenize_all(scheduler, jobs[2])
    assert taken(scheduler, workers[2]).embed, "a worker that hangs does not count"


def taken(scheduler: Scheduler, worker: Worker) -> Job:
    job = scheduler.take(worker)
    assert job is not None
    return job


def tokenize_all(scheduler: Scheduler, job: Job) -> None:
    for item in job.items:
        item.ids = [1] * item.cost
    scheduler.tokenized(job)


def test_a_worker_that_waits_for_a_batch_is_woken_when_one_hangs() -> None:
    workers = [Worker() for _ in range(3)]
    scheduler = Scheduler(sizes=GPU, workers=workers)
    call = call_in(Lane.INTERACTIVE, 192)
    scheduler.put(call, [Item(call, "x", 500, [(call, at)]) for at in range(192)])
    for worker in workers[:2]:
        while not (job := taken(scheduler, worker)).embed:
            tokenize_all(scheduler, job)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(taken, scheduler, workers[2])
        until(lambda: waiting.done() or scheduler._wake._waiters)  # type: ignore[attr-defined]
        workers[0].hangs = True
        scheduler.wake()
        assert waiting.result(LIMIT).embed
