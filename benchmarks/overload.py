"""Send a service three times its maximum load for a minute: `python -m benchmarks.overload`.

    idle ─▶ peak: 64 clients, one sentence each ─▶ open loop at 3 x peak ─▶ time until idle again ─▶ peak

Sentences arrive at random times, even if the service cannot keep up. Each waiting request occupies one
connection, and its latency counts from the intended arrival. The service must reject excess requests early
and with Retry-After. The number of answered texts per second must stay near the peak. The load generator
shares the processors with the service, so its CPU time is reported.
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
from benchmarks.command import Verdict, build_parser, format_table, progress, report, scratch_folder
from benchmarks.load import Generator, Load, measure_capacity, post_request
from benchmarks.machine import Watch, memory_growth, sampling, take_sample
from benchmarks.processes import Server, send_timed
from benchmarks.rounds import CONTENDED, p50_p99

# Promises of the project.
SERVED_RATIO = 0.85  # texts served over the peak throughput
REJECTION_MS = 150.0  # p99
GROWTH = 1.05  # memory of the last third of the overload over its second third
RECOVERY_SECONDS = 5.0  # until a single request is as fast as on an idle service

COLUMNS = ("sentences", "requests", "per second", "p50 ms", "p99 ms")
CLIENTS = 64
TIMES = 3.0  # load, as a multiple of the peak throughput
CONNECTIONS, MAX_CONNECTIONS = 2048, 8192
OPEN_FILES = 20_000  # each connection is a file on both sides
IDLE_PROBES = 200
SETTLE_SECONDS = 2.0
SAMPLE_SECONDS = 0.5
WARM_REQUESTS = 20
FAST_IN_A_ROW = 10  # requests as fast as when idle, before the service counts as recovered
PAUSE_SECONDS = 0.02
GIVE_UP_SECONDS = 60.0


def main() -> None:
    options = _parse_options()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limits = min(OPEN_FILES, hard), hard
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)  # child processes inherit the limits
    with scratch_folder() as folder, Server(folder / "data") as server:
        texts = workloads.sentences(server.tokenizer(), workloads.corpus(), 2048).texts
        result = measure(server, texts, options)
    report("overload", result, _text(result), _verdicts(result))


def _parse_options() -> argparse.Namespace:
    parser = build_parser("overload", __doc__, quick=True)
    parser.add_argument("--seconds", type=float, help="length of the overload (60; 8 with --quick)")
    options = parser.parse_args()
    options.seconds = options.seconds or (8.0 if options.quick else 60.0)
    options.peak_seconds = 4.0 if options.quick else 20.0
    return options


class Probe:
    """A client that sends one request at a time."""

    def __init__(self, port: int, texts: Sequence[str]) -> None:
        self._port = port
        self._texts = cycle(texts)

    def idle_ms(self, count: int) -> list[float]:
        """Return the latencies in milliseconds of `count` requests to an idle service."""
        return [self.send()[1] for _ in range(WARM_REQUESTS + count)][WARM_REQUESTS:]

    def send(self) -> tuple[int, float]:
        """Send a request; return its status and its milliseconds without the time to connect."""
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=GIVE_UP_SECONDS)
        with closing(connection):
            connection.connect()
            response, _, milliseconds = send_timed(
                connection, "POST", "/embed", {"inputs": next(self._texts)}
            )
        return response.status, milliseconds

    def recovery_seconds(self, limit_ms: float) -> float:
        """Return the seconds until requests take at most `limit_ms` again, several times in a row.

        Returns GIVE_UP_SECONDS if that takes longer.
        """
        began = time.monotonic()
        first, in_a_row = began, 0
        while in_a_row < FAST_IN_A_ROW and time.monotonic() < began + GIVE_UP_SECONDS:
            sent = time.monotonic()
            status, milliseconds = self.send()
            fast = status == 200 and milliseconds <= limit_ms
            first = sent if fast and not in_a_row else first
            in_a_row = in_a_row + 1 if fast else 0
            time.sleep(PAUSE_SECONDS)
        return first - began if in_a_row == FAST_IN_A_ROW else GIVE_UP_SECONDS


def measure(server: Server, texts: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Run the load and the measurements around it. Returns the figures of the report."""
    requests = [post_request("/embed", {"inputs": text}) for text in texts]
    probe = Probe(server.port, texts)
    progress("a single client")
    idle = np.array(probe.idle_ms(IDLE_PROBES))
    progress("peak throughput")
    peak = {"before": measure_capacity(server.port, server.pid, requests, CLIENTS, options.peak_seconds)}
    time.sleep(SETTLE_SECONDS)
    memory = {"before": take_sample(server.pid).rss_mb}
    seconds, rate = options.seconds, TIMES * peak["before"]
    progress(f"{TIMES:g} times {peak['before']:.0f} texts/s for {seconds:.0f} s")
    flow = Generator(Load(server.port, requests, CONNECTIONS, seconds, rate, MAX_CONNECTIONS))
    pids = {"server": server.pid, "load": flow.pid, "bench": os.getpid()}
    time.sleep(max(0.0, flow.begin - time.monotonic()))
    watch = Watch(pids)
    with sampling(server.pid, SAMPLE_SECONDS) as samples:
        time.sleep(flow.begin + seconds - time.monotonic())
    window = watch.window()
    progress("recovery")
    limit_ms = max(2 * float(np.median(idle)), float(np.quantile(idle, 0.99)))
    recovery = probe.recovery_seconds(limit_ms)
    outcomes = flow.finish()
    memory |= {"peak": max(sample.rss_mb for sample in samples), "after": take_sample(server.pid).rss_mb}
    peak["after"] = measure_capacity(server.port, server.pid, requests, CLIENTS, options.peak_seconds)
    ended = outcomes.arrived + outcomes.milliseconds / 1000 - flow.begin
    served, rejected = outcomes.status == 200, outcomes.status == 429
    throughput = int((served & (ended <= seconds)).sum()) / seconds
    others = Counter(outcomes.status[~(served | rejected)].tolist())
    return {
        "seconds": seconds,
        "idle_ms": _quantiles(idle),
        "peak_texts_per_second": peak,
        "offered_texts_per_second": len(outcomes.status) / seconds,
        "served_texts_per_second": throughput,
        "served_over_peak": throughput / max(peak.values()),
        "served_ms": _quantiles(outcomes.milliseconds[served]),
        "rejected": int(rejected.sum()),
        "rejected_ms": _quantiles(outcomes.milliseconds[rejected]),
        "rejected_without_retry_after": int((rejected & ~outcomes.retry_after).sum()),
        "other_statuses": {str(status): count for status, count in others.items()},
        "generator_late_ms": _quantiles(outcomes.late_ms),
        "max_connections": outcomes.max_open,
        "processors": {name: used / window.seconds for name, used in window.cpu_seconds.items()},
        "foreign": window.foreign,
        "memory_mb": memory,
        "memory_last_over_second_third": memory_growth(samples),
        "drained_seconds": max(0.0, float(ended.max()) - seconds),
        "recovery_seconds": recovery,
    }


