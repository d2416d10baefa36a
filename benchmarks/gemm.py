"""The peak of the processors: matrix products in fp32 alone, one thread for each processor, side by side.

The shapes are those of a small encoder's layers on a batch of 2,048 tokens, and a square one; a measurement
is the best of them, since a peak is what is looked for.
"""

import os
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from benchmarks.contestant import Measured, Scenario
from benchmarks.machine import Watch

SHAPES = ((2048, 384, 1536), (2048, 1536, 384), (1024, 1024, 1024))  # rows, inner, columns

Product = Callable[[], object]
Make = Callable[[int, int, int], Product]


class Gemm:
    """Products of one kind, `count` side by side."""

    def __init__(self, name: str, make: Make, count: int) -> None:
        self.name = name
        self._ready = [(2 * m * k * n, [make(m, k, n) for _ in range(count)]) for m, k, n in SHAPES]

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """GFLOP a second, all threads together."""
        watch = Watch({"bench": os.getpid()})
        seconds = scenario.seconds / len(SHAPES)
        best = max(rate(products, seconds) * flops / 1e9 for flops, products in self._ready)
        return Measured(best, watch.window().foreign)


def rate(products: Sequence[Product], seconds: float) -> float:
    """Products a second, each made again and again on a thread of its own."""
    done = [0] * len(products)

    def work(at: int) -> None:
        while time.perf_counter() < until:
            products[at]()
            done[at] += 1

    for product in products:
        product()
    started = time.perf_counter()
    until = started + seconds
    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(products))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - started)


def with_numpy(m: int, k: int, n: int) -> Product:
    """By the BLAS that NumPy brings, which benchmarks/__init__.py holds to one thread."""
    a, b = _factors(m, k, n)
    out = np.empty((m, n), np.float32)
    return lambda: np.matmul(a, b, out=out)


def _factors(m: int, k: int, n: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    chance = np.random.default_rng(0)
    return chance.random((m, k), np.float32), chance.random((k, n), np.float32)


def with_onnx_runtime(m: int, k: int, n: int) -> Product:
    """`b` is in the graph, so that the runtime may pack it as it packs weights."""
    a, b = _factors(m, k, n)
    given = helper.make_tensor_value_info("a", TensorProto.FLOAT, (m, k))
    answer = helper.make_tensor_value_info("c", TensorProto.FLOAT, (m, n))
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "product", [given], [answer], [numpy_helper.from_array(b, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return lambda: session.run(None, {"a": a})


KINDS: dict[str, Make] = {"fp32, NumPy": with_numpy, "fp32, ONNX Runtime": with_onnx_runtime}
