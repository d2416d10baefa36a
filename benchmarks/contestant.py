"""Contestants, scenarios and measurements: the shape that engines, servers and libraries share.

    scenario ─▶ contestant.measure(scenario, turn) ─▶ Measured

A rate is in texts of the workload's mean length: tokens done by the seconds and the mean, so that a short
window of a long tail does not count by which texts fell into it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.workloads import Workload

CONTENDED = 0.15  # share of the machine that others may use before a measurement counts for nothing

Vectors = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload and how it is given: `clients` with `texts` in each request, or all at once (no clients)."""

    name: str
    workload: Workload
    clients: int = 0
    texts: int = 0
    seconds: float = 4.0  # of one measurement, about


@dataclass(frozen=True, slots=True)
class Measured:
    """A measurement. Latencies are of requests, in milliseconds; None where there are none."""

    rate: float  # texts a second; of a matrix product GFLOP a second
    foreign: float  # share of all processors that others used, 0 to 1
    cpu_ms: float | None = None  # of the contestant's process, for each text
    p50_ms: float | None = None
    p99_ms: float | None = None
    longest_p99_ms: float | None = None  # of the longest tenth of the texts
    client_us: float | None = None  # CPU time of the load generator for each request

    @property
    def contended(self) -> bool:
        return self.foreign > CONTENDED


class Contestant(Protocol):
    """Anything that takes its turn."""

    name: str

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Once. `turn` is another number each time. Raises BenchError."""
        ...


class Embedder(Contestant, Protocol):
    """A contestant whose vectors can be compared with others'."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension)."""
        ...

    def about(self) -> dict[str, Any]:
        """Its start, its versions, its memory in MiB: for the report."""
        ...
