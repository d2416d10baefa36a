"""Admission of calls by expected wait and size of the queue, and the counters that admission reads."""

import pytest

from models.encoder import Encoder
from service.batching.admission import Admission, ThroughputEstimate
from service.batching.planner import GROUP_OVERHEAD_TOKENS
from service.batching.request import Item, Job, Lane
from service.batching.scheduler import Scheduler
from service.errors import Overloaded
from tests.service.fakes import QUEUED, CountingEncoder, call_in


def pace(tokens_per_second: int) -> ThroughputEstimate:
    measured = ThroughputEstimate(workers=2, hang_seconds=0)
    one_worker = tokens_per_second // 2 - GROUP_OVERHEAD_TOKENS
    measured.measured(QUEUED, Lane.INTERACTIVE, one_worker, 1.0)
    return measured


def put(scheduler: Scheduler, texts: int, tokens: int, lane: Lane = Lane.INTERACTIVE) -> None:
    """Queues a call of `texts` texts, each of `tokens` tokens."""
    call = call_in(lane, texts)
    scheduler.put(call, [Item(call, "x", tokens, [(call, at)]) for at in range(texts)])


def test_a_call_is_refused_when_its_turn_would_come_too_late_and_told_when_to_come_again() -> None:
    scheduler = Scheduler()
    admission = Admission(scheduler, pace(2000), max_tokens=10**9, max_seconds=1.5)
    for _ in range(30):  # 3,000 tokens take 1.5 s at 2,000 per second.
        admission.check(Lane.INTERACTIVE, 100)
        put(scheduler, texts=1, tokens=100)
    admission.check(Lane.INTERACTIVE, 100)
    put(scheduler, texts=1, tokens=100)
    with pytest.raises(
        Overloaded, match=r"about 1\.6 s for its turn. The limit is 1\.5 s .*MAX_QUEUE_SECONDS"
    ) as no:
        admission.check(Lane.INTERACTIVE, 100)
    assert no.value.headers["retry-after"] == "2"


def test_a_call_of_many_texts_takes_turns_so_nobody_is_refused_for_its_size() -> None:
    scheduler = Scheduler()
    admission = Admission(scheduler, pace(2000), max_tokens=10**9, max_seconds=1.5)
    put(scheduler, texts=2048, tokens=100)  # more than 90 s of work
    put(scheduler, texts=2048, tokens=100)
    admission.check(Lane.INTERACTIVE, 204_800)


@pytest.mark.parametrize("lane", [Lane.INTERACTIVE, Lane.RERANK])
@pytest.mark.parametrize(("workers", "clients"), [(1, 5), (2, 9), (4, 17)])
def test_clients_whose_texts_share_the_next_batches_are_served_however_slow_the_model_is(
    lane: Lane, workers: int, clients: int
) -> None:
    """Each client sends 32 texts of 128 tokens, four of which are a batch. A batch takes five seconds."""
    scheduler, slow = Scheduler(), ThroughputEstimate(workers=workers, hang_seconds=0)
    slow.measured(QUEUED, lane, 512, 5.0)
    admission = Admission(scheduler, slow, max_tokens=10**9, max_seconds=1.0)
    for _ in range(clients):
        admission.check(lane, 32 * 128)
        put(scheduler, texts=32, tokens=128, lane=lane)
    with pytest.raises(Overloaded, match="for its turn"):
        admission.check(lane, 32 * 128)


@pytest.mark.parametrize("lane", [Lane.INTERACTIVE, Lane.RERANK])
def test_no_call_is_refused_for_its_time_before_a_batch_was_measured(lane: Lane) -> None:
    scheduler, unknown = Scheduler(), ThroughputEstimate(workers=2, hang_seconds=0)
    admission = Admission(scheduler, unknown, max_tokens=10**5, max_seconds=1.0)
    for _ in range(64):
        admission.check(lane, 128)
        put(scheduler, texts=1, tokens=128, lane=lane)
    unknown.measured(QUEUED, lane, 512, 5.0)
    with pytest.raises(Overloaded, match="for its turn"):
        admission.check(lane, 128)


def test_background_work_may_wait_and_0_is_no_bound() -> None:
    scheduler = Scheduler()
    admission = Admission(scheduler, pace(2000), max_tokens=10**9, max_seconds=1.5)
    for _ in range(100):
        put(scheduler, texts=1, tokens=100, lane=Lane.BACKGROUND)
        put(scheduler, texts=1, tokens=100)
    admission.check(Lane.BACKGROUND, 100)
    Admission(scheduler, pace(2000), max_tokens=10**9, max_seconds=0).check(Lane.INTERACTIVE, 100)


def test_the_queue_is_bounded_but_a_call_larger_than_the_bound_is_served_when_nothing_waits() -> None:
    scheduler = Scheduler()
    admission = Admission(scheduler, pace(2000), max_tokens=500)
    admission.check(Lane.INTERACTIVE, 1000)
    put(scheduler, texts=4, tokens=100)
    admission.check(Lane.INTERACTIVE, 100)
    with pytest.raises(Overloaded, match=r"400 tokens are in the queue.* about 501. The limit is 500"):
        admission.check(Lane.INTERACTIVE, 101)


