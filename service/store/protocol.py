"""The interface of the document store: everything that the rest of the service knows about stored data.

Start reading at `DocumentStore`. Connections, SQL and transactions are details of the implementations in
sqlite/ and postgres/. values.py has the values that cross the interface.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest
from models.store import RequestedVersion
from service.store.filters.explain import FieldSample
from service.store.filters.grammar import Predicate
from service.store.values import (
    COLUMNS,
    DEFAULT_COLLECTION,
    MAX_COLLECTIONS,
    NO_KEY,
    Activation,
    Active,
    Changes,
    Column,
    Document,
    Embedding,
    Event,
    EventLimits,
    Judgment,
    JudgmentSummary,
    Known,
    Lacking,
    Limits,
    Put,
    Record,
    Recorded,
    Revisions,
    RowNames,
    Selection,
    Step,
    Vector,
    Verdict,
)

T = TypeVar("T")

FilterMatches: TypeAlias = Any  # The matching documents, in the form of each store.


class VectorSink(Protocol):
    """The vector indexes of a generation, which a store fills."""

    dimension: int

    def load(
        self,
        collections: Iterable[str],
        read: Callable[[str], Iterable[tuple[RowNames, Vector]]],
        sequence: int,
    ) -> None:
        """Replaces all rows.

        Args:
            collections: The names of the collections.
            read: Returns the rows of a collection in batches of names, shape (n,), and vectors, shape
                (n, dimension). Names rise from batch to batch.
            sequence: The operation number of this moment.

        """

    def discard(self, revisions: Sequence[int]) -> None:
        """Removes all rows of these revisions."""


class Snapshot(Protocol):
    """The store at one moment, for one piece of work on a reading thread.

    The moment is that of the first answer. It ends with the work.
    """

    def renew(self) -> None:
        """Moves to the latest moment; it begins with the next answer."""

    def require(self, generation: int, *, kept: bool) -> None:
        """Checks that a generation may be searched at this moment. Call it first where possible.

        Args:
            generation: Number of the generation.
            kept: The caller named its version, so it need not be active.

        Raises:
            Moved: Another generation is active, and `kept` is False.
            Conflict: The generation was dropped.

        """

    def sequence(self) -> int:
        """Returns the number of the latest operation, 0 before the first."""

    def matching(self, where: Predicate, collection: str) -> FilterMatches:
        """Returns the documents of a collection that match a filter, as searches take them."""

    def get_ids(self, revisions: Sequence[int]) -> dict[int, str]:
        """Returns the ids of the current revisions among these, by revision."""

    def answered(
        self, times: Mapping[int, int], max_bytes: float = inf, columns: Sequence[Column] = COLUMNS
    ) -> dict[int, Record]:
        """Reads the documents of an answer.

        Args:
            times: How often each revision is in the answer.
            max_bytes: Bytes that the documents may have together.
            columns: The parts to read. The others are empty.

        Returns:
            Documents by revision, without those that are gone or damaged.

        Raises:
            TooMuch: The answer would have more than `max_bytes` bytes.
            Overloaded: It would have more bytes than all answers together may have.

        """

    def get_vector(self, generation: int, id: str, collection: str) -> tuple[int, Vector | None] | None:
        """Returns a document's revision and the vector of its first passage.

        The vector is None if this generation has no sound one; it never comes from another generation.
        Returns None if the document does not exist.
        """

    def passages(self, generation: int, names: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Returns the start and end of passages in their texts, in characters, by row name.

        Passages of texts that were not split are missing.
        """

    def nearest_words(
        self, query: str, depth: int, allowed: FilterMatches | None, collection: str
    ) -> tuple[Revisions, NDArray[np.float32]]:
        """Ranks documents by their terms (BM25).

        Args:
            query: The text of the search.
            depth: Documents to return. Documents that tie with the last one are returned in addition.
            allowed: The documents to rank; None for all.
            collection: Name of the collection.

        Returns:
            Revisions, and their scores above 0, best first.

        """


