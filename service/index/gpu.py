"""The inverted lists of a base on a GPU: one thread owns all memory there.

    a search ─▶ GpuIndex.candidates() ─▶ queue ─▶ GpuThread ─▶ FAISS on the GPU ─▶ candidates

GPU indexes of FAISS are not thread safe, not even to search. So only this thread touches them: it copies
lists there, searches them, and frees them when their segment is gone.

What comes back is candidates alone; the segment scores them by its own vectors (ivf.py), so a score
is the same wherever they were found. There is always the copy in main memory: whatever a GPU cannot do, or
fails to do, is done on that one.
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
Lists: TypeAlias = Any  # an index of inverted lists; FAISS's stubs know of none on a GPU
Copy: TypeAlias = Callable[[Lists], Lists]

CPU = "cpu"
FAILURES = (RuntimeError, MemoryError)  # what FAISS raises when CUDA complains, or memory is short
LIMIT = 2048  # the most candidates, and lists to look through, that FAISS on a GPU takes
SCRATCH_BYTES = 256 * 2**20  # for intermediate results; FAISS would take 1.5 GB of most GPUs
COPY_SECONDS, SEARCH_SECONDS = 600.0, 10.0  # then it hangs; a search of a million rows takes milliseconds


def find(wanted: str) -> int | None:
    """The number of the GPU that `SIMILE_INDEX_DEVICE` asks for; None for the CPU.

    Raises:
        StartupError: there is no such GPU, or this FAISS has no part for one.

    """
    if wanted == CPU:
        return None
    name = f"{PREFIX}INDEX_DEVICE={wanted}"
    if not hasattr(faiss, "StandardGpuResources"):
        raise StartupError(
            f"{name}: the FAISS that is installed has no GPU part. Make a new virtual environment with the "
            f"extra gpu (docs/GPU.md), or unset {PREFIX}INDEX_DEVICE."
        )
    number, count = int(wanted.partition(":")[2] or 0), faiss.get_num_gpus()
    if number >= count:
        found = f"{count} GPU{'s' * (count > 1)}, numbered from 0" if count else "no GPU"
        raise StartupError(
            f"{name}: FAISS finds {found}. Look at nvidia-smi and CUDA_VISIBLE_DEVICES, ask for another, or "
            f"unset {PREFIX}INDEX_DEVICE."
        )
    return number


def open_gpu(wanted: str) -> "GpuThread | None":
    """Open the GPU that `SIMILE_INDEX_DEVICE` asks for; None for the CPU.

    Raises:
        StartupError: as `find`, or it cannot be used.

    """
    number = find(wanted)
    if number is None:
        return None
    try:
        return GpuThread(f"cuda:{number}", partial(_on_gpu, number))
    except RuntimeError as error:
        raise StartupError(f"{PREFIX}INDEX_DEVICE={wanted} cannot be used: {_first_line(error)}") from error


def _on_gpu(number: int) -> Copy:
    """Return the function that copies lists to a GPU; only the calling thread may use it."""
    swig: Any = faiss
    resources = swig.StandardGpuResources()
    resources.setTempMemory(SCRATCH_BYTES)
    options = swig.GpuClonerOptions()
    options.use_cuvs = False  # it has no lists of scalar codes, and other limits
    return lambda lists: swig.index_cpu_to_gpu(resources, number, lists, options)


class GpuThread:
    """A thread, and everything that lies on one device."""

    def __init__(self, name: str, open: Callable[[], Copy]) -> None:
        """open: gives what puts lists on the device; called on the thread, as everything is.

        Raises:
            RuntimeError: the device cannot be used.

        """
        self.name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._held: dict[int, Lists] = {}  # the thread's
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
        """A copy of `lists` on the device; None, and a warning, when there is no room for one."""
        number = next(self._numbers)

        def copy() -> None:
            self._held[number] = self._copy(lists)

        try:
            self._do(copy, COPY_SECONDS)
        except FAILURES as error:
            self.free(number)
            log.warning(
                "The base of the index is not on %s but searched on the CPU, until it is made anew: %s",
                self.name,
                _first_line(error),
            )
            return None
        return GpuIndex(self, number)

    def search(self, number: int, queries: Vectors, k: int, probes: int) -> Positions:
        """See `GpuIndex.candidates`; raises whatever went wrong."""
        swig: Any = faiss

        def search() -> Positions:
            found: Positions = self._held[number].search(
                queries, k, params=swig.SearchParametersIVF(nprobe=probes)
            )[1]
            return found

        return self._do(search, SEARCH_SECONDS)

    def free(self, number: int) -> None:
        """Forget a copy, once everything that was asked of it is done."""
        self._jobs.put(lambda: self._held.pop(number, None))

    def close(self) -> None:
        """Free everything; from now on nothing is found here."""
        self._closed = True
        self._jobs.put(None)
        self._thread.join(SEARCH_SECONDS)

    def _do(self, work: Callable[[], T], seconds: float) -> T:
        future: Future[T] = Future()

        def job() -> None:
            try:
                future.set_result(work())
            except Exception as error:  # noqa: BLE001  the caller's to deal with; the thread lives on
                # Its frames have lists in hand, and these must die here.
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
    """Lists on a device, freed when the last reference to this is gone."""

    def __init__(self, gpu: GpuThread, number: int) -> None:
        self.broken = False  # it failed once, and is asked no more
        self._gpu, self._number = gpu, number
        weakref.finalize(self, gpu.free, number)

    @property
    def device(self) -> str:
        """The device that is searched."""
        return CPU if self.broken else self._gpu.name

    def candidates(self, queries: Vectors, k: int, probes: int) -> Positions | None:
        """The best `k` rows of the `probes` lists nearest to each query: positions (q, k), best first.

        -1 where these lists have no more rows. None: look for them on the CPU, since that is more than a GPU
        does at once, or it failed.
        """
        if self.broken or max(k, probes) > LIMIT:
            return None
        try:
            return self._gpu.search(self._number, queries, k, probes)
        except FAILURES as error:
            if not self.broken:
                self.broken = True
                log.warning(
                    "%s failed; the base of the index is searched on the CPU until it is made anew: %s",
                    self._gpu.name,
                    _first_line(error),
                )
            return None


def _first_line(error: Exception) -> str:
    """The first line of a FAISS error, without the place in its code."""
    return re.sub(r"^Error in .*?: Error: ", "", str(error), flags=re.DOTALL).partition("\n")[0][:300]
