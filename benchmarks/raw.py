"""The ceiling: an engine alone on the published file, with everything else done beforehand.

As many single-thread calls at once as there are processors, each in a thread of its own, take ready-made
batches: tokenised, sorted by length, padded. No HTTP, no queue, no waiting, and the batch size that is
fastest here, found by trying. What a service does on top of this is what its ratio shows.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.contestant import Measured, Scenario, Vectors
from benchmarks.engines import Call, Feed
from benchmarks.machine import Watch
from benchmarks.results import p50_p99
from benchmarks.workloads import Workload
from models.tokens.tokenizer import Tokenizer

BUDGETS = (256, 512, 1024, 2048, 4096)  # padded tokens of one batch
TRIAL_SHARE = 8  # one text in so many is enough to choose a budget
TRIAL_ROUNDS = 2
WARM_CALLS = 20


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a workload, padded to the longest of them."""

    rows: list[int]
    feed: Feed


class RawEngine:
    """`calls` that may run side by side, each on one thread; a contestant that takes all texts at once."""

    def __init__(
        self,
        name: str,
        calls: Sequence[Call],
        inputs: Sequence[str],
        tokenizer: Tokenizer,
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        """budgets: padded tokens of one batch, to choose from."""
        self.name = name
        self._tried = budgets
        self.calls = calls
        self.tokenizer = tokenizer
        self._inputs = inputs
        self._ready: dict[str, list[Batch]] = {}
        self.budgets: dict[str, int] = {}  # by workload

    def batches(self, ids: Sequence[Sequence[int]], budget_tokens: int) -> list[Batch]:
        """`ids` in batches of similar length; the largest first, so that all calls end together."""
        batches: list[Batch] = []
        rows: list[int] = []
        for row in sorted(range(len(ids)), key=lambda at: len(ids[at])):
            if rows and (len(rows) + 1) * len(ids[row]) > budget_tokens:
                batches.append(self.batch(ids, rows))
                rows = []
            rows.append(row)
        batches.append(self.batch(ids, rows))
        return sorted(batches, key=lambda batch: -batch.feed["input_ids"].size)

    def batch(self, ids: Sequence[Sequence[int]], rows: list[int]) -> Batch:
        return Batch(rows, padded([ids[row] for row in rows], self._inputs))

    def choose(self, workload: Workload) -> None:
        """Make the workload ready in batches of the size that is fastest on a part of it."""
        ids = workload.ids[::TRIAL_SHARE]
        tried = {budget: self.batches(ids, budget) for budget in self._tried}
        seconds = dict.fromkeys(self._tried, float("inf"))
        for _ in range(TRIAL_ROUNDS):
            for budget, batches in tried.items():
                seconds[budget] = min(seconds[budget], self._run(batches))
        best = min(seconds, key=seconds.__getitem__)
        self.budgets[workload.name] = best
        self._ready[workload.name] = self.batches(workload.ids, best)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        workload = scenario.workload
        if workload.name not in self._ready:
            self.choose(workload)
        watch = Watch({"bench": os.getpid()})
        self._run(self._ready[workload.name])
        window = watch.window()
        count = len(workload.ids)
        cpu_ms = 1000 * window.cpu_seconds["bench"] / count
        return Measured(count / window.seconds, window.foreign, cpu_ms)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Each text computed alone, (n, dimension)."""
        ids = [tokens.ids for tokens in self.tokenizer.tokenize(texts)]
        return np.concatenate([self.calls[0](self.batch(ids, [at]).feed) for at in range(len(ids))])

    def about(self) -> dict[str, Any]:
        return {"calls at once": len(self.calls), "tokens of a batch": self.budgets}

    def _run(self, batches: Sequence[Batch]) -> float:
        """Seconds that the calls need for `batches` together."""
        waiting = deque(batches)
        failures: list[Exception] = []

        def work(call: Call) -> None:
            try:
                while True:
                    call(waiting.popleft().feed)
            except IndexError:  # nothing waits any more
                return
            except Exception as error:  # noqa: BLE001  raised again below, on the thread that asked
                failures.append(error)

        threads = [threading.Thread(target=work, args=(call,)) for call in self.calls]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        if failures:
            raise failures[0]
        return seconds


def padded(rows: Sequence[Sequence[int]], inputs: Sequence[str]) -> Feed:
    """Rows of ids (n, the longest), for a graph with these inputs."""
    shape = (len(rows), max(map(len, rows)))
    feed = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for at, row in enumerate(rows):
        feed["input_ids"][at, : len(row)] = row
        feed["attention_mask"][at, : len(row)] = 1
    return {name: array for name, array in feed.items() if name in inputs}


class SingleCalls:
    """A raw engine asked for one text after the other: what a lone request cannot beat on as many threads."""

    def __init__(self, name: str, engine: RawEngine, *, tokenising: bool) -> None:
        self.name = name
        self._engine = engine
        self._tokenising = tokenising

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        workload, engine = scenario.workload, self._engine
        milliseconds: list[float] = []
        tokens = 0
        watch: Watch | None = None
        row = turn * 997 % len(workload.ids)  # another stretch of the texts each time
        ids: Sequence[Sequence[int]]
        while watch is None or time.perf_counter() < watch.began + scenario.seconds:
            if len(milliseconds) == WARM_CALLS and watch is None:
                milliseconds, tokens = [], 0
                watch = Watch({"bench": os.getpid()})
            row = (row + 1) % len(workload.ids)
            started = time.perf_counter()
            if self._tokenising:
                ids = [engine.tokenizer.tokenize([workload.texts[row]])[0].ids]
            else:
                ids = [workload.ids[row]]
            engine.calls[0](engine.batch(ids, [0]).feed)
            milliseconds.append((time.perf_counter() - started) * 1000)
            tokens += len(ids[0])
        window = watch.window()
        p50, p99 = p50_p99(milliseconds)
        rate = tokens / window.seconds / workload.mean_tokens
        return Measured(rate, window.foreign, p50_ms=p50, p99_ms=p99)


def cosines(found: Vectors, expected: Vectors) -> NDArray[np.float64]:
    """Row by row, (n,); the vectors of either side may have any length."""
    dots = np.einsum("nd,nd->n", found.astype(np.float64), expected.astype(np.float64))
    lengths = np.linalg.norm(found.astype(np.float64), axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray(dots / lengths)