class Documents(Protocol):
    """Documents by collection."""

    async def collections(self) -> list[tuple[str, int]]:
        """Returns the collections by name, each with its number of documents."""

    async def has_collection(self, name: str, /) -> bool:
        """Returns whether the collection exists."""

    async def document(self, id: str, collection: str, /) -> Record | None:
        """Returns a document, or None if it does not exist.

        Raises:
            DamagedDocument: The document is damaged.

        """

    async def page(
        self, after: str, limit: int, where: Predicate | None, max_bytes: float, collection: str, /
    ) -> tuple[list[Record], bool]:
        """Returns documents in the order of their ids, and whether others follow.

        Args:
            after: Return documents after this id. Empty: from the beginning.
            limit: Number of documents, at most.
            where: A filter, or None.
            max_bytes: Bytes that the documents may have together. The first one is returned in any case.
            collection: Name of the collection.

        Raises:
            DamagedDocument: One of the documents is damaged.
            Overloaded: The answer would have more bytes than all answers together may have.

        """

    async def count(self, where: Predicate | None, collection: str, /) -> int:
        """Returns the number of documents of a collection that match a filter; None matches all."""

    async def matching(self, where: Predicate | None, collection: str, /) -> tuple[list[int], int]:
        """Returns the rising revisions that match a filter, and the operation number of the same moment."""

    async def count_all(self) -> int:
        """Returns the number of documents of all collections."""

    async def sequence(self) -> int:
        """Returns the number of the latest operation, 0 before the first."""

    async def unchanged(self, documents: Sequence[Document], collection: str, /) -> set[int]:
        """Returns the positions of documents whose title and text are already stored under their ids."""

    async def sample(self, count: int, characters: int, collection: str, /) -> list[str]:
        """Returns the beginnings of some texts, each with its title first.

        Every store chooses the same documents: those whose ids have the smallest hashes.

        Args:
            count: Number of documents.
            characters: Length of a beginning.
            collection: Name of the collection.

        """

    async def field_sample(self, collection: str, /) -> FieldSample:
        """Returns the metadata fields of the collection's first and last documents, by id."""

    async def put(
        self,
        documents: Sequence[Document],
        embedded: Mapping[int, Mapping[int, Embedding]],
        *,
        split: bool = False,
        collection: str = DEFAULT_COLLECTION,
        max_collections: int = MAX_COLLECTIONS,
    ) -> Put:
        """Stores documents.

        Args:
            documents: Documents with distinct ids.
            embedded: Embeddings by generation and by position in `documents`. A position may be missing if
            the
                stored title and text are the same: then the stored vectors are kept. May grow meanwhile.
            split: Stored vectors of a text that was cut are not kept.
            collection: Name of the collection, which is made if it does not exist.
            max_collections: Number of collections that may exist.

        Raises:
            NeedsVectors: Some documents have no vector of the generation that is active at the commit, which
                this process serves by then.
            Conflict: The collection would be one too many.

        """

    async def fill_checksums(self) -> int:
        """Computes the checksums of some documents from before documents had them.

        Returns:
            The number of documents, 0 at the end.

        """

    async def without_checksums(self) -> int:
        """Returns the number of documents without checksums."""

    async def delete_one(self, id: str, collection: str, /) -> tuple[int, int]:
        """Deletes a document and its events. Many events are deleted before it, in steps.

        Its judgments are not listed while no document has the id.

        Returns:
            1, or 0 if the document does not exist, and the operation number.

        """

    async def delete_some(self, revisions: Sequence[int], collection: str, /) -> Step:
        """Deletes the first of these revisions, as many as one write should. Skips missing revisions."""

    async def drop_judgments(self, collection: str, /) -> bool:
        """Deletes some judgments of a collection. Returns whether it may have more."""

    async def drop_collection(self, collection: str, /) -> None:
        """Deletes a collection that has no documents. The default collection always stays."""

    def filter(self, conditions: object, /) -> Predicate:
        """Compiles a filter for this store.

        Args:
            conditions: Parsed JSON (filters/grammar.py).

        Raises:
            FilterError: The filter breaks the grammar or a limit.

        """

    async def search(self, work: Callable[[Snapshot], T], *, heavy: bool = False) -> T:
        """Runs `work` with a snapshot on a reading thread.

        Args:
            work: Calls `turns.pause` between its steps.
            heavy: The work is long, so it leaves threads for other reads.

        Raises:
            Moved: As `Snapshot.require`, after this process serves the active generation.

        """

    async def fill_with_examples(self, put: Callable[[], Awaitable[None]], /) -> None:
        """Runs `put`, which stores the example corpus, if it was requested and is not stored yet.

        One process runs it for all. After an exception the next process runs it.
        """


