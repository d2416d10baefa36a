"""The lines of methods.py as tables: the scores of each method, and the rates that were tried for it."""

import statistics
from collections.abc import Container, Mapping, Sequence
from typing import Any

from benchmarks.places import grouped
from benchmarks.tables import mean_of, table

SETS = ("sts12", "sts14", "sts16", "stsb", "sickr")
GEOMETRY = ("alignment", "uniformity")
_COLUMNS = ("method", "rate", "seeds", "STS12", "STS14", "STS16", "STS-B", "SICK-R", "mean", *GEOMETRY)


def tables(lines: Sequence[Mapping[str, Any]], scored: Container[str]) -> str:
    """Two tables for each backbone and number of texts, which are no seeds of one another.

    scored: methods that learn from STS-B's scores.
    """
    groups = grouped(lines, lambda line: (str(line["backbone"]), line["texts"]))
    return "\n\n".join(
        f"Backbone {backbone}, {texts:,} texts\n\n{_tables(group, scored)}"
        for (backbone, texts), group in groups.items()
    )


def _tables(lines: Sequence[Mapping[str, Any]], scored: Container[str]) -> str:
    """Best first, means over the seeds with standard deviations; and the dev scores of each rate."""
    runs_of: dict[tuple[str, float | None], list[Mapping[str, Any]]] = {}
    tried: dict[str, dict[float, float | None]] = {}
    for line in lines:
        if "dev" in line:
            tried.setdefault(line["method"], {})[line["rate"]] = line["dev"]
        else:
            runs_of.setdefault((line["method"], line["rate"]), []).append(line)

    def mean(line: Mapping[str, Any]) -> float:
        return statistics.fmean(line[key] for key in SETS)

    cells = []
    for (name, rate), runs in sorted(runs_of.items(), key=lambda each: -statistics.fmean(map(mean, each[1]))):
        scores = [
            "" if name in scored and key.startswith("sts1") else mean_of([100 * run[key] for run in runs], 1)
            for key in SETS
        ]
        scores.append("" if name in scored else mean_of([100 * mean(run) for run in runs], 2))
        scores += [mean_of([run[key] for run in runs], 3) for key in GEOMETRY]
        cells.append([name, "" if rate is None else f"{rate:g}", len(runs), *scores])
    rates = sorted({rate for scores in tried.values() for rate in scores})
    dev = [[name, *(_dev(scores, rate) for rate in rates)] for name, scores in tried.items()]
    return f"{table(_COLUMNS, cells)}\n\n{table(['STS-B dev at', *(f'{rate:g}' for rate in rates)], dev)}"


def _dev(scores: dict[float, float | None], rate: float) -> str:
    if rate not in scores:
        return ""
    score = scores[rate]
    return "ended" if score is None else f"{100 * score:.1f}"
