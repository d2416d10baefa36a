"""The encoder's threads: a stop waits for all of them, but not for one that hung and was replaced."""

import threading

from service.batching.request import Job
from service.batching.workers import Worker, Workers


def test_a_stop_waits_for_no_thread_that_hangs_on_a_candidate_and_was_replaced() -> None:
    gate, hangs, stopped = threading.Event(), threading.Event(), threading.Event()

    def work(worker: Worker) -> None:
        if worker.spare or hangs.is_set():
            return  # as when the queue stops
        worker.job, worker.on_candidate = Job([], embed=True), True
        worker.begin(may_take_seconds=0)
        hangs.set()
        gate.wait()

    workers = Workers(1, work)
    workers.start()
    assert hangs.wait(30)

    def joins() -> None:
        workers.join()
        stopped.set()

    stop = threading.Thread(target=joins, daemon=True)
    stop.start()
    try:
        workers.overdue(1)  # the first look at this step
        assert len(workers.overdue(1)) == 1
        assert not stopped.is_set(), "it is waited for until another took its place"
        assert workers.replace_hung_on_candidates() == 1
        assert stopped.wait(30)
    finally:
        gate.set()
        stop.join(30)
