"""The worker threads of the batcher, with detection of dead and hanging workers.

A spare worker runs only while all others run a candidate or the reranker, and never runs one itself. So such
a model does not block other work if it is slow or hangs.

A worker writes down each step and its time limit. The watchdog's thread reads this without a lock and counts
the seconds, which costs a worker two assignments per batch.
"""

import logging
import math
import threading
from collections.abc import Callable
from typing import NamedTuple

from models import cpus
from service.batching.request import Job, Lane
from service.settings import Settings

log = logging.getLogger(__name__)


# Eight workers served 1.07 times as many texts as four (docs/GPU.md). The next limit is the interpreter lock.
MAX_GPU_WORKERS = 8


class Layout(NamedTuple):
    workers: int
    threads: int
    reason: str

    def __str__(self) -> str:
        return f"{self.workers}x{self.threads} ({self.reason})"


def layout_for(settings: Settings) -> Layout:
    """Returns the number of workers, and the number of threads of each worker, from settings and machine.

    On a CPU, each processor has one worker with one thread. Fewer workers with more threads were never
    clearly faster (docs/decisions/batching.md). On a GPU, 2 to 8 workers tokenize and launch batches.
    """
    if settings.workers or settings.threads:
        threads = settings.threads or 1
        workers = settings.workers or max(1, cpus.available() // threads)
        return Layout(workers, threads, "set by SIMILE_WORKERS or SIMILE_THREADS")
    if settings.place.device == "cuda":
        workers = max(2, min(MAX_GPU_WORKERS, cpus.available()))
        return Layout(workers, 1, "two at a time use the GPU while the others tokenize")
    return Layout(cpus.available(), 1, "one for each processor")


class Worker:
    """A worker thread and its state.

    The thread writes `job`, `may_take_seconds` and `step`. The scheduler writes `aside` and `computes`, and
    the watchdog's thread writes the rest.
    """

    def __init__(self, *, spare: bool = False) -> None:
        self.spare = spare
        self.aside: Lane | None = None  # The lane of a job of a candidate or of the reranker.
        self.computes = False  # The job is a batch.
        self.given_up = False  # The worker hangs on such a job and was replaced.
        self.job: Job | None = None
        self.may_take_seconds = math.inf
        self.step = 0  # Number of forward passes and tokenizing steps.
        self.thread: threading.Thread
        self.hangs = False
        self._seen = 0
        self._seconds = 0.0  # duration of the current step so far

    def spend(self, seconds: float) -> bool:
        """Adds `seconds` to the current step. Returns whether the step has just become overdue."""
        if self.job is None or self.step != self._seen:
            self._seen, self._seconds, self.hangs = self.step, 0.0, False
            return False
        self._seconds += seconds
        hung, self.hangs = self.hangs, self._seconds > self.may_take_seconds
        return self.hangs and not hung


JOIN_SECONDS = 0.1  # between two checks whether a thread was replaced


class Workers:
    """All worker threads. Each runs `work` until the service stops."""

    def __init__(self, count: int, work: Callable[[Worker], None]) -> None:
        self._work = work
        self.count = count
        self.all = [Worker() for _ in range(count)]
        self.all.append(Worker(spare=True))

    def start(self) -> None:
        for number, worker in enumerate(self.all):
            self._start(worker, number)

    def join(self) -> None:
        """Waits for every thread to end, except for hanging threads that were replaced."""
        while any(worker.thread.is_alive() for worker in self.all):
            for worker in self.all:
                worker.thread.join(JOIN_SECONDS)

    def replace_dead(self) -> int:
        dead = [number for number, worker in enumerate(self.all) if not worker.thread.is_alive()]
        for number in dead:
            self._replace(number)
        return len(dead)

    def replace_hung_aside(self) -> int:
        """Replaces threads that hang on a candidate or on the reranker, and returns their number.

        The old thread cannot be killed. It ends by itself if its call ever returns.
        """
        hung = [n for n, worker in enumerate(self.all) if worker.hangs and worker.aside]
        for number in hung:
            self.all[number].given_up = True
            self._replace(number)
        return len(hung)

    def _replace(self, number: int) -> None:
        self.all[number] = Worker(spare=self.all[number].spare)
        self._start(self.all[number], number)

    def overdue(self, seconds: float) -> list[Job]:
        """Adds `seconds` to all current steps. Returns the jobs that have just become overdue."""
        jobs = [(worker.job, worker.spend(seconds)) for worker in self.all]
        return [job for job, late in jobs if late and job is not None]

    def _start(self, worker: Worker, number: int) -> None:
        worker.thread = threading.Thread(
            target=self._run, args=[worker], name=f"encode-{number}", daemon=True
        )
        worker.thread.start()

    def _run(self, worker: Worker) -> None:
        try:
            self._work(worker)
        except BaseException:  # The watchdog finds the dead thread, but only this log line has the reason.
            log.critical("A worker died", exc_info=True)
