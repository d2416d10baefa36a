"""Memory, files, threads and tasks of a process as time passes, and a test that its memory is flat.

    samples ─▶ three thirds ─▶ the first is warming up; the last is held against the second

Reads /proc, so Linux only.
"""

import os
import statistics
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from benchmarks.machine import memory_mb
from benchmarks.server import call

TASKS = "simile_tasks "  # the series, where the service has it


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory, files and threads of a process at one moment."""

    at: float  # time.monotonic()
    rss_mb: float
    files: int
    threads: int


@dataclass(frozen=True, slots=True)
class Flatness:
    """Memory of the last two thirds of a run."""

    second_mb: float  # median of the second third
    last_mb: float  # and of the last

    @property
    def ratio(self) -> float:
        return self.last_mb / self.second_mb


def flatness(samples: Sequence[Sample]) -> Flatness:
    """Thirds of the time between the first sample and the last; each third must have some."""
    second, last = thirds(samples)[1:]
    return Flatness(
        statistics.median(sample.rss_mb for sample in second),
        statistics.median(sample.rss_mb for sample in last),
    )


def thirds(samples: Sequence[Sample]) -> list[list[Sample]]:
    begin, end = samples[0].at, samples[-1].at
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(2, int(3 * (sample.at - begin) / (end - begin)))].append(sample)
    return parts


def look(pid: int) -> Sample:
    """Raises OSError when the process is gone."""
    process = Path(f"/proc/{pid}")
    return Sample(
        monotonic(),
        memory_mb(pid)["now"],
        len(os.listdir(process / "fd")),  # noqa: PTH208  iterdir would make a Path of each
        len(os.listdir(process / "task")),  # noqa: PTH208
    )


def tasks(port: int) -> int | None:
    """Asyncio tasks of the service, None where it does not tell. Raises ServerError."""
    for line in call(port, "GET", "/metrics").splitlines():
        if line.startswith(TASKS):
            return int(float(line.removeprefix(TASKS)))
    return None


class Sampler:
    """Looks at a process every so many seconds, on a thread of its own, while it is `on`."""

    def __init__(self, pid: int, seconds: float) -> None:
        self.samples: list[Sample] = []
        self.on = threading.Event()
        self._pid = pid
        self._seconds = seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> list[Sample]:
        self._stop.set()
        self._thread.join()
        return self.samples

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            if self.on.is_set():
                self.samples.append(look(self._pid))
