"""Three times what the service can do, for a minute: `python -m benchmarks.overload`.

    idle ─▶ best: 64 clients, one sentence each ─▶ open loop at 3 x best ─▶ how soon is it idle again? ─▶ best

Sentences come at random, whether or not the service keeps up, each on a connection of its own for as long as
it waits; a latency counts from the intended arrival. What is refused must be refused soon and say when to
come again, and what is served must be nearly as much as without the rest. The generator shares the processors
with the service; how much it takes is told.
"""

import argparse
import http.client
import math
import os
import resource
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import workloads
from benchmarks.closedloop import saturated
from benchmarks.contestant import CONTENDED
from benchmarks.growth import Sampler, flatness, look
from benchmarks.machine import Watch
from benchmarks.openloop import Flow, OpenLoop
from benchmarks.places import arguments, say, scratch
from benchmarks.results import p50_p99
from benchmarks.server import Server, timed
from benchmarks.tables import Verdict, conclude, table
from benchmarks.wire import post

# What the project promises.
SERVED_RATIO = 0.85  # texts served over the best throughput
REFUSAL_MS = 150.0  # p99
GROWTH = 1.05  # memory of the last third of the overload over its second third
RECOVERY_SECONDS = 5.0  # until a lone request takes no longer than on an idle service

COLUMNS = ("sentences", "requests", "per second", "p50 ms", "p99 ms")
CLIENTS = 64
CONNECTIONS, MOST_CONNECTIONS = 2048, 8192
OPEN_FILES = 20_000  # a connection is a file on both sides
IDLE_PROBES = 200
SETTLE_SECONDS = 2.0
SAMPLE_SECONDS = 0.5
WARM_ASKS = 20
ENOUGH_IN_A_ROW = 10  # as quick as when idle, before the service counts as recovered
PAUSE_SECONDS = 0.02
GIVE_UP_SECONDS = 60.0


def main() -> None:
    options = _options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard)
    )  # the processes begun inherit it
    with scratch() as folder, Server(folder / "data", dict(options.setting)) as server:
        texts = workloads.sentences(server.tokenizer(), workloads.corpus(), 2048).texts
        result = measure(server, texts, options)
    conclude("overload", result, _text(result), _verdicts(result))


def _options() -> argparse.Namespace:
    parser = arguments("overload", __doc__, quick=True)
    parser.add_argument("--seconds", type=float, help="of the overload (60; 8 with --quick)")
    parser.add_argument("--times", type=float, default=3.0, help="the best throughput")
    parser.add_argument("--setting", type=_setting, action="append", default=[], metavar="SIMILE_NAME=VALUE")
    options = parser.parse_args()
    options.seconds = options.seconds or (8.0 if options.quick else 60.0)
    options.best_seconds = 4.0 if options.quick else 20.0
    return options


