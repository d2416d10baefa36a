"""The files of `evaluate --json`, read again: by model, with the files of several seeds together."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, StrictInt, ValidationError, create_model

from models.files.bounded import parse_json
from training.arguments import expanded
from training.errors import TrainingError
from training.evaluation.data import BY_KEY
from training.evaluation.geometry import BINS, GRADES
from training.evaluation.report.table import COLUMNS, SEARCH
from training.evaluation.tasks import TITLES

Scores = Mapping[str, Any]


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
        found = parse_json(file.read_bytes(), parse_constant=lambda _: None)
    except OSError as error:
        raise TrainingError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise TrainingError(f"{file} is not JSON: {error}") from None
    if fault := _fault(found):
        raise TrainingError(f"{file} is not what `evaluate --json` of this release writes: {fault}.")
    scores: Scores = found
    return scores


def _fault(found: Any) -> str | None:
    """The first thing that is missing in it, or of another kind."""
    try:
        _EVALUATION.model_validate(found)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        where = ".".join(part for part in problem["loc"] if isinstance(part, str))
        if where.endswith(".[key]"):
            return f"{where.removesuffix('.[key]')} is no set that is known"
        if problem["type"] in ("model_type", "dict_type"):
            return f"{where or 'it'} is no JSON object"
        return f"{where} is missing or of another kind"
    for mean, suite in (("mean", "sts"), ("transfer_mean", "transfer")):
        if mean in found and not set(found[mean]["sets"]) <= found.get(suite, {}).keys():
            return f"{mean}.sets is missing or of another kind"
    return None


_FIGURE: Any = Annotated[float, Field(strict=True, allow_inf_nan=False)]
_TEXTS: Any = (list[str | None], ...)


def _table(figures: Iterable[str] = (), counts: Iterable[str] = (), **more: Any) -> Any:
    fields: dict[str, Any] = dict.fromkeys(figures, (_FIGURE | None, ...))
    fields |= dict.fromkeys(counts, (StrictInt, ...)) | more
    return create_model("Table", **fields)


def _by_name(names: Iterable[str], value: Any) -> Any:
    """The type of a dictionary with none but these keys."""
    return GenericAlias(dict, (Literal.__getitem__(tuple(names)), value))


_SIMILARITY = _table(COLUMNS, ("pairs", "unscored", "undefined"))
_MODE = (_table(SEARCH.values()), None)
_RETRIEVAL = _table(
    SEARCH.values(), ("queries", "documents", "empty", "undefined"), lexical=_MODE, hybrid=_MODE
)
_TRANSFER = _table(("accuracy", "f1"), ("examples", "undefined"), remarks=_TEXTS)
_CLUSTERED = _table(("accuracy",), ("classes", "sentences", "undefined"))
_STEPS = Annotated[list[StrictInt], Field(min_length=BINS, max_length=BINS)]
_GEOMETRY = _table(
    ("alignment", "uniformity", "mean_cosine", "top_energy", "effective_rank"),
    spectrum=(list[_FIGURE], ...),
    histogram=(Annotated[_by_name(GRADES, _STEPS), Field(min_length=len(GRADES))], ...),
)
_MEAN = (_table(sets=_TEXTS), None)
_EVALUATION = _table(
    model=(str | None, ...),
    version=(str | None, ...),
    fingerprint=(str | None, ...),
    date=(str | None, ...),
    absent=_TEXTS,
    sts=(_by_name(BY_KEY, _SIMILARITY), {}),
    retrieval=(GenericAlias(dict, (str, _RETRIEVAL)), {}),
    transfer=(_by_name(TITLES, _TRANSFER), {}),
    clustering=(_by_name(TITLES, _CLUSTERED), {}),
    mean=_MEAN,
    transfer_mean=_MEAN,
    geometry=(_GEOMETRY, None),
)
