"""Values that cross the interface of the store: its arguments and its answers."""

import re
from collections.abc import Callable, Mapping
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
MAX_PASSAGES = 1 << PASSAGE_BITS  # Passages of a text.

Column: TypeAlias = Literal["title", "text", "metadata"]  # Parts that an answer may leave out.
COLUMNS: tuple[Column, ...] = ("title", "text", "metadata")
DEFAULT_COLLECTION = "default"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # Also the name of a folder.
DELETE_DOCUMENTS = 128  # Documents of one job. Other writes wait some tens of milliseconds.
MAX_COLLECTIONS = 1000  # SIMILE_MAX_COLLECTIONS unless it is set
NO_KEY = ""  # The name of callers without a key.
# Of a query in a judgement or an event. Percent-encoded it still fits a URL of 64 KiB, so it can be deleted.
MAX_QUERY_CHARACTERS = 4096
MAX_SHOWN = 20  # Ids of hits that an event stores.
FAILED, ROLLED_BACK = "failed", "rolled back"  # States of a verdict.


class TooMuch(Exception):
    """More text than an answer may have."""


class NeedsVectors(Exception):
    """These documents (positions in the request) must first be embedded by the generation that is `live`.

    Nothing was stored.
    """

    def __init__(self, positions: list[int], active: int) -> None:
        super().__init__(f"{len(positions)} documents have no vector")
        self.positions = positions
        self.active = active


class Moved(Exception):
    """The generation to search is not the active one any more. Nothing was read; search the active one."""

    def __init__(self, generation: int) -> None:
        super().__init__(f"Generation {generation} is not active")
        self.generation = generation


@dataclass(frozen=True, slots=True)
class Document:
    """A document to store.

    Args:
        id: Its id.
        text: Its text.
        metadata_json: A JSON object, as `encode_json` writes it.
        title: Its title. Empty: it has no title.
    """

    id: str
    text: str
    metadata_json: str = "{}"
    title: str = ""

    @property
    def content(self) -> Content:
        return Content(self.text, self.title)


def encode_json(metadata: dict[str, Any]) -> str:
    """Returns metadata as JSON, as it is stored."""
    return orjson.dumps(metadata).decode()


@dataclass(frozen=True, slots=True)
class Record:
    """A stored document as it is sent. Title, text and metadata are JSON that is not parsed.

    `title_json` is empty if the document has no title.
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
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = orjson.loads(self.metadata_json)
        return metadata


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a text, from character `start` to before `end`, and its vector.

    `end` is None if the passage is the whole text.
    """

    vector: Vector
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """A document's vectors of one generation: of the first passage of its text, and of the other passages.

    `truncated` is True if no passage reached the end of the text.
    """

    vector: Vector
    truncated: bool
    tokens: int = 0  # Tokens that were embedded. 0: the vectors were stored before.
    end: int | None = None  # Characters of the first passage. None: it is the whole text.
    others: tuple[Passage, ...] = ()

    @property
    def passages(self) -> tuple[Passage, ...]:
        return (Passage(self.vector, 0, self.end), *self.others)

    @property
    def cut(self) -> bool:
        """Whether the model would see more of the text if it were split."""
        return self.truncated and not self.others


class Put(NamedTuple):
    """The result of a put.

    Attributes:
        truncated: Number of texts that the active model does not see whole.
        sequence: The operation number.
        gaps: Other generations without a vector of one of the texts.
        created: Number of documents with new ids.
    """

    truncated: int
    sequence: int
    gaps: frozenset[int]
    created: int


class Step(NamedTuple):
    """One step of a deletion: revisions that were handled, deleted documents, and the operation number."""

    done: int
    deleted: int
    sequence: int


class Unembedded(NamedTuple):
    """The parts of a document that its vectors depend on."""

    collection: str
    id: str
    content: Content


Last: TypeAlias = Callable[[Mapping[int, Unembedded]], Mapping[int, Embedding] | None]


