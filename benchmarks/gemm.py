"""The peak of the processors: matrix products alone, one thread for each processor, side by side.

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
from models.engines.opening import BF16, INT8, require
from models.errors import FormUnavailable

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
        best = max(_rate(products, seconds) * flops / 1e9 for flops, products in self._ready)
        return Measured(best, watch.window().foreign)


def _rate(products: Sequence[Product], seconds: float) -> float:
    """Products a second."""
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
    a, b = _factors(m, k, n)
    session = _session("MatMul", a, b, TensorProto.FLOAT)
    return lambda: session.run(None, {"a": a})


def with_integers(m: int, k: int, n: int) -> Product:
    """8 bits: unsigned by signed, with sums of 32. Raises FormUnavailable where sums of 16 would overflow."""
    require(INT8)
    chance = np.random.default_rng(0)
    a = chance.integers(0, 255, (m, k), np.uint8)
    b = chance.integers(-127, 127, (k, n), np.int8)
    session = _session("MatMulInteger", a, b, TensorProto.INT32)
    return lambda: session.run(None, {"a": a})


def with_openvino_bf16(m: int, k: int, n: int) -> Product:
    """Raises FormUnavailable where it would compute in fp32, ImportError."""
    require(BF16)
    import openvino as ov  # noqa: PLC0415  an extra

    a, b = _factors(m, k, n)
    config = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}
    model = ov.Core().read_model(_model("MatMul", a, b, TensorProto.FLOAT))
    request = ov.Core().compile_model(model, "CPU", config).create_infer_request()
    return lambda: request.infer({"a": a}, share_inputs=True)  # given each time: it holds no reference


def _model(operator: str, a: NDArray[np.generic], b: NDArray[np.generic], out: int) -> bytes:
    """A graph of one product; `b` is in it, so that a runtime may pack it as it packs weights."""
    given = helper.make_tensor_value_info("a", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
    answer = helper.make_tensor_value_info("c", out, (a.shape[0], b.shape[1]))
    node = helper.make_node(operator, ["a", "b"], ["c"])
    graph = helper.make_graph([node], "product", [given], [answer], [numpy_helper.from_array(b, "b")])
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=9)
    written: bytes = model.SerializeToString()
    return written


def _session(
    operator: str, a: NDArray[np.generic], b: NDArray[np.generic], out: int
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        _model(operator, a, b, out), options, providers=["CPUExecutionProvider"]
    )


KINDS: dict[str, Make] = {
    "fp32, NumPy": with_numpy,
    "fp32, ONNX Runtime": with_onnx_runtime,
    "int8, ONNX Runtime": with_integers,
    "bf16, OpenVINO": with_openvino_bf16,
}


def peaks(count: int) -> list[Gemm]:
    """The products of every kind that the processor and the installed packages can do."""
    found = []
    for name, make in KINDS.items():
        try:
            found.append(Gemm(f"GEMM {name}", make, count))
        except (ImportError, FormUnavailable):
            continue
    return found
