"""Suites: which figures are asked for, and all of them for one encoder.

`sts` is Spearman of STS12 to STS16, STS-B (test) and SICK-R (test); `geometry` is alignment and uniformity
over STS-B (train, dev and test).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.publish import Say, silent
from training.errors import TrainingError

from .data import SETS, STSB, Pairs, is_absent, load
from .encoding import Encode, encode_once
from .geometry import geometry
from .sts import similarity

SUITES = ("sts", "geometry")
_LATER = ("transfer", "retrieval")
_SPLITS = ("train", "dev", "test")


def check_suites(names: Iterable[str]) -> tuple[str, ...]:
    """`names` without repetition. Raise TrainingError for one that there is not, or not yet, or for none."""
    chosen = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    there_are = f"There are: {', '.join(SUITES)}."
    if not chosen:
        raise TrainingError(f"No suite is named. {there_are}")
    for name in chosen:
        if name in _LATER:
            raise TrainingError(f"The suite {name} is not built yet. {there_are}")
        if name not in SUITES:
            raise TrainingError(f"There is no suite {name!r}. {there_are}")
    return chosen


def score(encode: Encode, data: Path, suites: Sequence[str] = SUITES, say: Say = silent) -> dict[str, Any]:
    """The figures of `suites` on what `data` holds, as fractions and ready for JSON.

        {"sts": {"stsb": {"spearman_all": 0.82, …}}, "mean": {"spearman_all": 0.77, "sets": […]},
         "geometry": {"alignment": …, "uniformity": …, …}, "absent": ["sts13"], "sentences": …, "seconds": …}

    A figure that is no number is None. `absent` names the sets that were wanted and whose folder is missing.
    Raise TrainingError for an unknown suite, for data that cannot be read, or when every set is absent.
    """
    began = time.monotonic()
    suites = check_suites(suites)
    say("reading the evaluation sets")
    loaded = _load(data, suites)
    say("encoding the sentences")
    sentences = {text for pairs in loaded.everything() for text in (*pairs.left, *pairs.right)}
    encode = encode_once(encode, sentences)
    body: dict[str, Any] = {}
    if loaded.sts:
        say("comparing with the gold scores")
        body["sts"] = {key: _plain(similarity(pairs, encode)) for key, pairs in loaded.sts.items()}
        body["mean"] = _mean(body["sts"])
    if loaded.stsb:
        say("measuring the geometry")
        body["geometry"] = _plain(geometry(loaded.stsb, encode)) | {"splits": list(_SPLITS)}
    seconds = round(time.monotonic() - began, 2)
    return body | {"absent": loaded.absent, "sentences": len(sentences), "seconds": seconds}


class _Loaded(NamedTuple):
    sts: dict[str, Pairs]
    stsb: list[Pairs]  # each split, for the geometry
    absent: list[str]

    def everything(self) -> list[Pairs]:
        return [*self.sts.values(), *self.stsb]


def _load(data: Path, suites: tuple[str, ...]) -> _Loaded:
    """Everything is read before anything is encoded, so a damaged file costs seconds."""
    wanted = [known.key for known in SETS if "sts" in suites or known.key == STSB]
    absent = [key for key in wanted if is_absent(key, data)]
    if absent == wanted:
        raise TrainingError(f"{data} holds none of {', '.join(wanted)}.")
    there = [key for key in wanted if key not in absent] if "sts" in suites else []
    geometric = "geometry" in suites and STSB not in absent
    return _Loaded(
        {key: load(key, data) for key in there},
        [load(STSB, data, split) for split in _SPLITS] if geometric else [],
        absent,
    )


def _mean(sts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Over the sets that are there; which ones is said, since a mean over others is not comparable."""
    each = [figures["spearman_all"] for figures in sts.values()]
    mean = None if None in each else sum(each) / len(each)
    return {"spearman_all": mean, "sets": list(sts)}


def _plain(figures: Any) -> dict[str, Any]:
    """A named tuple as JSON can hold it: NaN is no JSON."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in figures._asdict().items()
    }
