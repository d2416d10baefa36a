"""Read evaluation sets of sentence pairs with gold scores from the folders of several file layouts.

    own        DIR/sts12/test.tsv.gz        subset score sentence1 sentence2: UTF-8, a header row, no quoting
               DIR/stsb/SPLIT.tsv.gz        score sentence1 sentence2; further columns are ignored
               DIR/sick/test.tsv.gz         the same, also as sickr/
               DIR/korsts/test.tsv.gz       the same, in Korean
    SentEval   DIR/STS/STS12-en-test/       STS.input.MSRpar.txt: two sentences per line. STS.gs.MSRpar.txt:
                                            scores. An empty line is a pair without a score.
               DIR/STS/STSBenchmark/        sts-SPLIT.csv: tabs, no header. Score and two sentences follow
                                            the fourth field.
               DIR/SICK/                    SICK_test_annotated.txt: tabs. SICK_trial.txt is dev.
    JGLUE      DIR/jsts/                    valid-v1.1.json or valid.jsonl[.gz]: Japanese, an object per line

DIR is the evaluation folder. A set without a folder is absent. A folder that cannot be read is an error. Sets
for search are in retrieval.py, sets for classification in tasks.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.arguments import expanded
from training.errors import TrainingError
from training.text.lines import build_text, read_lines, read_records

STSB = "stsb"


class Row(NamedTuple):
    where: str  # file and line, for errors
    score: str  # as written; empty for a pair without a score
    left: str
    right: str
    subset: str = ""


# Of a folder, a split and the names of the set's sources.
Layout = Callable[[Path, str, tuple[str, ...]], Iterator[Row]]


def own(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    requested = ("score", "sentence1", "sentence2", *(["subset"] if subsets else []))
    return _table_rows(folder / f"{split}.tsv.gz", requested)


def senteval_year(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    """Reads the pairs of one STS year in SentEval's layout. The folder has only one split."""
    for subset in subsets:
        pairs, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        for pair, score in zip_longest(read_lines(pairs), read_lines(gold)):
            if pair is None or score is None:
                raise TrainingError(f"{pairs} and {gold.name} do not have the same number of lines.")
            where = f"{pairs} and {score.at.removeprefix(f'{folder}/')}"
            left, right = _fields(pair.text, 2, where)[:2]  # attributions may follow
            yield Row(where, score.text, left, right, subset)


def senteval_benchmark(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    for line in read_lines(folder / f"sts-{split}.csv"):
        yield Row(line.at, *_fields(line.text, 7, line.at)[4:7])  # a source and a license may follow


def senteval_sick(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = {"test": "SICK_test_annotated.txt", "dev": "SICK_trial.txt", "train": "SICK_train.txt"}
    return _table_rows(folder / names[split], ("relatedness_score", "sentence_A", "sentence_B"))


def jglue(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = (f"{split}.jsonl.gz", f"{split}.jsonl", f"{split}-v1.1.json")
    file = next((folder / name for name in names if (folder / name).is_file()), folder / names[-1])
    for record in read_records(file, kind=".jsonl"):
        score = record.fields.get("label")
        left, right = (build_text(record, [name]) for name in ("sentence1", "sentence2"))
        yield Row(record.at, "" if score is None else str(score), left, right)


def _table_rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Reads rows from a table. `columns` are the names of score, two sentences and perhaps subset."""
    for record in read_records(file, [(name,) for name in columns], ".tsv"):
        yield Row(record.at, *(record.fields[name] for name in columns))


def _fields(line: str, least: int, where: str) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise TrainingError(f"{where}: {len(fields)} fields between tabs, and {least} are needed.")
    return fields


class EvaluationSet(NamedTuple):
    key: str  # in the JSON and on the command line
    title: str  # in the table
    places: tuple[tuple[str, Layout], ...]  # the first existing folder counts
    published: int  # scored pairs of the split as others report on it
    subsets: tuple[str, ...] = ()  # the sources that it is made of, where papers tell them apart
    lowest: float = 0.0  # gold score
    split: str = "test"  # the split to score


def _year(year: int, published: int, *subsets: str) -> EvaluationSet:
    places = ((f"sts{year}", own), (f"STS/STS{year}-en-test", senteval_year))
    return EvaluationSet(f"sts{year}", f"STS{year}", places, published, subsets)


# Counts are those of SimCSE's evaluation. STS13 excludes SMT because of its license.
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
# Sets in other languages are optional and do not count in the mean. JSTS has no public test scores, so its
# validation split is scored, as in other reports.
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
    subset: list[str]  # of each pair; empty if the set has no subsets
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
    return _place(key, data) is None


def load(key: str, data: Path, split: str | None = None) -> Pairs:
    """Returns the pairs of a split of the set `key`. The default is the split on which models are scored.

    Raises:
        TrainingError: The set is absent, or a file cannot be read. The message names the file and the line.
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
    """Collects the rows that have a gold score. Each run of white space in a sentence becomes one space."""
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
    if not lowest <= score <= _HIGHEST:  # also False for NaN
        raise TrainingError(
            f"{row.where}: the score {row.score[:40]} is not between {lowest:g} and {_HIGHEST:g}."
        )
    return score