class Lacking(NamedTuple):
    """The next documents that have no vector of a generation, by rising revision, all of one moment.

    Attributes:
        documents: The documents by revision.
        last_revision: The last revision that exists.
        skipped: Number of skipped texts.
        left: Number of further documents without a vector.
        closing: The rest is so small that a swap embeds it.
    """

    documents: dict[int, Unembedded]
    last_revision: int
    skipped: int
    left: int = 0
    closing: bool = False


@dataclass
class Changes:
    """Rows that a commit added and removed.

    Attributes:
        added: Vectors by row name, for each generation and collection.
        removed: Revisions by collection.
        sequence: The operation number after the commit, 0 without an operation.
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
    """The active generation."""

    number: int
    version: str
    fingerprint: str
    form: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """A swap to a generation.

    Attributes:
        generation: Number of the generation.
        complete_through: All revisions up to this one have vectors of the generation.
        requested: Id of the request. Empty: the request has no id.
        rollback: The version that was active gets the verdict that it was rolled back from.
        may: Returns whether the swap may still happen.
        last: Embeds the few documents that still have no vector, on a thread. Used if several processes
            write. Returns None to give up.
        then: Called after the commit and before any other write, with the last revision of that moment.

    """

    generation: int
    complete_through: int = 0
    requested: str = ""
    rollback: bool = False
    may: Callable[[], bool] = lambda: True
    last: Last = lambda _: None
    then: Callable[[int], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reason why a version is not chosen automatically again: it failed, or was rolled back from."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about versions, of one moment."""

    active: str
    verdicts: Mapping[str, Verdict]
    past: set[str]
    previous: str | None
    handled: str | None
    canaries: Mapping[str, Any]  # Comparisons of answers, by version.
    building: bool  # A generation is being built.


@dataclass(frozen=True, slots=True)
class Judgment:
    """A key's judgment whether a document is relevant to a query.

    `visitor` is the hash of the user's id, or empty. `trusted` says whether the key was trusted then.
    """

    query: str
    id: str
    relevant: bool
    key: str = NO_KEY
    collection: str = DEFAULT_COLLECTION
    visitor: str = ""
    trusted: bool = True


class JudgmentSummary(NamedTuple):
    """Counts of judgments and of their distinct queries."""

    judgements: int
    relevant: int
    queries: int
    answered: int  # Queries with a relevant document, which can measure a search.


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the judgments of one key: in all, of one query, of one document. 0 means no limit."""

    per_key: int = 0
    per_query: int = 0
    per_document: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A click or another use of a hit, as a key reported it.

    Args:
        search_id: The search.
        query: Its text.
        id: The document.
        type: What the user did.
        event_id: Identifies the event, so that it can be sent again.
        at: Unix time.
        position: Rank of the hit, from 1.
        shown: Ids of the hits around it, best first.
        key: Name of the key.
        collection: Name of the collection.
        visitor: Hash of the user's id, or empty.
        trusted: Whether the key was trusted then.
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
    """Limits on stored events: of one key, of one key about one document, of all. 0 means no limit."""

    per_key: int = 0
    per_document: int = 0
    in_all: int = 0


class Recorded(NamedTuple):
    """The result of storing events, by their positions. Events in neither were stored before."""

    new: list[int]
    refused: dict[int, ServiceError]


@dataclass(frozen=True, slots=True)
class Selection:
    """The judgments or events with all of these values. None matches any value."""

    collection: str | None = None
    query: str | None = None
    id: str | None = None
    key: str | None = None
    visitor: str | None = None


def build_row_name(revision: int, passage: int = 0) -> int:
    return revision << PASSAGE_BITS | passage


def get_revisions(rows: RowNames) -> Revisions:
    return rows >> PASSAGE_BITS


def get_passages(rows: RowNames) -> NDArray[np.int64]:
    return rows & (MAX_PASSAGES - 1)
