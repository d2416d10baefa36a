"""What was measured, as a table for people, verdicts, and JSON for programs."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchmarks.documents import Pairs
from benchmarks.throughput import CONTENDED, Bench, Repeat, counted, spread
from benchmarks.workloads import Workload

# What the project promises; a ratio of texts per second, server over raw.
SENTENCES_RATIO = 0.70
MIXTURE_RATIO = 0.60
LONGEST_OVER_MEDIAN = 3.0  # the longest tenth's p99 over the median of all, on the mixture
ADDED_MS = 30.0  # by one more document, beyond embedding it

FIGURES: dict[str, Callable[[Repeat], float]] = {
    "raw_texts_per_second": lambda repeat: repeat.raw_texts_per_second,
    "server_texts_per_second": lambda repeat: repeat.server_texts_per_second,
    "ratio": lambda repeat: repeat.ratio,
    "p50_ms": lambda repeat: repeat.p50_ms,
    "p99_ms": lambda repeat: repeat.p99_ms,
    "longest_p50_ms": lambda repeat: repeat.longest_p50_ms,
    "longest_p99_ms": lambda repeat: repeat.longest_p99_ms,
    "longest_p99_over_median": lambda repeat: repeat.longest_p99_ms / repeat.p50_ms,
    "longest_p99_over_own_median": lambda repeat: repeat.longest_p99_ms / repeat.longest_p50_ms,
    "raw_cpu_ms": lambda repeat: repeat.raw_cpu_ms,
    "server_cpu_ms": lambda repeat: repeat.server_cpu_ms,
    "cpu_ratio": lambda repeat: repeat.raw_cpu_ms / repeat.server_cpu_ms,
}
COLUMNS: tuple[tuple[str, int, Callable[[Repeat], str]], ...] = (
    ("raw/s", 7, lambda r: f"{r.raw_texts_per_second:.0f}"),
    ("server/s", 9, lambda r: f"{r.server_texts_per_second:.0f}"),
    ("ratio", 7, lambda r: f"{r.ratio:.3f}"),
    ("by cpu", 8, lambda r: f"{r.raw_cpu_ms / r.server_cpu_ms:.3f}"),
    ("p50 ms", 8, lambda r: f"{r.p50_ms:.1f}"),
    ("p99 ms", 8, lambda r: f"{r.p99_ms:.1f}"),
    ("long p50", 9, lambda r: f"{r.longest_p50_ms:.1f}"),
    ("long p99", 9, lambda r: f"{r.longest_p99_ms:.1f}"),
    ("server cpu s", 13, lambda r: f"{r.server_cpu_seconds:.2f}"),
    ("load cpu s", 11, lambda r: f"{r.load_cpu_seconds:.2f}"),
    ("foreign raw/server", 19, lambda r: f"{r.raw_foreign:.0%} / {r.server_foreign:.0%}"),
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its floor, or its ceiling."""

    what: str
    value: float
    bound: float
    at_least: bool
    contended: bool  # no clean repeat: the figure says little

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        note = "  (contended: measure again on a quiet machine)" if self.contended else ""
        word = "kept  " if self.kept else "MISSED"
        return f"{word}  {self.what}: {self.value:.3g} {sign} {self.bound:g}{note}"


def throughput(bench: Bench) -> dict[str, Any]:
    """One bench's figures; medians over the clean repeats."""
    return {
        "workload": workload(bench.scenario.workload),
        "clients": bench.scenario.clients,
        "raw_budget_tokens": next(iter(bench.budgets)),
        "raw_budgets_tried": {str(budget): round(rate, 1) for budget, rate in sorted(bench.budgets.items())},
        "repeats": [asdict(repeat) | {"contended": repeat.contended} for repeat in bench.repeats],
        "clean": sum(not repeat.contended for repeat in bench.repeats),
        "figures": {
            name: spread([figure(repeat) for repeat in counted(bench.repeats)])
            for name, figure in FIGURES.items()
        },
    }


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


def added(pairs: Pairs) -> dict[str, Any]:
    """What adding one document costs, in milliseconds."""
    figures = {"embed": pairs.embed, "add": pairs.add, "difference": pairs.differences()}
    if pairs.search:
        figures["search"] = pairs.search
    return {
        "pairs": len(pairs.embed),
        "foreign": pairs.window.foreign,
        "contended": pairs.window.foreign > CONTENDED,
        **{f"{name}_ms": _quantiles(values) for name, values in figures.items()},
    }


