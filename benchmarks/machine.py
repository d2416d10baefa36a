"""Measure the machine: hardware, CPU time of the measured and all other processes, and memory over time.

    Watch ── work ── window() ──▶ Window: seconds, CPU seconds of each measured process, foreign share

The foreign load is the CPU time of all processes that are not measured, including time that a hypervisor
stole. Figures from a shared machine are useful only together with the foreign load. The module reads /proc,
so it needs Linux.
"""

import os
import platform
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from models import cpus

PACKAGES = (
    *("onnxruntime", "onnxruntime-gpu", "faiss-cpu", "faiss-gpu", "numpy", "tokenizers"),
    *("fastapi", "uvicorn", "uvloop", "orjson"),
)
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
IDLE_FIELDS = (3, 4)  # idle and iowait, in the `cpu` line of /proc/stat
GUEST_FIELDS = slice(8, None)  # already counted in user time
SYNCS = 50


@dataclass(frozen=True, slots=True)
class Window:
    """A period of time and the CPU seconds that processes used in it.

    Attributes:
        seconds: Length of the period.
        cpu_seconds: CPU seconds of each measured process, by its name.
        foreign: Share of all processors that other processes used, 0 to 1.

    """

    seconds: float
    cpu_seconds: dict[str, float]
    foreign: float

    def foreign_without(self, cpu_seconds: float) -> float:
        """Return `foreign` after subtracting `cpu_seconds`, of separately measured processes."""
        return max(0.0, self.foreign - cpu_seconds / (self.seconds * processors()))


class Watch:
    """Measures the CPU time of named processes and of all other processes, from its creation on.

    Attributes:
        began: Time of creation, by `time.monotonic()`.

    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Start counting.

        Args:
            pids: The measured processes by name.

        Raises:
            OSError: A process has ended. `window` raises it as well.

        """
        self._pids = pids
        self.began = time.monotonic()
        self._busy, self._own = self._read()

    def window(self) -> Window:
        """Return the period since creation with its CPU times."""
        seconds = time.monotonic() - self.began
        busy, used = self._read()
        own = {name: used[name] - self._own[name] for name in used}
        foreign = (busy - self._busy - sum(own.values())) / (seconds * processors())
        return Window(seconds, own, max(0.0, foreign))  # clock ticks are rounded, so it may be below zero

    def _read(self) -> tuple[float, dict[str, float]]:
        """Return the CPU seconds of the machine since boot, and of each measured process since its start."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = sum(fields) - sum(fields[at] for at in IDLE_FIELDS) - sum(fields[GUEST_FIELDS])
        own = {name: process_seconds(pid) for name, pid in self._pids.items()}
        return busy / TICKS_PER_SECOND, own


def process_seconds(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads."""
    return _cpu_seconds(Path(f"/proc/{pid}/stat"))


def main_thread_seconds(pid: int) -> float:
    """Return the CPU seconds of a process's first thread, which runs the event loop of a service."""
    return _cpu_seconds(Path(f"/proc/{pid}/task/{pid}/stat"))


def _cpu_seconds(stat: Path) -> float:
    # The second field is the program's name in brackets. It may contain spaces.
    fields = stat.read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def processors() -> int:
    """Return the number of the machine's processors, even if this process may use fewer."""
    return os.cpu_count() or 1


def memory_mb(pid: int) -> dict[str, float]:
    """Return the resident memory of a process in MiB. "own" excludes mapped files; "peak" is the maximum."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    keys = {"now": "VmRSS", "peak": "VmHWM", "own": "RssAnon"}
    return {name: int(lines[key].split()[0]) / 1024 for name, key in keys.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory, open files and threads of a process at the time `at` of `time.monotonic()`.

    Attributes:
        tasks: Number of asyncio tasks, or 0 if the caller does not know it.

    """

    at: float
    rss_mb: float
    files: int
    threads: int
    tasks: int = 0


def take_sample(pid: int, tasks: int = 0) -> Sample:
    """Measure a process once. Raises OSError if the process has ended."""
    process = Path(f"/proc/{pid}")
    return Sample(
        time.monotonic(),
        memory_mb(pid)["now"],
        len(os.listdir(process / "fd")),  # noqa: PTH208  iterdir would create a Path for each
        len(os.listdir(process / "task")),  # noqa: PTH208
        tasks,
    )


@contextmanager
def sampling(pid: int, seconds: float) -> Iterator[list[Sample]]:
    """Append a sample of a process every `seconds` to the yielded list, until the `with` block ends."""
    samples: list[Sample] = []
    with repeating(seconds, lambda: samples.append(take_sample(pid))):
        yield samples


@contextmanager
def repeating(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Call `act` every `seconds` in a thread of its own, until the `with` block ends."""
    stop = threading.Event()

    def run() -> None:
        while not stop.wait(seconds):
            act()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def thirds(samples: Sequence[Sample]) -> list[list[Sample]]:
    """Split samples, in order of time, into three parts of equal duration. The first is the warm-up."""
    begin, end = samples[0].at, samples[-1].at
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(2, int(3 * (sample.at - begin) / (end - begin)))].append(sample)
    return parts


def memory_growth(samples: Sequence[Sample]) -> float:
    """Return the median memory of the last third divided by the median of the second third."""
    second, last = (statistics.median(sample.rss_mb for sample in part) for part in thirds(samples)[1:])
    return last / second


def describe(folder: Path) -> dict[str, Any]:
    """Return a description of the machine and the package versions. Measures the disk that holds `folder`."""
    installed = {one.name: one.version for one in distributions()}
    facts = cpus.facts()
    name, family = facts.get("model name", platform.machine()), facts.get("cpu family")
    return {
        "cpu": f"{name} (family {family}, model {facts.get('model')})" if family else name,
        "processors": processors(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "sync_ms": round(_sync_ms(folder), 2),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
    }


def summarize(date: str, described: Mapping[str, Any]) -> str:
    """Return the result of `describe` as a line of text."""
    versions = ", ".join(f"{name} {number}" for name, number in described["packages"].items())
    return (
        f"{date[:10]}, {described['processors']} processors of {described['cpu']}, "
        f"{described['memory_gb']} GB, {described['system']}, one fsync {described['sync_ms']} ms; "
        f"Python {described['python']}, {versions}"
    )


def _sync_ms(folder: Path) -> float:
    """Return the median milliseconds of one fsync. A value near zero means that writes never reach a disk."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return sorted(times)[SYNCS // 2] * 1000
