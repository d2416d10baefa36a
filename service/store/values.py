"""The arguments and results of the store's interface (protocol.py)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from models.messages import amount
from models.search.content import Content
from service.errors import ServiceError

Vector = NDArray[np.float32]
# A row of an index is one passage of a document: `revision << 16 | passage`. Every document has passage 0.
Revisions: TypeAlias = NDArray[np.int64]
RowNames: TypeAlias = NDArray[np.int64]
Ranking: TypeAlias = tuple[Revisions, NDArray[np.float32]]  # Documents and their scores, best first.
PASSAGE_BITS = 16
MAX_PASSAGES = 1 << PASSAGE_BITS  # Passages of a text.
MEASURED_PASSAGES = 64  # The second stage reads the vectors of at most this many first passages of a hit.

Column: TypeAlias = Literal["title", "text", "metadata"]  # Parts that an answer may leave out.
COLUMNS: tuple[Column, ...] = ("title", "text", "metadata")
DEFAULT_COLLECTION = "default"
COLLECTION_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")  # Also the name of a folder.
NAME_RULE = (
    "A collection's name is up to 64 letters a to z, digits, hyphens, underscores and points; a letter, a "
    "digit or an underscore comes first."
)
MAX_ID_CHARACTERS = 512  # Of a document.
DELETE_DOCUMENTS = 128  # Documents of one job. Other writes wait some tens of milliseconds.
MAX_COLLECTIONS = 2000  # SIMILE_MAX_COLLECTIONS unless it is set
NO_KEY = ""  # The name of callers without a key.
# Limit of a query in a judgment or an event. Percent-encoded, it fits a URL of 64 KiB, so it can be deleted.
MAX_QUERY_CHARACTERS = 4096
MAX_COUNTED = 10_000  # Documents with a term that are counted.
# Documents with a term that are tested with a filter, one by one and then together.
TRIED, MAX_TRIED = 64, 65_536
MAX_READ = 20_000  # Documents that are read for a query to find out where words stand in them.
TIES = 1000  # Maximum number of further documents that tie with the last hit.
MAX_SHOWN = 20  # Ids of hits that an event stores.
FAILED, ROLLED_BACK = "failed", "rolled back"  # States of a verdict.


FacetValue: TypeAlias = str | int | float | bool | None


class Facet(NamedTuple):
    """The counts of one metadata field.

    Attributes:
        values: Values, each with the number of documents that have it, largest number first.
        ranges: Ranges in ascending order: the first value, the value after the last, or None if there is no
            such end, and the number of documents.
        other: Number of documents that have the field, but none of these values.
        missing: Number of documents without the field.
    """

    values: list[tuple[FacetValue, int]]
    ranges: list[tuple[FacetValue, FacetValue, int]]
    other: int
    missing: int


class TooMuch(Exception):
    """Raised if an answer would exceed its maximum number of bytes."""


class TooMany(Exception):
    """Raised if more documents would have to be read than a budget has left."""


@dataclass
class Budget:
    """The number of documents that may still be read for a query."""

    left: int

    def take(self, count: int) -> None:
        """Takes the documents to read now from the budget.

        Raises:
            TooMany: The budget is too small.
        """
        if count > self.left:
            raise TooMany
        self.left -= count


class NeedsVectors(Exception):
    """Raised if documents to store have no vector of the active generation. Nothing was stored.

    The caller must embed the documents with the generation `active`, and send them again.

    Args:
        positions: Positions of the documents in the request.
        active: Number of the active generation.
    """

    def __init__(self, positions: list[int], active: int) -> None:
        super().__init__(f"{amount(len(positions), 'document has', 'documents have')} no vector")
        self.positions = positions
        self.active = active


class Moved(Exception):
    """Raised if a search uses a generation that is not active any more.

    The caller must repeat the search with the active generation.
    """

    def __init__(self, generation: int) -> None:
        super().__init__(f"Generation {generation} is not active")
        self.generation = generation


@dataclass(frozen=True, slots=True)
class Document:
    """A document to store.

    Args:
        id: Id of the document.
        text: The text.
        metadata_json: A JSON object, as `encode_json` writes it.
        title: The title, or empty for a document without a title.
    """

    id: str
    text: str
    metadata_json: str = "{}"
    title: str = ""

    @property
    def content(self) -> Content:
        return Content(self.text, self.title)


def encode_json(metadata: dict[str, Any]) -> str:
    """Converts metadata to JSON, in the form in which it is stored."""
    return orjson.dumps(metadata).decode()


@dataclass(frozen=True, slots=True)
class Record:
    """A stored document as it is sent to clients. Title, text and metadata are unparsed JSON.

    `title_json` is empty if the document has no title.
    """

    id: str
    text_json: bytes
    metadata_json: bytes
    title_json: bytes = b""

    @property
    def size(self) -> int:
        """Size of title, text and metadata in an answer, in bytes."""
        return len(self.title_json) + len(self.text_json) + len(self.metadata_json)

    @property
    def metadata(self) -> dict[str, Any]:
        metadata: dict[str, Any] = orjson.loads(self.metadata_json)
        return metadata


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a text, with the vector of the passage.

    The passage has the characters from `start` up to but not including `end`. `end` is None if the passage is
    the whole text.
    """

    vector: Vector
    start: int
    end: int | None


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vectors of a document in one generation: of the first passage, and of the other passages.

    `truncated` says whether the passages leave out a part of the title or the text.
    """

    vector: Vector
    truncated: bool
    tokens: int = 0  # Tokens that were embedded; 0 if the vectors were stored before.
    end: int | None = None  # Characters of the first passage; None if it is the whole text.
    others: tuple[Passage, ...] = ()
    unknown: int = 0  # Tokens of unknown words that were embedded; 0 if the vectors were stored before.

    @property
    def passages(self) -> tuple[Passage, ...]:
        return (Passage(self.vector, 0, self.end), *self.others)

    @property
    def cut(self) -> bool:
        """Whether the text was truncated, but not split.

        The model would see more of the text if it were split.
        """
        return self.truncated and not self.others


class Put(NamedTuple):
    """The result of storing documents.

    Attributes:
        truncated: Number of texts that the active model truncated.
        sequence: The operation number after the write.
        gaps: Numbers of the generations in which at least one of the documents has no vector.
        created: Number of documents with new ids.
    """

    truncated: int
    sequence: int
    gaps: frozenset[int]
    created: int


# Documents with distinct ids, and the embedding of each.
Batch: TypeAlias = tuple[Sequence[Document], Sequence[Embedding]]


class Loaded(NamedTuple):
    """The result of loading documents with their vectors.

    Attributes:
        new: Number of documents with new ids, or whose vectors were added.
        kept: Number of other documents that are stored now, or whose vectors were stored before.
        absent: Number of documents that are not stored.
        different: Number of documents that are stored with another title or text.
    """

    new: int
    kept: int
    absent: int = 0
    different: int = 0


class Usage(NamedTuple):
    """Number of documents, and bytes of their titles, texts and metadata."""

    documents: int
    bytes: int

    def plus(self, other: "Usage") -> "Usage":
        return Usage(self.documents + other.documents, self.bytes + other.bytes)

    def minus(self, other: "Usage") -> "Usage":
        return Usage(self.documents - other.documents, self.bytes - other.bytes)

    def beyond(self, other: "Usage") -> "Usage":
        """Returns the difference, in which a number that is smaller than the other's is 0."""
        return Usage(*(max(0, number) for number in self.minus(other)))


