"""ONNX Runtime on the processor: fp32, in which every version is proved, and int8."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.form import Form
from models.graph.file import read_table

# A thread of a lone text's pass looks so long for the next product before it sleeps: waking it takes longer.
SPIN_MICROSECONDS = 20
Shared = dict[str, onnxruntime.OrtValue]  # tensors of the graph, by name


class OnnxEngine:
    """With threads=1 each call computes on the thread that makes it."""

    def __init__(self, file: Path, form: Form, threads: int, beside: OnnxEngine | None = None) -> None:
        """beside: another engine on the same file, whose vectors of the vocabulary this one uses, too."""
        self.form = form
        self._file = file
        # Half of what a session of a small encoder holds, and only ever read.
        self._shared: Shared = _shared(file) if beside is None else beside._shared  # noqa: SLF001
        spin = 0 if beside is None else SPIN_MICROSECONDS
        self._session = _open_session(file, threads, self._shared, spin)
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.providers: list[str] = self._session.get_providers()

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        held = self._shared, self._session  # the session reads the shared tensors and does not own them
        found: NDArray[np.float32] = held[1].run([output], feed)[0]
        return found

    def again(self, threads: int) -> OnnxEngine:
        """The same graph once more, `threads` computing each call together: for one call at a time."""
        return OnnxEngine(self._file, self.form, threads, beside=self)

    def close(self) -> None:
        """A call that runs meanwhile ends as if nothing had happened; one that comes later fails."""
        del self._session  # first: who finds it has found the tensors, too
        self._shared = {}


def _shared(file: Path) -> Shared:
    table = read_table(file)
    return {} if table is None else {table.name: onnxruntime.OrtValue.ortvalue_from_numpy(table.values)}


def _open_session(
    file: Path, threads: int, shared: Shared, spin_microseconds: int
) -> onnxruntime.InferenceSession:
    """`shared`: tensors of the graph that the session is not to have for itself."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_mem_pattern = False  # it keeps a plan for every shape it ever saw, and was not faster
    options.log_severity_level = 3  # errors; its warnings are about fusions that it could not do
    if spin_microseconds:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_microseconds))
        options.add_session_config_entry("session.force_spinning_stop", "1")  # at the end of a call
    else:  # spinning threads take a core from their neighbours while they wait, and were not faster
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in shared.items():
        options.add_initializer(name, value)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