class Feedback(Protocol):
    """Judgments of search results."""

    async def judge(
        self,
        judgements: Sequence[Judgment],
        collection: str,
        key: str = NO_KEY,
        limits: Limits | None = None,
        /,
    ) -> tuple[int, set[str]]:
        """Stores judgments of one key. The last judgment of a query and a document replaces earlier ones.

        Returns:
            The number of the last judgment, and the ids of documents that do not exist. Judgments of those
            are not stored.

        Raises:
            NotFound: None of the documents exists.
            Conflict: The key would have more judgments than `limits` allow.

        """

    async def judgements(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Judgment]], bool]:
        """Returns judgments of existing documents with their numbers, and whether others follow.

        Args:
            after: Return judgments after this number.
            limit: Number of judgments, at most.
            selection: Which judgments.
            max_bytes: Bytes that their texts may have together. The first judgment is returned in any case.

        """

    async def count_judgments(self, selection: Selection, /) -> int:
        """Returns how many judgments `judgements` would list."""

    async def sum_up_judgments(self, selection: Selection, /) -> JudgmentSummary:
        """Returns counts of the judgments that `judgements` would list."""

    async def forget_judgments(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]:
        """Deletes the selected judgments in steps, each durable before the next.

        Judgments that arrive after the first step stay.

        Args:
            selection: Which judgments.
            own: Name of the calling key, if it may delete only its own. None: it may delete all.
            tell: Receives the result of each step, also before an error. If the caller is canceled, it runs
            on
                the writing thread for the step in progress.

        Returns:
            How many judgments of each key were deleted, by the name of the key.

        Raises:
            Forbidden: Some are of another key than `own`. Nothing was deleted.
            Storage, Timeout, Unhealthy: A step failed. The message says how many were deleted before.

        """


class Events(Protocol):
    """Events of searches, such as clicks."""

    async def record_events(self, events: Sequence[Event], limits: EventLimits, /) -> Recorded:
        """Stores events of one key and collection in steps, each durable before the next.

        Returns:
            Which events are new and which were refused, with the reason. An event that is stored already is
            in neither.

        Raises:
            Storage, Timeout, Unhealthy: A step failed. The message says how many events were handled before.

        """

    async def list_events(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Event]], bool]:
        """Returns events with their numbers, and whether others follow. Arguments as of `judgements`."""

    async def count_events(self, selection: Selection, /) -> int:
        """Returns how many events `list_events` would list."""

    async def forget_events(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]:
        """Deletes the selected events, as `forget_judgments` deletes judgments."""

    async def expire_events(self, before: float, /) -> bool:
        """Deletes some events from before a Unix time. Returns whether there may be more."""


class Generations(Protocol):
    """Vectors by generation, and which generation is active.

    A generation is the set of all vectors of one model version in one form, such as fp32.
    """

    def active(self) -> Active | None:
        """Returns the active generation, or None before the first start. Blocks."""

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        """Creates and activates a generation without vectors, at a start. Blocks.

        Args:
            manifest: The model version.
            form: The form of its vectors.
            examples: The example corpus is requested.

        Returns:
            The number of the generation.

        """

    async def known(self, published: Container[str], /) -> Known:
        """Returns facts about versions, of one moment. Only `published` ones can be the previous version."""

    async def begin(self, manifest: Manifest, form: str, /) -> int:
        """Returns the generation to build for a version, and drops any other that is being built.

        It is the generation that is stored already for this version and form, or else a new one.
        """

    async def abandon(self) -> None:
        """Drops the generations that are being built."""

    async def make_active(self, swap: Activation, /) -> bool:
        """Activates a generation in one transaction, and retires the one that was active.

        Returns:
            False if `swap.may` returned False, or if an existing document has no vector of the generation.

        """

    async def keep_decision(self, requested: str, /) -> None:
        """Notes that the request with this id was carried out or has failed."""

    async def keep_verdict(self, version: str, verdict: Verdict, requested: str, /) -> None:
        """Notes why a version is not chosen automatically again, and that the request was handled."""

    async def compare_once(
        self,
        version: str,
        new: int,
        active: int,
        compare: Callable[[], Awaitable[Mapping[str, Any] | None]],
        /,
    ) -> Mapping[str, Any] | None:
        """Returns the comparison of a version's answers with those of the active version, and stores it.

        One process compares for all. After an exception the next process compares.

        Args:
            version: The version that is compared.
            new: Number of its generation.
            active: Number of the active generation.
            compare: Returns the comparison, or None without documents to compare.

        """

    async def lacking(self, generation: int, after: int, limit: int, /) -> list[int]:
        """Returns the first revisions after `after` without a vector of the generation, rising.

        Skipped revisions are not among them.
        """

    async def next_lacking(self, generation: int, after: int, limit: int, max_bytes: int, /) -> Lacking:
        """Returns the next documents to embed for a generation, by rising revision.

        Without a document that is free it waits a moment before it returns.

        Args:
            generation: Number of the generation.
            after: Return revisions after this one. Revisions only grow.
            limit: Number of documents, at most.
            max_bytes: Bytes that their texts may have together. The first one is returned in any case.

        """

    async def add_vectors(self, generation: int, rows: Mapping[int, Embedding], /) -> int:
        """Stores vectors of those revisions that still exist. Returns the number of these revisions."""

    async def share_vectors(self, generation: int, revisions: Sequence[int], /) -> set[int]:
        """Copies vectors of other generations of the same model and form.

        Returns:
            The revisions that got vectors in this step. Empty at the end.

        """

    async def add_stored(self, generation: int, after: int, limit: int, /) -> int | None:
        """Passes stored vectors to `on_commit`, a step at a time. Damaged vectors are deleted.

        Args:
            generation: Number of the generation.
            after: Begin after this revision.
            limit: Number of vectors, about.

        Returns:
            The last revision of the step, or None at the end.

        """

    async def skip(self, generation: int, revision: int, reason: str, /) -> None:
        """Notes that the generation's model fails on a text."""

    async def forget_skipped(self, generation: int, /) -> None:
        """Forgets which texts were skipped, so that they are embedded again."""

    async def load(self, generation: int, indexes: VectorSink, /) -> bool:
        """Loads all stored vectors into indexes that are not searched yet. Deletes damaged vectors.

        Returns:
            True if all vectors were sound.

        """

    def reload(self, generation: int, indexes: VectorSink, /) -> bool:
        """Does the same as `load` on the writing thread. Only `on_commit` may call it."""


