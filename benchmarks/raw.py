"""Measure the inference engine without the service around it, as an upper bound of the service's speed.

`RawEngine` runs the published ONNX file on prepared batches: texts are already tokenized, sorted by length
and padded. It tries several batch sizes and uses the fastest. One single-threaded inference call runs on each
processor. The ratio of the service's speed to the raw engine's speed shows the cost of HTTP and queueing.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from benchmarks.machine import Watch
from benchmarks.rounds import Measured, Scenario, Vectors
from benchmarks.workloads import Workload
from models.open_version import group_rows
from models.tokens.tokenizer import Tokenizer, build_feed

OUTPUT = "sentence_embedding"
BUDGETS = (256, 512, 1024, 2048, 4096)  # padded tokens of one batch
TRIAL_STRIDE = 8  # every eighth text is enough to choose a budget
TRIAL_ROUNDS = 2

Feed = dict[str, NDArray[np.int64]]
Call = Callable[[Feed], NDArray[np.float32]]


def onnx_runtime_calls(file: Path, count: int, output: str = OUTPUT) -> tuple[list[Call], list[str]]:
    """Open `count` single-threaded ONNX Runtime sessions; return a function for each, and input names."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        for _ in range(count)
    ]

    def call(session: onnxruntime.InferenceSession) -> Call:
        return lambda feed: np.asarray(session.run([output], feed)[0])

    return [call(session) for session in sessions], [given.name for given in sessions[0].get_inputs()]


def openvino_calls(
    file: Path, count: int, precision: str, output: str = OUTPUT
) -> tuple[list[Call], list[str]]:
    """Compile `count` single-threaded OpenVINO models; return a function for each, and input names.

    Args:
        file: The ONNX file.
        count: Number of models.
        precision: Precision by its name in OpenVINO.
        output: Name of the output to compute.

    Raises:
        ImportError: OpenVINO is not installed.

    """
    import openvino as ov  # noqa: PLC0415  an extra

    core = ov.Core()
    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # otherwise all models use the same processor
    }
    whole = core.read_model(str(file))
    # OpenVINO would compute and write the other outputs as well.
    outputs = [each.node for each in whole.outputs if output in each.get_names()]
    model = ov.Model(outputs, whole.get_parameters(), "raw")
    compiled = [core.compile_model(model, "CPU", config) for _ in range(count)]

    def call(one: Any) -> Call:
        request = one.create_infer_request()
        return lambda feed: np.array(request.infer(feed, share_inputs=True)[0], np.float32)

    return [call(one) for one in compiled], [given.any_name for given in compiled[0].inputs]


class RawEngine:
    """The engine without a service, as a contestant. Embeds a workload with parallel inference calls."""

    def __init__(
        self,
        name: str,
        calls: Sequence[Call],
        inputs: Sequence[str],
        tokenizer: Tokenizer,
        budgets: Sequence[int] = BUDGETS,
    ) -> None:
        """Create the engine.

        Args:
            name: Name of the engine in the report.
            calls: Inference functions, each of which may run in its own thread.
            inputs: Names of the graph's inputs.
            tokenizer: Used by `vectors` only, because workloads contain token ids.
            budgets: Batch sizes to try, in padded tokens.

        """
        self.name = name
        self.calls = calls
        self.tokenizer = tokenizer
        self._inputs = inputs
        self._budgets = budgets
        self._ready: dict[str, list[Feed]] = {}
        self._chosen: dict[str, int] = {}  # budget by workload

    def batches(self, ids: Sequence[Sequence[int]], budget_tokens: int) -> list[Feed]:
        """Split texts into batches of similar length. The largest comes first, to balance the threads."""
        groups = group_rows([len(row) for row in ids], budget_tokens)
        batches = [build_feed([ids[at] for at in group], self._inputs) for group in groups]
        return sorted(batches, key=lambda batch: -batch["input_ids"].size)

    def choose_budget(self, workload: Workload) -> None:
        """Choose the batch size that is fastest on a part of a workload, and prepare batches of that size."""
        ids = workload.ids[::TRIAL_STRIDE]
        tried = {budget: self.batches(ids, budget) for budget in self._budgets}
        seconds = dict.fromkeys(self._budgets, float("inf"))
        for _ in range(TRIAL_ROUNDS):
            for budget, batches in tried.items():
                seconds[budget] = min(seconds[budget], self._run(batches))
        best = min(seconds, key=seconds.__getitem__)
        self._chosen[workload.name] = best
        self._ready[workload.name] = self.batches(workload.ids, best)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Embed the whole workload once."""
        workload = scenario.workload
        if workload.name not in self._ready:
            self.choose_budget(workload)
        watch = Watch({"bench": os.getpid()})
        self._run(self._ready[workload.name])
        window = watch.window()
        count = len(workload.ids)
        cpu_ms = 1000 * window.cpu_seconds["bench"] / count
        return Measured(count / window.seconds, window.foreign, cpu_ms)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Embed each text by itself. Returns vectors of shape (n, dimension)."""
        ids = [tokens.ids for tokens in self.tokenizer.tokenize(texts)]
        return np.concatenate([self.calls[0](build_feed([row], self._inputs)) for row in ids])

    def about(self) -> dict[str, Any]:
        """Return how many calls run at once, and batch sizes."""
        return {"parallel_calls": len(self.calls), "tokens_of_a_batch": self._chosen}

    def _run(self, batches: Sequence[Feed]) -> float:
        """Embed `batches` with all inference functions in parallel, and return the seconds."""
        pending = deque(batches)

        def work(call: Call) -> None:
            with suppress(IndexError):  # no batch is left
                while True:
                    call(pending.popleft())

        started = time.perf_counter()
        with ThreadPoolExecutor(len(self.calls)) as pool:
            list(pool.map(work, self.calls))
        return time.perf_counter() - started
