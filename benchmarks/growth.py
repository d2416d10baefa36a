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


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory, files and threads of a process at one moment."""

    at: float  # time.monotonic()
    rss_mb: float
    files: int
    threads: int
    tasks: int = 0  # of asyncio, where they are asked for


def flatness(samples: Sequence[Sample]) -> float:
    """The median memory of the last third over that of the second."""
    second, last = (statistics.median(sample.rss_mb for sample in part) for part in thirds(samples)[1:])
    return last / second


def thirds(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The samples by thirds of the time between the first and the last."""
    begin, end = samples[0].at, samples[-1].at
    parts: list[list[Sample]] = [[], [], []]
    for sample in samples:
        parts[min(2, int(3 * (sample.at - begin) / (end - begin)))].append(sample)
    return parts


def look(pid: int, tasks: int = 0) -> Sample:
    """Raises OSError when the process is gone."""
    process = Path(f"/proc/{pid}")
    return Sample(
        monotonic(),
        memory_mb(pid)["now"],
        len(os.listdir(process / "fd")),  # noqa: PTH208  iterdir would make a Path of each
        len(os.listdir(process / "task")),  # noqa: PTH208
        tasks,
    )


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
