"""Compare the speed of several contestants (engines, servers, libraries) in repeated rounds of measurements.

    round 1:  raw, Simile, infinity, …     round 2:  …, infinity, Simile, raw     round 3:  raw, Simile, …

A round measures every contestant once in each of its scenarios. Every second round has the reverse order,
because a drift of the machine's speed must not favor a contestant. A measurement is contended if other
processes used much of the machine. Contended measurements are reported and excluded from the medians.

The ratio of two contestants is computed in each round, between measurements that are at most minutes apart.
The report has the median of these ratios. Changes of the machine's speed affect both measurements of a round,
so they cancel out.

Start reading at `Turns.run`. `compare_vectors` checks that the contestants compute the same vectors.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import BenchError, progress
from benchmarks.workloads import MAX_TOKENS, Workload

CONTENDED = 0.15  # foreign share of the machine above which a measurement is contended
TRIES = 2  # rounds are at most this many times the repeats
COMPARED = 500  # texts whose vectors are compared

Vectors = NDArray[np.float32]
Cell = tuple[str, str]  # names of a contestant and of a scenario


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload, and how the benchmark sends it to a contestant.

    Attributes:
        name: Name of the scenario in the report.
        workload: The texts.
        clients: Number of clients, which send without pause. 0 if one call gets all texts.
        texts: Number of texts in each request.
        seconds: Approximate length of one measurement.

    """

    name: str
    workload: Workload
    clients: int = 0
    texts: int = 0
    seconds: float = 4.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement. Latencies are in milliseconds per request, and None if no requests were sent.

    Attributes:
        rate: Texts per second, for texts of the workload's mean length. Computed from tokens, because a short
            window may contain texts of another mean length.
        foreign: Share of all processors that other processes used, 0 to 1.
        cpu_ms: CPU milliseconds per text of the contestant's process.

    """

    rate: float
    foreign: float
    cpu_ms: float | None = None
    p50_ms: float | None = None
    p99_ms: float | None = None

    @property
    def contended(self) -> bool:
        """True if other processes used too much of the machine."""
        return self.foreign > CONTENDED


class Contestant(Protocol):
    """An engine, a server or a library whose speed is compared with others."""

    name: str

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Measure a scenario once. `turn` is the number of the round.

        Raises:
            BenchError: The contestant failed.

        """
        ...


class Embedder(Contestant, Protocol):
    """A contestant whose vectors can be compared."""

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of texts, shape (n, dimension). Raises BenchError if the contestant failed."""
        ...

    def about(self) -> dict[str, Any]:
        """Return facts for the report, such as package versions, memory in MiB and seconds to start."""
        ...


@dataclass(frozen=True, slots=True)
class Job:
    """A contestant together with a scenario to measure.

    Attributes:
        essential: True if a failure ends the run. Failures of peers are only reported.

    """

    contestant: Contestant
    scenario: Scenario
    essential: bool

    @property
    def cell(self) -> Cell:
        """The key of this job's measurements: contestant name and scenario name."""
        return self.contestant.name, self.scenario.name


class Turns:
    """Runs jobs round by round.

    Attributes:
        cells: Measurements of each job, one entry per round. An entry is None if the job was not measured.
        broken: Names of contestants that failed, with the error message. They are left out afterwards.

    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self.rounds = 0
        self.cells: dict[Cell, list[Measured | None]] = {job.cell: [] for job in jobs}
        self.broken: dict[str, str] = {}

    def run(self, repeats: int) -> None:
        """Run rounds until each job has `repeats` measurements that are not contended.

        At most `TRIES` * `repeats` rounds are run.

        Raises:
            BenchError: An essential job failed.

        """
        while self.rounds < TRIES * repeats and (jobs := self._unfinished(repeats)):
            self._round(jobs)

    def _unfinished(self, repeats: int) -> list[Job]:
        """Return the jobs to measure again.

        If a job needs more measurements that are not contended, all jobs with the same workload run again,
        because ratios are computed within a round.
        """
        running = [job for job in self._jobs if job.contestant.name not in self.broken]
        unfinished = {
            job.scenario.workload.name
            for job in running
            if sum(one is not None and not one.contended for one in self.cells[job.cell]) < repeats
        }
        return [job for job in running if job.scenario.workload.name in unfinished]

    def _round(self, jobs: Sequence[Job]) -> None:
        done: dict[Cell, Measured] = {}
        started = time.perf_counter()
        for job in jobs if self.rounds % 2 == 0 else reversed(jobs):
            if job.contestant.name in self.broken:
                continue
            try:
                done[job.cell] = job.contestant.measure(job.scenario, self.rounds)
            except BenchError as error:
                if job.essential:
                    raise
                self.broken[job.contestant.name] = str(error)
                progress(f"{job.contestant.name} is left out: {error}")
        self.rounds += 1
        for cell, found in self.cells.items():
            found.append(done.get(cell))
        contended = sum(one.contended for one in done.values())
        seconds = time.perf_counter() - started
        progress(f"round {self.rounds}: {len(done)} measurements in {seconds:.0f} s, {contended} contended")


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, minimum and maximum of measured values.

    Attributes:
        clean: Number of values that were measured while no other process took much processor time.

    """

    median: float
    least: float
    greatest: float
    clean: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the spread of `values`. None of the measurements may be contended."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def text(self, digits: int = 2) -> str:
        """Return "median (minimum to maximum)", marked with (c) if all values were contended."""
        mark = "" if self.clean else " (c)"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.greatest:.{digits}f}){mark}"


