"""Format scores as tables for the terminal, and words and numbers for reports.

Correlations, accuracies and search scores are multiplied by 100, as in papers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from training.evaluation.data import BY_KEY
from training.evaluation.modes import MODES
from training.evaluation.tasks import TITLES

Scores = Mapping[str, Any]  # as `suites.score` returns them, or a file of `evaluate --json`
COLUMNS = ("spearman_all", "spearman_mean", "spearman_wmean", "pearson_all")
SEARCH = {
    "nDCG@10": "ndcg10",
    "recall@1": "recall1",
    "recall@10": "recall10",
    "recall@100": "recall100",
    "MRR@10": "mrr10",
    "MAP@100": "map100",
}
# The decimals of each figure.
GEOMETRY = {"alignment": 4, "uniformity": 4, "mean_cosine": 4, "top_energy": 4, "effective_rank": 1}
_SAYS = {
    "alignment": "mean squared distance of {pairs} pairs with a gold score above 4; lower is better",
    "uniformity": "over {sentences} distinct sentences; lower is better, about -4 when spread evenly",
    "mean_cosine": "of two different sentences; 0 when directions are spread evenly",
    "top_energy": "share of the squared lengths along one direction",
    "effective_rank": "of {directions} directions",
}


class Section(NamedTuple):
    """The table of one suite of scores. The first column has the names of the rows."""

    title: str
    header: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def __str__(self) -> str:
        table = [self.header, *self.rows]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        marks = ["<" if head in ("", "remarks") else ">" for head in self.header]  # text is left-aligned
        shapes = [*zip(marks, widths, strict=True)]
        lines = (
            "  ".join(f"{cell:{mark}{width}}" for cell, (mark, width) in zip(row, shapes, strict=True))
            for row in table
        )
        return "\n".join([self.title, *(line.rstrip() for line in lines)])


def table(scores: Scores) -> str:
    """Formats the result of `suites.score` as text without a final newline."""
    parts = [str(section) for section in sections(scores)]
    if scores["absent"]:
        names = ", ".join(map(title, scores["absent"]))
        parts += [f"absent: {names} (no such folder in the evaluation data)"]
    sentences = f"{scores['sentences']} distinct sentences in " if scores["sentences"] else ""
    return "\n\n".join([*parts, f"{sentences}{scores['seconds']:.1f} s"])


def sections(scores: Scores) -> Iterator[Section]:
    if "sts" in scores:
        yield _similarity(scores)
    if "geometry" in scores:
        figures = scores["geometry"]
        shapes = [
            (key.replace("_", " "), plain(figures[key], decimals), _SAYS[key].format(**figures))
            for key, decimals in GEOMETRY.items()
        ]
        yield Section(f"Geometry of STS-B ({', '.join(figures['splits'])})", ("", "value", ""), shapes)
    if "retrieval" in scores:
        searches: list[tuple[str, ...]] = []
        for name, figures in scores["retrieval"].items():
            counted = str(figures["queries"]), str(figures["documents"]), "; ".join(search_remarks(figures))
            searches += [(name, *_found(figures), *counted)]
            modes = [mode for mode in MODES if figures.get(mode)]  # the row before has dense search
            searches += [(f"{name}, {mode}", *_found(figures[mode]), "", "", "") for mode in modes]
        yield Section("Search", ("", *SEARCH, "queries", "documents", "remarks"), searches)
    if "transfer" in scores:
        yield _transfer(scores["transfer"], scores["transfer_mean"])
    if "clustering" in scores:
        clustered = [
            (title(key), percent(found["accuracy"]), str(found["classes"]), str(found["sentences"]))
            for key, found in scores["clustering"].items()
        ]
        yield Section("Clustering", ("", "accuracy", "classes", "sentences"), clustered)


def _similarity(scores: Scores) -> Section:
    rows = {}
    for key, figures in scores["sts"].items():
        cells = (percent(figures[column]) for column in COLUMNS)
        remarks = "; ".join(similarity_remarks(figures, BY_KEY[key].published))
        rows[key] = (title(key), *cells, str(figures["pairs"]), remarks)
    english = scores["mean"]["sets"] if "mean" in scores else []
    ordered = [rows.pop(key) for key in english]
    if english:
        mean = percent(scores["mean"]["spearman_all"])
        names = ", ".join(map(title, english))
        ordered += [(f"mean of {len(english)}", mean, "", "", "", "", f"over {names}")]
    header = ("", "Spearman", "mean of subsets", "weighted", "Pearson", "pairs", "remarks")
    return Section("Similarity", header, [*ordered, *rows.values()])


def _transfer(tasks: Mapping[str, Any], mean: Mapping[str, Any]) -> Section:
    rows = []
    for key, figures in tasks.items():
        f1 = "" if figures["f1"] is None else percent(figures["f1"])
        remarks = "; ".join(transfer_remarks(figures))
        rows += [(title(key), percent(figures["accuracy"]), f1, str(figures["examples"]), remarks)]
    names = ", ".join(map(title, mean["sets"]))
    rows += [(f"mean of {len(mean['sets'])}", percent(mean["accuracy"]), "", "", f"over {names}")]
    return Section("Transfer", ("", "accuracy", "F1", "examples", "remarks"), rows)


def _found(figures: Mapping[str, Any]) -> Iterator[str]:
    return (percent(figures[key]) for key in SEARCH.values())


def similarity_remarks(figures: Mapping[str, Any], published: int) -> list[str]:
    """Returns the reasons why scores on a similarity set cannot be compared with published scores.

    Args:
        figures: Scores and counts of the set, from `sts.similarity`.
        published: Number of pairs in the published set.

    """
    other_set = [f"the published set has {published}"] if figures["pairs"] != published else []
    left_out = "without a gold score left out"
    return other_set + _counted(figures, unscored=left_out, undefined="cosines undefined, counted as 0")


def search_remarks(figures: Mapping[str, Any]) -> list[str]:
    undefined = "vectors without a direction, their cosines counted as 0"
    return _counted(figures, empty="without text left out", undefined=undefined)


def transfer_remarks(figures: Mapping[str, Any]) -> list[str]:
    return [*figures["remarks"], *_counted(figures, undefined="vectors undefined, counted as 0")]


def _counted(figures: Mapping[str, Any], **remarks: str) -> list[str]:
    """Returns a remark for each count in `figures` that is not 0. Remarks are given by key."""
    return [f"{figures[key]} {remark}" for key, remark in remarks.items() if figures[key]]


def title(key: str) -> str:
    """Returns the title of a similarity or transfer set. An unknown key is returned unchanged."""
    known = BY_KEY.get(key)
    return known.title if known else TITLES.get(key, key)


def percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def plain(value: float | None, decimals: int) -> str:
    return "undefined" if value is None else f"{value:.{decimals}f}"
