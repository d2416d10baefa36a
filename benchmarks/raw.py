"""The ceiling: ONNX Runtime on the published file, with everything else done beforehand.

As many single-thread sessions as the service has workers, each in a thread of its own, take ready-made
batches: tokenised, sorted by length, padded. No HTTP, no queue, no waiting, and the batch size that is
fastest here, found by trying. What a service does on top of this is what its ratio shows.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.machine import Window, between, snapshot
from benchmarks.workloads import Workload

BUDGETS = (256, 512, 1024, 2048, 4096)  # padded tokens of one batch
TRIAL_SHARE = 8  # one text in so many is enough to choose a budget
TRIAL_ROUNDS = 2
OUTPUT = "sentence_embedding"

Feed = dict[str, NDArray[np.int64]]
Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of a workload, padded to the longest of them."""

    rows: list[int]
    feed: Feed


class RawEngine:
    """`sessions` single-thread sessions on one ONNX file."""

    def __init__(self, file: Path, sessions: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._sessions = [
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
            for _ in range(sessions)
        ]
        self._inputs = {given.name for given in self._sessions[0].get_inputs()}

    def __len__(self) -> int:
        return len(self._sessions)

    def batches(self, ids: Sequence[Sequence[int]], budget_tokens: int) -> list[Batch]:
        """`ids` in batches of similar length; the largest first, so that all sessions end together."""
        batches: list[Batch] = []
        rows: list[int] = []
        for row in sorted(range(len(ids)), key=lambda at: len(ids[at])):
            if rows and (len(rows) + 1) * len(ids[row]) > budget_tokens:
                batches.append(self._batch(ids, rows))
                rows = []
            rows.append(row)
        batches.append(self._batch(ids, rows))
        return sorted(batches, key=lambda batch: -batch.feed["input_ids"].size)

    def _batch(self, ids: Sequence[Sequence[int]], rows: list[int]) -> Batch:
        shape = (len(rows), max(len(ids[row]) for row in rows))
        feed = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
        for at, row in enumerate(rows):
            feed["input_ids"][at, : len(ids[row])] = ids[row]
            feed["attention_mask"][at, : len(ids[row])] = 1
        return Batch(rows, {name: array for name, array in feed.items() if name in self._inputs})

    def best_budget(self, workload: Workload) -> dict[int, float]:
        """Texts per second of each budget on a part of the workload, the fastest first."""
        ids = workload.ids[::TRIAL_SHARE]
        tried = {budget: self.batches(ids, budget) for budget in BUDGETS}
        seconds = dict.fromkeys(BUDGETS, float("inf"))
        for _ in range(TRIAL_ROUNDS):
            for budget, batches in tried.items():
                seconds[budget] = min(seconds[budget], self._run(batches))
        return {budget: len(ids) / seconds[budget] for budget in sorted(seconds, key=seconds.__getitem__)}

    def measure(self, batches: Sequence[Batch], pids: dict[str, int]) -> Window:
        """Compute all `batches` once. `pids` are others that are measured too."""
        everyone = {**pids, "bench": os.getpid()}
        begin = snapshot(everyone)
        self._run(batches)
        return between(begin, snapshot(everyone))

    def vectors(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """Each row computed alone, (n, dimension)."""
        return np.concatenate(
            [self._sessions[0].run([OUTPUT], self._batch(ids, [at]).feed)[0] for at in range(len(ids))]
        )

    def _run(self, batches: Sequence[Batch]) -> float:
        """Seconds that the sessions need for `batches` together."""
        waiting = deque(batches)
        failures: list[Exception] = []

        def work(session: onnxruntime.InferenceSession) -> None:
            try:
                while True:
                    session.run([OUTPUT], waiting.popleft().feed)
            except IndexError:  # nothing waits any more
                return
            except Exception as error:  # noqa: BLE001  raised again below, on the thread that asked
                failures.append(error)

        threads = [threading.Thread(target=work, args=(session,)) for session in self._sessions]
        started = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - started
        if failures:
            raise failures[0]
        return seconds
