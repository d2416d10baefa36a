"""A server that embeds over HTTP, ours or another's: closed-loop clients ask it (closedloop.py)."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from benchmarks.closedloop import Answers, ClosedLoop, Load
from benchmarks.contestant import Measured, Scenario, Vectors
from benchmarks.machine import memory_mb
from benchmarks.places import BenchError
from benchmarks.raw import cosines
from benchmarks.results import p50_p99
from benchmarks.server import call
from benchmarks.wire import post
from benchmarks.workloads import Workload

WARM_TEXTS = (
    512  # answered before the window begins, as many for everybody: some runtimes make code for shapes
)
CHECKED = 8  # answers of a window whose vectors are looked at
LEAST_COSINE = 0.999  # to the same text asked alone: another text's vector is far below
ASKED_AT_ONCE = 32


@dataclass(frozen=True)
class Dialect:
    """The requests and answers of a kind of server."""

    path: str
    body: Callable[[list[str]], Any]
    read: Callable[[Any], list[list[float]]]


OURS = Dialect(
    "/embed", lambda texts: {"inputs": texts[0] if len(texts) == 1 else texts}, lambda answer: answer
)
OPENAI = Dialect(
    "/embeddings",
    lambda texts: {"model": "bench", "input": texts},
    lambda answer: [row["embedding"] for row in answer["data"]],
)


@dataclass(frozen=True)
class Requests:
    """A workload cut into requests of so many texts."""

    texts: list[list[str]]
    tokens: list[int]
    lines: list[str]

    @cached_property
    def is_long(self) -> list[bool]:
        least = float(np.quantile(self.tokens, 0.9))
        return [tokens >= least for tokens in self.tokens]


@dataclass
class Served:
    """A running server; who starts it ends it."""

    name: str
    dialect: Dialect
    port: int
    pid: int
    told: dict[str, Any] = field(default_factory=dict)
    reconnects: int = 0  # connections that it may close in one measurement, which are opened again
    warm_texts: int = WARM_TEXTS
    _made: dict[tuple[str, int], Requests] = field(default_factory=dict)
    _alone: dict[str, Vectors] = field(default_factory=dict)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """(n, dimension). Raises BenchError."""
        found: list[list[float]] = []
        for at in range(0, len(texts), ASKED_AT_ONCE):
            some = list(texts[at : at + ASKED_AT_ONCE])
            answer = call(self.port, "POST", self.dialect.path, self.dialect.body(some))
            found += self.dialect.read(answer)
        return np.array(found, np.float32)

    def about(self) -> dict[str, Any]:
        return self.told | {"memory_mb": memory_mb(self.pid)}

    def requests(self, workload: Workload, texts: int) -> Requests:
        """Made once; texts that do not fill a last request are left out."""
        key = workload.name, texts
        if key not in self._made:
            starts = range(0, len(workload.texts) - texts + 1, texts)
            rows = [workload.texts[at : at + texts] for at in starts]
            tokens = [sum(len(ids) for ids in workload.ids[at : at + texts]) for at in starts]
            lines = [post(self.dialect.path, self.dialect.body(row)) for row in rows]
            self._made[key] = Requests(rows, tokens, lines)
        return self._made[key]

    def measure(self, scenario: Scenario, turn: int) -> Measured:
        """Raises BenchError when an answer is not 200, or when one is another text's."""
        made = self.requests(scenario.workload, scenario.texts)
        order = list(range(len(made.lines)))
        random.Random(turn).shuffle(order)
        run = ClosedLoop(
            Load(
                port=self.port,
                requests=[made.lines[at] for at in order],
                clients=scenario.clients,
                warm=max(self.warm_texts // scenario.texts, 2 * scenario.clients),
                seconds=scenario.seconds,
                pids={"server": self.pid},
                reconnects=self.reconnects,
                keep=list(range(4 * scenario.clients, len(order), max(1, len(order) // CHECKED)))[:CHECKED],
            )
        )
        answers = run.finish()
        if answers.reconnects:
            self.told["connections it closed"] = (
                self.told.get("connections it closed", 0) + answers.reconnects
            )
        self._check(made, order, answers)
        return self._summary(scenario, made, order, answers)

    def _summary(self, scenario: Scenario, made: Requests, order: list[int], answers: Answers) -> Measured:
        if not answers.milliseconds:
            raise BenchError(f"{self.name} answered nothing in {scenario.seconds:g} seconds")
        window, workload = answers.window, scenario.workload
        everything = [latency for _, latency in answers.milliseconds]
        long = [latency for request, latency in answers.milliseconds if made.is_long[order[request]]]
        tokens = sum(made.tokens[order[request]] for request, _ in answers.milliseconds)
        p50, p99 = p50_p99(everything)
        texts = tokens / workload.mean_tokens
        return Measured(
            rate=texts / window.seconds,
            foreign=window.foreign,
            cpu_ms=1000 * window.cpu_seconds["server"] / texts,
            p50_ms=p50,
            p99_ms=p99,
            longest_p99_ms=float(np.quantile(long, 0.99)) if long else None,
            client_us=1e6 * window.cpu_seconds["load"] / len(everything),
        )

    def _check(self, made: Requests, order: list[int], answers: Answers) -> None:
        """Under load a text has the vector that it has alone."""
        for request, body in answers.bodies.items():
            text = made.texts[order[request]][0]
            if text not in self._alone:
                self._alone[text] = self.vectors([text])
            found = np.array(self.dialect.read(orjson.loads(body))[:1], np.float32)
            least = float(cosines(found, self._alone[text])[0])
            if least < LEAST_COSINE:
                raise BenchError(f"{self.name}: a vector under load differs from alone (cosine {least})")
