"""Texts per second of the server over those of the raw engine, measured in turns.

    raw, server, raw, server, …     one pair is a repeat; its ratio compares two neighbours in time

A repeat in which others used much of the machine is *contended*: it is shown, and left out of the medians.
"""

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from benchmarks import load
from benchmarks.load import Answers, Load, LoadError
from benchmarks.machine import Window, wait_for_quiet
from benchmarks.raw import Batch, RawEngine, Vectors
from benchmarks.server import Server
from benchmarks.wire import post
from benchmarks.workloads import Workload

CONTENDED = 0.15  # share of the machine that others may use before a repeat counts for nothing
TRIES = 2  # times the asked repeats, to get as many clean ones
WARM_ANSWERS = 256
CHECKED_VECTORS = 64
LEAST_COSINE = 0.9999

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload and how many clients send it, one text per request each."""

    workload: Workload
    clients: int
    seconds: float  # of one server measurement, at most


@dataclass(frozen=True, slots=True)
class Repeat:
    """One raw measurement and the server measurement after it. Latencies in milliseconds."""

    raw_texts_per_second: float
    server_texts_per_second: float
    ratio: float
    p50_ms: float
    p99_ms: float
    longest_p50_ms: float  # of the longest tenth of the texts
    longest_p99_ms: float
    raw_cpu_ms: float  # per text
    server_cpu_ms: float  # per text
    server_cpu_seconds: float
    load_cpu_seconds: float
    raw_foreign: float
    server_foreign: float
    answers: int
    least_cosine: float

    @property
    def contended(self) -> bool:
        return max(self.raw_foreign, self.server_foreign) > CONTENDED


class Bench:
    """One scenario on one server and one raw engine."""

    def __init__(self, scenario: Scenario, engine: RawEngine, server: Server) -> None:
        self.scenario = scenario
        self._engine = engine
        self._server = server
        self.budgets = engine.best_budget(scenario.workload)
        self._batches: list[Batch] = engine.batches(scenario.workload.ids, next(iter(self.budgets)))
        self._requests = [post("/embed", {"inputs": text}) for text in scenario.workload.texts]
        step = max(1, len(self._requests) // CHECKED_VECTORS)
        self._checked = list(range(0, len(self._requests), step))
        self._expected = engine.vectors([scenario.workload.ids[row] for row in self._checked])
        lengths = scenario.workload.lengths()
        self._long = float(np.quantile(lengths, 0.9))
        self._is_long = [length >= self._long for length in lengths]
        self.repeats: list[Repeat] = []

    def enough(self, repeats: int) -> bool:
        """As many clean repeats as asked for, or too many tries to go on."""
        clean = sum(not repeat.contended for repeat in self.repeats)
        return clean >= repeats or len(self.repeats) >= TRIES * repeats

    def repeat(self) -> Repeat:
        """Measure once more.

        Raises:
            LoadError: a response was not 200, or its vector is not the raw engine's.

        """
        raw = self._engine.measure(self._batches, {"server": self._server.pid})
        order, answers = self._send()
        self.repeats.append(self._summary(raw, order, answers))
        return self.repeats[-1]

    def _send(self) -> tuple[list[int], Answers]:
        """The order that the requests were sent in, and what came back."""
        order = list(range(len(self._requests)))
        random.Random(len(self.repeats)).shuffle(order)
        checked = set(self._checked)
        run = load.start(
            Load(
                port=self._server.port,
                requests=[self._requests[row] for row in order],
                clients=self.scenario.clients,
                warm=min(WARM_ANSWERS, len(order) // 4),
                count=len(order),
                seconds=self.scenario.seconds,
                pids={"server": self._server.pid},
                keep=[at for at, row in enumerate(order) if row in checked],
            )
        )
        return order, load.finish(run)

    def _summary(self, raw: Window, order: Sequence[int], answers: Answers) -> Repeat:
        raw_rate = len(self._requests) / raw.seconds
        window = answers.window
        rate = len(answers.milliseconds) / window.seconds
        all_ms = [latency for _, latency in answers.milliseconds]
        long_ms = [latency for request, latency in answers.milliseconds if self._is_long[order[request]]]
        p50, p99 = np.quantile(all_ms, (0.5, 0.99))
        long_p50, long_p99 = np.quantile(long_ms, (0.5, 0.99))
        return Repeat(
            raw_texts_per_second=raw_rate,
            server_texts_per_second=rate,
            ratio=rate / raw_rate,
            p50_ms=float(p50),
            p99_ms=float(p99),
            longest_p50_ms=float(long_p50),
            longest_p99_ms=float(long_p99),
            raw_cpu_ms=1000 * raw.cpu_seconds["bench"] / len(self._requests),
            server_cpu_ms=1000 * window.cpu_seconds["server"] / len(all_ms),
            server_cpu_seconds=window.cpu_seconds["server"],
            load_cpu_seconds=window.cpu_seconds["load"],
            raw_foreign=raw.foreign,
            server_foreign=window.foreign,
            answers=len(all_ms),
            least_cosine=self._least_cosine(order, answers.bodies),
        )

    def _least_cosine(self, order: Sequence[int], bodies: dict[int, str]) -> float:
        places = {row: at for at, row in enumerate(self._checked)}
        cosines = [
            _cosine(np.array(orjson.loads(body)[0]), self._expected[places[order[request]]])
            for request, body in bodies.items()
        ]
        least = min(cosines, default=1.0)
        if least < LEAST_COSINE:
            raise LoadError(f"the server's vector of a text differs from the raw engine's (cosine {least})")
        return least


def _cosine(a: Vectors, b: Vectors) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def in_turns(benches: Sequence[Bench], repeats: int, wait_seconds: float, say: Say) -> None:
    """Repeat every bench in turns, until each has `repeats` clean ones or has tried often enough.

    Before a repeat, others' load may be waited out for up to `wait_seconds`.
    """
    turn = 0
    while not all(bench.enough(repeats) for bench in benches):
        turn += 1
        for bench in benches:
            if bench.enough(repeats):
                continue
            wait_for_quiet(CONTENDED, wait_seconds)
            done = bench.repeat()
            mark = " (contended)" if done.contended else ""
            say(f"repeat {turn}: {bench.scenario.workload.name} {done.ratio:.2f} of raw{mark}")


def counted(repeats: Sequence[Repeat]) -> list[Repeat]:
    """The clean repeats; all of them when none is clean."""
    return [repeat for repeat in repeats if not repeat.contended] or list(repeats)


def spread(values: Iterator[float] | Sequence[float]) -> dict[str, Any]:
    """Median, least and greatest."""
    found = list(values)
    return {"median": statistics.median(found), "least": min(found), "greatest": max(found)}
