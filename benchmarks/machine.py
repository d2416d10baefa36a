"""The machine, and the use of its processors by the measured processes and by others.

    Watch ── work ── window() ──▶ Window: seconds, CPU seconds of each measured process, foreign share

Figures of a shared machine mean something only beside its foreign load: the CPU time of everybody who is not
measured, stolen time included. Reads /proc, so Linux only. Not here: what is measured.
"""

import os
import platform
import tempfile
import time
from collections.abc import Mapping
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
GUEST_FIELDS = slice(8, None)  # counted in user time already
SYNCS = 50


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, and the processor seconds that went by in it."""

    seconds: float
    cpu_seconds: dict[str, float]  # of each measured process, by its name
    foreign: float  # share of all processors that others used, 0 to 1

    def foreign_without(self, cpu_seconds: float) -> float:
        """The foreign share when so much of it is known to be of measured processes after all."""
        return max(0.0, self.foreign - cpu_seconds / (self.seconds * processors()))


class Watch:
    """The use of the processors from its beginning on: by `pids`, by their names, and by others."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        """Raises OSError when a process is gone, and so does `window`."""
        self._pids = pids
        self.began = time.perf_counter()
        self._busy, self._own = self._spent()

    def window(self) -> Window:
        """The use until now."""
        seconds = time.perf_counter() - self.began
        busy, spent = self._spent()
        own = {name: spent[name] - self._own[name] for name in spent}
        foreign = (busy - self._busy - sum(own.values())) / (seconds * processors())
        return Window(seconds, own, max(0.0, foreign))  # below zero only by the clock ticks' rounding

    def _spent(self) -> tuple[float, dict[str, float]]:
        """CPU seconds of everybody since the machine started, and of each process since it did."""
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = sum(fields) - sum(fields[at] for at in IDLE_FIELDS) - sum(fields[GUEST_FIELDS])
        own = {name: process_seconds(pid) for name, pid in self._pids.items()}
        return busy / TICKS_PER_SECOND, own


def process_seconds(pid: int) -> float:
    """CPU seconds of a process, all its threads."""
    # The second field is the program's name in brackets, and may hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def processors() -> int:
    """The processors that /proc/stat counts, however few this process may use."""
    return os.cpu_count() or 1


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory of a process: now, at its peak, and what of it is now no file's."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    keys = {"now": "VmRSS", "peak": "VmHWM", "own": "RssAnon"}
    return {name: int(lines[key].split()[0]) / 1024 for name, key in keys.items()}


def describe(folder: Path) -> dict[str, Any]:
    """The machine and the versions; `folder` is where the documents will lie."""
    installed = {one.name: one.version for one in distributions()}
    return {
        "cpu": _cpu(),
        "processors": processors(),
        "usable_processors": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "sync_ms": round(_sync_ms(folder), 2),
        "python": platform.python_version(),
        "packages": {name: installed[name] for name in PACKAGES if name in installed},
    }


def _cpu() -> str:
    facts = cpus.facts()
    name = facts.get("model name", platform.machine())
    family = facts.get("cpu family")
    return f"{name} (family {family}, model {facts.get('model')})" if family else name


def _sync_ms(folder: Path) -> float:
    """Median of what one fsync costs here: near zero where nothing reaches a disk."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(SYNCS):
            file.write(b"x" * 4096)
            started = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - started)
    return sorted(times)[SYNCS // 2] * 1000