def _quantiles(milliseconds: NDArray[np.float64]) -> list[float]:
    """Return p50 and p99, or an empty list without values."""
    return list(p50_p99(milliseconds)) if len(milliseconds) else []


def _text(result: dict[str, Any]) -> list[str]:
    seconds, memory, processors = result["seconds"], result["memory_mb"], result["processors"]
    offered, served = result["offered_texts_per_second"], result["served_texts_per_second"]
    peak = result["peak_texts_per_second"]
    others = sum(result["other_statuses"].values())
    rows = [
        ["a single client before", "", "", *result["idle_ms"]],
        [f"peak: {CLIENTS} clients without pause, before", "", peak["before"]],
        ["peak afterwards", "", peak["after"]],
        ["offered (delay of the generator)", round(offered * seconds), offered, *result["generator_late_ms"]],
        ["served within the time", round(served * seconds), served, *result["served_ms"]],
        ["rejected, 429", result["rejected"], result["rejected"] / seconds, *result["rejected_ms"]],
        [f"other answers {result['other_statuses'] or ''}", others, others / seconds],
    ]
    rows = [row + [""] * (len(COLUMNS) - len(row)) for row in rows]
    notes = (
        f"{TIMES:g} times the peak throughput for {seconds:.0f} s, at most "
        f"{result['max_connections']} connections. "
        f"Processors used: service {processors['server']:.2f}, generator {processors['load']:.2f}, benchmark "
        f"{processors['bench']:.2f}; others {result['foreign']:.0%} of the machine. Memory in MiB: "
        f"{memory['before']:.0f} before, at most {memory['peak']:.0f}, {memory['after']:.0f} after. The last "
        f"answer came {result['drained_seconds']:.1f} s after the last request. A single client was as fast "
        f"as on an idle service after {result['recovery_seconds']:.1f} s."
    )
    return [format_table(COLUMNS, rows), notes]


def _verdicts(result: dict[str, Any]) -> list[Verdict]:
    figures = [
        ("served over the peak throughput", result["served_over_peak"], SERVED_RATIO, True),
        ("p99 of a rejection, ms", max(result["rejected_ms"], default=math.nan), REJECTION_MS, False),
        ("rejections without Retry-After", result["rejected_without_retry_after"], 0, False),
        ("answers other than 200 and 429", sum(result["other_statuses"].values()), 0, False),
        ("memory, last third over second", result["memory_last_over_second_third"], GROWTH, False),
        ("recovery, s", result["recovery_seconds"], RECOVERY_SECONDS, False),
    ]
    return [Verdict(*figure, contended=result["foreign"] > CONTENDED) for figure in figures]


if __name__ == "__main__":
    main()
