"""The lanes' counts, which admission and the single text's session read."""

from types import SimpleNamespace
from typing import Any, cast

from models.encoder import Encoder
from models.engines.form import FP32
from service.batching.request import EmbedCall, Item, Lane
from service.batching.scheduler import Scheduler

ENCODER = cast("Encoder", SimpleNamespace(packs=False, form=FP32, step=1))


def call_in(lane: Lane) -> EmbedCall:
    unused: Any = None
    return EmbedCall(ENCODER, lane, True, False, True, unused, unused, [], [], 1, 0.0)


def counts(scheduler: Scheduler) -> dict[Lane, tuple[int, int]]:
    return {lane: (queue.texts, queue.tokens) for lane, queue in scheduler.lanes.items()}


def test_an_item_that_was_refused_is_in_no_lane_whoever_joins_it_before_its_callers_know() -> None:
    scheduler = Scheduler()
    call = call_in(Lane.BACKGROUND)
    item = Item(call, "x", 3, [(call, 0)])
    scheduler.put(call, [item])
    job = scheduler.next_job()
    assert job is not None
    assert not job.embed
    scheduler.tokenized(job)  # without ids: the tokenizer refused it
    scheduler.promote(item, call_in(Lane.INTERACTIVE))
    assert set(counts(scheduler).values()) == {(0, 0)}
    assert scheduler.is_idle()


def test_an_item_that_is_being_tokenized_goes_on_in_the_lane_of_who_joined_it() -> None:
    scheduler = Scheduler()
    call = call_in(Lane.CANDIDATE)
    item = Item(call, "x", 3, [(call, 0)])
    scheduler.put(call, [item])
    job = scheduler.next_job()
    assert job is not None
    scheduler.promote(item, call_in(Lane.BACKGROUND))
    assert counts(scheduler)[Lane.BACKGROUND] == (1, 3)
    item.ids = (1, 2, 3, 4)
    scheduler.tokenized(job)
    assert counts(scheduler) == {Lane.INTERACTIVE: (0, 0), Lane.BACKGROUND: (1, 4), Lane.CANDIDATE: (0, 0)}
