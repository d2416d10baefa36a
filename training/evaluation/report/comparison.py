"""`simile training compare`: tables with one row per model, from files of `evaluate --json`.

Files of several seeds of a model form one row, with mean ± standard deviation.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from models.files.bounded import parse_json
from training.arguments import expanded
from training.errors import TrainingError
from training.evaluation.data import BY_KEY, SETS
from training.evaluation.modes import MODES
from training.evaluation.report.markdown import (
    escape,
    listed,
    report_folder,
    table,
    write,
)
from training.evaluation.report.table import (
    COLUMNS,
    GEOMETRY,
    SEARCH,
    Scores,
    percent,
    plain,
    search_remarks,
    sections,
    similarity_remarks,
    title,
    transfer_remarks,
)
from training.evaluation.tasks import TITLES

_HEADINGS = ("Spearman", "Spearman, mean of subsets", "Spearman, weighted mean of subsets", "Pearson")
_COUNTED = (("sts", "pairs"), ("retrieval", "documents"), ("retrieval", "queries"), ("transfer", "examples"))
READING = (
    "Similarity, search and transfer are times 100. The Spearman that papers report is the first: a year's "
    "subsets are put together and ranked once. Geometry explains a score and does not replace it: a model "
    "may be better in each figure and worse at similarity."
)
Figure = Callable[[Scores], Any]
Show = Callable[[float | None], str]


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "compare",
        help="compare evaluated models in one report",
        description="Models as rows, from what `evaluate --json` has written. Files whose names differ in a "
        "last -N only, as a-1.json and a-2.json, are seeds of one model: a row with mean ± sd.",
    )
    command.add_argument("files", metavar="FILE", nargs="+", help="of `evaluate --json`")
    command.add_argument("--report", metavar="FOLDER", required=True, help="where report.md goes")
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    models = read_models(options.files)
    folder = report_folder(options.report)
    remarks = list(_remarks(models))
    sections = [
        "# Comparison",
        f"{READING} A row over several seeds is mean ± standard deviation (of a sample).",
        _about(models),
        *(["## What keeps figures from being compared", listed(remarks)] if remarks else []),
        *(f"## {head}\n\n{_rows(models, figures, show)}" for head, figures, show in _tables(models)),
    ]
    sys.stdout.write(f"{write(folder, sections)}\n")
    return 0


def _about(models: Models) -> str:
    rows = []
    for name, files in models.items():
        for file, scores in files:
            version = scores["version"] or "not published"
            fingerprint = (scores["fingerprint"] or "unknown")[:8]
            form, data = (scores.get(key) or "unknown" for key in ("form", "data"))
            model, absent = str(scores["model"]), ", ".join(map(title, scores["absent"]))
            rows += [(name, file, model, version, fingerprint, form, scores["date"], data, absent)]
    header = ("name", "file", "model", "version", "fingerprint", "form", "date", "data", "absent")
    return table(header, rows, words=range(len(header)))


def _tables(models: Models) -> Iterator[tuple[str, Mapping[str, Figure], Show]]:
    """Yields the heading, the figures and the format of each table."""
    for column, heading in zip(COLUMNS, _HEADINGS, strict=True):
        keys = _present(models, "sts", BY_KEY)
        if keys:
            figures = {title(key): _figure("sts", key, column) for key in keys}
            english = {title(known.key): figures[title(known.key)] for known in SETS if known.key in keys}
            mean = _compute_mean("sts", _common(models, "mean"), column)
            yield f"Similarity: {heading}", english | mean | figures, percent
    if any("geometry" in scores for _, scores in _all(models)):
        figures = {key.replace("_", " "): _figure("geometry", key) for key in GEOMETRY}
        yield "Geometry of STS-B", figures, partial(plain, decimals=4)
    for name in _present(models, "retrieval"):
        figures = {head: _figure("retrieval", name, key) for head, key in SEARCH.items()}
        yield f"Search: {escape(name)}", figures, percent
        for mode in MODES:
            found = {head: _figure("retrieval", name, mode, key) for head, key in SEARCH.items()}
            if any(scores.get("retrieval", {}).get(name, {}).get(mode) for _, scores in _all(models)):
                yield f"Search: {escape(name)}, {mode}", found, percent
    keys = _present(models, "transfer", TITLES)
    if keys:
        mean = _compute_mean("transfer", _common(models, "transfer_mean"), "accuracy")
        figures = {title(key): _figure("transfer", key, "accuracy") for key in keys}
        f1 = {f"{title(key)} F1": _figure("transfer", key, "f1") for key in keys if key == "mrpc"}
        yield "Transfer: accuracy", figures | mean | f1, percent
    keys = _present(models, "clustering", TITLES)
    if keys:
        figures = {title(key): _figure("clustering", key, "accuracy") for key in keys}
        yield "Clustering: accuracy of k-means", figures, percent


def _rows(models: Models, figures: Mapping[str, Figure], show: Show) -> str:
    """Returns a table with a row for each model. `show` formats a figure."""
    rows = [
        (name, str(len(files)), *(_cell(files, figure, show) for figure in figures.values()))
        for name, files in models.items()
    ]
    return table(("", "seeds", *figures), rows)


def _cell(files: Sequence[Evaluated], figure: Figure, show: Show) -> str:
    """Returns mean ± standard deviation over seeds as text, with a count if some seeds lack the figure.

    Returns "undefined" or an empty text if all seeds lack it.
    """
    found = [figure(scores) for _, scores in files]
    values = [value for value in found if value is not None and value is not _MISSING]
    if not values:
        return "undefined" if None in found else ""
    spread = f" ± {show(statistics.stdev(values))}" if len(values) > 1 else ""
    part = f" ({len(values)} of {len(files)})" if len(values) < len(files) else ""
    return f"{show(statistics.fmean(values))}{spread}{part}"


_MISSING = object()  # not measured; None is a figure that is not finite


def _figure(*path: str) -> Figure:
    def look(scores: Any) -> Any:
        for key in path:
            scores = scores.get(key, {})
        return _MISSING if scores == {} else scores

    return look


def _compute_mean(suite: str, keys: Sequence[str], column: str) -> dict[str, Figure]:
    """Returns the heading and the function of a column with the mean over the sets `keys`, or {} for none."""

    def look(scores: Scores) -> Any:
        values = [_figure(suite, key, column)(scores) for key in keys]
        if _MISSING in values:
            return _MISSING
        return None if None in values else math.fsum(values) / len(values)

    return {f"mean of {len(keys)}": look} if keys else {}


def _common(models: Models, mean: str) -> list[str]:
    """Returns the keys of the sets that every file includes in its mean. Ignores files without a mean."""
    each = [scores[mean]["sets"] for _, scores in _all(models) if mean in scores]
    return [key for key in each[0] if all(key in sets for sets in each)] if each else []


def _present(models: Models, suite: str, order: Mapping[str, object] | None = None) -> list[str]:
    """Returns the keys of a suite's sets that are in at least one file, sorted as in `order`."""
    found = dict.fromkeys(key for _, scores in _all(models) for key in scores.get(suite, {}))
    return [key for key in order if key in found] if order else list(found)


