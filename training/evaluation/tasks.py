"""Read sets of labeled sentences for transfer and clustering. The files may have our layout:

    DIR/{mr,cr,subj,mpqa}/all.tsv.gz    label text                  gzip, UTF-8, a header row, no quoting
    DIR/sst2/{train,dev,test}.tsv.gz    label text                  further columns are ignored
    DIR/trec/{train,test}.tsv.gz        coarse text
    DIR/mrpc/{train,val,test}.tsv.gz    label sentence1 sentence2
    DIR/sick/{train,trial,test}.tsv.gz  entailment sentence1 sentence2

or the layout that the script of SentEval creates:

    DIR/MR/rt-polarity.{pos,neg}   DIR/CR/custrev.{pos,neg}   DIR/SUBJ/subj.{objective,subjective}
    DIR/MPQA/mpqa.{pos,neg}        DIR/SST/binary/sentiment-{train,dev,test}
    DIR/TREC/{train_5500,TREC_10}.label                       DIR/MRPC/msr_paraphrase_{train,test}.txt

DIR is the evaluation folder. A set without a folder is absent. A file that cannot be read is an error. SICK-E
is optional and does not count in the mean over the seven sets that papers report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.errors import TrainingError
from training.text.lines import Line, read_lines, read_records

_BINARY = ("0", "1")
_DOES = {"all": "trained and tested on", "train": "trained on", "dev": "chosen on", "test": "tested on"}


class Examples(NamedTuple):
    labels: NDArray[np.int64]  # (n,), places in the task's classes
    sides: tuple[list[str], ...]  # one list of sentences, or two for pairs


class Task(NamedTuple):
    key: str
    title: str
    classes: tuple[str, ...]
    splits: dict[str, Examples]  # all, for cross-validation; else train, test and perhaps dev
    remarks: list[str]  # differences from the published set
    beside: bool = False  # True if it does not count in the mean

    def single(self) -> bool:
        """Returns True if the examples are single sentences, False if they are pairs."""
        return all(len(split.sides) == 1 for split in self.splits.values())

    def sentences(self) -> Iterable[str]:
        return chain.from_iterable(side for split in self.splits.values() for side in split.sides)


class Example(NamedTuple):
    at: str  # file and line, for errors
    label: str
    texts: tuple[str, ...]


Reader = Callable[[Path], Iterator[Example]]
Layout = Mapping[str, Sequence[tuple[str, Reader]]]  # the files of each split, relative to DIR


def _tsv(label: str, *texts: str) -> Reader:
    def read(file: Path) -> Iterator[Example]:
        for record in read_records(file, [(name,) for name in (label, *texts)], ".tsv"):
            yield Example(record.at, record.fields[label], tuple(record.fields[name] for name in texts))

    return read


def _build_reader(label: str) -> Reader:
    def read(file: Path) -> Iterator[Example]:
        return (Example(line.at, label, (line.text,)) for line in _lines(file))

    return read


def _sst(file: Path) -> Iterator[Example]:
    for line in _lines(file):
        text, tab, label = line.text.rpartition("\t")
        if not tab:
            raise TrainingError(f"{line.at}: there is no tab before the label.")
        yield Example(line.at, label.strip(), (text,))


def _trec(file: Path) -> Iterator[Example]:
    for line in _lines(file):
        label, colon, rest = line.text.partition(":")
        if not colon:
            raise TrainingError(f"{line.at}: it does not begin with `CLASS:subclass`.")
        yield Example(line.at, label, (rest.partition(" ")[2],))


def _mrpc(file: Path) -> Iterator[Example]:
    """Reads a file of MRPC: a header, then lines with label, two ids and two sentences."""
    for number, line in enumerate(_lines(file)):
        fields = line.text.split("\t")
        if len(fields) != 5:
            raise TrainingError(f"{line.at}: {len(fields)} fields where there are 5.")
        if number:
            yield Example(line.at, fields[0], (fields[3], fields[4]))


class Known(NamedTuple):
    key: str  # in JSON and in our layout
    title: str  # in the table
    classes: tuple[str, ...]
    published: dict[str, str]  # size of each split in SentEval
    layouts: tuple[Layout, ...]  # ours first
    beside: bool = False  # as in Task


def _polarity(key: str, title: str, published: str, positive: str, negative: str) -> Known:
    ours = {"all": [(f"{key}/all.tsv.gz", _tsv("label", "text"))]}
    files = ((positive, "1"), (negative, "0"))
    senteval = {"all": [(f"{title}/{name}", _build_reader(label)) for name, label in files]}
    return Known(key, title, _BINARY, {"all": published}, (ours, senteval))


_KNOWN = (
    _polarity("mr", "MR", "10,662 sentences", "rt-polarity.pos", "rt-polarity.neg"),
    _polarity("cr", "CR", "3,775 sentences", "custrev.pos", "custrev.neg"),
    _polarity("subj", "SUBJ", "10,000 sentences", "subj.objective", "subj.subjective"),
    _polarity("mpqa", "MPQA", "10,606 sentences", "mpqa.pos", "mpqa.neg"),
    Known(
        "sst2",
        "SST2",
        _BINARY,
        {"train": "67,349 phrases", "dev": "872 sentences", "test": "1,821 sentences"},
        (
            {split: [(f"sst2/{split}.tsv.gz", _tsv("label", "text"))] for split in ("train", "dev", "test")},
            {split: [(f"SST/binary/sentiment-{split}", _sst)] for split in ("train", "dev", "test")},
        ),
    ),
    Known(
        "trec",
        "TREC",
        ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
        {"train": "5,452 sentences", "test": "500 sentences"},
        (
            {split: [(f"trec/{split}.tsv.gz", _tsv("coarse", "text"))] for split in ("train", "test")},
            {"train": [("TREC/train_5500.label", _trec)], "test": [("TREC/TREC_10.label", _trec)]},
        ),
    ),
    Known(
        "mrpc",
        "MRPC",
        _BINARY,
        {"train": "4,076 pairs", "test": "1,725 pairs"},
        (
            {
                split: [(f"mrpc/{name}.tsv.gz", _tsv("label", "sentence1", "sentence2")) for name in files]
                for split, files in {"train": ("train", "val"), "test": ("test",)}.items()
            },
            {split: [(f"MRPC/msr_paraphrase_{split}.txt", _mrpc)] for split in ("train", "test")},
        ),
    ),
    Known(
        "sicke",
        "SICK-E",
        ("CONTRADICTION", "ENTAILMENT", "NEUTRAL"),
        {"train": "4,500 pairs", "dev": "500 pairs", "test": "4,927 pairs"},
        (
            {
                split: [(f"sick/{name}.tsv.gz", _tsv("entailment", "sentence1", "sentence2"))]
                for split, name in {"train": "train", "dev": "trial", "test": "test"}.items()
            },
            {
                split: [(f"SICK/SICK_{name}.txt", _tsv("entailment_judgment", "sentence_A", "sentence_B"))]
                for split, name in {"train": "train", "dev": "trial", "test": "test_annotated"}.items()
            },
        ),
        beside=True,
    ),
)
TITLES = {known.key: known.title for known in _KNOWN}  # in the order of tables


def load(data: Path) -> tuple[dict[str, Task], list[str]]:
    """Loads all tasks in `data`. Returns the tasks by key, and the keys of absent tasks.

    Raises:
        TrainingError: A file cannot be read. The message names the file and the line.
    """
    tasks = {known.key: _task(known, layout, data) for known in _KNOWN if (layout := _layout(known, data))}
    return tasks, [known.key for known in _KNOWN if known.key not in tasks and not known.beside]


def _layout(known: Known, data: Path) -> Layout | None:
    """Returns the first layout that has a file in `data`, or else an existing folder, or None."""
    if known.beside:  # another set uses the same folder
        whole = (all((data / name).is_file() for name, _ in chain(*each.values())) for each in known.layouts)
        return next((layout for layout, there in zip(known.layouts, whole, strict=True) if there), None)
    files = [(layout, data / name) for layout in known.layouts for name, _ in chain(*layout.values())]
    there = [layout for layout, file in files if file.is_file()]
    there += [layout for layout, file in files if file.parent.is_dir()]
    return there[0] if there else None


def _task(known: Known, layout: Layout, data: Path) -> Task:
    splits = {name: _split(known, [(data / file, read) for file, read in layout[name]]) for name in layout}
    remarks = []
    for name, split in splits.items():
        published = known.published[name]
        held = f"{len(split.labels):,}"
        if held != published.split()[0]:
            unit = "pairs" if len(split.sides) == 2 else "sentences"
            remarks += [f"{_DOES[name]} {held} {unit}; SentEval's set has {published}"]
    return Task(known.key, known.title, known.classes, splits, remarks, known.beside)


def _split(known: Known, files: Sequence[tuple[Path, Reader]]) -> Examples:
    labels: list[int] = []
    rows: list[tuple[str, ...]] = []
    for file, read in files:
        for at, label, texts in read(file):
            if label not in known.classes:
                raise TrainingError(
                    f"{at}: the label {label[:40]!r} is not one of {', '.join(known.classes)}."
                )
            labels.append(known.classes.index(label))
            rows.append(tuple(" ".join(text.split()) for text in texts))
            if not all(rows[-1]):
                raise TrainingError(f"{at}: a sentence is empty.")
    if len(set(labels)) < 2:
        raise TrainingError(f"{files[-1][0]}: its {len(labels)} examples have no two different labels.")
    return Examples(np.array(labels, np.int64), tuple(list(side) for side in zip(*rows, strict=True)))


def _lines(file: Path) -> Iterator[Line]:
    """Reads the lines of a SentEval file. A line that is not UTF-8 is read as latin-1."""
    return read_lines(file, otherwise="latin-1")
