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

from training.errors import NothingToLearn, TrainingError
from training.text.corpus import ANCHOR, POSITIVE
from training.text.lines import Record, layout, read_records, text_of

_ID = ("_id",)
_QUERY, _DOCUMENT, _SCORE = ("query_id", "query-id"), ("corpus_id", "corpus-id"), ("score",)


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
    documents = _texts(folder, "corpus.jsonl")
    queries = _texts(folder, "queries.jsonl")
    judged = read_records(
        _file(folder, f"qrels.{split}.tsv", f"qrels/{split}.tsv"), [_QUERY, _DOCUMENT, _SCORE]
    )
    pairs = (
        (_known(queries, "query", record, *_QUERY), _known(documents, "document", record, *_DOCUMENT))
        for record in judged
        if _score(record) > 0
    )
    return _labelled(pairs, documents.values(), f"{folder}, split {split},")


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


def _file(folder: Path, *names: str) -> Path:
    for name in names:
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise TrainingError(f"{folder} has no {' or '.join(names)}, plain or as .gz.")


def _texts(folder: Path, name: str) -> dict[str, str]:
    """By id: the text, behind its title if it has one."""
    records = (record for record in read_records(_file(folder, name), ()) if record.fields)
    return {
        text_of(record, _ID): f"{record.fields.get('title') or ''} {text_of(record, ['text'])}"
        for record in records
    }


def _score(record: Record) -> float:
    text = text_of(record, _SCORE)
    try:
        return float(text)
    except ValueError:
        raise TrainingError(f"{record.at}: the score {text[:40]!r} is not a number.") from None


def _known(texts: dict[str, str], what: str, record: Record, *names: str) -> str:
    id = text_of(record, names)
    if id not in texts:
        raise TrainingError(f"{record.at} names the {what} {id[:100]!r}, which is not in the folder.")
    return texts[id]