def _all(models: Models) -> Iterator[Evaluated]:
    for files in models.values():
        yield from files


def _remarks(models: Models) -> Iterator[str]:
    yield from _unequal(models)
    for name, files in models.items():
        prints = [scores["fingerprint"] for _, scores in files if scores["fingerprint"]]
        if len(set(prints)) < len(prints):
            yield f"{name}: two of its files are of the same model, so they are not two seeds."
        forms = sorted({form for _, scores in files if (form := scores.get("form"))})
        if len(forms) > 1:
            yield f"{name}: its files were computed in different forms: {', '.join(forms)}."
    places: dict[str, list[str]] = {}
    for file, scores in _all(models):
        for remark in _of(scores):
            places.setdefault(remark, []).append(file)
    every = sum(map(len, models.values()))
    for remark, where in places.items():
        yield remark if len(where) == every else f"{remark} ({', '.join(where)})"


def _unequal(models: Models) -> Iterator[str]:
    """Yields remarks on files whose scores are from different data."""
    for mean in ("mean", "transfer_mean"):
        common = _common(models, mean)
        sets = chain.from_iterable(scores.get(mean, {}).get("sets", ()) for _, scores in _all(models))
        if left_out := dict.fromkeys(key for key in sets if key not in common):
            yield f"Not in the mean, because not every file has it: {', '.join(map(title, left_out))}."
    for suite, counted in _COUNTED:
        for key in _present(models, suite):
            found = [scores.get(suite, {}).get(key) for _, scores in _all(models)]
            counts = sorted({figures[counted] for figures in found if figures})
            if len(counts) > 1:
                said = ", ".join(map(str, counts))
                yield f"{title(key)} is not the same data in all files: {said} {counted}."


def _of(scores: Scores) -> Iterator[str]:
    for key, figures in scores.get("sts", {}).items():
        yield from (f"{title(key)}: {said}" for said in similarity_remarks(figures, BY_KEY[key].published))
    for key, figures in scores.get("retrieval", {}).items():
        yield from (f"{key}: {said}" for said in search_remarks(figures))
    for key, figures in scores.get("transfer", {}).items():
        yield from (f"{title(key)}: {said}" for said in transfer_remarks(figures))


class Evaluated(NamedTuple):
    file: str  # name without the folder
    scores: Scores


Models = Mapping[str, Sequence[Evaluated]]  # the files of each model


def read_models(files: Sequence[str]) -> dict[str, list[Evaluated]]:
    """Reads files of scores, and groups them by the name of the model.

    The name of the model is the file name without .json. Files whose names differ only in a final -N belong
    to one model, whose name has no -N.

    Raises:
        TrainingError: A file is not from `evaluate --json` of this release.
    """
    paths = [expanded(given) for given in files]
    bases = [re.sub(r"-\d+$", "", path.stem) for path in paths]
    models: dict[str, list[Evaluated]] = {}
    for path, base in zip(paths, bases, strict=True):
        name = base if bases.count(base) > 1 else path.stem
        models.setdefault(name, []).append(Evaluated(path.name, _read(path)))
    return models


def _read(file: Path) -> Scores:
    try:
        scores: Scores = parse_json(file.read_bytes(), parse_constant=lambda _: None)
    except OSError as error:
        raise TrainingError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise TrainingError(f"{file} is not JSON: {error}") from None
    try:
        list(sections(scores))  # reads every figure
        [scores[key] for key in ("model", "version", "fingerprint", "date", "absent")]
    except (AttributeError, KeyError, TypeError, ValueError):
        raise TrainingError(f"{file} is not what `evaluate --json` of this release writes.") from None
    return scores
