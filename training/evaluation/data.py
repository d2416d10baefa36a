"""The evaluation sets: which there are, where they lie, and their pairs of sentences with a gold score.

    DIR/sts12/test.tsv.gz   subset score sentence1 sentence2      gzip, UTF-8, a header row, no quoting
    DIR/stsb/{train,dev,test}.tsv.gz   score sentence1 sentence2  further columns are ignored
    DIR/sick/test.tsv.gz               the same; sickr/ is read as well

A set whose folder is missing is absent; a set that is there but cannot be read is an error.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import TrainingError
from training.paths import expanded

STSB = "stsb"


class EvaluationSet(NamedTuple):
    key: str  # in the JSON and on the command line
    title: str  # in the table
    folders: tuple[str, ...]  # the first one that is there
    published: int  # scored pairs of the test split as others report on it
    subsets: bool  # made of several sources, named in a column `subset`
    lowest: float = 0.0  # gold score


# Counts as SimCSE's evaluation has them: STS13 is without SMT, whose licence keeps it out.
SETS = (
    EvaluationSet("sts12", "STS12", ("sts12",), 3108, True),
    EvaluationSet("sts13", "STS13", ("sts13",), 1500, True),
    EvaluationSet("sts14", "STS14", ("sts14",), 3750, True),
    EvaluationSet("sts15", "STS15", ("sts15",), 3000, True),
    EvaluationSet("sts16", "STS16", ("sts16",), 1186, True),
    EvaluationSet(STSB, "STS-B", ("stsb",), 1379, False),
    EvaluationSet("sickr", "SICK-R", ("sick", "sickr"), 4927, False, 1.0),
)
BY_KEY = {known.key: known for known in SETS}
_HIGHEST = 5.0  # gold score of every set
BESIDE_THE_PROJECT = Path(__file__).resolve().parents[3] / "shared" / "data"


class Pairs(NamedTuple):
    left: list[str]
    right: list[str]
    gold: NDArray[np.float64]  # (n,)
    subset: list[str]  # of each pair; all the same where the set has none
    unscored: int  # rows without a gold score, left out


def data_folder(given: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """`given`, else SIMILE_EVAL_DATA, else `../shared/data` beside the project. Raise TrainingError."""
    named = given or environ.get("SIMILE_EVAL_DATA")
    folder = expanded(named) if named else BESIDE_THE_PROJECT
    if not folder.is_dir():
        said = f"{folder} is not a folder" if named else "No evaluation data is named"
        raise TrainingError(f"{said}. Name its folder with --data or SIMILE_EVAL_DATA.")
    return folder


def is_absent(key: str, data: Path) -> bool:
    return _folder(key, data) is None


def load(key: str, data: Path, split: str = "test") -> Pairs:
    """One split of a set that is not absent. Raise TrainingError with the file and the line."""
    folder = _folder(key, data)
    if folder is None:
        raise TrainingError(f"{data} has no folder {BY_KEY[key].folders[0]}.")
    return read_pairs(folder / f"{split}.tsv.gz", subsets=BY_KEY[key].subsets, lowest=BY_KEY[key].lowest)


def read_pairs(file: Path, *, subsets: bool = False, lowest: float = 0.0) -> Pairs:
    """Every scored row of one file, with white space as single spaces. Raise TrainingError."""
    pairs = Pairs([], [], np.empty(0), [], 0)
    gold: list[float] = []
    unscored = 0
    wanted = ("score", "sentence1", "sentence2", *(["subset"] if subsets else []))
    for number, (score, left, right, *subset) in _rows(file, wanted):
        if not score.strip():
            unscored += 1
            continue
        gold.append(_score(score, lowest, f"{file}, line {number}"))
        for side, sentence in ((pairs.left, left), (pairs.right, right)):
            side.append(" ".join(sentence.split()))
            if not side[-1]:
                raise TrainingError(f"{file}, line {number}: a sentence is empty.")
        pairs.subset.append(subset[0] if subset else "")
    if not gold:
        raise TrainingError(f"{file} holds no scored pair.")
    return pairs._replace(gold=np.array(gold), unscored=unscored)


def _folder(key: str, data: Path) -> Path | None:
    return next((data / name for name in BY_KEY[key].folders if (data / name).is_dir()), None)


def _rows(file: Path, wanted: tuple[str, ...]) -> Iterator[tuple[int, list[str]]]:
    """(line number, the wanted fields) of each row below the header."""
    lines = _lines(file)
    _, first = next(lines, (1, ""))
    header = first.split("\t")
    missing = [name for name in wanted if name not in header]
    if missing:
        raise TrainingError(f"{file}, line 1: there is no column {', '.join(missing)}.")
    places = [header.index(name) for name in wanted]
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != len(header):
            raise TrainingError(
                f"{file}, line {number}: {len(fields)} fields where the header has {len(header)}."
            )
        yield number, [fields[place] for place in places]


def _lines(file: Path) -> Iterator[tuple[int, str]]:
    """Numbered from 1; only a newline ends a line, since sentences may hold Unicode's other separators."""
    try:
        with gzip.open(file, "rb") as stream:
            for number, line in enumerate(stream, 1):
                yield number, line.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        raise TrainingError(f"{file}, line {number}: it is not UTF-8.") from None
    except FileNotFoundError:
        raise TrainingError(f"{file} is missing.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise TrainingError(f"{file} cannot be read: {error}") from None


def _score(text: str, lowest: float, where: str) -> float:
    try:
        score = float(text)
    except ValueError:
        raise TrainingError(f"{where}: the score {text[:40]!r} is not a number.") from None
    if not lowest <= score <= _HIGHEST:  # NaN as well
        raise TrainingError(f"{where}: the score {text[:40]} is not between {lowest:g} and {_HIGHEST:g}.")
    return score
