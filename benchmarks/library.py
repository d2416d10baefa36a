"""A library in a process and an environment of its own (peers/encode.py), given all texts in one call."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contestant import Measured, Scenario, Vectors
from benchmarks.machine import Watch, memory_mb
from benchmarks.process import Process
from benchmarks.workloads import PROJECT

SIZES = (8, 32, 128)  # texts of a batch, tried
TRIED = 128  # texts that they are tried on
LEAST_TEXTS = 128  # of one measurement
SCRIPT = PROJECT / "benchmarks" / "peers" / "encode.py"


class Library(Process):
    """A way of encoding; up until `close`."""

    def __init__(
        self,
        name: str,
        way: str,
        python: Path,
        folder: Path,
        environment: dict[str, str],
        sizes: Sequence[int] = SIZES,
    ) -> None:
        """Begin to load it; the first order waits for the end. sizes: texts of a batch, to choose from."""
        # -P: else its imports would find the modules beside the script
        command: list[str | Path] = [python, "-P", SCRIPT, way, folder]
        super().__init__(name, command, env=environment, piped=True)
        self._tried = sizes
        self._told: dict[str, Any] = {}
        self._sizes: dict[str, tuple[int, int]] = {}  # of a batch, and of a measurement, by workload

    def ready(self) -> None:
        """Wait until it is loaded. Raises BenchError."""
        self._told = self.answer()["packages"]

    def about(self) -> dict[str, Any]:
        sizes = {name: size for name, (size, _) in self._sizes.items()}
        return {"packages": self._told, "texts of a batch": sizes, "memory_mb": memory_mb(self.pid)}

    def vectors(self, texts: Sequence[str]) -> Vectors:
        answer = self.order(texts=list(texts), size=self._tried[1], vectors=True)
        found = np.frombuffer(base64.b64decode(answer["vectors"]), np.float32)
        return found.reshape(len(texts), -1)

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """A stretch of the texts that takes about the scenario's seconds, another one each turn."""
        workload = scenario.workload
        if workload.name not in self._sizes:
            self._sizes[workload.name] = self._choose(scenario)
        size, count = self._sizes[workload.name]
        rows = [(turn * count + at) % len(workload.texts) for at in range(count)]
        watch = Watch({"peer": self.pid})
        answer = self.order(texts=[workload.texts[row] for row in rows], size=size, vectors=False)
        window = watch.window()
        texts = sum(len(workload.ids[row]) for row in rows) / workload.mean_tokens
        cpu_ms = 1000 * window.cpu_seconds["peer"] / texts
        return Measured(texts / answer["seconds"], window.foreign, cpu_ms)

    def _choose(self, scenario: Scenario) -> tuple[int, int]:
        """The size of its batches that is fastest here, and how many texts it encodes in the time."""
        some = scenario.workload.texts[:TRIED]
        seconds = self.order(**{"try": some, "sizes": self._tried})["seconds"]
        best = min(seconds, key=seconds.__getitem__)
        wanted = int(scenario.seconds * len(some) / seconds[best])
        return int(best), min(max(wanted, LEAST_TEXTS), len(scenario.workload.texts))
