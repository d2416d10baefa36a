"""Engines on an ONNX file as plain calls, of one thread each but for a lone text's: feed in, vectors out."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.form import FP32
from models.engines.onnx import OnnxEngine

OUTPUT = "sentence_embedding"

Feed = dict[str, NDArray[np.int64]]
Call = Callable[[Feed], NDArray[np.float32]]


def onnx_runtime(file: Path, count: int) -> tuple[list[Call], list[str]]:
    """`count` single-thread sessions, and the names of the inputs that they take."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        for _ in range(count)
    ]

    def call(session: onnxruntime.InferenceSession) -> Call:
        return lambda feed: np.asarray(session.run([OUTPUT], feed)[0])

    return [call(session) for session in sessions], [given.name for given in sessions[0].get_inputs()]


def together(file: Path, threads: int) -> tuple[Call, list[str]]:
    """The service's session for a lone text, which sleeps and wakes as there."""
    engine = OnnxEngine(file, FP32, 1)
    if threads > 1:
        engine = engine.again(threads)
    return lambda feed: engine.run(feed, OUTPUT), engine.inputs


def openvino(file: Path, count: int, precision: str) -> tuple[list[Call], list[str]]:
    """`count` single-thread compiled models; `precision` is OpenVINO's word. Raises ImportError."""
    import openvino as ov  # noqa: PLC0415  an extra

    core = ov.Core()
    config: dict[str, Any] = {
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": 1,
        "NUM_STREAMS": 1,
        "ENABLE_CPU_PINNING": False,  # else every model takes the same processor
    }
    whole = core.read_model(str(file))
    # What is not asked for would be computed and written all the same.
    wanted = [output.node for output in whole.outputs if OUTPUT in output.get_names()]
    model = ov.Model(wanted, whole.get_parameters(), "raw")
    compiled = [core.compile_model(model, "CPU", config) for _ in range(count)]

    def call(one: Any) -> Call:
        request = one.create_infer_request()
        return lambda feed: np.array(request.infer(feed, share_inputs=True)[0], np.float32)

    return [call(one) for one in compiled], [given.any_name for given in compiled[0].inputs]
