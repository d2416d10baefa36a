"""Read evaluation sets of sentence pairs with gold scores.

    DIR/sts12/test.tsv.gz        subset score sentence1 sentence2: UTF-8, a header row, no quoting
    DIR/stsb/SPLIT.tsv.gz        score sentence1 sentence2; further columns are ignored
    DIR/sick/test.tsv.gz         the same, also as sickr/
    DIR/korsts/test.tsv.gz       the same, in Korean

DIR is the evaluation folder. A set without a folder is absent. A file that cannot be read is an error. Sets
for search are in retrieval.py, sets for classification in tasks.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.arguments import expanded
from training.errors import TrainingError
from training.text.lines import read_records

STSB = "stsb"


class EvaluationSet(NamedTuple):
    key: str  # in the JSON and on the command line
    title: str  # in the table
    folders: tuple[str, ...]  # the first existing one counts
    published: int  # number of scored pairs in the split that papers report on
    subsets: bool = False  # True if papers distinguish the sources of the set
    lowest: float = 0.0  # lowest possible gold score


def _year(year: int, published: int) -> EvaluationSet:
    return EvaluationSet(f"sts{year}", f"STS{year}", (f"sts{year}",), published, subsets=True)


# Counts are those of SimCSE's evaluation. STS13 excludes SMT because of its license.
SETS = (
    _year(12, 3108),
    _year(13, 1500),
    _year(14, 3750),
    _year(15, 3000),
    _year(16, 1186),
    EvaluationSet(STSB, "STS-B", (STSB,), 1379),
    EvaluationSet("sickr", "SICK-R", ("sick", "sickr"), 4927, lowest=1.0),
)
# Sets in other languages are optional and do not count in the mean.
OTHERS = (EvaluationSet("korsts", "KorSTS", ("korsts",), 1379),)
BY_KEY = {known.key: known for known in (*SETS, *OTHERS)}
_HIGHEST = 5.0  # highest possible gold score, in every set


class Pairs(NamedTuple):
    left: list[str]
    right: list[str]
    gold: NDArray[np.float64]  # (n,)
    subset: list[str]  # subset of each pair; empty if the set has no subsets
    unscored: int  # rows without a gold score, left out


def data_folder(given: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder `given`, else the folder that SIMILE_EVAL_DATA names.

    Raises:
        TrainingError: No folder is named, or the named path is not a folder.

    """
    named = given or environ.get("SIMILE_EVAL_DATA")
    if not named:
        raise TrainingError("No evaluation data is named. Name its folder with --data or SIMILE_EVAL_DATA.")
    folder = expanded(named)
    if not folder.is_dir():
        raise TrainingError(f"{folder} is not a folder. Name its folder with --data or SIMILE_EVAL_DATA.")
    return folder


def optional_data_folder(given: Path | str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Returns the same folder as `data_folder`, or None if no folder is named.

    Raises:
        TrainingError: The named path is not a folder.

    """
    if not given and not environ.get("SIMILE_EVAL_DATA"):
        return None
    return data_folder(str(given) if given else None, environ)


def is_absent(key: str, data: Path) -> bool:
    return _folder(BY_KEY[key], data) is None


def _folder(known: EvaluationSet, data: Path) -> Path | None:
    return next((data / name for name in known.folders if (data / name).is_dir()), None)


def load(key: str, data: Path, split: str = "test") -> Pairs:
    """Returns the pairs of the set `key` that have a gold score. White space in a sentence becomes one space.

    Raises:
        TrainingError: The set is absent, or a file cannot be read. The message names the file and the line.
    """
    known = BY_KEY[key]
    folder = _folder(known, data)
    if folder is None:
        raise TrainingError(f"{data} has no folder {known.folders[0]}.")
    columns = ("score", "sentence1", "sentence2", *(["subset"] if known.subsets else []))
    pairs = Pairs([], [], np.empty(0), [], 0)
    gold: list[float] = []
    unscored = 0
    for record in read_records(folder / f"{split}.tsv.gz", [(name,) for name in columns], ".tsv"):
        score, left, right = (record.fields[name] for name in columns[:3])
        if not score.strip():
            unscored += 1
            continue
        gold.append(_score(score, record.at, known.lowest))
        for side, sentence in ((pairs.left, left), (pairs.right, right)):
            side.append(" ".join(sentence.split()))
            if not side[-1]:
                raise TrainingError(f"{record.at}: a sentence is empty.")
        pairs.subset.append(record.fields["subset"] if known.subsets else "")
    if not gold:
        raise TrainingError(f"{folder} ({split}) holds no scored pair.")
    return pairs._replace(gold=np.array(gold), unscored=unscored)


def _score(text: str, at: str, lowest: float) -> float:
    try:
        score = float(text)
    except ValueError:
        raise TrainingError(f"{at}: the score {text[:40]!r} is not a number.") from None
    if not lowest <= score <= _HIGHEST:  # also False for NaN
        raise TrainingError(f"{at}: the score {text[:40]} is not between {lowest:g} and {_HIGHEST:g}.")
    return score
