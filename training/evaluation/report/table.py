"""The scores as a table for the terminal: correlations and search times 100 as papers print them.

Figures that are lists are in the JSON only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.manifest import Mode
from training.evaluation.data import BY_KEY, OTHERS, SETS, EvaluationSet
from training.evaluation.modes import MODES
from training.evaluation.tasks import TITLES

COLUMNS = ("spearman_all", "spearman_mean", "spearman_wmean", "pearson_all")
SEARCH = {
    "nDCG@10": "ndcg10",
    "recall@1": "recall1",
    "@10": "recall10",
    "@100": "recall100",
    "MRR@10": "mrr10",
    "MAP@100": "map100",
}


def table(scores: dict[str, Any]) -> str:
    """`scores` as `suites.score` gives them. Ends without a newline."""
    sections = []
    if "sts" in scores:
        sections += [_similarity(scores)]
    if "geometry" in scores:
        sections += [_geometry(scores["geometry"])]
    if "retrieval" in scores:
        sections += [_retrieval(scores["retrieval"])]
    if "transfer" in scores:
        sections += [_transfer(scores["transfer"], scores["transfer_mean"])]
    if "clustering" in scores:
        sections += [_clustering(scores["clustering"])]
    if scores["absent"]:
        names = ", ".join(map(title, scores["absent"]))
        sections += [f"absent: {names} (no such folder in the evaluation data)"]
    sentences = f"{scores['sentences']} distinct sentences in " if scores["sentences"] else ""
    sections += [f"{sentences}{scores['seconds']:.1f} s"]
    return "\n\n".join(sections)


def _similarity(scores: dict[str, Any]) -> str:
    lines = [f"{'':12}{'spearman':>10}{'by subset':>20}{'pearson':>10}"]
    lines += [f"{'similarity':12}{'all':>10}{'mean':>10}{'wmean':>10}{'all':>10}{'pairs':>8}"]
    for known in SETS:
        if known.key in scores["sts"]:
            lines += [_similar(known, scores["sts"][known.key])]
        elif known.key in scores["absent"]:
            lines += [f"{known.title:12}{'absent':>10}"]
    if "mean" in scores:
        mean = scores["mean"]
        lines += [f"{'mean of ' + str(len(mean['sets'])):12}{percent(mean['spearman_all']):>10}"]
    lines += [_similar(known, scores["sts"][known.key]) for known in OTHERS if known.key in scores["sts"]]
    return "\n".join(lines)


def _similar(known: EvaluationSet, figures: dict[str, Any]) -> str:
    cells = "".join(f"{percent(figures[column]):>10}" for column in COLUMNS)
    remarks = similarity_remarks(figures, known.published)
    return f"{known.title:12}{cells}{figures['pairs']:>8}{_after(remarks)}"


def similarity_remarks(figures: Mapping[str, Any], published: int) -> list[str]:
    """Reasons that keep a figure from being compared with others."""
    remarks = []
    if figures["pairs"] != published:
        remarks += [f"the published set has {published}"]
    if figures["unscored"]:
        remarks += [f"{figures['unscored']} without a gold score left out"]
    if figures["undefined"]:
        remarks += [f"{figures['undefined']} cosines undefined, counted as 0"]
    return remarks


def search_remarks(figures: Mapping[str, Any]) -> list[str]:
    remarks = []
    if figures["empty"]:
        remarks += [f"{figures['empty']} without text left out"]
    if figures["undefined"]:
        remarks += [f"{figures['undefined']} vectors without a direction, their cosines counted as 0"]
    return remarks


def transfer_remarks(figures: Mapping[str, Any]) -> list[str]:
    remarks = list(figures["remarks"])
    if figures["undefined"]:
        remarks += [f"{figures['undefined']} vectors undefined, counted as 0"]
    return remarks


def title(key: str) -> str:
    """The title of a set of similarity or transfer; anything else is its own title."""
    known = BY_KEY.get(key)
    return known.title if known else TITLES.get(key, key)


def _after(remarks: list[str]) -> str:
    return f"  {'; '.join(remarks)}" if remarks else ""


def _geometry(figures: dict[str, Any]) -> str:
    rows = (
        ("alignment", 4, f"{figures['pairs']} pairs with a score above 4; lower is better"),
        ("uniformity", 4, f"{figures['sentences']} distinct sentences; lower is better"),
        ("mean cosine", 4, "of two of them; 0 when directions are spread evenly"),
        ("eff. rank", 1, f"of {len(figures['spectrum'])} directions"),
    )
    values = (figures[key] for key in ("alignment", "uniformity", "mean_cosine", "effective_rank"))
    lines = [f"geometry of STS-B ({', '.join(figures['splits'])})"]
    for (name, decimals, said), value in zip(rows, values, strict=True):
        lines += [f"{name:12}{plain(value, decimals):>10}  {said}"]
    return "\n".join(lines)


def _retrieval(sets: dict[str, dict[str, Any]]) -> str:
    width = max(12, *(len(name) + 1 for name in sets))
    heads = "".join(f"{head:>10}" for head in SEARCH)
    lines = [f"{'search':{width}}{heads}{'queries':>9}{'documents':>11}"]
    for name, figures in sets.items():
        said = _after(search_remarks(figures))
        counted = f"{figures['queries']:>9}{figures['documents']:>11}{said}"
        lines += [f"{name:{width}}{_found(figures)}{counted}"]
        lines += [f"{'  ' + mode:{width}}{_found(of_mode)}" for mode, of_mode in other_modes(figures)]
    return "\n".join(lines)


def _found(figures: Mapping[str, Any]) -> str:
    return "".join(f"{percent(figures[key]):>10}" for key in SEARCH.values())


def other_modes(figures: Mapping[str, Any]) -> list[tuple[Mode, Mapping[str, Any]]]:
    """The figures of search by words and by both, where they were measured; dense ones stand before them."""
    return [(mode, figures[mode]) for mode in MODES if figures.get(mode)]


def _transfer(tasks: dict[str, dict[str, Any]], mean: dict[str, Any]) -> str:
    lines = [f"{'transfer':12}{'accuracy':>10}{'F1':>10}{'examples':>10}"]
    for key, figures in tasks.items():
        f1 = "" if figures["f1"] is None else percent(figures["f1"])
        said = _after(transfer_remarks(figures))
        cells = f"{percent(figures['accuracy']):>10}{f1:>10}{figures['examples']:>10}"
        lines += [f"{TITLES[key]:12}{cells}{said}"]
    lines += [f"{'mean of ' + str(len(mean['sets'])):12}{percent(mean['accuracy']):>10}"]
    return "\n".join(lines)


def _clustering(tasks: dict[str, dict[str, Any]]) -> str:
    lines = [f"{'clustering':12}{'accuracy':>10}{'classes':>10}{'sentences':>11}"]
    for key, figures in tasks.items():
        cells = f"{percent(figures['accuracy']):>10}{figures['classes']:>10}{figures['sentences']:>11}"
        lines += [f"{TITLES[key]:12}{cells}"]
    return "\n".join(lines)


def percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def plain(value: float | None, decimals: int) -> str:
    return "undefined" if value is None else f"{value:.{decimals}f}"
