"""The figures of a run as Markdown: for a terminal, and ready to go into docs/PERFORMANCE.md."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.contestant import CONTENDED
from benchmarks.floors import (
    ALONE,
    BULK,
    FEW,
    FLOORS,
    LONG,
    MANY,
    MIX_AT_ONCE,
    ONE,
    SENTENCES_AT_ONCE,
    SINGLE,
    TOGETHER_ALONE,
    TOKENISED_ALONE,
)
from benchmarks.forms import CACHED, DEFAULT, name_of, raw_name
from benchmarks.results import Results, Spread
from benchmarks.tables import of_machine, table
from benchmarks.workloads import Workload

LOADS = (MANY, BULK, FEW, ONE, LONG)
COMPARED = ((MANY, SENTENCES_AT_ONCE), (BULK, SENTENCES_AT_ONCE), (LONG, MIX_AT_ONCE))
FLOP_PER_TOKEN = (
    21.2e6  # all-MiniLM-L6-v2's layers: 6 * 2 * (4 * 384² + 2 * 384 * 1536); attention is less than 1 %
)


def text(results: Results) -> str:
    """The whole report."""
    parts = (
        _machine,
        _rates,
        _ratios,
        _work,
        _latencies,
        _alone,
        _ceiling,
        _memory,
        _documents,
        _missing,
    )
    return "\n\n".join(said for part in parts if (said := part(results)))


def workload(given: Workload) -> dict[str, Any]:
    lengths = given.lengths()
    return {
        "name": given.name,
        "texts": len(lengths),
        "tokens": {
            "mean": round(float(np.mean(lengths)), 1),
            "p50": float(np.median(lengths)),
            "p90": float(np.quantile(lengths, 0.9)),
            "least": min(lengths),
            "most": max(lengths),
        },
    }


def _machine(results: Results) -> str:
    kept = results.kept
    workloads = "; ".join(
        f"{one['name']}: {one['texts']:,} texts of {one['tokens']['least']} to "
        f"{one['tokens']['most']} tokens, mean {one['tokens']['mean']:g}, median {one['tokens']['p50']:g}"
        for one in kept["workloads"]
    )
    look = "A look with `--quick`, no figure. " if kept["quick"] else ""
    return (
        f"{look}{of_machine(kept['date'], kept['machine'])}; "
        f"{kept['model']}, vector cache off, but for {CACHED}. Texts: {kept['texts']}; {workloads}. "
        f"Medians over the clean rounds (least to most); (c): others used more than "
        f"{CONTENDED:.0%} of the machine in every round."
    )


def _by_name(results: Results, cells: Callable[[str], list[str]]) -> list[list[str]]:
    """A row for each contestant that has any of the cells."""
    rows = [[name, *cells(name)] for name in results.names]
    return [row for row in rows if any(row[1:])]


def _words(found: Spread | None) -> str:
    return found.words() if found else ""


def _rates(results: Results) -> str:
    """Texts a second, and cosines to the reference, of each contestant."""
    near = results.kept["cosines"]

    def cells(name: str) -> list[str]:
        scenarios = (SENTENCES_AT_ONCE, *LOADS[:4], MIX_AT_ONCE, LONG)
        found = [results.spread((name, scenario)) for scenario in scenarios]
        cosines = near["rows"].get(name, {}).values() if any(found) else ()
        shown = [f"{one.median:,.0f}{'' if one.clean else ' (c)'}" if one else "" for one in found]
        return shown + ([f"{cosine:.5f}" for cosine in cosines] or ["", ""])

    rows = _by_name(results, cells)
    rows = [[f"**{name}**" if name.startswith("Simile") else name, *shown] for name, *shown in rows]
    head = ["texts/s", "at once", *LOADS[:4], "mix, at once", LONG, "cosine, mean", "least"]
    return f"{table(head, rows)}\n\nCosines of {near['texts']} texts, to {near['reference']}."


def _ratios(results: Results) -> str:
    """Each form of ours over everybody else; the floor where one is promised."""
    promised = {(floor.precision, floor.load, floor.name): floor.least for floor in FLOORS}
    rows = []
    for precision in ("fp32", "bf16", "int8"):
        ours = name_of(precision)
        others = [name for name in results.names if not name.startswith("Simile") and name != ALONE]
        for other in others:
            if other.startswith("raw") and other != raw_name(precision):
                continue
            row = [f"{ours} over {other}"]
            for load, at_once in COMPARED:
                found = results.ratio((ours, load), (other, load)) or results.ratio(
                    (ours, load), (other, at_once)
                )
                least = promised.get((precision, load, other))
                row.append(f"{found.words()}{f', floor {least:g}' if least else ''}" if found else "")
            if any(row[1:]):
                rows.append(row)
    ours = name_of(DEFAULT)
    added = [_words(results.ratio((CACHED, load), (ours, load))) for load, _ in COMPARED]
    if any(added):
        rows.append([f"{CACHED}, over {ours}", *added])
    return table(["ratio of texts/s", *(load for load, _ in COMPARED)], rows)


def _work(results: Results) -> str:
    """Processor time of a text, which depends less on other load than a rate does."""

    def cells(name: str) -> list[str]:
        found = (
            results.spread((name, load), lambda one: one.cpu_ms)
            or results.spread((name, at_once), lambda one: one.cpu_ms)
            for load, at_once in COMPARED
        )
        return [_words(one) for one in found]

    head = ["CPU ms of its process a text", *(load for load, _ in COMPARED)]
    return table(head, _by_name(results, cells))


def _latencies(results: Results) -> str:
    def cell(name: str, load: str) -> str:
        p50 = results.spread((name, load), lambda one: one.p50_ms)
        p99 = results.spread((name, load), lambda one: one.p99_ms)
        return f"{_ms(p50)} / {_ms(p99)}" if p50 and p99 else ""

    rows = _by_name(results, lambda name: [cell(name, load) for load in LOADS])
    return table(["p50 / p99 of a request, ms", *LOADS], rows)


def _ms(found: Spread) -> str:
    return f"{found.median:.{1 if found.median < 100 else 0}f}"


def _alone(results: Results) -> str:
    """The latency of one client beyond the raw call's."""
    lines = []
    for name, what in (
        (ALONE, "tokenised beforehand"),
        (TOKENISED_ALONE, "tokenised in the call"),
        (TOGETHER_ALONE, "tokenised beforehand, by the threads of a lone text"),
    ):
        call = results.spread((name, SINGLE), lambda one: one.p50_ms)
        ours = name_of(DEFAULT)
        beyond = results.difference((ours, ONE), (name, SINGLE), lambda one: one.p50_ms)
        if call and beyond:
            lines.append(
                f"One raw call ({what}): p50 {call.median:.2f} ms; "
                f"one client of {ours}: {beyond.words()} ms more."
            )
    return "\n".join(lines)


