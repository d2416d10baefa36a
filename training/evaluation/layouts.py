"""Layouts of scored pairs on disk: the project's own files, and those that others give out.

    own        KEY/SPLIT.tsv.gz                [subset] score sentence1 sentence2: a header row, no quoting
    SentEval   STS/STS12-en-test/STS.input.MSRpar.txt  two sentences in a line; the scores are in
                                 STS.gs.MSRpar.txt, where an empty line is a pair without one
               STS/STSBenchmark/sts-SPLIT.csv  tabs, no header: from the fifth on, score and two sentences
               SICK/SICK_test_annotated.txt    tabs; SICK_trial.txt is dev
    JGLUE      jsts/valid-v1.1.json, or jsts/valid.jsonl[.gz]  an object in each line

A layout is a function of the folder, the split and the names of the set's sources. Which sets there are, and
what makes a row valid, is not here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from training.errors import TrainingError
from training.evaluation.lines import columns, numbered


class Row(NamedTuple):
    where: str  # file and line, for errors
    score: str  # as it is written; nothing for a pair that nobody judged
    left: str
    right: str
    subset: str = ""


Layout = Callable[[Path, str, tuple[str, ...]], Iterator[Row]]


def own(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    return own_file(folder / f"{split}.tsv.gz", subsets=bool(subsets))


def own_file(file: Path, *, subsets: bool) -> Iterator[Row]:
    wanted = ("score", "sentence1", "sentence2", *(["subset"] if subsets else []))
    for number, (score, left, right, *subset) in columns(file, wanted):
        yield Row(_where(file, number), score, left, right, *subset)


def senteval_year(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    """The years have one split, in one folder."""
    for subset in subsets:
        pairs, gold = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
        for pair, score in zip_longest(numbered(pairs), numbered(gold)):
            if pair is None or score is None:
                raise TrainingError(f"{pairs} and {gold.name} do not have the same number of lines.")
            number, line = pair
            where = f"{pairs} and {gold.name}, line {number}"
            left, right = _fields(line, 2, where)[:2]  # attributions may follow
            yield Row(where, score[1], left, right, subset)


def senteval_benchmark(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    file = folder / f"sts-{split}.csv"
    for number, line in numbered(file):
        where = _where(file, number)
        yield Row(where, *_fields(line, 7, where)[4:7])  # a source and a licence may follow


def senteval_sick(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = {"test": "SICK_test_annotated.txt", "dev": "SICK_trial.txt", "train": "SICK_train.txt"}
    file = folder / names[split]
    for number, fields in columns(file, ("relatedness_score", "sentence_A", "sentence_B")):
        yield Row(_where(file, number), *fields)


def jglue(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = (f"{split}.jsonl.gz", f"{split}.jsonl", f"{split}-v1.1.json")
    file = next((folder / name for name in names if (folder / name).is_file()), folder / names[-1])
    for number, line in numbered(file):
        where = _where(file, number)
        row = json_object(line, where)
        score, left, right = (row.get(name) for name in ("label", "sentence1", "sentence2"))
        if not isinstance(left, str) or not isinstance(right, str):
            raise TrainingError(f"{where}: sentence1 and sentence2 must be texts.")
        yield Row(where, "" if score is None else str(score), left, right)


def json_object(line: str, where: str) -> dict[str, object]:
    """Raise TrainingError when the line is no JSON object."""
    try:
        content = json.loads(line)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        raise TrainingError(f"{where}: it is not a JSON object.")
    return content


def _fields(line: str, least: int, where: str) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise TrainingError(f"{where}: {len(fields)} fields between tabs, and {least} are needed.")
    return fields


def _where(file: Path, number: int) -> str:
    return f"{file}, line {number}"
