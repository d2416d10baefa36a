"""Queries and the documents that answer them, as people judged: from a file, from feedback, from events.

    .tsv     columns query and id, and relevant (1 or 0) where there are any that are not
    .jsonl   {"query": …, "id": …, "relevant": true}

    a line may name the document's collection under `collection`

Each key of a service has one vote on a query and a document, its newest. The majority of keys counts; what
they disagree on evenly counts for nothing. Feedback is newer than the file: where there is any, the file's
word does not count. What events say (clicks.py) counts where neither says anything. A query is judged with or
trained on, never both: a hash of its folded words decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from training.errors import TrainingError
from training.mining.labelled import folded
from training.retraining.documents import collection_of
from training.retraining.heldout import place
from training.text.lines import Record, layout, read_records, text_of, valid
from training.text.service import collections_of, feedback_of, shown
from training.text.service_collections import ONLY_DEFAULT, qualified

_QUERY, _ID = ("query",), ("id", "document")
_TRUTH = {"1": True, "true": True, "0": False, "false": False}


class Judgement(NamedTuple):
    query: str
    id: str  # of the document, qualified by its collection
    relevant: bool
    key: str | None = None  # the name of the key that judged, empty where there was none; None: of a file


class Judged(NamedTuple):
    """Ids of relevant documents, by query. Each query has one at least."""

    train: dict[str, list[str]]
    held: dict[str, list[str]]
    unknown: int  # judgements left out: of documents that are not there
    contradicted: int  # pairs left out: as many keys say relevant as say not
    negatives: dict[str, list[str]]  # ids of documents that are not relevant, by query, of either side


def judgements_in(file: Path) -> Iterator[Judgement]:
    """Raise TrainingError with the line that cannot be read."""
    if file.is_file() and not layout(file):
        raise TrainingError(f"{file} holds no judgements: give a .tsv or .jsonl with query and id.")
    for record in read_records(file, (_QUERY, _ID)):
        if record.fields:
            yield Judgement(text_of(record, _QUERY), _document(record), _relevant(record))


def judgements_at(url: str, wanted: Sequence[str] = ONLY_DEFAULT) -> Iterator[Judgement]:
    """Judgements sent to `POST /feedback` of the service at `url`. Raise TrainingError.

    wanted: the names of the collections to read, or service_collections.ALL.
    """
    for collection in collections_of(url, wanted):
        for row in feedback_of(url, collection):
            query = valid(row["query"], f"{shown(url)}, feedback")
            yield Judgement(query, qualified(collection, row["id"]), row["relevant"], str(row.get("key", "")))


def judged(found: Iterable[Judgement], known: Mapping[str, str], share: float) -> Judged:
    """known: the id of every document, to that of the one that stands for it, where it is a copy of one.

    share: of the queries, how many are held out, 0 to 1.
    """
    newest: dict[tuple[str, str], dict[str | None, bool]] = {}
    for judgement in found:
        query = folded(judgement.query)
        if query:
            votes = newest.setdefault((query, known.get(judgement.id, judgement.id)), {})
            votes[judgement.key] = judgement.relevant
    train: dict[str, list[str]] = {}
    held: dict[str, list[str]] = {}
    negatives: dict[str, list[str]] = {}
    unknown = contradicted = 0
    for (query, id), votes in sorted(newest.items(), key=lambda item: item[0]):
        relevant = _majority(votes)
        if id not in known:
            unknown += 1
        elif relevant is None:
            contradicted += 1
        elif relevant:
            part = held if place(query.casefold()) < share else train
            part.setdefault(query, []).append(id)
        else:
            negatives.setdefault(query, []).append(id)
    return Judged(train, held, unknown, contradicted, negatives)


def _majority(votes: Mapping[str | None, bool]) -> bool | None:
    """The opinion of most keys; None when as many say the one as the other."""
    of_keys = [relevant for key, relevant in votes.items() if key is not None] or [*votes.values()]
    both = 2 * sum(of_keys)
    return None if both == len(of_keys) else both > len(of_keys)


def _document(record: Record) -> str:
    id = next((record.fields[name] for name in _ID if name in record.fields), None)
    if not isinstance(id, int) or isinstance(id, bool):  # as a document's may be written
        id = text_of(record, _ID)
    return qualified(collection_of(record), str(id))


def _relevant(record: Record) -> bool:
    value = record.fields.get("relevant", True)
    known = value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if known is None:
        raise TrainingError(f"{record.at}: relevant must be 1 or 0, not {str(value)[:40]!r}.")
    return known
