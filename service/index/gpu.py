"""Searches the inverted lists of an index's base on a GPU. One thread owns all GPU memory.

    a search ─▶ GpuIndex.candidates() ─▶ queue ─▶ GpuThread ─▶ FAISS on the GPU ─▶ candidates

FAISS's GPU indexes are not thread-safe, not even for searches. The GPU returns only candidates. The segment
computes their scores from vectors in main memory (ivf.py), so scores do not depend on the device. The lists
are in main memory as well, for searches that the GPU cannot do.
"""

import itertools
import logging
import queue
import re
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeAlias, TypeVar

import faiss

from service.errors import StartupError
from service.index.segments import Positions, Vectors
from service.settings import PREFIX

log = logging.getLogger(__name__)

T = TypeVar("T")
Lists: TypeAlias = Any  # An index of inverted lists. FAISS's type stubs have none for GPUs.
Copy: TypeAlias = Callable[[Lists], Lists]

CPU = "cpu"
FAILURES = (RuntimeError, MemoryError)  # FAISS's errors if CUDA fails or memory is short
LIMIT = 2048  # FAISS's limit of candidates, and of lists per search, on a GPU
SCRATCH_BYTES = 256 * 2**20  # For intermediate results. FAISS would use 1.5 GB on most GPUs.
COPY_SECONDS, SEARCH_SECONDS = 600.0, 10.0  # Time limits. A search of a million rows takes milliseconds.


def find(device: str) -> int | None:
    """Returns the number of the GPU in a value of `SIMILE_INDEX_DEVICE`. Returns None for the CPU.

    Raises:
        StartupError: The GPU does not exist, or this build of FAISS does not support GPUs.
    """
    if device == CPU:
        return None
    name = f"{PREFIX}INDEX_DEVICE={device}"
    if not hasattr(faiss, "StandardGpuResources"):
        raise StartupError(
            f"{name}: the installed FAISS does not support GPUs. Make a new virtual environment with the "
            f"extra gpu (docs/GPU.md), or unset {PREFIX}INDEX_DEVICE."
        )
    number, count = int(device.partition(":")[2] or 0), faiss.get_num_gpus()
    if number >= count:
        found = f"{count} GPU{'s' * (count > 1)}, numbered from 0" if count else "no GPU"
        raise StartupError(
            f"{name}: FAISS finds {found}. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, ask for another, or "
            f"unset {PREFIX}INDEX_DEVICE."
        )
    return number


def open_gpu(device: str) -> "GpuThread | None":
    """Opens the GPU that a value of `SIMILE_INDEX_DEVICE` names. Returns None for the CPU.

    Raises:
        StartupError: The GPU does not exist or cannot be used.
    """
    number = find(device)
    if number is None:
        return None
    try:
        return GpuThread(f"cuda:{number}", partial(_on_gpu, number))
    except RuntimeError as error:
        raise StartupError(f"{PREFIX}INDEX_DEVICE={device} cannot be used: {_first_line(error)}") from error


def _on_gpu(number: int) -> Copy:
    """Returns a function that copies lists to the GPU `number`.

    Only the calling thread may use the function.
    """
    swig: Any = faiss
    resources = swig.StandardGpuResources()
    resources.setTempMemory(SCRATCH_BYTES)
    options = swig.GpuClonerOptions()
    options.use_cuvs = False  # cuVS does not support lists of scalar codes.
    return lambda lists: swig.index_cpu_to_gpu(resources, number, lists, options)


class GpuThread:
    """A thread that owns all lists on one device.

    Args:
        name: Name of the device, for messages.
        open: Called on the thread. Returns a function that copies lists to the device.

    Raises:
        RuntimeError: The device cannot be used.
    """

    def __init__(self, name: str, open: Callable[[], Copy]) -> None:
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._held: dict[int, Lists] = {}  # Only the thread uses it.
        self._numbers = itertools.count()
        self._copy: Copy
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="index-device", daemon=True)
        self._thread.start()

        def opened() -> None:
            self._copy = open()

        try:
            self._do(opened, COPY_SECONDS)
        except FAILURES:
            self.close()
            raise

    def place(self, lists: Lists) -> "GpuIndex | None":
        """Copies `lists` to the device. If this fails, logs a warning and returns None."""
        number = next(self._numbers)

        def copy() -> None:
            self._held[number] = self._copy(lists)

        try:
            self._do(copy, COPY_SECONDS)
        except FAILURES as error:
            self.free(number)
            log.warning(
                "The base of the index is not on %s and is searched on the CPU until it is rebuilt: %s",
                self.name,
                _first_line(error),
            )
            return None
        return GpuIndex(self, number)

    def search(self, number: int, queries: Vectors, k: int, probes: int) -> Positions:
        swig: Any = faiss

        def search() -> Positions:
            params = swig.SearchParametersIVF(nprobe=probes)
            found: Positions = self._held[number].search(queries, k, params=params)[1]
            return found

        return self._do(search, SEARCH_SECONDS)

    def free(self, number: int) -> None:
        self._jobs.put(lambda: self._held.pop(number, None))

    def close(self) -> None:
        self._closed = True
        self._jobs.put(None)
        self._thread.join(SEARCH_SECONDS)

    def _do(self, work: Callable[[], T], seconds: float) -> T:
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  the caller handles it, and the thread continues
                # The traceback's frames refer to lists, which only this thread may free.
                future.set_exception(error.with_traceback(None))

        if self._closed:
            raise RuntimeError(f"{self.name} is closed")
        self._jobs.put(job)
        try:
            return future.result(seconds)
        except TimeoutError as error:
            raise RuntimeError(f"{self.name} has not answered for {seconds:.0f} seconds") from error

    def _run(self) -> None:
        faiss.omp_set_num_threads(1)
        while (job := self._jobs.get()) is not None:
            job()
        self._held.clear()


class GpuIndex:
    """Inverted lists on a device. The device memory is freed when this object is garbage collected."""

    def __init__(self, gpu: GpuThread, number: int) -> None:
        self.broken = False  # The device failed once and is not used again.
        self._gpu, self._number = gpu, number
        weakref.finalize(self, gpu.free, number)

    @property
    def device(self) -> str:
        return CPU if self.broken else self._gpu.name

    def candidates(self, queries: Vectors, k: int, probes: int) -> Positions | None:
        """Finds the best `k` rows in the `probes` lists nearest to each query.

        Returns:
            Positions of rows, shape (q, k), best first, padded with -1. None if the GPU failed or its limits
            are exceeded; the CPU must then search.
        """
        if self.broken or max(k, probes) > LIMIT:
            return None
        try:
            return self._gpu.search(self._number, queries, k, probes)
        except FAILURES as error:
            if not self.broken:
                self.broken = True
                log.warning(
                    "%s failed; the base of the index is searched on the CPU until it is rebuilt: %s",
                    self._gpu.name,
                    _first_line(error),
                )
            return None


def _first_line(error: Exception) -> str:
    return re.sub(r"^Error in .*?: Error: ", "", str(error), flags=re.DOTALL).partition("\n")[0][:300]