Figure = Callable[[Measured], float | None]


class Results:
    """Medians and ratios of the measurements of a run."""

    def __init__(self, cells: Mapping[Cell, Sequence[Measured | None]]) -> None:
        self._cells = cells

    @property
    def names(self) -> list[str]:
        """Names of the contestants with at least one measurement, in the order of the first round."""
        return list(dict.fromkeys(name for (name, _), rounds in self._cells.items() if any(rounds)))

    def spread(self, cell: Cell, figure: Figure = lambda one: one.rate) -> Spread | None:
        """Return the spread of a figure over the rounds that are not contended, or else over all rounds."""
        measured = (one for one in self._cells.get(cell, ()) if one is not None)
        return _spread([(value, one.contended) for one in measured if (value := figure(one)) is not None])

    def ratio(self, above: Cell, below: Cell) -> Spread | None:
        """Divide the rate of the job `above` by the rate of the job `below` in each round.

        Returns:
            The spread of these ratios, or None if no round has both measurements.

        """
        both = zip(self._cells.get(above, ()), self._cells.get(below, ()), strict=False)
        rounds = [(a, b) for a, b in both if a and b and b.rate]
        return _spread([(a.rate / b.rate, a.contended or b.contended) for a, b in rounds])

    def to_json(self) -> list[dict[str, Any]]:
        """Return all measurements as JSON values."""
        return [
            {"contestant": name, "scenario": scenario, "rounds": [one and asdict(one) for one in rounds]}
            for (name, scenario), rounds in self._cells.items()
        ]


def _spread(pairs: Sequence[tuple[float, bool]]) -> Spread | None:
    """Return the spread of the values that are not contended, or else of all values."""
    if not pairs:
        return None
    clean = [value for value, contended in pairs if not contended]
    return Spread.of(clean) if clean else replace(Spread.of([value for value, _ in pairs]), clean=0)


def p50_p99(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return float(p50), float(p99)


def sample(workloads: Sequence[Workload]) -> list[str]:
    """Return the same number of texts from each workload. The longest are left out: some engines cut them."""
    each = COMPARED // len(workloads)
    rows = (zip(workload.texts, workload.ids, strict=True) for workload in workloads)
    short = ((text for text, ids in of_workload if len(ids) < MAX_TOKENS) for of_workload in rows)
    return [text for texts in short for text in islice(texts, each)]


def compare_vectors(
    embedders: Sequence[Embedder], reference: str, fallback: str, texts: Sequence[str]
) -> tuple[str, Mapping[str, NDArray[np.float64]]]:
    """Compare the vectors of all contestants with the vectors of a reference contestant.

    Args:
        embedders: The contestants.
        reference: Name of the reference contestant.
        fallback: Name of the contestant to use if `reference` is missing.
        texts: The texts to embed.

    Returns:
        The name of the contestant used as reference, and the cosines of all contestants by name, each of
        shape (n,). Contestants that failed are missing.

    """
    progress(f"comparing the vectors of {len(texts)} texts")
    found = {}
    for embedder in embedders:
        try:
            found[embedder.name] = embedder.vectors(texts)
        except BenchError as error:
            progress(f"{embedder.name} returned no vectors: {error}")
    name = reference if reference in found else fallback
    return name, {other: cosines(vectors, found[name]) for other, vectors in found.items()}


def cosines(found: Vectors, expected: Vectors) -> NDArray[np.float64]:
    """Return the cosine of row i of `found` and row i of `expected`, shape (n,)."""
    dots = np.einsum("nd,nd->n", found.astype(np.float64), expected.astype(np.float64))
    lengths = np.linalg.norm(found.astype(np.float64), axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray(dots / lengths)
