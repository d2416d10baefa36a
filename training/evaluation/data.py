"""The evaluation sets: which there are, where they lie, and their pairs of sentences with a gold score.

    DIR/sts12/test.tsv.gz   subset score sentence1 sentence2      gzip, UTF-8, a header row, no quoting
    DIR/stsb/{train,dev,test}.tsv.gz   score sentence1 sentence2  further columns are ignored
    DIR/sick/test.tsv.gz               the same; sickr/ is read as well
    DIR/korsts/test.tsv.gz             the same, in Korean
    DIR/jsts/valid-v1.1.json           Japanese, as JGLUE gives it out

SentEval's own folders, DIR/STS and DIR/SICK, are read too (layouts.py). A set whose folder is missing is
absent; a set that is there but cannot be read is an error. Search and classification are not here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.arguments import expanded
from training.errors import TrainingError
from training.evaluation.layouts import (
    Layout,
    Row,
    jglue,
    own,
    senteval_benchmark,
    senteval_sick,
    senteval_year,
)

STSB = "stsb"


class EvaluationSet(NamedTuple):
    key: str  # in the JSON and on the command line
    title: str  # in the table
    places: tuple[tuple[str, Layout], ...]  # the first folder that is there
    published: int  # scored pairs of the split as others report on it
    subsets: tuple[str, ...] = ()  # the sources that it is made of, where papers tell them apart
    lowest: float = 0.0  # gold score
    split: str = "test"  # what is scored


def _year(year: int, published: int, *subsets: str) -> EvaluationSet:
    places = ((f"sts{year}", own), (f"STS/STS{year}-en-test", senteval_year))
    return EvaluationSet(f"sts{year}", f"STS{year}", places, published, subsets)


# Counts as SimCSE's evaluation has them: STS13 is without SMT, whose licence keeps it out.
SETS = (
    _year(12, 3108, "MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    _year(13, 1500, "FNWN", "headlines", "OnWN"),
    _year(14, 3750, "deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    _year(15, 3000, "answers-forums", "answers-students", "belief", "headlines", "images"),
    _year(16, 1186, "answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
    EvaluationSet(STSB, "STS-B", ((STSB, own), ("STS/STSBenchmark", senteval_benchmark)), 1379),
    EvaluationSet(
        "sickr", "SICK-R", (("sick", own), ("sickr", own), ("SICK", senteval_sick)), 4927, lowest=1.0
    ),
)
# Other languages: scored where they are there, and kept out of the mean, which is over English sets.
# JSTS has no public test scores, so everybody reports on its validation split.
OTHERS = (
    EvaluationSet("korsts", "KorSTS", (("korsts", own),), 1379),
    EvaluationSet("jsts", "JSTS", (("jsts", jglue), ("jsts-v1.1", jglue)), 1457, split="valid"),
)
BY_KEY = {known.key: known for known in (*SETS, *OTHERS)}
_HIGHEST = 5.0  # gold score of every set


class Pairs(NamedTuple):
    left: list[str]
    right: list[str]
    gold: NDArray[np.float64]  # (n,)
    subset: list[str]  # of each pair; all the same where the set has none
    unscored: int  # rows without a gold score, left out


def data_folder(given: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """Returns the folder `given`, else the one that SIMILE_EVAL_DATA names.

    Raises:
        TrainingError: Neither is given, or it is not a folder.

    """
    named = given or environ.get("SIMILE_EVAL_DATA")
    if not named:
        raise TrainingError("No evaluation data is named. Name its folder with --data or SIMILE_EVAL_DATA.")
    folder = expanded(named)
    if not folder.is_dir():
        raise TrainingError(f"{folder} is not a folder. Name its folder with --data or SIMILE_EVAL_DATA.")
    return folder


def optional_data_folder(given: Path | str | None, environ: Mapping[str, str] = os.environ) -> Path | None:
    """Like data_folder, but returns None if no folder is named. A name that is not a folder is an error."""
    if not given and not environ.get("SIMILE_EVAL_DATA"):
        return None
    return data_folder(str(given) if given else None, environ)


def is_absent(key: str, data: Path) -> bool:
    return _place(key, data) is None


def load(key: str, data: Path, split: str | None = None) -> Pairs:
    """The pairs of one split of a set that is not absent: `split`, or the one that is scored.

    Raise TrainingError with the file and the line.
    """
    known = BY_KEY[key]
    place = _place(key, data)
    if place is None:
        raise TrainingError(f"{data} has no folder {known.places[0][0]}.")
    folder, layout = place
    chosen = split or known.split
    return _pairs(layout(folder, chosen, known.subsets), f"{folder} ({chosen})", known.lowest)


def _place(key: str, data: Path) -> tuple[Path, Layout] | None:
    places = BY_KEY[key].places
    return next(((data / name, layout) for name, layout in places if (data / name).is_dir()), None)


def _pairs(rows: Iterable[Row], source: str, lowest: float) -> Pairs:
    """With white space as single spaces."""
    pairs = Pairs([], [], np.empty(0), [], 0)
    gold: list[float] = []
    unscored = 0
    for row in rows:
        if not row.score.strip():
            unscored += 1
            continue
        gold.append(_score(row, lowest))
        for side, sentence in ((pairs.left, row.left), (pairs.right, row.right)):
            side.append(" ".join(sentence.split()))
            if not side[-1]:
                raise TrainingError(f"{row.where}: a sentence is empty.")
        pairs.subset.append(row.subset)
    if not gold:
        raise TrainingError(f"{source} holds no scored pair.")
    return pairs._replace(gold=np.array(gold), unscored=unscored)


def _score(row: Row, lowest: float) -> float:
    try:
        score = float(row.score)
    except ValueError:
        raise TrainingError(f"{row.where}: the score {row.score[:40]!r} is not a number.") from None
    if not lowest <= score <= _HIGHEST:  # NaN as well
        raise TrainingError(
            f"{row.where}: the score {row.score[:40]} is not between {lowest:g} and {_HIGHEST:g}."
        )
    return score