def _setting(given: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not (equals and name.startswith("SIMILE_")):
        raise argparse.ArgumentTypeError(f"{given!r} is not SIMILE_NAME=VALUE")
    return name, value


class Probe:
    """A client that comes alone, one request at a time."""

    def __init__(self, port: int, texts: Sequence[str]) -> None:
        self._port = port
        self._texts = cycle(texts)

    def idle_ms(self, count: int) -> list[float]:
        """Milliseconds of `count` requests to a service that has nothing else to do."""
        return [self.ask()[1] for _ in range(WARM_ASKS + count)][WARM_ASKS:]

    def ask(self) -> tuple[int, float]:
        """Status and milliseconds, of a connection made beforehand."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=GIVE_UP_SECONDS)
        with closing(connection):
            connection.connect()
            answer, _, milliseconds = timed(connection, "POST", "/embed", {"inputs": next(self._texts)})
        return answer.status, milliseconds

    def recovery(self, level_ms: float) -> float:
        """Seconds until the first of several requests in a row that are served within `level_ms`."""
        began = time.monotonic()
        first, in_a_row = began, 0
        while in_a_row < ENOUGH_IN_A_ROW and time.monotonic() < began + GIVE_UP_SECONDS:
            sent = time.monotonic()
            status, milliseconds = self.ask()
            quick = status == 200 and milliseconds <= level_ms
            first = sent if quick and not in_a_row else first
            in_a_row = in_a_row + 1 if quick else 0
            time.sleep(PAUSE_SECONDS)
        return first - began if in_a_row == ENOUGH_IN_A_ROW else GIVE_UP_SECONDS


def measure(server: Server, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Everything that was seen; milliseconds, texts per second."""
    requests = [post("/embed", {"inputs": text}) for text in texts]
    probe = Probe(server.port, texts)
    say("a lone client")
    idle = np.array(probe.idle_ms(IDLE_PROBES))
    say("best throughput")
    best = {"before": saturated(server.port, server.pid, requests, CLIENTS, options.best_seconds)}
    time.sleep(SETTLE_SECONDS)
    memory = {"before": look(server.pid).rss_mb}
    seconds, rate = options.seconds, options.times * best["before"]
    say(f"{options.times:g} times of {best['before']:.0f} texts/s for {seconds:.0f} s")
    flow = OpenLoop(Flow(server.port, requests, rate, seconds, CONNECTIONS, MOST_CONNECTIONS))
    sampler = Sampler(server.pid, SAMPLE_SECONDS)
    pids = {"server": server.pid, "load": flow.pid, "bench": os.getpid()}
    time.sleep(max(0.0, flow.begin - time.monotonic()))
    watch = Watch(pids)
    sampler.on.set()
    time.sleep(flow.begin + seconds - time.monotonic())
    sampler.on.clear()
    window = watch.window()
    say("recovery")
    recovery = probe.recovery(level_ms=max(2 * float(np.median(idle)), float(np.quantile(idle, 0.99))))
    outcomes = flow.finish()
    samples = sampler.stop()
    memory |= {"peak": max(sample.rss_mb for sample in samples), "after": look(server.pid).rss_mb}
    best["after"] = saturated(server.port, server.pid, requests, CLIENTS, options.best_seconds)
    ended = outcomes.arrived + outcomes.milliseconds / 1000 - flow.begin
    served, refused = outcomes.status == 200, outcomes.status == 429
    throughput = int((served & (ended <= seconds)).sum()) / seconds
    others = Counter(outcomes.status[~(served | refused)].tolist())
    return {
        "times": options.times,
        "seconds": seconds,
        "settings": dict(options.setting),
        "idle_ms": _quantiles(idle),
        "best_texts_per_second": best,
        "offered_texts_per_second": len(outcomes.status) / seconds,
        "served_texts_per_second": throughput,
        "served_over_best": throughput / max(best.values()),
        "served_ms": _quantiles(outcomes.milliseconds[served]),
        "refused": int(refused.sum()),
        "refused_ms": _quantiles(outcomes.milliseconds[refused]),
        "refused_without_retry_after": int((refused & ~outcomes.retry_after).sum()),
        "other_statuses": {str(status): count for status, count in others.items()},
        "generator_late_ms": _quantiles(outcomes.late_ms),
        "most_connections": outcomes.most_open,
        "processors": {name: spent / window.seconds for name, spent in window.cpu_seconds.items()},
        "foreign": window.foreign,
        "memory_mb": memory,
        "memory_last_over_second_third": flatness(samples),
        "drained_seconds": max(0.0, float(ended.max()) - seconds),
        "recovery_seconds": recovery,
    }


def _quantiles(milliseconds: NDArray[np.float64]) -> list[float]:
    """The p50 and the p99, or nothing of nothing."""
    return list(p50_p99(milliseconds)) if len(milliseconds) else []


def _text(result: dict[str, Any]) -> list[str]:
    seconds, memory, processors = result["seconds"], result["memory_mb"], result["processors"]
    offered, served = result["offered_texts_per_second"], result["served_texts_per_second"]
    best = result["best_texts_per_second"]
    others = sum(result["other_statuses"].values())
    rows = [
        ["a lone client before", "", "", *result["idle_ms"]],
        [f"best: {CLIENTS} clients without pause, before", "", best["before"]],
        ["the same afterwards", "", best["after"]],
        ["offered (how late it was sent)", round(offered * seconds), offered, *result["generator_late_ms"]],
        ["served within the time", round(served * seconds), served, *result["served_ms"]],
        ["refused, 429", result["refused"], result["refused"] / seconds, *result["refused_ms"]],
        [f"other answers {result['other_statuses'] or ''}", others, others / seconds],
    ]
    rows = [row + [""] * (len(COLUMNS) - len(row)) for row in rows]
    told = (
        f"{result['times']:g} times the best throughput for {seconds:.0f} s, settings "
        f"{result['settings'] or 'as they come'}; at most {result['most_connections']} connections. "
        f"Processors used: service {processors['server']:.2f}, generator {processors['load']:.2f}, bench "
        f"{processors['bench']:.2f}; others {result['foreign']:.0%} of the machine. Memory in MiB: "
        f"{memory['before']:.0f} before, at most {memory['peak']:.0f}, {memory['after']:.0f} after. The last "
        f"answer came {result['drained_seconds']:.1f} s after the last request, and a lone client was served "
        f"as on an idle service after {result['recovery_seconds']:.1f} s."
    )
    return [table(COLUMNS, rows), told]


def _verdicts(result: dict[str, Any]) -> list[Verdict]:
    contended = result["foreign"] > CONTENDED
    figures = [
        ("served over the best throughput", result["served_over_best"], SERVED_RATIO, True),
        ("p99 of a refusal, ms", max(result["refused_ms"], default=math.nan), REFUSAL_MS, False),
        ("refusals without Retry-After", result["refused_without_retry_after"], 0, False),
        ("answers other than 200 and 429", sum(result["other_statuses"].values()), 0, False),
        ("memory, last third over second", result["memory_last_over_second_third"], GROWTH, False),
        ("recovery, s", result["recovery_seconds"], RECOVERY_SECONDS, False),
    ]
    return [Verdict(what, value, bound, at_least, contended) for what, value, bound, at_least in figures]


if __name__ == "__main__":
    main()
