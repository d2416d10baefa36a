"""The encoder's threads, and what each has in hand: one that died is replaced, one that hangs is known.

One thread more than asked for is the spare. It works only while every other one has a candidate's items in
hand, and never takes such items itself. So a candidate that is slow or hangs holds up no other work.

A worker says what it begins and how long that may take. The watchdog's thread reads it without a lock and
counts the seconds: a worker pays two assignments for each batch.
"""

import logging
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from models import cpus
from service.batching.request import Job
from service.settings import Settings

log = logging.getLogger(__name__)


class Layout(NamedTuple):
    """The number of workers that run the model, the threads of each, and why."""

    workers: int
    threads: int
    reason: str

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads} ({self.reason})"


def layout_for(settings: Settings) -> Layout:
    """A worker of one thread on each processor, unless the settings say otherwise.

    In every measurement, independent workers were faster than one pass on several threads
    (docs/decisions/batching.md).
    """
    if settings.workers or settings.threads:
        threads = settings.threads or 1
        workers = settings.workers or max(1, cpus.available() // threads)
        return Layout(workers, threads, "set by SIMILE_WORKERS or SIMILE_THREADS")
    if settings.place.device == "cuda":
        return Layout(2, 1, "while a GPU computes one batch, the next is tokenized")
    return Layout(cpus.available(), 1, "one for each processor")


class Worker:
    """A thread. It writes its `job`, `may_take_seconds` and `step`; the scheduler writes `on_candidate`, the
    watchdog's thread the rest.
    """

    def __init__(self, *, spare: bool = False) -> None:
        self.spare = spare
        self.on_candidate = False  # what it has in hand is a candidate's
        self.given_up = False  # it hangs on a candidate, and another took its place
        self.job: Job | None = None
        self.may_take_seconds = math.inf
        self.step = 0  # rises with each forward pass and each tokenizing
        self.thread: threading.Thread
        self.hangs = False
        self._seen = 0
        self._seconds = 0.0  # that the step in hand has taken

    def spend(self, seconds: float) -> bool:
        """`seconds` more have passed. True when the step in hand is overdue and was not before."""
        if self.job is None or self.step != self._seen:
            self._seen, self._seconds, self.hangs = self.step, 0.0, False
            return False
        self._seconds += seconds
        hung, self.hangs = self.hangs, self._seconds > self.may_take_seconds
        return self.hangs and not hung


JOIN_SECONDS = 0.1  # then it is looked whether another thread has taken its place


class Workers:
    """`work` runs on each thread, until the service stops."""

    def __init__(self, count: int, work: Callable[[Worker], None]) -> None:
        self._work = work
        self.count = count
        self.all = [Worker() for _ in range(count)]
        self.all.append(Worker(spare=True))

    def start(self) -> None:
        for number, worker in enumerate(self.all):
            self._start(worker, number)

    def join(self) -> None:
        """Wait until every thread has ended, but not for one that hung and was replaced meanwhile."""
        while any(worker.thread.is_alive() for worker in self.all):
            for worker in self.all:
                worker.thread.join(JOIN_SECONDS)

    def replace_dead(self) -> int:
        """Start a new thread for each that died; how many those were."""
        dead = [number for number, worker in enumerate(self.all) if not worker.thread.is_alive()]
        for number in dead:
            self._replace(number)
        return len(dead)

    def replace_hung_on_candidates(self) -> int:
        """Start a new thread for each that hangs on a candidate; how many those were.

        A thread cannot be ended: it ends by itself if it ever comes back.
        """
        hung = [n for n, worker in enumerate(self.all) if worker.hangs and worker.on_candidate]
        for number in hung:
            self.all[number].given_up = True
            self._replace(number)
        return len(hung)

    def _replace(self, number: int) -> None:
        self.all[number] = Worker(spare=self.all[number].spare)
        self._start(self.all[number], number)

    def overdue(self, seconds: float) -> list[Job]:
        """`seconds` more have passed: the jobs that are overdue since now."""
        jobs = [(worker.job, worker.spend(seconds)) for worker in self.all]
        return [job for job, late in jobs if late and job is not None]

    @property
    def all_hang(self) -> bool:
        """True when none but the spare is left."""
        return all(worker.hangs for worker in self.all if not worker.spare)

    @property
    def hanging(self) -> int:
        """Number of workers that hang."""
        return sum(worker.hangs for worker in self.all)

    def _start(self, worker: Worker, number: int) -> None:
        worker.thread = threading.Thread(
            target=self._run, args=[worker], name=f"encode-{number}", daemon=True
        )
        worker.thread.start()

    def _run(self, worker: Worker) -> None:
        try:
            self._work(worker)
        except BaseException:  # the watchdog finds the thread dead; nothing else would say why
            log.critical("A worker died", exc_info=True)
