"""Values that cross the seam of the store: what it is given, and what it answers. No SQL, no connection."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from models.search.content import Content
from service.errors import ServiceError

Vector = NDArray[np.float32]
# A row of an index is one passage of a document: `revision << 16 | passage`. Every document has passage 0.
Revisions: TypeAlias = NDArray[np.int64]
RowNames: TypeAlias = NDArray[np.int64]
PASSAGE_BITS = 16
MAX_PASSAGES = 1 << PASSAGE_BITS  # of one text

Column: TypeAlias = Literal["title", "text", "metadata"]  # parts of a document that an answer may leave out
COLUMNS: tuple[Column, ...] = ("title", "text", "metadata")
DEFAULT_COLLECTION = "default"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # also the name of a folder
DELETE_DOCUMENTS = 128  # of one job, so that other writes wait some tens of milliseconds and no longer
MAX_COLLECTIONS = 1000  # SIMILE_MAX_COLLECTIONS unless it is set
NO_KEY = ""  # the name that stands for no key
# Of a query in a judgement or an event. Percent-encoded it still fits a URL of 64 KiB, so it can be deleted.
MAX_QUERY_CHARACTERS = 4096
MAX_SHOWN = 20  # ids of hits that an event keeps; people look at few more
FAILED, ROLLED_BACK = "failed", "rolled back"  # states of a verdict


class TooMuch(Exception):
    """More text than an answer may have."""


class NeedsVectors(Exception):
    """These documents (positions in the request) must first be embedded by the generation that is `live`.

    Nothing was stored.
    """

    def __init__(self, positions: list[int], live: int) -> None:
        super().__init__(f"{len(positions)} documents lack a vector")
        self.positions = positions
        self.live = live


class Moved(Exception):
    """The generation to search is not the active one any more. Nothing was read; search the active one."""

    def __init__(self, generation: int) -> None:
        super().__init__(f"Generation {generation} is not active")
        self.generation = generation


@dataclass(frozen=True, slots=True)
class Document:
    """A document to be stored. `metadata_json` is a JSON object, as `json_of` writes it.

    title: empty where there is none.
    """

    id: str
    text: str
    metadata_json: str = "{}"
    title: str = ""

    @property
    def content(self) -> Content:
        return Content(self.text, self.title)


def json_of(metadata: dict[str, Any]) -> str:
    """`metadata` as it is stored."""
    return orjson.dumps(metadata).decode()


@dataclass(frozen=True, slots=True)
class Record:
    """A stored document as it is sent: title, text and metadata are JSON, and not parsed.

    title_json: no byte where there is no title.
    """

    id: str
    text_json: bytes
    metadata_json: bytes
    title_json: bytes = b""

    @property
    def size(self) -> int:
        """Bytes of title, text and metadata in an answer."""
        return len(self.title_json) + len(self.text_json) + len(self.metadata_json)

    @property
    def text(self) -> str:
        text: str = orjson.loads(self.text_json)
        return text

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = orjson.loads(self.metadata_json)
        return metadata


@dataclass(frozen=True, slots=True)
class Passage:
    """Part of a text, from character `start` to before `end` (None: all of it), and its vector."""

    vector: Vector
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """A document's vectors from one generation: of its text's head, and of the passages behind that.

    `truncated` when the model saw the end of the text in none of them.
    """

    vector: Vector
    truncated: bool
    tokens: int = 0  # that they were computed from now; 0 for stored ones
    end: int | None = None  # where the head ends, in characters; None where it is all there is
    others: tuple[Passage, ...] = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        return (Passage(self.vector, 0, self.end), *self.others)

    @property
    def cut(self) -> bool:
        """True when splitting its text would show the model more of it."""
        return self.truncated and not self.others


class Put(NamedTuple):
    """Result of a put.

    truncated: texts that the live model does not see whole. gaps: generations, other than the live one, that
    lack a vector of one of the texts. created: documents whose id was new.
    """

    truncated: int
    sequence: int
    gaps: frozenset[int]
    created: int


class Step(NamedTuple):
    """Part of a deletion: revisions looked at, how many of them were still there, the operation sequence."""

    done: int
    deleted: int
    sequence: int


class Unembedded(NamedTuple):
    """A document, for its vectors alone."""

    collection: str
    id: str
    content: Content


class Lacking(NamedTuple):
    """The next documents that a generation has no vector of, by rising revision.

    Of the same moment: the last revision that exists, how many texts were skipped, and how many more
    documents it lacks. closing: after these documents, it lacks so few that a swap embeds them.
    """

    documents: dict[int, Unembedded]
    last_revision: int
    skipped: int
    left: int = 0
    closing: bool = False


@dataclass
class Changes:
    """Rows that a commit added and removed, by collection.

    `added[generation, collection]` are vectors by the name of their row; `removed[collection]` are revisions.
    `sequence` is the operation number after it, 0 when nothing was operated on.
    """

    added: dict[tuple[int, str], dict[int, Vector]] = field(default_factory=dict)
    removed: dict[str, list[int]] = field(default_factory=dict)
    sequence: int = 0

    def merge(self, later: "Changes") -> None:
        for place, rows in later.added.items():
            self.added.setdefault(place, {}).update(rows)
        for collection, revisions in later.removed.items():
            self.removed.setdefault(collection, []).extend(revisions)
        self.sequence = max(self.sequence, later.sequence)


@dataclass(frozen=True, slots=True)
class Active:
    """The generation in service, as the store names it."""

    number: int
    version: str
    fingerprint: str
    form: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reason why a version is not chosen again by itself: it failed, or was rolled back from."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about versions, of one moment."""

    live: str
    verdicts: Mapping[str, Verdict]
    past: set[str]
    previous: str | None
    handled: str | None
    canaries: Mapping[str, Any]  # version to how alike it answered
    building: bool  # there is a generation that was begun


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judgement: the document `id` is relevant to `query` or not, as `key` said.

    visitor: the hash of the user's id, empty if none was given. trusted: whether the key was at the time.
    """

    query: str
    id: str
    relevant: bool
    key: str = NO_KEY
    collection: str = DEFAULT_COLLECTION
    visitor: str = ""
    trusted: bool = True


class JudgementSummary(NamedTuple):
    """Counts of judgements, and of the different queries that they are about."""

    judgements: int
    relevant: int
    queries: int
    answered: int  # queries with a relevant document: those that a search can be measured by


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one key's judgements: in all, of one query, of one document. 0: no bound."""

    per_key: int = 0
    per_query: int = 0
    per_document: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A use of a search: someone met the document `id` among the hits of `query`, as `key` reported.

    position: the rank of its hit among all, from 1. shown: ids of hits around it, best first. at: Unix time.
    visitor: the hash of the user's id, empty if none was given. trusted: whether the key was at the time.
    """

    search_id: str
    query: str
    id: str
    type: str
    event_id: str
    at: float
    position: int | None = None
    shown: tuple[str, ...] = ()
    key: str = NO_KEY
    collection: str = DEFAULT_COLLECTION
    visitor: str = ""
    trusted: bool = True


class EventLimits(NamedTuple):
    """Bounds on stored events: of one key, of one key about one document, of all. 0: no bound."""

    per_key: int = 0
    per_document: int = 0
    in_all: int = 0


class Recorded(NamedTuple):
    """The outcome of a list of events, by their positions in it; those in neither were stored before."""

    new: list[int]
    refused: dict[int, ServiceError]


@dataclass(frozen=True, slots=True)
class Selection:
    """The judgements or events that have all of these; None: whichever."""

    collection: str | None = None
    query: str | None = None
    id: str | None = None
    key: str | None = None
    visitor: str | None = None


def row_of(revision: int, passage: int = 0) -> int:
    return revision << PASSAGE_BITS | passage


def revisions_of(rows: RowNames) -> Revisions:
    return rows >> PASSAGE_BITS


def passages_of(rows: RowNames) -> NDArray[np.int64]:
    return rows & (MAX_PASSAGES - 1)
