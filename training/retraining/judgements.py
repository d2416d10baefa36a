"""Queries and the documents that answer them, as people judged: from a file, from feedback, or both.

    .tsv     columns query and id, and relevant (1 or 0) where there are any that are not
    .jsonl   {"query": …, "id": …, "relevant": true}

The newest word on a query and a document counts, and feedback is newer than the file. A query is judged with
or trained on, never both: a hash of its folded words decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from training.errors import TrainingError
from training.mining.labelled import folded
from training.records import Record, layout, read_records, text_of, valid
from training.remote import feedback_of, shown

from .heldout import place

_QUERY, _ID = ("query",), ("id", "document")
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


class Judgement(NamedTuple):
    query: str
    id: str  # of the document
    relevant: bool


class Judged(NamedTuple):
    """Ids of relevant documents, by query. Each query has one at least."""

    train: dict[str, list[str]]
    held: dict[str, list[str]]
    unknown: int  # judgements left out: of documents that are not there


def judgements_in(file: Path) -> Iterator[Judgement]:
    """Raise TrainingError with the line that cannot be read."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no judgements: give a .tsv or .jsonl with query and id.")
    for record in read_records(file, (_QUERY, _ID)):
        if record.fields:
            yield Judgement(text_of(record, _QUERY), _document(record), _relevant(record))


def judgements_at(url: str) -> Iterator[Judgement]:
    """What was sent to `POST /feedback` of the service at `url`. Raise TrainingError."""
    for row in feedback_of(url):
        yield Judgement(valid(row["query"], f"{shown(url)}, feedback"), row["id"], row["relevant"])


def judged(found: Iterable[Judgement], known: Mapping[str, str], share: float) -> Judged:
    """known: the id of every document, to that of the one that stands for it, where it is a copy of one.

    share: of the queries, how many are held out, 0 to 1.
    """
    newest: dict[tuple[str, str], bool] = {}
    for judgement in found:
        query = folded(judgement.query)
        if query:
            newest[query, known.get(judgement.id, judgement.id)] = judgement.relevant
    train: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    unknown = 0
    for (query, id), relevant in sorted(newest.items()):
        if id not in known:
            unknown += 1
        elif relevant:
            part = held if place(query.casefold()) < share else train
            part.setdefault(query, []).append(id)
    return Judged(train, held, unknown)


def _document(record: Record) -> str:
    id = next((record.fields[name] for name in _ID if name in record.fields), None)
    if isinstance(id, int) and not isinstance(id, bool):  # as a document's may be written
        return str(id)
    return text_of(record, _ID)


def _relevant(record: Record) -> bool:
    value = record.fields.get("relevant", True)
    known = value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if known is None:
        raise TrainingError(f"{record.at}: relevant must be 1 or 0, not {str(value)[:40]!r}.")
    return known
