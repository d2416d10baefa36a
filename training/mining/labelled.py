"""Anchors with what is known to answer them: a file of pairs, or a folder in BEIR's layout.

    FILE.tsv     columns anchor and positive, by any name that training knows; others are ignored
    FILE.jsonl   {"anchor": …, "positive": …}
    FOLDER       corpus.jsonl, queries.jsonl, qrels.SPLIT.tsv or qrels/SPLIT.tsv; each also as .gz

Texts are compared with their white space folded: what differs by nothing else is one text.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from models.search.content import Content
from training.errors import NothingToLearn, TrainingError
from training.evaluation.retrieval import load
from training.text.corpus import ANCHOR, POSITIVE
from training.text.lines import layout, read_records, text_of


class Labelled(NamedTuple):
    positives: dict[str, list[str]]  # of each anchor, in the order of the file; distinct
    candidates: list[str]  # where negatives are looked for; distinct
    blank: int  # pairs dropped: anchor or positive is nothing but white space
    repeated: int  # pairs dropped: seen before, or the anchor is its own positive


def folded(text: str) -> str:
    """Every run of white space as one space, none at the ends."""
    return " ".join(text.split())


def read_labelled_pairs(file: Path, corpus: Iterable[str] | None = None) -> Labelled:
    """corpus: the texts to find negatives in; without it they are the positives of all pairs."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no pairs: name a .jsonl or .tsv with anchor and positive.")
    pairs = (
        (text_of(record, ANCHOR), text_of(record, POSITIVE))
        for record in read_records(file, [ANCHOR, POSITIVE])
        if record.fields
    )
    return _labelled(pairs, corpus, str(file))


def read_beir(folder: Path, split: str) -> Labelled:
    """Queries with a relevant document (score above 0) in that split. A document is title and text."""
    found = load(folder, split)
    pairs = (
        (found.queries[query], found.documents.get(document, Content("")).whole)
        for query, documents in found.relevant.items()
        for document in documents
    )
    texts = (content.whole for content in found.documents.values())
    return _labelled(pairs, texts, f"{folder}, split {split},")


def _labelled(pairs: Iterable[tuple[str, str]], corpus: Iterable[str] | None, name: str) -> Labelled:
    positives: dict[str, dict[str, None]] = {}
    blank = repeated = 0
    for anchor, positive in ((folded(first), folded(second)) for first, second in pairs):
        if not anchor or not positive:
            blank += 1
        elif anchor == positive or positive in positives.get(anchor, ()):
            repeated += 1
        else:
            positives.setdefault(anchor, {})[positive] = None
    if not positives:
        raise NothingToLearn(f"{name} holds no pair of two different texts.")
    known = (text for of_one in positives.values() for text in of_one)
    candidates = dict.fromkeys(known if corpus is None else map(folded, corpus))
    candidates.pop("", None)
    return Labelled({anchor: list(of) for anchor, of in positives.items()}, list(candidates), blank, repeated)