class Step(NamedTuple):
    """One step of a deletion.

    Attributes:
        done: Number of revisions that were handled, missing ones included.
        deleted: Number of deleted documents.
        sequence: The operation number after the step.
    """

    done: int
    deleted: int
    sequence: int


class Unembedded(NamedTuple):
    """A stored document without a vector: its text to embed, and its name for messages."""

    collection: str
    id: str
    content: Content


Last: TypeAlias = Callable[[Mapping[int, Unembedded]], Mapping[int, Embedding] | None]


class Lacking(NamedTuple):
    """The next documents to embed for a generation, in ascending order of revisions, all from one state.

    Attributes:
        documents: The documents by revision.
        last_revision: The highest revision of an existing document, or 0.
        skipped: Number of skipped texts.
        left: In PostgreSQL, the number of further documents without a vector. It is 1 while another process
            builds the vector index. In SQLite, always 0.
        closing: Whether so few documents are left that the transaction of a swap embeds them. In SQLite,
            always False.
    """

    documents: dict[int, Unembedded]
    last_revision: int
    skipped: int
    left: int = 0
    closing: bool = False


@dataclass
class Changes:
    """The rows that a commit added and removed.

    Attributes:
        added: Vectors by row name, for each generation and collection.
        removed: Revisions by collection.
        sequence: The operation number after the commit. 0 if the commit had no operation.
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
    """A request to the store to activate a generation.

    Attributes:
        generation: Number of the generation.
        complete_through: All documents up to this revision have vectors of the generation, or were skipped.
        requested: Id of the request. Empty if the request has no id.
        rollback: Whether this is a rollback, which gives the version that was active before a verdict.
        may: Returns whether the generation may still be activated.
        last: Embeds the few documents that still have no vector. Only PostgreSQL calls it, on the writing
            thread. If it returns None, the generation is not activated.
        then: Called after the commit. SQLite calls it before any other write, with the highest revision at
            the commit. PostgreSQL calls it with 0.
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
    """Why a version is not chosen automatically again: it failed, or was replaced by a rollback."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Known:
    """Facts about versions, all from one state of the store."""

    active: str
    verdicts: Mapping[str, Verdict]  # By version.
    past: set[str]  # Versions that were active, the active one included.
    previous: str | None  # The version that a rollback would activate.
    handled: str | None  # Id of the last request that was carried out or failed.
    canaries: Mapping[str, Any]  # Comparisons of answers, by version.
    building: bool  # A generation is being built.


@dataclass(frozen=True, slots=True)
class Judgment:
    """A key's judgment of whether a document is relevant to a query.

    `visitor` is the hash of the user's id, or empty. `trusted` says whether the key was trusted when it
    judged.
    """

    query: str
    id: str
    relevant: bool
    key: str = NO_KEY
    collection: str = DEFAULT_COLLECTION
    visitor: str = ""
    trusted: bool = True


class JudgmentSummary(NamedTuple):
    """Counts of judgments, and of the distinct queries in them."""

    judgements: int
    relevant: int
    queries: int
    answered: int  # Queries with a relevant document, which can measure a search.


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on the judgments of one key: in total, for one query, and for one document. 0 means no limit."""

    per_key: int = 0
    per_query: int = 0
    per_document: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A click or another use of a hit, reported by the client that has a key.

    Args:
        search_id: Id of the search.
        query: Text of the search.
        id: Id of the document.
        type: What the user did.
        event_id: Identifies the event, so that sending it again has no effect.
        at: Unix time of the event.
        position: Rank of the hit, from 1. None if unknown.
        shown: Ids of hits that the user saw, best first. Includes `id`, unless it is empty: unknown.
        key: Name of the key.
        collection: Name of the collection.
        visitor: Hash of the user's id, or empty.
        trusted: Whether the key was trusted when it reported the event.
        test: Id of the live test that the event is an outcome of, or empty.
        side: 1 if the hit is of the candidate, -1 if it is of the active version, otherwise 0.
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
    test: str = ""
    side: int = 0