def _quantiles(milliseconds: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.quantile(milliseconds, (0.5, 0.99))
    return {"p50": float(p50), "p99": float(p99)}


def verdicts(result: dict[str, Any]) -> list[Verdict]:
    """Every promise that this run can judge."""
    sentences, mixture = result["throughput"]
    alone = result["documents"]["alone"]
    return [
        Verdict(
            f"sentences, {sentences['clients']} clients, server over raw",
            sentences["figures"]["ratio"]["median"],
            SENTENCES_RATIO,
            True,
            not sentences["clean"],
        ),
        Verdict(
            f"mixture, {mixture['clients']} clients, server over raw",
            mixture["figures"]["ratio"]["median"],
            MIXTURE_RATIO,
            True,
            not mixture["clean"],
        ),
        Verdict(
            "mixture, p99 of the longest tenth over the median of all",
            mixture["figures"]["longest_p99_over_median"]["median"],
            LONGEST_OVER_MEDIAN,
            False,
            not mixture["clean"],
        ),
        Verdict(
            f"one document more beside {result['documents']['stored']}, ms beyond embedding it (median)",
            alone["difference_ms"]["p50"],
            ADDED_MS,
            False,
            alone["contended"],
        ),
    ]


def text(result: dict[str, Any], benches: Sequence[Bench]) -> str:
    """The whole report, for a terminal."""
    return "\n\n".join(
        [
            _machine(result),
            *(_table(bench, figures) for bench, figures in zip(benches, result["throughput"], strict=True)),
            _documents(result["documents"]),
            "\n".join(verdict.line() for verdict in verdicts(result)),
        ]
    )


def _machine(result: dict[str, Any]) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    return (
        f"{result['date']}  {machine['cpu']}, {machine['processors']} processors, {machine['memory_gb']} GB, "
        f"{machine['system']}; one fsync {machine['sync_ms']} ms\n"
        f"Python {machine['python']}, {versions}\n"
        f"{result['model']}, {result['threads']} threads; vector cache off; texts: {result['texts']}"
    )


def _table(bench: Bench, figures: dict[str, Any]) -> str:
    name, texts, tokens = figures["workload"].values()
    tried = ", ".join(f"{budget}: {rate:.0f}/s" for budget, rate in figures["raw_budgets_tried"].items())
    rows = [
        "".join(show(repeat).rjust(width) for _, width, show in COLUMNS)
        + ("  contended" if repeat.contended else "")
        for repeat in bench.repeats
    ]
    return "\n".join(
        (
            f"{name}: {figures['clients']} clients x 1 text; {texts} texts",
            "tokens: " + ", ".join(f"{what} {number:g}" for what, number in tokens.items()),
            f"raw: batches of {figures['raw_budget_tokens']} tokens (tried {tried})",
            "".join(column.rjust(width) for column, width, _ in COLUMNS),
            *rows,
            _ratio(figures),
        )
    )


def _ratio(figures: dict[str, Any]) -> str:
    ratio, clean = figures["figures"]["ratio"], figures["clean"]
    among = f"{clean} clean of {len(figures['repeats'])} repeats"
    if not clean:
        among += f", so of all, though others used more than {CONTENDED:.0%} of the machine"
    spread = f"{ratio['least']:.3f} to {ratio['greatest']:.3f}"
    return f"server over raw: median {ratio['median']:.3f} ({spread}), {among}"


def _documents(found: dict[str, Any]) -> str:
    lines = []
    for name in ("alone", "while_searching"):
        one = found[name]
        parts = [
            f"{what} {one[f'{what}_ms']['p50']:.1f} / {one[f'{what}_ms']['p99']:.1f}"
            for what in ("embed", "add", "difference", "search")
            if f"{what}_ms" in one
        ]
        mark = ", contended" if one["contended"] else ""
        lines.append(f"  {name.replace('_', ' ')}: {', '.join(parts)} ({one['pairs']} pairs{mark})")
    head = (
        f"{found['stored']} documents stored (in {found['fill_seconds']:.1f} s); "
        f"ready {found['ready_seconds']:.1f} s after the start; milliseconds, p50 / p99:"
    )
    return "\n".join((head, *lines))
