"""The files of `evaluate --json`, read again: by model, with the files of several seeds together."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from training.errors import TrainingError
from training.evaluation.data import BY_KEY
from training.evaluation.geometry import BINS, GRADES
from training.evaluation.report.table import COLUMNS, SEARCH
from training.evaluation.tasks import TITLES
from training.paths import expanded

Scores = Mapping[str, Any]
Check = Callable[[Any], bool]
_ABOUT = ("model", "version", "fingerprint", "date")


class Evaluated(NamedTuple):
    file: str  # its name, without the folder
    scores: Scores


Models = Mapping[str, Sequence[Evaluated]]  # the seeds of each


def read_models(files: Sequence[str]) -> dict[str, list[Evaluated]]:
    """By name, in the order given: NAME of NAME=FILE, else the file's name without .json.

    Files whose names differ in a last -N only are of one model. Raise TrainingError for a file that
    `evaluate --json` of this release has not written.
    """
    named = [_named(given) for given in files]
    bases = [name if said else re.sub(r"-\d+$", "", name) for name, _, said in named]
    models: dict[str, list[Evaluated]] = {}
    for (name, file, _), base in zip(named, bases, strict=True):
        key = base if bases.count(base) > 1 else name
        models.setdefault(key, []).append(Evaluated(file.name, _read(file)))
    return models


def _named(given: str) -> tuple[str, Path, bool]:
    """The name, the file, and whether the name was said with it."""
    name, equals, file = given.partition("=")
    if equals and name and not expanded(given).exists():
        return name, expanded(file), True
    return expanded(given).stem, expanded(given), False


def _read(file: Path) -> Scores:
    try:
        found = json.loads(file.read_bytes(), parse_constant=lambda _: None)
    except OSError as error:
        raise TrainingError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise TrainingError(f"{file} is not JSON: {error}") from None
    if fault := next(_faults(found), None):
        raise TrainingError(f"{file} is not what `evaluate --json` of this release writes: {fault}.")
    scores: Scores = found
    return scores


def _faults(found: Any) -> Iterator[str]:
    """Everything that is missing in it, or of another kind."""
    yield from _lacks("", found, dict.fromkeys(_ABOUT, _text) | {"absent": _list_of(_text)})
    for suite, known, checks in _SUITES:
        yield from _lacks(suite, found.get(suite, {}), {})
        for key, figures in found.get(suite, {}).items():
            if known is not None and key not in known:
                yield f"{suite}.{key} is no set that is known"
            yield from _lacks(f"{suite}.{key}", figures, checks)
    for mean, suite in (("mean", "sts"), ("transfer_mean", "transfer")):
        if mean in found:
            yield from _lacks(mean, found[mean], {"sets": _list_of(found.get(suite, {}).__contains__)})
    if "geometry" in found:
        yield from _lacks("geometry", found["geometry"], _SHAPE)


def _lacks(where: str, found: Any, checks: Mapping[str, Check]) -> Iterator[str]:
    if not isinstance(found, dict):
        yield f"{where or 'it'} is no JSON object"
        return
    for key, fits in checks.items():
        if key not in found or not fits(found[key]):
            yield f"{where}.{key}".lstrip(".") + " is missing or of another kind"


def _text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and math.isfinite(value))


def _count(value: Any) -> bool:
    return isinstance(value, int)


def _list_of(fits: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _histogram(value: Any) -> bool:
    counts = _list_of(_count)
    return (
        isinstance(value, dict)
        and tuple(value) == GRADES
        and all(counts(steps) and len(steps) == BINS for steps in value.values())
    )


def _figures(*numbers: str) -> dict[str, Check]:
    return dict.fromkeys(numbers, _number)


def _counts(*names: str) -> dict[str, Check]:
    return dict.fromkeys(names, _count)


_SUITES: tuple[tuple[str, Mapping[str, object] | None, dict[str, Check]], ...] = (
    ("sts", BY_KEY, _figures(*COLUMNS) | _counts("pairs", "unscored", "undefined")),
    ("retrieval", None, _figures(*SEARCH.values()) | _counts("queries", "documents", "empty", "undefined")),
    (
        "transfer",
        TITLES,
        _figures("accuracy", "f1") | _counts("examples", "undefined") | {"remarks": _list_of(_text)},
    ),
)
_SHAPE = _figures("alignment", "uniformity", "mean_cosine", "top_energy", "effective_rank") | {
    "spectrum": _list_of(lambda value: _number(value) and value is not None),
    "histogram": _histogram,
}