def _ceiling(results: Results) -> str:
    """Matrix products alone, and how much of their pace the raw engine keeps."""
    peaks = {name: results.spread((name, "products")) for name in results.names if name.startswith("GEMM")}
    rows = [[name, one.words(0)] for name, one in peaks.items() if one]
    said = table(["GFLOP/s, a thread for each processor", ""], rows)
    raw = results.spread((raw_name("fp32"), SENTENCES_AT_ONCE))
    best = max((one.median for name, one in peaks.items() if one and "fp32" in name), default=0.0)
    if not raw or not best or "all-minilm-l6-v2" not in results.kept["model"]:
        return said
    mean = next(
        one["tokens"]["mean"] for one in results.kept["workloads"] if one["name"] == SENTENCES_AT_ONCE
    )
    gflops = raw.median * mean * FLOP_PER_TOKEN / 1e9
    return (
        f"{said}\n\nThe raw engine on sentences: {gflops:.0f} GFLOP/s, {gflops / best:.0%} of the fp32 peak."
    )


def _memory(results: Results) -> str:
    rows = []
    for name, about in results.kept["about"].items():
        memory = about.get("memory_mb")
        if memory:
            first = about.get("first_ready_seconds") or about.get("ready_seconds")
            rows.append(
                [name, f"{memory['now']:.0f}", f"{memory['peak']:.0f}", f"{first:.1f}" if first else ""]
            )
    starts = results.kept["starts"]
    said = [table(["", "RSS after the rounds, MiB", "most", "first start to ready, s"], rows)]
    mark = ", contended" if starts["contended"] else ""
    said += [
        f"Second start to ready: {starts['second_median']:.2f} s (median of {len(starts['second'])}{mark})."
    ]
    said += [
        f"{name}: RSS {one['before_mb']:.0f} MiB after {one['few']:,} requests of every shape, "
        f"{one['after_mb']:.0f} after {one['many']:,} ({one['after_mb'] / one['before_mb']:.2f})."
        for name, one in results.kept["memory"].items()
    ]
    return "\n\n".join(said)


def _documents(results: Results) -> str:
    found = results.kept["documents"]
    rows = list(_document_rows(found))
    said = table([f"with {found['stored']:,} documents stored", "p50 ms", "p99 ms"], rows)
    return (
        f"{said}\n\nStarting on them took {found['ready_seconds']:.1f} s to ready, "
        f"storing them (vectors given) {found['fill_seconds']:.1f} s."
    )


def _document_rows(found: dict[str, Any]) -> Iterator[list[str]]:
    words = {
        "embed": "`/embed`, one text",
        "add": "`POST /documents`, one new document",
        "difference": "the difference, pair by pair",
        "search": "a search",
    }
    for name, when in (("alone", ""), ("while_searching", ", while a client searches without pause")):
        one = found[name]
        mark = " (c)" if one["contended"] else ""
        for what, said in words.items():
            if quantiles := one.get(f"{what}_ms"):
                yield [f"{said}{when}{mark}", f"{quantiles['p50']:.1f}", f"{quantiles['p99']:.1f}"]


def _missing(results: Results) -> str:
    return "\n".join(f"Not measured: {name}: {why}" for name, why in results.kept["missing"].items())
