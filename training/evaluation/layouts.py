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

from collections.abc import Callable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from training.errors import TrainingError
from training.text.lines import read_lines, read_records, text_of


class Row(NamedTuple):
    where: str  # file and line, for errors
    score: str  # as it is written; nothing for a pair that nobody judged
    left: str
    right: str
    subset: str = ""


Layout = Callable[[Path, str, tuple[str, ...]], Iterator[Row]]


def own(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    wanted = ("score", "sentence1", "sentence2", *(["subset"] if subsets else []))
    return _rows(folder / f"{split}.tsv.gz", wanted)


def senteval_year(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    """The years have one split, in one folder."""
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
        yield Row(line.at, *_fields(line.text, 7, line.at)[4:7])  # a source and a licence may follow


def senteval_sick(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = {"test": "SICK_test_annotated.txt", "dev": "SICK_trial.txt", "train": "SICK_train.txt"}
    return _rows(folder / names[split], ("relatedness_score", "sentence_A", "sentence_B"))


def jglue(folder: Path, split: str, subsets: tuple[str, ...]) -> Iterator[Row]:
    names = (f"{split}.jsonl.gz", f"{split}.jsonl", f"{split}-v1.1.json")
    file = next((folder / name for name in names if (folder / name).is_file()), folder / names[-1])
    for record in read_records(file, kind=".jsonl"):
        score = record.fields.get("label")
        left, right = (text_of(record, [name]) for name in ("sentence1", "sentence2"))
        yield Row(record.at, "" if score is None else str(score), left, right)


def _rows(file: Path, columns: Sequence[str]) -> Iterator[Row]:
    """Score, sentences and perhaps the subset: the columns by which a table has them."""
    for record in read_records(file, [(name,) for name in columns], ".tsv"):
        yield Row(record.at, *(record.fields[name] for name in columns))


def _fields(line: str, least: int, where: str) -> list[str]:
    fields = line.split("\t")
    if len(fields) < least:
        raise TrainingError(f"{where}: {len(fields)} fields between tabs, and {least} are needed.")
    return fields