class Replicas(Protocol):
    """Other processes on the same store. A SQLite store has none."""

    @property
    def lost(self) -> str | None:
        """The reason why this process may not know the active generation, or None."""

    @property
    def others(self) -> int:
        """The number of other processes that share the store, as last heard."""

    async def keep_in_touch(self, serves: Callable[[], int], follow: Callable[[Active], None], /) -> None:
        """Takes part in swaps until it is canceled. Other processes wait until this one is ready.

        Args:
            serves: Returns the number of the generation that this process serves.
            follow: Called with the active generation when any process has activated it.

        """

    async def joined(self) -> None:
        """Returns when `keep_in_touch` has reached the store for the first time, or after a few seconds."""

    def starting(self) -> AbstractContextManager[None]:
        """Lets one process at a time start while the store has no generation yet."""

    async def requested(self, requested: RequestedVersion | None, at: float, /) -> RequestedVersion | None:
        """Returns the request that counts, given the request in the models folder of this process.

        A request counts from the moment when the store learns of it, so the clocks of machines do not matter.
        An older request is ignored and logged.

        Args:
            requested: The request in the models folder.
            at: When it was made. inf: since this process last looked at the folder; -inf: before that; or the
                file's Unix time if this process has not looked before.

        """

    async def request(self, requested: RequestedVersion, /) -> None:
        """Makes a request, which counts until the next one."""


class DocumentStore(Documents, Feedback, Events, Generations, Replicas, Protocol):
    """The document store of one service.

    Writes are durable when they return, and each one happens completely or not at all; methods that work in
    steps say so. Of two writes of one document one is complete before the other begins. `on_commit` receives
    the rows of a write before the write returns. If the caller is canceled before its write begins, the write
    is withdrawn.

    Reads answer for one moment, and see every write that returned before they began. Reads of clients take
    turns, and end when their caller is canceled. Reads of the service itself never wait for those.

    Methods block the event loop only if they say so.

    Raises:
        Storage: The disk is full, read-only or failing, or the store is damaged. Nothing of a write was
        stored. Unhealthy: The store cannot work now, for example because the database cannot be reached.
        Nothing of a
            write was stored, unless the connection broke during the commit.
        Timeout: The database took too long.

    """

    def start(self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]) -> None:
        """Starts to accept writes.

        Args:
            on_commit: Called with the rows of each write after its commit, on the writing thread.
            observe_seconds: Called with the seconds of each write.

        """

    def close(self) -> None:
        """Completes accepted writes and closes the store. Blocks."""

    def check(self, seconds: float, /) -> str | None:
        """Returns why writes do not work, or None. The watchdog calls it; `seconds` since its last call."""

    async def keep_noting(self) -> None:
        """Until it is canceled, notes how far the store is and looks for `damage`."""

    @property
    def damage(self) -> str | None:
        """The missing tables, columns, indexes or rights as a sentence, or None."""

    def unfinished_copy(self) -> str | None:
        """Returns why no service may use the store: a `copy` into it has not ended. Blocks.

        Returns None if no copy is unfinished.
        """

    def indexed(self) -> tuple[list[str], set[int]]:
        """Returns the names of the collections, and the generations with stored vectors. Blocks."""

    def visitor_secret(self) -> str:
        """Returns the secret that ids of visitors are hashed with. The first call creates it. Blocks."""

    async def tidy(self) -> bool:
        """Deletes some rows of dropped generations and of the operation log. Returns whether more remain."""

    def after_writes(self, work: Callable[[], None], /) -> None:
        """Runs `work` after all writes that were accepted before."""
