"""Everybody in turns, again and again, so that who is compared was measured in the same minutes.

    round 1:  raw, Simile, infinity, …     round 2:  …, infinity, Simile, raw     round 3:  raw, Simile, …

Every other round goes backwards, so that a drift of the machine favours nobody. A measurement during which
others used much of the machine is *contended*: it is shown, and left out of the medians.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.contestant import Contestant, Measured, Scenario
from benchmarks.places import BenchError, say

TRIES = 2  # times the asked repeats, to get as many clean ones
FAILURES = 3  # of a peer, before it is left out; those before cost it a measurement each

Cell = tuple[str, str]  # a contestant and a scenario, by name


@dataclass(frozen=True, slots=True)
class Job:
    contestant: Contestant
    scenario: Scenario
    essential: bool  # its failure ends the run; a peer's is reported, and in the end the peer is left out

    @property
    def cell(self) -> Cell:
        return self.contestant.name, self.scenario.name


class Turns:
    """The rounds so far. A cell has an entry for each round, None where it was not measured."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = list(jobs)
        self.rounds = 0
        self.cells: dict[Cell, list[Measured | None]] = {job.cell: [] for job in jobs}
        self.broken: dict[str, str] = {}  # who failed too often, and why
        self._failures: Counter[str] = Counter()

    def run(self, repeats: int, minutes: float) -> None:
        """Until every cell has `repeats` clean measurements, was tried often enough, or the time is over.

        Ctrl-C ends it too, once there is a whole round: what was measured is kept.

        Raises:
            BenchError: of an essential contestant.

        """
        started = time.perf_counter()
        while self.rounds < TRIES * repeats and (jobs := self._wanting(repeats)):
            a_round = (time.perf_counter() - started) / max(1, self.rounds)
            if self.rounds >= repeats and time.perf_counter() + a_round > started + 60 * minutes:
                say("no time for more rounds")
                return
            try:
                self._round(jobs)
            except KeyboardInterrupt:
                if not self.rounds:
                    raise
                say(f"stopped: {self.rounds} whole rounds count")
                return

    def _wanting(self, repeats: int) -> list[Job]:
        """All of each workload of which one lacks clean measurements, since ratios are of neighbours."""
        there = [job for job in self._jobs if job.contestant.name not in self.broken]
        lacking = {
            job.scenario.workload.name
            for job in there
            if sum(one is not None and not one.contended for one in self.cells[job.cell]) < repeats
        }
        return [job for job in there if job.scenario.workload.name in lacking]

    def _failed(self, job: Job, error: Exception) -> None:
        name = job.contestant.name
        self._failures[name] += 1
        if self._failures[name] < FAILURES:
            say(f"{name} has no {job.scenario.name} in this round: {error}")
            return
        self.broken[name] = str(error)
        say(f"{name} is left out: {error}")

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
                self._failed(job, error)
        self.rounds += 1
        for cell, found in self.cells.items():
            found.append(done.get(cell))
        spoilt = sum(one.contended for one in done.values())
        seconds = time.perf_counter() - started
        say(f"round {self.rounds}: {len(done)} measurements in {seconds:.0f} s, {spoilt} contended")
