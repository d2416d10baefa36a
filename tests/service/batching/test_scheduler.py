"""Counters of the lanes, which admission and the single-text session read."""

from service.batching.request import Item, Job, Lane
from service.batching.scheduler import Scheduler
from tests.service.fakes import call_in


def counts(scheduler: Scheduler) -> dict[Lane, tuple[int, int]]:
    return {lane: (queue.texts, queue.tokens) for lane, queue in scheduler.lanes.items()}


def being_tokenized(lane: Lane) -> tuple[Scheduler, Item, Job]:
    """Returns a scheduler whose only item is being tokenized, the item and the job."""
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
    assert counts(scheduler) == {Lane.INTERACTIVE: (0, 0), Lane.BACKGROUND: (1, 4), Lane.CANDIDATE: (0, 0)}
