"""Read documents with ids and titles, from a file or a running service.

    .jsonl   {"id": …, "title": …, "text": …} in each line; id and title may be missing
    .tsv     the column text (or sentence), and optionally id and title
    else     one text on each line

All files may be compressed as .gz. Older documents of a service have the title in `metadata.title`, which
searches do not include. A line of a file may name its collection in the field `collection`. A document
without an id gets an id made from its text, which is the same in the next run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from models.messages import amount
from models.search.content import Content
from training.errors import NothingToLearn, TrainingError
from training.text.corpus import TEXTS
from training.text.lines import Record, build_text, read_records, valid
from training.text.service import (
    DEFAULT,
    ONLY_DEFAULT,
    fetch_collections,
    fetch_documents,
    find_title,
    is_name,
    qualified,
    shown,
)

_ID = ("id", "_id")


class Document(NamedTuple):
    id: str  # qualified by the collection
    title: str  # empty without a title
    text: str
    collection: str = DEFAULT  # collection in which the document is stored and searched
    title_is_searched: bool = True  # False if the title is only in the metadata

    @property
    def content(self) -> Content:
        """The title and text that the service embeds and indexes."""
        return Content(self.text, self.title if self.title_is_searched else "")

    @property
    def whole(self) -> str:
        """`content` as one text."""
        return self.content.whole


class Documents(NamedTuple):
    kept: tuple[Document, ...]  # sorted by id, without repeated texts
    blank: int  # number of documents without text, which are left out
    repeated: int  # number of documents with the title and text of another, which are left out
    copies: Mapping[str, str]  # ids of repeated documents to the id of the first one

    def __str__(self) -> str:
        dropped = f" ({self.blank:,} blank and {self.repeated:,} repeated left out)"
        return f"{amount(len(self.kept), 'document')}{dropped if self.blank or self.repeated else ''}"


def documents_in(file: Path) -> Documents:
    """Reads the documents of a file.

    Raises:
        NothingToLearn: The file has no text.
        TrainingError: A line cannot be read, and the message names it. Or two documents have the same id.

    """
    return _distinct(map(_of_record, read_records(file, TEXTS.columns)), str(file))


def documents_at(url: str, requested: Sequence[str] = ONLY_DEFAULT) -> Documents:
    """Reads the documents of the service at `url`.

    Args:
        url: Address of the service.
        requested: Names of the collections to read, or service.ALL.

    Raises:
        NothingToLearn: The service has no text.
        TrainingError: The service does not answer as expected, or two documents have the same id.

    """
    where = shown(url)
    found = (
        _of_service(document, where, name)
        for name in fetch_collections(url, requested)
        for document in fetch_documents(url, name)
    )
    return _distinct(found, where)


def _of_record(record: Record) -> Document:
    if not record.fields:
        return Document("", "", "")
    text = build_text(record, TEXTS.columns[0])
    title = record.fields.get("title") or ""
    id = next((record.fields[name] for name in _ID if name in record.fields), None)
    if not isinstance(title, str) or not isinstance(id, str | int | None):
        raise TrainingError(f"{record.at}: id and title must be texts.")
    collection, title = get_collection(record), valid(title.strip(), record.at)
    name = _name(title, text) if id in {None, ""} else valid(str(id), record.at)
    return Document(qualified(collection, name), title, text, collection)


def get_collection(record: Record) -> str:
    """Returns the collection of a line, from the field `collection` that `export --all-collections` writes.

    If the value is not a valid name of a collection, it is ignored, since it may be a user's own field.
    """
    collection = record.fields.get("collection")
    return collection if isinstance(collection, str) and is_name(collection) else DEFAULT


def _of_service(document: dict[str, Any], url: str, collection: str) -> Document:
    id = qualified(collection, str(document.get("id")))
    title, searched = find_title(document)
    where = f"{url}, document {id!r}"
    return Document(id, valid(title, where), valid(document["text"], where), collection, searched)


def _distinct(found: Iterable[Document], name: str) -> Documents:
    every = [*found]
    written = [document for document in every if document.text.strip()]
    by_id: dict[str, Document] = {}
    firsts: dict[tuple[str, str, str], str] = {}  # ids by collection, title and text
    copies: dict[str, str] = {}
    for document in written:
        if by_id.setdefault(document.id, document) != document:
            raise TrainingError(f"{name} has two documents with the id {document.id[:100]!r}.")
        first = firsts.setdefault((document.collection, document.title, document.text), document.id)
        if first != document.id:
            copies[document.id] = first
    if not written:
        raise NothingToLearn(f"{name} holds no text.")
    kept = tuple(by_id[id] for id in sorted(firsts.values()))
    return Documents(kept, len(every) - len(written), len(written) - len(firsts), copies)


def _name(title: str, text: str) -> str:
    """Returns an id for a document without one: a digest of title and text."""
    content = f"{title}\0{text}" if title else text
    return hashlib.sha256(content.encode()).hexdigest()[:32]
