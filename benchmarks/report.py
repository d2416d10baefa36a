"""The report of `make bench`: the loads, the promises of speed, and one table of all contestants.

A promise is about a ratio within one run. Promises that need a missing peer are not judged.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from benchmarks.command import Verdict, format_table
from benchmarks.peer_engines import REFERENCE
from benchmarks.rounds import Cell, Results, Spread
from benchmarks.served import DEFAULT, our_name, raw_name

MANY, BULK, FEW, ONE, LONG = (
    "64 x 1",
    "4 x 32",
    "8 x 1",
    "1 x 1",
    "mix, 32 x 1",
)  # clients x texts of a request
SENTENCES_AT_ONCE, MIX_AT_ONCE = "at once", "mix, at once"
SINGLE, PRODUCTS = "single calls", "products"
PEER = "infinity, ONNX"
RAW_SINGLE = "raw, one thread"
RAW_SINGLE_THREADS = "raw, threads of a single text"


class Floor(NamedTuple):
    """A promise: our texts per second under a load, divided by those of another contestant."""

    precision: str
    load: str
    other: str
    least: float
    other_load: str = ""  # the same load if empty


FLOORS = (
    Floor("fp32", MANY, PEER, 1.85),
    Floor("fp32", BULK, PEER, 1.7),
    Floor("fp32", LONG, PEER, 4.5),
    Floor("fp32", MANY, REFERENCE, 1.7, SENTENCES_AT_ONCE),
    Floor("bf16", MANY, PEER, 2.9),
    Floor("bf16", BULK, PEER, 2.6),
    Floor("bf16", LONG, PEER, 6.0),
    Floor("int8", MANY, PEER, 3.0),
    Floor("fp32", MANY, raw_name("fp32"), 0.78, SENTENCES_AT_ONCE),
    Floor("fp32", BULK, raw_name("fp32"), 0.85, SENTENCES_AT_ONCE),
    Floor("fp32", LONG, raw_name("fp32"), 0.80, MIX_AT_ONCE),
    Floor("bf16", MANY, raw_name("bf16"), 0.65, SENTENCES_AT_ONCE),
    Floor("bf16", BULK, raw_name("bf16"), 0.70, SENTENCES_AT_ONCE),
    Floor("int8", MANY, raw_name("int8"), 0.65, SENTENCES_AT_ONCE),
    Floor("int8", BULK, raw_name("int8"), 0.70, SENTENCES_AT_ONCE),
)
TAIL = 2.0  # p99 over p50 with 64 clients and short texts
LONGEST_OVER_MEDIAN = 3.0  # p99 of the longest tenth over the median of all, on the mix
SINGLE_MS = 1.5  # one client's p50 minus the raw call's, on one thread and on all threads of a single text
SECOND_START_SECONDS = 2.0
MEMORY_RATIO = 1.15
ADDED_MS = 30.0  # for one more document, in addition to embedding it


def judge(results: Results, figures: Mapping[str, Any]) -> list[Verdict]:
    """Return a verdict for each promise that this run can judge.

    Args:
        results: The measurements.
        figures: Other figures: "starts", "memory" and "documents".

    """
    return [*_ratios(results), *_latencies(results), *_others(figures)]


def _ratios(results: Results) -> Iterator[Verdict]:
    for floor in FLOORS:
        ours = our_name(floor.precision)
        other: Cell = (floor.other, floor.other_load or floor.load)
        found = results.ratio((ours, floor.load), other)
        if found:
            yield _verdict(f"{ours}, {floor.load}, over {floor.other}", found, floor.least, at_least=True)


def _latencies(results: Results) -> Iterator[Verdict]:
    ours = our_name(DEFAULT)
    tail = results.spread((ours, MANY), lambda one: _divide(one.p99_ms, one.p50_ms))
    if tail:
        yield _verdict(f"{ours}, {MANY}, p99 over p50", tail, TAIL)
    longest = results.spread((ours, LONG), lambda one: _divide(one.longest_p99_ms, one.p50_ms))
    if longest:
        subject = f"{ours}, {LONG}, p99 of the longest tenth over the median of all"
        yield _verdict(subject, longest, LONGEST_OVER_MEDIAN)
    for name in (RAW_SINGLE, RAW_SINGLE_THREADS):
        added = results.difference((ours, ONE), (name, SINGLE), lambda one: one.p50_ms)
        if added:
            yield _verdict(f"{ours}, {ONE}, p50 minus {name}, ms", added, SINGLE_MS)


def _others(figures: Mapping[str, Any]) -> Iterator[Verdict]:
    starts = figures["starts"]
    subject = "second start to ready, seconds (median)"
    yield Verdict(subject, starts["median"], SECOND_START_SECONDS, contended=starts["contended"])
    for name, growth in figures["memory"].items():
        subject = f"{name}, RSS after {growth['many']:,} requests over {growth['few']:,}"
        yield Verdict(subject, growth["after_mb"] / growth["before_mb"], MEMORY_RATIO)
    added = figures["documents"]["idle"]
    subject = (
        f"one more document after {figures['documents']['stored']:,}, ms more than embedding it (median)"
    )
    yield Verdict(subject, added["difference_ms"]["p50"], ADDED_MS, contended=added["contended"])


def _divide(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below else None


def _verdict(subject: str, found: Spread, bound: float, *, at_least: bool = False) -> Verdict:
    return Verdict(subject, found.median, bound, at_least, not found.clean)


def main_table(results: Results, figures: Mapping[str, Any]) -> str:
    """Return the table of all contestants: medians of texts per second, with p50 / p99 in ms of requests."""
    loads = (SENTENCES_AT_ONCE, MANY, BULK, FEW, ONE, MIX_AT_ONCE, LONG)
    rows = []
    for name in results.names:
        cells = [_rate(results, (name, load)) for load in loads]
        if name.startswith("GEMM"):
            peak = results.spread((name, PRODUCTS))
            cells[0] = f"{peak.median:.0f} GFLOP/s" if peak else ""
        if name in (RAW_SINGLE, RAW_SINGLE_THREADS):
            cells[loads.index(ONE)] = _rate(results, (name, SINGLE))
        work = results.spread((name, MANY), lambda one: one.cpu_ms) or results.spread(
            (name, SENTENCES_AT_ONCE), lambda one: one.cpu_ms
        )
        memory = figures["about"].get(name, {}).get("memory_mb", {}).get("now")
        cosine = figures["cosines"].get(name, {}).get("least")
        rows.append(
            [
                name,
                *cells,
                f"{work.median:.2f}" if work else "",
                "" if cosine is None else f"{cosine:.5f}",
                "" if memory is None else f"{memory:.0f}",
            ]
        )
    head = ["texts/s (p50 / p99 ms)", *loads, "CPU ms a text", "least cosine", "RSS MiB"]
    return format_table(head, rows)


def _rate(results: Results, cell: Cell) -> str:
    rate = results.spread(cell)
    if rate is None:
        return ""
    p50 = results.spread(cell, lambda one: one.p50_ms)
    p99 = results.spread(cell, lambda one: one.p99_ms)
    latency = f" ({_ms(p50)} / {_ms(p99)})" if p50 and p99 else ""
    return f"{rate.median:,.0f}{'' if rate.clean else ' (c)'}{latency}"


def _ms(found: Spread) -> str:
    return f"{found.median:.{1 if found.median < 100 else 0}f}"