def test_a_quiet_time_of_short_texts_does_not_make_the_next_burst_seem_hopeless() -> None:
    """A batch takes as long as its tokens plus 24, at 9,000 tokens per second."""
    seen = ThroughputEstimate(workers=1, hang_seconds=0)
    for _ in range(200):
        seen.measured(QUEUED, Lane.INTERACTIVE, 3, 27 / 9000)
    assert seen.seconds_for(9000) == pytest.approx(1.0)
    for _ in range(200):
        seen.measured(QUEUED, Lane.INTERACTIVE, 512, 536 / 9000)
    assert seen.seconds_for(9000) == pytest.approx(1.0)


def encoder_of(file_bytes: int) -> Encoder:
    encoder = CountingEncoder()
    encoder.file_bytes = file_bytes
    return encoder.as_encoder()


def test_a_large_model_is_thought_slow_before_it_was_measured_so_a_batch_of_it_is_no_hang() -> None:
    seen = ThroughputEstimate(workers=4, hang_seconds=20)
    light, large = encoder_of(90_000_000), encoder_of(2_500_000_000)
    assert seen.batch_may_take(light, 512) == 20
    assert seen.batch_may_take(large, 512) == pytest.approx(20 * 512 / 36)


def test_the_wait_follows_the_version_that_came_to_live_by_the_pace_of_its_build() -> None:
    seen = ThroughputEstimate(workers=2, hang_seconds=0)
    scheduler = Scheduler()
    admission = Admission(scheduler, seen, max_tokens=10**9, max_seconds=1.0)
    light, large = encoder_of(90_000_000), encoder_of(2_500_000_000)
    for _ in range(50):
        seen.measured(light, Lane.INTERACTIVE, 476, 0.05)  # 10,000 tokens a second
    for _ in range(50):
        seen.measured(large, Lane.CANDIDATE, 476, 4)  # 125
    for _ in range(40):
        put(scheduler, texts=1, tokens=50)
    assert admission.wait_seconds() == pytest.approx(2000 / 20_000)
    admission.check(Lane.INTERACTIVE, 50)
    seen.measured(large, Lane.INTERACTIVE, 476, 4)  # the first batch after the swap
    assert admission.wait_seconds() == pytest.approx(2000 / 250)
    with pytest.raises(Overloaded, match=r"about 8\.0 s for its turn") as no:
        admission.check(Lane.INTERACTIVE, 50)
    assert no.value.headers["retry-after"] == "8"


def test_a_call_of_many_texts_has_its_turns_while_others_keep_coming() -> None:
    """300 calls of one text are always pending, so the large call gets one text in 301."""
    scheduler = Scheduler()
    put(scheduler, texts=200, tokens=60)
    [bulk] = scheduler.lanes[Lane.INTERACTIVE].new
    for _ in range(300):
        put(scheduler, texts=1, tokens=60)
    for _ in range(1000):
        job = scheduler.next_job()
        assert job is not None
        if job.embed:
            for item in job.items:
                if item.call is not bulk:
                    put(scheduler, texts=1, tokens=60)
        else:
            for item in job.items:
                item.ids = [1] * 60
            scheduler.tokenized(job)
    embedded = 200 - len(bulk.untokenized) - len(bulk.ready)
    assert embedded >= 12, "half of the share that is its own in 1,000 jobs, of which half are tokenizing"


def counts(scheduler: Scheduler) -> dict[Lane, tuple[int, int]]:
    return {lane: (queue.texts, queue.tokens) for lane, queue in scheduler.lanes.items()}


def being_tokenized(lane: Lane) -> tuple[Scheduler, Item, Job]:
    """Returns a scheduler, its only item, and the job that tokenizes the item."""
    scheduler, call = Scheduler(), call_in(lane)
    item = Item(call, "x", 3, [(call, 0)])
    scheduler.put(call, [item])
    job = scheduler.next_job()
    assert job is not None
    assert not job.embed
    return scheduler, item, job


def test_an_item_that_was_refused_is_in_no_lane_whoever_joins_it_before_its_callers_know() -> None:
    scheduler, item, job = being_tokenized(Lane.BACKGROUND)
    scheduler.tokenized(job)  # Items without ids were rejected.
    scheduler.promote(item, call_in(Lane.INTERACTIVE))
    assert set(counts(scheduler).values()) == {(0, 0)}
    assert scheduler.is_idle()


def test_an_item_that_is_being_tokenized_goes_on_in_the_lane_of_who_joined_it() -> None:
    scheduler, item, job = being_tokenized(Lane.CANDIDATE)
    scheduler.promote(item, call_in(Lane.BACKGROUND))
    assert counts(scheduler)[Lane.BACKGROUND] == (1, 3)
    item.ids = (1, 2, 3, 4)
    scheduler.tokenized(job)
    assert counts(scheduler) == {**dict.fromkeys(Lane, (0, 0)), Lane.BACKGROUND: (1, 4)}
