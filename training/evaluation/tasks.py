"""Read sets of labeled sentences for transfer and clustering.

    DIR/{mr,cr,subj,mpqa}/all.tsv.gz    label text                  gzip, UTF-8, a header row, no quoting
    DIR/sst2/{train,dev,test}.tsv.gz    label text                  further columns are ignored
    DIR/trec/{train,test}.tsv.gz        coarse text
    DIR/mrpc/{train,val,test}.tsv.gz    label sentence1 sentence2
    DIR/sick/{train,trial,test}.tsv.gz  entailment sentence1 sentence2

DIR is the evaluation folder. A set without a folder is absent. A file that cannot be read is an error. SICK-E
is optional and does not count in the mean over the seven sets that papers report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import TrainingError
from training.text.lines import read_records

_BINARY = ("0", "1")
_DOES = {"all": "trained and tested on", "train": "trained on", "dev": "chosen on", "test": "tested on"}


class Examples(NamedTuple):
    labels: NDArray[np.int64]  # (n,), places in the task's classes
    sides: tuple[list[str], ...]  # one list of sentences, or two for pairs


class Task(NamedTuple):
    title: str
    classes: tuple[str, ...]
    splits: dict[str, Examples]  # all, for cross-validation; else train, test and perhaps dev
    remarks: list[str]  # differences from the published set

    def single(self) -> bool:
        """Returns True if the examples are single sentences, False if they are pairs."""
        return all(len(split.sides) == 1 for split in self.splits.values())

    def sentences(self) -> Iterable[str]:
        return chain.from_iterable(side for split in self.splits.values() for side in split.sides)


class Known(NamedTuple):
    key: str  # in JSON and on disk
    title: str  # in the table
    classes: tuple[str, ...]
    published: dict[str, str]  # size of each split in SentEval
    columns: tuple[str, ...]  # columns of the label and of one or two sentences
    files: Mapping[str, tuple[str, ...]]  # files of each split, relative to DIR
    beside: bool = False  # True if it does not count in the mean


def _polarity(key: str, title: str, published: str) -> Known:
    files = {"all": (f"{key}/all.tsv.gz",)}
    return Known(key, title, _BINARY, {"all": published}, ("label", "text"), files)


_KNOWN = (
    _polarity("mr", "MR", "10,662 sentences"),
    _polarity("cr", "CR", "3,775 sentences"),
    _polarity("subj", "SUBJ", "10,000 sentences"),
    _polarity("mpqa", "MPQA", "10,606 sentences"),
    Known(
        "sst2",
        "SST2",
        _BINARY,
        {"train": "67,349 phrases", "dev": "872 sentences", "test": "1,821 sentences"},
        ("label", "text"),
        {split: (f"sst2/{split}.tsv.gz",) for split in ("train", "dev", "test")},
    ),
    Known(
        "trec",
        "TREC",
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        {"train": "5,452 sentences", "test": "500 sentences"},
        ("coarse", "text"),
        {split: (f"trec/{split}.tsv.gz",) for split in ("train", "test")},
    ),
    Known(
        "mrpc",
        "MRPC",
        _BINARY,
        {"train": "4,076 pairs", "test": "1,725 pairs"},
        ("label", "sentence1", "sentence2"),
        {"train": ("mrpc/train.tsv.gz", "mrpc/val.tsv.gz"), "test": ("mrpc/test.tsv.gz",)},
    ),
    Known(
        "sicke",
        "SICK-E",
        ("CONTRADICTION", "ENTAILMENT", "NEUTRAL"),
        {"train": "4,500 pairs", "dev": "500 pairs", "test": "4,927 pairs"},
        ("entailment", "sentence1", "sentence2"),
        {"train": ("sick/train.tsv.gz",), "dev": ("sick/trial.tsv.gz",), "test": ("sick/test.tsv.gz",)},
        beside=True,
    ),
)
TITLES = {known.key: known.title for known in _KNOWN}  # in the order of tables
IN_MEAN = {known.key for known in _KNOWN if not known.beside}


def load(data: Path) -> tuple[dict[str, Task], list[str]]:
    """Loads all tasks in `data`. Returns the tasks by key, and the keys of absent tasks.

    Raises:
        TrainingError: A file cannot be read. The message names the file and the line.
    """
    tasks = {known.key: _task(known, data) for known in _KNOWN if _is_there(known, data)}
    return tasks, [known.key for known in _KNOWN if known.key not in tasks and not known.beside]


def _is_there(known: Known, data: Path) -> bool:
    files = [data / file for file in chain(*known.files.values())]
    if known.beside:  # another set uses the same folder
        return all(file.is_file() for file in files)
    return files[0].parent.is_dir()


def _task(known: Known, data: Path) -> Task:
    splits = {name: _split(known, [data / file for file in files]) for name, files in known.files.items()}
    remarks = []
    for name, split in splits.items():
        published = known.published[name]
        held = f"{len(split.labels):,}"
        if held != published.split()[0]:
            unit = "pairs" if len(split.sides) == 2 else "sentences"
            remarks += [f"{_DOES[name]} {held} {unit}; SentEval's set has {published}"]
    return Task(known.title, known.classes, splits, remarks)


def _split(known: Known, files: Sequence[Path]) -> Examples:
    labels: list[int] = []
    rows: list[list[str]] = []
    for file in files:
        for record in read_records(file, [(name,) for name in known.columns], ".tsv"):
            label, *texts = (record.fields[name] for name in known.columns)
            if label not in known.classes:
                raise TrainingError(
                    f"{record.at}: the label {label[:40]!r} is not one of {', '.join(known.classes)}."
                )
            labels.append(known.classes.index(label))
            rows.append([" ".join(text.split()) for text in texts])
            if not all(rows[-1]):
                raise TrainingError(f"{record.at}: a sentence is empty.")
    if len(set(labels)) < 2:
        raise TrainingError(f"{files[-1]}: its {len(labels)} examples have no two different labels.")
    return Examples(np.array(labels, np.int64), tuple(list(side) for side in zip(*rows, strict=True)))
