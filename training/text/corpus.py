"""Read a corpus to train on, from a file or from the documents of a running service.

A corpus consists of rows. A row is a single text, or several texts that belong together: an anchor with a
positive and perhaps negatives, two texts and their relation, or a query and documents with scores. Blank and
repeated rows are dropped and counted. Start reading at `read_corpus`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from models.progress import counted
from training.errors import NothingToLearn, TrainingError
from training.text.lines import Record, build_text, layout, read_records, valid
from training.text.service import ONLY_DEFAULT, fetch_collections, fetch_documents, get_content, qualified

# Accepted names of each field, as in public data sets and sentence-transformers.
_TEXT = ("sentence", "text")
ANCHOR = ("anchor", "sent0", "query", "premise", "sentence1")
POSITIVE = ("positive", "sent1", "hypothesis", "sentence2")
_NEGATIVE = ("negative", "hard_neg", "sent2", "negative_1")
MAX_NEGATIVES = 10  # negatives of a row
_LABEL = ("label", "entailment")
_SCORES = ("scores", "score")
LISTED = 8  # documents of a list
RELATION_NAMES = ("entailment", "neutral", "contradiction")
_RELATIONS = {name: label for label, name in enumerate(RELATION_NAMES)}


class Kind(NamedTuple):
    """A kind of corpus."""

    columns: tuple[tuple[str, ...], ...]  # accepted names of each text of a row
    labelled: bool = False
    many: bool = False  # a row may have several negatives
    scored: bool = False


TEXTS = Kind((_TEXT,))
PAIRS = Kind((ANCHOR, POSITIVE))
TRIPLES = Kind((ANCHOR, POSITIVE, _NEGATIVE), many=True)
RELATIONS = Kind((ANCHOR, POSITIVE), labelled=True)
SCORED = Kind((ANCHOR, POSITIVE), scored=True)
LISTS = Kind((ANCHOR, *((f"doc_{number}",) for number in range(1, LISTED + 1))), scored=True)

Label = int | tuple[float, ...]  # 0 entailment, 1 neutral, 2 contradiction; or a score of each document
Row = tuple[tuple[str, ...], Label | None]


@dataclass(frozen=True)
class Corpus:
    """A sorted list of distinct rows without blank rows. The order of rows in the file does not matter.

    Rows with priority come first; `first` is their number. They and the other rows are each sorted.
    """

    texts: tuple[str, ...]  # row after row; empty texts fill up shorter rows
    digest: str  # SHA-256 over rows and labels, or of the source of mined rows
    blank: int = 0  # dropped rows with only white space
    repeated: int = 0  # dropped rows that an earlier row equals
    columns: int = 1  # texts of a row
    labels: tuple[Label, ...] | None = None  # label of each row
    rows: str = ""  # SHA-256 over rows and labels, even if `digest` is that of their source
    first: int = 0  # leading rows, which a training reads even if it has no time for the others

    def __len__(self) -> int:
        """Returns the number of rows."""
        return len(self.texts) // self.columns

    @classmethod
    def of(cls, found: Iterable[str], name: str) -> Corpus:
        """Returns a corpus of single texts. Like `of_rows`, drops blank and repeated texts."""
        return cls.of_rows((((text,), None) for text in found), name)

    @classmethod
    def of_rows(cls, found: Iterable[Row], name: str, first: Container[str] = ()) -> Corpus:
        """Returns a corpus of rows. Drops repeated rows, and rows with a blank text.

        Args:
            found: The rows. Either all of them have a label, or none.
            name: Name of the source in messages.
            first: Rows that begin with one of these texts come before the others.

        Raises:
            NothingToLearn: No row is left.

        """
        distinct: set[Row] = set()
        blank = count = 0
        for row in found:
            count += 1
            if all(text.strip() for text in row[0]):
                distinct.add(row)
            else:
                blank += 1
        if not distinct:
            raise NothingToLearn(f"{name} holds no text.")
        rows = sorted(distinct, key=lambda row: (row[0][0] not in first, row[0], row[1] or 0))
        columns = max(len(row) for row, _ in rows)
        texts = tuple(text for row, _ in rows for text in (*row, *[""] * (columns - len(row))))
        labels = None if rows[0][1] is None else tuple(label or 0 for _, label in rows)
        digest = _digest(texts, columns, labels)
        leading = sum(row[0] in first for row, _ in rows)
        return cls(texts, digest, blank, count - blank - len(rows), columns, labels, digest, leading)

    def of_source(self, source: str) -> Corpus:
        """Returns the corpus with the digest of a description of its source."""
        return replace(self, digest=hashlib.sha256(source.encode()).hexdigest())

    def __str__(self) -> str:
        dropped = f" ({self.blank:,} blank and {self.repeated:,} repeated dropped)"
        what = "texts" if self.columns == 1 else f"rows of {self.columns} texts"
        return f"{len(self):,} {what}{dropped if self.blank or self.repeated else ''}"


def read_corpus(file: Path, kind: Kind = TEXTS, negatives: int = MAX_NEGATIVES) -> Corpus:
    """Reads a corpus from a file.

    Args:
        file: File to read.
        kind: Kind of the rows in the file.
        negatives: Maximum number of negatives per row. Further negatives are ignored.

    Raises:
        TrainingError: A line cannot be read. The message names the line.

    """
    columns = kind.columns + ((_LABEL,) if kind.labelled else ()) + ((_SCORES,) if kind.scored else ())
    if kind is not TEXTS and file.is_file() and not layout(file):
        names = ", ".join(names[0] for names in columns)
        raise TrainingError(f"{file}: this recipe reads rows of {names}: give a .jsonl or a .tsv with them.")
    records = counted(read_records(file, columns), "lines", 0, "reading")
    return Corpus.of_rows((_row(record, kind, negatives) for record in records), str(file))


def holds(file: Path, kind: Kind) -> bool:
    """Returns True if the first line of `file` is a row of exactly this kind. A triple is not a pair."""
    names = (*kind.columns, *((_LABEL,) if kind.labelled else ()))
    first = next((record.fields for record in read_records(file) if record.fields), {})
    others = [other for other in (ANCHOR, POSITIVE, _NEGATIVE, _LABEL) if other not in names]
    further = kind is not TEXTS and any(name in first for other in others for name in other)
    return not further and all(any(name in first for name in each) for each in names)


def _row(record: Record, kind: Kind, negatives: int) -> Row:
    if not record.fields:
        return ("",) * len(kind.columns), None
    if kind.many:
        return (*(build_text(record, names) for names in kind.columns[:-1]), *_many(record, negatives)), None
    texts = tuple(build_text(record, names) for names in kind.columns)
    if kind.scored:
        return texts, _scores(record, len(texts) - 1)
    return texts, _label(record) if kind.labelled else None


def _many(record: Record, most: int) -> Sequence[str]:
    """Returns the negatives of a row. They are in the field `negative`, or in `negative_1`, `negative_2` …

    Blank negatives after the first are ignored.

    Raises:
        TrainingError: The row has no negative.

    """
    name = next((name for name in _NEGATIVE if name in record.fields), _NEGATIVE[0])
    listed = record.fields.get(name)
    texts = listed if isinstance(listed, list) and listed else [listed]
    numbered = (f"negative_{number}" for number in range(2, MAX_NEGATIVES + 1))
    texts = [*texts, *(record.fields[each] for each in numbered if record.fields.get(each))]
    found = [build_text(Record({name: text}, record.at), _NEGATIVE) for text in texts]
    return [found[0], *(text for text in found[1:] if text.strip())][:most]


def _scores(record: Record, count: int) -> tuple[float, ...]:
    """Returns the `count` scores of a row, from a JSON number or list, or from numbers in a table cell."""
    name = next((name for name in _SCORES if name in record.fields), _SCORES[0])
    found: Any = record.fields.get(name)
    try:
        listed = found.split() if isinstance(found, str) else found if isinstance(found, list) else [found]
        scores = tuple(map(float, listed))
    except (TypeError, ValueError):
        scores = ()
    if len(scores) != count or not all(map(math.isfinite, scores)):
        requested = "a number" if count == 1 else f"{count} numbers, one for each document"
        raise TrainingError(f"{record.at}: `{name}` must be {requested}.")
    return scores


def _label(record: Record) -> int:
    label = next((record.fields[name] for name in _LABEL if name in record.fields), None)
    if label is None:
        raise TrainingError(f"{record.at} has no label under the name {' or '.join(_LABEL)}.")
    found = _RELATIONS.get(str(label).lower(), label)
    if isinstance(found, str) and found in ("0", "1", "2"):
        found = int(found)
    if isinstance(found, bool) or found not in (0, 1, 2):
        known = ", ".join(f"{word} ({number})" for word, number in _RELATIONS.items())
        raise TrainingError(f"{record.at}: the label {str(label)[:40]!r} is none of {known}.")
    return int(found)


def from_service(url: str, kind: Kind = TEXTS, requested: Sequence[str] = ONLY_DEFAULT) -> Corpus:
    """Reads the documents of a service as a corpus of single texts.

    Args:
        url: Address of the service.
        kind: Kind of rows that the recipe reads.
        requested: Names of the collections to read, or service.ALL.

    Raises:
        TrainingError: `kind` has several texts per row, or the service does not answer as expected.

    """
    if kind is not TEXTS:
        names = ", ".join(names[0] for names in kind.columns)
        raise TrainingError(f"A service has single texts; this recipe reads rows of {names}: --corpus FILE.")
    texts = (
        valid(
            get_content(document, document["text"]).whole,
            f"{url}, document {qualified(name, str(document.get('id')))!r}",
        )
        for name in fetch_collections(url, requested)
        for document in fetch_documents(url, name)
    )
    return Corpus.of(texts, url)


def _digest(texts: Iterable[str], columns: int, labels: tuple[Label, ...] | None) -> str:
    digest = hashlib.sha256()
    if columns > 1 or labels is not None:  # single texts keep the digest of earlier releases
        digest.update(f"{columns} {labels}".encode())
    for text in texts:
        encoded = text.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)  # the length separates the texts
    return digest.hexdigest()
