"""Measure matrix products alone: no model of the same size computes its linear layers faster."""

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from benchmarks.machine import Watch
from benchmarks.rounds import Measured, Scenario
from models.files.bounded import parse_json

ROWS = 256  # of a product; larger outputs would exceed the second-level cache
KINDS = {  # by precision: operator, types of the factors and of the product
    "fp32": ("MatMul", np.float32, np.float32, TensorProto.FLOAT),
    "int8": ("MatMulInteger", np.uint8, np.int8, TensorProto.INT32),
}


class Products:
    """The matrix products of a BERT's linear layers alone, as a contestant."""

    def __init__(self, name: str, precision: str, folder: Path, threads: int, tokens: int) -> None:
        """Prepare the products of one layer for each thread.

        Args:
            name: Name of the contestant in the report.
            precision: A precision of KINDS.
            folder: Folder of the model.
            threads: Number of threads that compute at the same time.
            tokens: Number of tokens that count as 1 in the measured rate.

        """
        config = parse_json((folder / "config.json").read_bytes())
        width, inner = config["hidden_size"], config["intermediate_size"]
        self.name = name
        self._share = ROWS / (tokens * config["num_hidden_layers"])
        self._calls = [build_products(precision, width, inner) for _ in range(threads)]

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Compute products on all threads for an eighth of the scenario's time, at least one on each."""
        seconds, watch = scenario.seconds / 8, Watch({"bench": os.getpid()})
        until = time.perf_counter() + seconds

        def work(call: Callable[[], object]) -> int:
            done = 0
            while not done or time.perf_counter() < until:
                call()
                done += 1
            return done

        with ThreadPoolExecutor(len(self._calls)) as pool:
            done = sum(pool.map(work, self._calls))
        window = watch.window()
        return Measured(done * self._share / window.seconds, window.foreign)


def build_products(precision: str, width: int, inner: int) -> Callable[[], object]:
    """Return a function that computes the six products of a layer in ONNX Runtime, on one thread."""
    operator, left, right, made = KINDS[precision]
    chance = np.random.default_rng(0)
    feed = {f"rows-{n}": chance.integers(1, 100, (ROWS, n)).astype(left) for n in (width, inner)}
    nodes, weights, outputs = [], [], []
    for at, (n, m) in enumerate([(width, width)] * 4 + [(width, inner), (inner, width)]):
        weights.append(
            numpy_helper.from_array(chance.integers(1, 100, (n, m)).astype(right), f"weights-{at}")
        )
        nodes.append(helper.make_node(operator, [f"rows-{n}", f"weights-{at}"], [f"out-{at}"]))
        outputs.append(helper.make_tensor_value_info(f"out-{at}", made, (ROWS, m)))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(left))
    inputs = [helper.make_tensor_value_info(name, kind, rows.shape) for name, rows in feed.items()]
    graph = helper.make_graph(nodes, "products", inputs, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    run = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run
    run(None, feed)  # allocates the memory
    return partial(run, None, feed)
