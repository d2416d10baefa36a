"""The scores as a table for the terminal: similarity times 100 as papers print it, geometry as it is."""

from __future__ import annotations

from typing import Any

from .data import BY_KEY, SETS

_COLUMNS = ("spearman_all", "spearman_mean", "spearman_wmean", "pearson_all")


def table(scores: dict[str, Any]) -> str:
    """`scores` as `suites.score` gives them. Ends without a newline."""
    sections = []
    if "sts" in scores:
        sections += [_similarity(scores)]
    if "geometry" in scores:
        sections += [_geometry(scores["geometry"])]
    if scores["absent"]:
        names = ", ".join(BY_KEY[key].title for key in scores["absent"])
        sections += [f"absent: {names} (no such folder in the evaluation data)"]
    sections += [f"{scores['sentences']} distinct sentences in {scores['seconds']:.1f} s"]
    return "\n\n".join(sections)


def _similarity(scores: dict[str, Any]) -> str:
    lines = [f"{'':12}{'spearman':>10}{'by subset':>20}{'pearson':>10}"]
    lines += [f"{'similarity':12}{'all':>10}{'mean':>10}{'wmean':>10}{'all':>10}{'pairs':>8}"]
    for known in SETS:
        figures = scores["sts"].get(known.key)
        if figures:
            cells = "".join(f"{_percent(figures[column]):>10}" for column in _COLUMNS)
            lines += [f"{known.title:12}{cells}{figures['pairs']:>8}{_remarks(figures, known.published)}"]
        elif known.key in scores["absent"]:
            lines += [f"{known.title:12}{'absent':>10}"]
    mean = scores["mean"]
    lines += [f"{'mean of ' + str(len(mean['sets'])):12}{_percent(mean['spearman_all']):>10}"]
    return "\n".join(lines)


def _remarks(figures: dict[str, Any], published: int) -> str:
    """What keeps a figure from being compared with others."""
    remarks = []
    if figures["pairs"] != published:
        remarks += [f"the published set has {published}"]
    if figures["unscored"]:
        remarks += [f"{figures['unscored']} without a gold score left out"]
    if figures["undefined"]:
        remarks += [f"{figures['undefined']} cosines undefined, counted as 0"]
    return f"  {'; '.join(remarks)}" if remarks else ""


def _geometry(figures: dict[str, Any]) -> str:
    rows = (
        ("alignment", f"{figures['pairs']} pairs with a score above 4"),
        ("uniformity", f"{figures['sentences']} distinct sentences"),
    )
    lines = [f"geometry of STS-B ({', '.join(figures['splits'])}), lower is better"]
    lines += [f"{name:12}{_plain(figures[name]):>10}  {over}" for name, over in rows]
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "undefined" if value is None else f"{100 * value:.2f}"


def _plain(value: float | None) -> str:
    return "undefined" if value is None else f"{value:.4f}"