class EventLimits(NamedTuple):
    """Limits on stored events: of one key, of one key about one document, of all keys. 0 means no limit."""

    per_key: int = 0
    per_document: int = 0
    in_all: int = 0


class Recorded(NamedTuple):
    """The result of storing events, by their positions in the request.

    Events that are neither in `new` nor in `refused` were stored before.
    """

    new: list[int]
    refused: dict[int, ServiceError]


@dataclass(frozen=True, slots=True)
class Selection:
    """Selects judgments or events by their fields. A field that is None matches any value."""

    collection: str | None = None
    query: str | None = None
    id: str | None = None
    key: str | None = None
    visitor: str | None = None


class ClickedQuery(NamedTuple):
    """A query after which visitors clicked.

    Attributes:
        query: The query.
        visitors: Number of different visitors.
        events: Numbers of events by as many different visitors as a suggested query needs.
    """

    query: str
    visitors: int
    events: tuple[int, ...]


class Ranked(NamedTuple):
    """A document in a ranking, before the document is read.

    `row` is the name of the document's nearest row in the index, or 0 if the ranking has none. `bm25` is the
    keyword score in hybrid search, or 0 if keyword search did not find the document.
    """

    revision: int
    score: np.float32
    row: int = 0
    bm25: float = 0.0


def build_row_name(revision: int, passage: int = 0) -> int:
    return revision << PASSAGE_BITS | passage


def get_revisions(rows: RowNames) -> Revisions:
    return rows >> PASSAGE_BITS


def get_passages(rows: RowNames) -> NDArray[np.int64]:
    return rows & (MAX_PASSAGES - 1)
