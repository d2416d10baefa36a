"""The worker threads: their number, and which of them `stop` waits for."""

import queue
import threading
from typing import Any

import pytest

from models import cpus
from service.batching.executor import begin_step
from service.batching.request import Item, Job, Lane
from service.batching.scheduler import Scheduler
from service.batching.workers import Worker, Workers, layout_for
from service.settings import Settings
from tests.service.fakes import call_in
from tests.waiting import LIMIT, until


@pytest.mark.parametrize(
    ("processors", "given", "layout"),
    [
        (1, {}, (1, 1)),
        (4, {}, (4, 1)),
        (4, {"workers": 3}, (3, 1)),
        (4, {"threads": 2}, (2, 2)),
        (4, {"threads": 8}, (1, 8)),
        (4, {"workers": 3, "threads": 2}, (3, 2)),
        (1, {"device": "cuda"}, (2, 1)),
        (4, {"device": "cuda"}, (4, 1)),
        (64, {"device": "cuda"}, (8, 1)),
    ],
)
def test_there_is_a_worker_of_one_thread_for_each_processor_unless_it_is_set_by_hand(
    monkeypatch: pytest.MonkeyPatch, processors: int, given: dict[str, Any], layout: tuple[int, int]
) -> None:
    monkeypatch.setattr(cpus, "available", lambda: processors)
    found = layout_for(Settings(**given))
    assert (found.workers, found.threads) == layout
    by_hand = bool({"workers", "threads"} & given.keys())
    assert found.reason.startswith("set by") == by_hand


def test_a_stop_waits_for_no_thread_that_hangs_on_a_candidate_and_was_replaced() -> None:
    gate, hangs, stopped = threading.Event(), threading.Event(), threading.Event()

    def work(worker: Worker) -> None:
        if worker.spare or hangs.is_set():
            return
        worker.job, worker.aside = Job([], embed=True), Lane.CANDIDATE
        begin_step(worker, may_take_seconds=0)
        hangs.set()
        gate.wait()

    workers = Workers(1, work)
    workers.start()
    assert hangs.wait(LIMIT)

    def joins() -> None:
        workers.join()
        stopped.set()

    stop = threading.Thread(target=joins, daemon=True)
    stop.start()
    try:
        workers.overdue(1)  # the first check of this step
        assert len(workers.overdue(1)) == 1
        assert not stopped.is_set(), "it is waited for until another took its place"
        assert workers.replace_hung_aside() == 1
        assert stopped.wait(LIMIT)
    finally:
        gate.set()
        stop.join(LIMIT)


def test_a_text_that_the_spare_worker_has_tokenized_is_not_left_when_the_others_are_free_again() -> None:
    scheduler = Scheduler()
    others, spare = [Worker(), Worker()], Worker(spare=True)
    scheduler.workers = [*others, spare]
    for worker in others:
        worker.aside = Lane.RERANK
    call = call_in(Lane.INTERACTIVE, 1)
    scheduler.put(call, [Item(call, "x", 1, [(call, 0)])])
    job = scheduler.take(spare)
    assert job is not None
    assert not job.embed
    found = queue.SimpleQueue[Job]()

    def take(worker: Worker) -> None:
        if (taken := scheduler.take(worker)) is not None:
            found.put(taken)

    threads = [threading.Thread(target=take, args=[worker], daemon=True) for worker in others]
    try:
        for thread in threads:
            thread.start()
        until(lambda: len(scheduler._wake._waiters) == len(others))  # type: ignore[attr-defined]
        job.items[0].ids = [1]
        scheduler.tokenized(job)
        threads.append(threading.Thread(target=take, args=[spare], daemon=True))
        threads[-1].start()
        assert found.get(timeout=LIMIT).embed
    finally:
        scheduler.stop()
        for thread in threads:
            thread.join(LIMIT)
