"""Computes graphs with ONNX Runtime on the CPU, in fp32 or int8. Publishing verifies the fp32 graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.form import Form
from models.graph.file import read_table

# Threads of a single text's pass spin this long before they sleep, because waking them takes longer.
SPIN_MICROSECONDS = 20
Shared = dict[str, onnxruntime.OrtValue]  # Tensors of the graph by name.


class OnnxEngine:
    """Computes a graph with ONNX Runtime on the CPU. With threads=1, calls compute on the calling thread.

    Args:
        file: The ONNX file.
        threads: Threads that share each call.
        beside: Another engine on the same file. The new engine shares its word table, and is for single
            texts: its threads spin briefly while they wait.
        arena: If true, all calls share the runtime's memory arena. Otherwise the C library allocates memory.
    """

    def __init__(
        self, file: Path, form: Form, threads: int, beside: OnnxEngine | None = None, *, arena: bool = True
    ) -> None:
        self.form = form
        self._file = file
        # The word table is half the memory of a small encoder, and read-only.
        self._shared: Shared = _shared(file) if beside is None else beside._shared  # noqa: SLF001
        spin = 0 if beside is None else SPIN_MICROSECONDS
        self._session = _open_session(file, threads, self._shared, spin, arena=arena)
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.outputs = [given.name for given in self._session.get_outputs()]
        self.providers: list[str] = self._session.get_providers()

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        held = self._shared, self._session  # The session does not keep the shared tensors alive.
        found: NDArray[np.float32] = held[1].run([output], feed)[0]
        return found

    def again(self, threads: int) -> OnnxEngine:
        """Opens the same graph in a second engine, for one call at a time on `threads` threads."""
        return OnnxEngine(self._file, self.form, threads, beside=self)

    def close(self) -> None:
        """Frees the memory. Calls in progress finish; later calls fail."""
        del self._session  # First, because `run` reads the tensors before the session.
        self._shared = {}


def _shared(file: Path) -> Shared:
    table = read_table(file)
    return {} if table is None else {table.name: onnxruntime.OrtValue.ortvalue_from_numpy(table.values)}


def _open_session(
    file: Path, threads: int, shared: Shared, spin_microseconds: int, *, arena: bool
) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.enable_cpu_mem_arena = arena
    options.enable_mem_pattern = False  # It would keep a plan for every shape, and was not faster.
    options.log_severity_level = 3  # Errors only. Warnings are about impossible fusions.
    if spin_microseconds:
        options.add_session_config_entry("session.intra_op.spin_duration_us", str(spin_microseconds))
        options.add_session_config_entry("session.force_spinning_stop", "1")  # at the end of a call
    else:  # Spinning threads occupy cores while they wait, and were not faster.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    for name, value in shared.items():
        options.add_initializer(name, value)
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
