"""Computes with ONNX Runtime on an NVIDIA GPU.

    published fp32 graph ─▶ fused ─▶ fp16, or left in fp32 ─▶ session     in memory, when a version is opened

    batch ─▶ a rounded shape ─▶ uploaded once ─▶ session ─▶ (rows, dimension) ─▶ float32
                  ▲                                │   └─ a row that is not finite: again, in fp32
                  └──────── in halves ◀────────────┘ out of memory

Only pooled vectors leave the device.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.form import Form, Precision
from models.engines.gpu_graph import prepared
from models.engines.nvidia import CUDA, Halving, Provider, open_session
from models.engines.shapes import MASK, padded

log = logging.getLogger(__name__)

RECOMPUTED = (
    "texts so far had no finite vector in fp16 and were computed again in fp32. If this happens often, "
    "SIMILE_PRECISION=fp32 is faster."
)
WARM_SIZES = (512, 256, 128, 64, 32, 16, 8, 4, 2, 1)  # rows, and tokens of a row
WARM_TOKENS = 16_384  # of a batch
Feed = Mapping[str, NDArray[np.int64]]
Vectors = NDArray[np.float32]


class CudaEngine:
    """Computes a version's graph on an NVIDIA GPU, in fp32 or fp16.

    Raises:
        DeviceUnavailable: The provider or its device is missing.
        Unsupported: The graph cannot be computed in fp16, or is too large.
    """

    def __init__(self, file: Path, precision: Precision, provider: Provider, longest: int) -> None:
        self.form = Form(precision, "onnxruntime-cuda")
        self._file = file
        self._provider = provider
        self._longest = longest
        self._session = open_session(prepared(file, precision), provider)
        self._exact: onnxruntime.InferenceSession | None = None  # fp32, opened when a row needs it
        self._opening = threading.Lock()
        self._halving = Halving()
        self._recomputed = 0
        self.inputs = [given.name for given in self._session.get_inputs()]
        self.providers: list[str] = self._session.get_providers()
        if provider.name == CUDA:
            self._warm_up()

    def run(self, feed: Feed, output: str) -> Vectors:
        """Computes a batch. Raises DeviceMemory if not even a single row fits into the GPU's memory."""
        vectors = self._run(self._session, feed, output)
        if self.form.precision != "fp32":
            bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
            if len(bad):
                vectors[bad] = self._in_fp32({name: array[bad] for name, array in feed.items()}, output)
        return vectors

    def close(self) -> None:
        with self._opening:
            self._exact = None
        del self._session

    def _warm_up(self) -> None:
        """Computes batches of many shapes, the largest first, so that the memory pool grows only once.

        This also loads the kernels. CUDA loads a kernel at its first use, which stops the GPU.
        """
        output = self._session.get_outputs()[0].name
        for length in (size for size in WARM_SIZES if 8 <= size <= self._longest):
            for rows in (size for size in WARM_SIZES if size * length <= WARM_TOKENS):
                shape = rows, length
                self.run({name: np.full(shape, name == MASK, np.int64) for name in self.inputs}, output)

    def _run(self, session: onnxruntime.InferenceSession, feed: Feed, output: str) -> Vectors:
        def compute(part: slice) -> Vectors:
            return self._bound(session, {name: array[part] for name, array in feed.items()}, output)

        return self._halving.run(compute, *feed[MASK].shape)

    def _bound(self, session: onnxruntime.InferenceSession, feed: Feed, output: str) -> Vectors:
        _, _, device, number = self._provider
        binding = session.io_binding()
        for name, array in padded(feed, self._longest).items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(array, device, number)
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(output, device, number)
        session.run_with_iobinding(binding)
        vectors: Vectors = binding.copy_outputs_to_cpu()[0][: len(feed[MASK])]
        return vectors

    def _in_fp32(self, feed: Feed, output: str) -> Vectors:
        """Computes rows again that overflowed in fp16. If this fails, only these rows become NaN."""
        before, self._recomputed = self._recomputed, self._recomputed + len(feed[MASK])
        if len(str(before)) < len(str(self._recomputed)) or not before:  # Logs the 1st, 10th, 100th, … row.
            log.warning("%d %s", self._recomputed, RECOMPUTED)
        try:
            with self._opening:
                self._exact = self._exact or open_session(prepared(self._file, "fp32"), self._provider)
                session = self._exact
            return self._run(session, feed, output)
        except Exception:
            log.exception("Rows that overflowed in fp16 could not be computed in fp32")
            width = self._session.get_outputs()[0].shape[-1]
            return np.full((len(feed[MASK]), width), np.nan, np.float32)
