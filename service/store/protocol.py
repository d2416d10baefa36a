"""Defines the interface of the document store, which the rest of the service uses. Start at `DocumentStore`.

sqlite/ and postgres/ implement the interface. Connections, SQL and transactions are details of these
packages. values.py has the arguments and results.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest
from models.search.content import Content
from models.search.spelling import Near, Word
from models.search.terms import NO_WEIGHTS, Weights
from models.search.terms import Query as Terms
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
    Budget,
    Changes,
    ClickedQuery,
    Column,
    Document,
    Embedding,
    Event,
    EventLimits,
    Facet,
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
    Unembedded,
    Usage,
    Vector,
    Verdict,
)

T = TypeVar("T")

FilterMatches: TypeAlias = Any  # The documents that match a filter; each store has its own class.


class VectorSink(Protocol):
    """The vector indexes of a generation in memory, which a store fills with vectors."""

    dimension: int

    def load(
        self,
        collections: Iterable[str],
        read: Callable[[str], Iterable[tuple[RowNames, Vector]]],
        sequence: int,
    ) -> None:
        """Replaces all rows of the indexes.

        Args:
            collections: The names of the collections.
            read: Returns the rows of a collection in batches of names, shape (n,), and vectors, shape
                (n, dimension). Names ascend from batch to batch.
            sequence: The operation number of the state that is read.
        """

    def discard(self, revisions: Sequence[int]) -> None:
        """Removes all rows of the given revisions."""


class Snapshot(Protocol):
    """The store in one state, for the length of one read on a reading thread.

    The first method call fixes the state. Later writes are not visible.
    """

    def renew(self) -> None:
        """Releases the current state. The next method call fixes the latest one."""

    def require(self, generation: int, *, kept: bool) -> None:
        """Checks that a generation may be searched in this state. Call this first where possible.

        Args:
            generation: Number of the generation.
            kept: Whether the client named the version, so that the generation need not be active.

        Raises:
            Moved: Another generation is active, and `kept` is False.
            Conflict: The generation was dropped, and `kept` is True.
        """

    def sequence(self) -> int:
        """Returns the number of the latest operation, 0 before the first."""

    def matching(self, where: Predicate, collection: str, *, lazily: bool = False) -> FilterMatches:
        """Returns the documents in a collection that match a filter, as an argument for searches.

        With `lazily`, the filter is evaluated for some documents at a time, when they are needed.
        """

    def list_matching(self, where: Predicate | None, collection: str) -> Revisions:
        """Returns the documents in a collection that match a filter, in ascending order.

        None matches all documents. Do not change the array.
        """

    def among(self, where: Predicate | None, revisions: Revisions, collection: str) -> Revisions:
        """Returns those of some documents that exist in a collection and match a filter, in ascending order.

        Meant for few documents. None matches all.
        """

    def list_worded(self, query: str, collection: str, weights: Weights = NO_WEIGHTS) -> Revisions:
        """Returns the documents that `nearest_words` would rank, in ascending order.

        The result may have deleted documents.
        """

    def count_facets(
        self, fields: Sequence[str], revisions: Revisions, collection: str, most: int
    ) -> dict[str, Facet | None]:
        """Counts the values of metadata fields.

        Args:
            fields: The fields, as in filters.
            revisions: The documents to count, in ascending order. They must be in this state.
            collection: Name of their collection.
            most: Maximum number of values, and of ranges, of a field.

        Returns:
            The counts by field. None for a field with too many different values.
        """

    def load_columns(self, declared: Sequence[str], collection: str) -> None:
        """Reads the values of declared and of lately counted fields into memory, for `count_facets`."""

    def get_ids(self, revisions: Sequence[int]) -> dict[int, str]:
        """Returns the document ids of those of `revisions` that still exist, by revision."""

    def get_revisions(self, ids: Sequence[str], collection: str) -> dict[str, int]:
        """Returns the revisions of those of `ids` that exist in a collection, by document id."""

    def get_titles(self, revisions: Sequence[int]) -> dict[int, str]:
        """Returns the titles of those of `revisions` that still exist, by revision, without any check."""

    def clicked_queries(
        self, collection: str, min_visitors: int, limit: int, trusts: Callable[[str], bool], /
    ) -> list[ClickedQuery]:
        """Returns queries after which visitors clicked.

        Only events that name a visitor, and whose keys were trusted at that time and still are, count.

        Args:
            collection: Name of the collection.
            min_visitors: Smallest number of visitors.
            limit: Maximum number of queries. Those with most visitors are returned.
            trusts: Whether a key is trusted, by its name.
        """

    def existing_events(self, sequences: Sequence[int], /) -> set[int]:
        """Returns those of some events, given by their numbers, that still exist."""

    def answered(
        self, times: Mapping[int, int], max_bytes: float = inf, columns: Sequence[Column] = COLUMNS
    ) -> dict[int, Record]:
        """Reads the documents of an answer.

        Args:
            times: How often the answer contains each revision.
            max_bytes: Maximum size of all documents together.
            columns: The columns to read. The others are empty in the result.

        Returns:
            Documents by revision. Deleted and damaged documents are missing.

        Raises:
            TooMuch: The answer would have more than `max_bytes` bytes.
            Overloaded: All answers that are in progress would together have too many bytes.
        """

    def get_vector(self, generation: int, id: str, collection: str) -> tuple[int, Vector | None] | None:
        """Returns a document's revision and the vector of the first passage.

        The vector is None if this generation has no undamaged vector of the document. Returns None if the
        document does not exist.
        """

    def get_vectors(self, generation: int, revisions: Sequence[int]) -> dict[int, Vector]:
        """Returns the undamaged vectors of documents by revision, each of shape (passages, dimension).

        Only the first MEASURED_PASSAGES passages are read. Documents without vectors are not in the result.
        """

    def get_tokens(self, space: str, revisions: Sequence[int]) -> dict[int, bytes]:
        """Returns the token vectors of documents by revision, without those that have none in this space.

        Args:
            space: `Ranking.space`.
            revisions: The documents.
        """

    def beginnings(self, revisions: Sequence[int], characters: int) -> dict[int, Content]:
        """Returns the first characters of titles and of texts, for those of `revisions` that still exist.

        Invalid UTF-8 is replaced. Other damage is not detected, because checksums are of whole texts.
        """

    def titles(self, revisions: Sequence[int]) -> dict[int, str]:
        """Returns the titles of those of `revisions` that still exist, by revision."""

    def passages(self, generation: int, names: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Returns the start and end of passages in their texts, in characters, by row name.

        Passages of texts that were not split are not in the result.
        """

    def documents_with_phrase(
        self, words: Sequence[str], terms: Sequence[str], collection: str, budget: Budget
    ) -> Revisions:
        """Returns the documents in which `words` follow each other, and that have all `terms`, in order.

        Title and text count as one text. Arguments are terms, as `get_terms` cuts texts.

        Raises:
            TooMany: More documents would have to be read than `budget` has left (PostgreSQL).
        """

    def restricted(
        self,
        allowed: FilterMatches | None,
        required: Revisions | None,
        excluded: Revisions,
        collection: str,
    ) -> FilterMatches:
        """Returns some of the documents that match a filter, as an argument for searches.

        Args:
            allowed: The documents that match the filter; None for all.
            required: The documents to choose from, in ascending order; None for all.
            excluded: The documents to leave out.
            collection: Name of the collection.
        """

    def get_synonyms(self, collection: str) -> str | None:
        """Returns the synonyms of a collection as JSON (sql/synonyms.py), or None if there were never any."""

    def judgment_state(self, collection: str) -> str:
        """Returns a text that changes whenever a judgment or clicked answer of a collection changes."""

    def nearest_words(
        self,
        query: str,
        depth: int,
        allowed: FilterMatches | None,
        collection: str,
        weights: Weights = NO_WEIGHTS,
    ) -> tuple[Revisions, NDArray[np.float32]]:
        """Ranks documents by keyword search (BM25).

        Args:
            query: The text of the search.
            depth: Number of documents. Up to 1,000 more are returned if they tie with the last one.
            allowed: The documents to rank; None for all.
            collection: Name of the collection.
            weights: Weights of corrected terms and synonyms.

        Returns:
            Revisions, best first, and their scores, all above 0.
        """

    def get_idf(self, query: Terms, collection: str) -> dict[str, float]:
        """Returns the inverse document frequency of each term of a query, as keyword search uses it.

        Filters do not count. The result is empty if the collection does not exist.
        """

    def nearest_terms(self, word: Word, collection: str) -> Iterable[Near]:
        """Returns groups of terms of a collection near to a word, as `Vocabulary.find_nearest` does.

        Terms of deleted documents may be among them, so ask `count_documents`. No filter applies.

        Args:
            word: The word.
            collection: Name of the collection.
        """

    def load_vocabulary(self, collection: str) -> None:
        """Reads the terms that `nearest_terms` needs into memory.

        SQLite's `nearest_terms` finds only known terms of a large collection if this was not called after
        many writes.
        """

    def count_documents(self, terms: Sequence[str], collection: str) -> dict[str, int]:
        """Returns the number of documents with each term, up to MAX_COUNTED, without terms that none has."""

    def documents_with(
        self, term: str, allowed: FilterMatches | None, count: int, collection: str
    ) -> Revisions:
        """Returns the oldest `count` documents with a term that match a filter, or fewer.

        With a filter, only some documents with the term are tested: the first TRIED, and if none of them
        matches, MAX_TRIED more.
        """


class Documents(Protocol):
    """Stores, reads and deletes the documents of each collection."""

    async def collection_names(self) -> list[str]:
        """Returns the sorted names of all collections."""

    async def measure(
        self,
        chosen: Callable[[str], bool],
        where: Predicate | None,
        writes: Sequence[tuple[str, Sequence[str]]] = (),
        /,
    ) -> tuple[Usage, list[Usage]]:
        """Measures documents that match a filter, in the collections whose names are `chosen`.

        Args:
            chosen: Whether a collection counts.
            where: The filter. None matches all documents.
            writes: The collection and the distinct ids of the documents of each write in progress.

        Returns:
            The usage, and what each of the writes would replace, at the same moment.
        """

    async def check_ids(self, ids: Sequence[str], collection: str, within: Predicate | None, /) -> None:
        """Checks ids before a write, which checks them again.

        Raises:
            Forbidden: A stored document with one of the ids does not match `within`.
        """

    async def collections(self) -> list[tuple[str, int]]:
        """Returns the collections by name, each with its number of documents."""

    async def has_collection(self, name: str, /) -> bool:
        """Returns whether the collection exists."""

    async def document(self, id: str, collection: str, where: Predicate | None = None, /) -> Record | None:
        """Returns a document, or None if it does not exist, or does not match the filter.

        Raises:
            DamagedDocument: The document is damaged.

        """

    async def page(
        self, after: str, limit: int, where: Predicate | None, max_bytes: float, collection: str, /
    ) -> tuple[list[Record], bool]:
        """Returns documents in the order of their ids, and whether more documents follow.

        Args:
            after: Id after which the page starts. Empty for the first page.
            limit: Maximum number of documents.
            where: A filter, or None.
            max_bytes: Maximum size of all documents together. The first document is returned in any case.
            collection: Name of the collection.

        Raises:
            DamagedDocument: A document on the page is damaged.
            Overloaded: All answers that are in progress would together have too many bytes.
        """

    async def count(self, where: Predicate | None, collection: str, /) -> int:
        """Returns the number of documents of a collection that match a filter; None matches all."""

    async def matching(self, where: Predicate | None, collection: str, /) -> tuple[list[int], int]:
        """Returns the revisions that match a filter, in ascending order, and the current operation number.

        None matches all documents of the collection.
        """

    async def count_all(self) -> int:
        """Returns the number of documents of all collections."""

    async def sequence(self) -> int:
        """Returns the number of the latest operation, 0 before the first."""

    async def unchanged(self, documents: Sequence[Document], collection: str, /) -> set[int]:
        """Returns the positions of documents whose title and text are already stored under their ids."""

    async def sample(self, count: int, characters: int, collection: str, /) -> list[str]:
        """Returns the beginnings of some texts, each with the title before it.

        Every store chooses the same documents: those whose ids have the smallest hashes.

        Args:
            count: Number of documents.
            characters: Maximum length of each beginning, title included.
            collection: Name of the collection.
        """

    async def field_sample(self, collection: str, /) -> FieldSample:
        """Returns the metadata fields of the collection's first and last documents in the order of ids."""

    async def put(
        self,
        documents: Sequence[Document],
        embedded: Mapping[int, Mapping[int, Embedding]],
        *,
        split: bool = False,
        collection: str = DEFAULT_COLLECTION,
        max_collections: int = MAX_COLLECTIONS,
        within: Predicate | None = None,
    ) -> Put:
        """Stores documents.

        Args:
            documents: Documents with distinct ids.
            embedded: Embeddings by generation and by position in `documents`. If the stored title and text
                are the same, the position may be missing, and the stored vectors stay. The mapping may
                grow during the call.
            split: Whether stored vectors count as missing if the text was truncated instead of split.
            collection: Name of the collection, which is created if it does not exist.
            max_collections: Maximum number of collections.
            within: A filter that replaced documents must match.

        Raises:
            Forbidden: A stored document with one of the ids does not match `within`.
            NeedsVectors: Some documents have no vector of the active generation. This process serves the
                active generation when this is raised.
            Conflict: The store would have too many collections.
        """

    async def fill_checksums(self) -> int:
        """Computes the checksums of some documents that an older version stored without checksums.

        Returns:
            The number of documents of this call. 0 if none is left.
        """

    async def without_checksums(self) -> int:
        """Returns the number of documents without checksums."""

    async def delete_one(
        self, id: str, collection: str, within: Predicate | None = None, /
    ) -> tuple[int, int]:
        """Deletes a document and its events, if the document matches the filter `within`.

        If there are many events, they are deleted first, in steps.

        The document's judgments stay, but they are not listed until a document with the same id is stored.

        Returns:
            The number of deleted documents, 0 or 1, and the operation number.
        """

    async def delete_some(self, revisions: Sequence[int], collection: str, /) -> Step:
        """Deletes the documents of the first revisions in the list, as many as one write should delete.

        Missing revisions are skipped. If a document has very many events, the step may delete only events.
        """

    async def drop_judgments(self, collection: str, /) -> bool:
        """Deletes some judgments of a collection. Returns whether the collection may have more."""

    async def drop_collection(self, collection: str, /) -> None:
        """Deletes a collection if it has no documents. The default collection always stays."""

    async def get_synonyms(self, collection: str, /) -> str | None:
        """Returns the synonyms of a collection, as `Snapshot.get_synonyms` does."""

    async def replace_synonyms(
        self, given: dict[str, Any], collection: str, expected: int | None = None, /
    ) -> int:
        """Replaces the synonyms of a collection.

        Args:
            given: Groups and one-way entries as JSON.
            collection: Name of the collection.
            expected: The version to replace. None: any.

        Returns:
            The new version.

        Raises:
            Conflict: The stored version is not `expected`.
        """

    def filter(self, conditions: object, /) -> Predicate:
        """Compiles a filter for this store.

        Args:
            conditions: Parsed JSON (filters/grammar.py).

        Raises:
            FilterError: The filter breaks the grammar or a limit.

        """

    async def search(self, work: Callable[[Snapshot], T], *, heavy: bool = False) -> T:
        """Runs `work` with a snapshot on a reading thread, and returns the result.

        Args:
            work: Reads from the snapshot. Calls `scheduling.pause` between steps outside of SQL.
            heavy: Whether the work is long, so that it must leave threads for other reads.

        Raises:
            Moved: Another generation is active. This process serves that generation when this is raised.
        """

    async def fill_with_examples(self, put: Callable[[], Awaitable[None]], /) -> None:
        """Runs `put`, which stores the example corpus, if the corpus was requested and is not stored yet.

        If several processes share the store, one of them runs `put`. If that process fails, another one does.
        """


class Feedback(Protocol):
    """Stores, lists and deletes judgments of search results, and answers that clicks suggest."""

    async def judge(
        self,
        judgements: Sequence[Judgment],
        collection: str,
        key: str = NO_KEY,
        limits: Limits | None = None,
        within: Predicate | None = None,
        /,
    ) -> tuple[int, set[str]]:
        """Stores judgments of one key. Documents that do not match `within` count as missing.

        A newer judgment of the same query and document replaces the older one.

        Returns:
            The number of the last judgment, and the ids of documents that do not exist. Judgments of these
            documents are not stored.

        Raises:
            NotFound: None of the documents exists.
            Conflict: The key would have more judgments than `limits` allow.
        """

    async def judgements(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Judgment]], bool]:
        """Returns judgments of existing documents with their numbers, and whether more judgments follow.

        Args:
            after: Number after which the page starts.
            limit: Maximum number of judgments.
            selection: Which judgments.
            max_bytes: Maximum size of all texts together. The first judgment is returned in any case.
        """

    async def count_judgments(self, selection: Selection, /) -> int:
        """Returns the number of judgments that `judgements` would list."""

    async def sum_up_judgments(self, selection: Selection, /) -> JudgmentSummary:
        """Returns counts of the judgments that `judgements` would list."""

    async def judgment_state(self, collection: str, /) -> str:
        """Returns the state of the judgments of a collection, as `Snapshot.judgment_state` does."""

    async def judged_collections(self) -> list[str]:
        """Returns the names of the collections that have judgments or clicked answers."""

    async def replace_clicked(self, answers: Mapping[str, Mapping[str, float]], collection: str, /) -> int:
        """Replaces the clicked answers of a collection: documents that clicks suggest as answers to queries.

        A document's answers are deleted with it.

        Args:
            answers: By document id, its queries and their gains. Ids without events are skipped.
            collection: Name of the collection.

        Returns:
            The number of stored answers.
        """

    async def remembered(
        self, collection: str, limit: int, /
    ) -> tuple[str, list[Judgment], dict[str, dict[str, float]]]:
        """Returns at most `limit` judgments of a collection, and all its clicked answers.

        Only judgments of keys that were trusted at that time count. Judgments of deleted documents
        are returned too, because they count again as soon as a document is stored under that id.

        Returns:
            The result of `judgment_state`, the judgments, latest first, and the clicked answers: the gain of
            each document id, by query.
        """

    async def forget_judgments(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]:
        """Deletes the selected judgments in steps. Each step is durable before the next one starts.

        Judgments that are stored after the first step stay.

        Args:
            selection: Which judgments.
            own: Name of the calling key, if the key may delete only its own judgments. None if it may delete
                all.
            tell: Receives the result of each step, even if a later step fails. If the caller is canceled
                during a step, `tell` runs on the writing thread.

        Returns:
            The number of deleted judgments of each key, by the name of the key.

        Raises:
            Forbidden: Some judgments belong to another key than `own`. Nothing was deleted.
            Storage, Timeout, Unhealthy: A step failed. The message says how many were deleted before.
        """


class Events(Protocol):
    """Stores, lists and deletes events of searches, such as clicks."""

    async def record_events(
        self, events: Sequence[Event], limits: EventLimits, within: Predicate | None = None, /
    ) -> Recorded:
        """Stores events of one key and collection in steps. Each step is durable before the next one starts.

        Documents that do not match `within` count as missing.

        Returns:
            Which events are new, and which were rejected and why. Events that were stored before are in
            neither.

        Raises:
            Storage, Timeout, Unhealthy: A step failed. The message says how many events were handled before.
        """

    async def list_events(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Event]], bool]:
        """Returns events with their numbers, and whether more follow.

        The arguments are those of `judgements`.
        """

    async def count_events(self, selection: Selection, /) -> int:
        """Returns the number of events that `list_events` would list."""

    async def forget_events(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]:
        """Deletes the selected events, as `forget_judgments` deletes judgments."""

    async def expire_events(self, before: float, /) -> bool:
        """Deletes some events from before a Unix time. Returns whether more of these may exist."""


class LiveTesting(Protocol):
    """The state of live tests (lifecycle/live_tests.py), which replicas share, and their outcomes."""

    async def live_test(self) -> str | None:
        """Returns the state of the last live test, or None if there was none."""

    async def replace_live_test(self, before: str | None, after: str, /) -> bool:
        """Replaces the state, unless it is another one than `before`. Returns whether it was replaced."""

    async def list_outcomes(self, test: str, /) -> list[tuple[int, str, str, str, str]]:
        """Returns the outcomes of a live test in the order of their arrival.

        Each is an event that a trusted key sent: side, collection, query, visitor and key.
        """


class Generations(Protocol):
    """The generations of vectors, and which generation is active.

    A generation is the set of all vectors by one model version in one form. A form names the precision, the
    engine and the passage lengths (`stored_form`).
    """

    def active(self) -> Active | None:
        """Returns the active generation, or None before the first start. Blocks."""

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        """Creates and activates a generation without vectors, when the service starts. Blocks.

        The generation that was active is dropped.

        Args:
            manifest: The model version.
            form: The form of the vectors.
            examples: Whether the example corpus is requested.

        Returns:
            The number of the generation.
        """

    async def known(self, published: Container[str], /) -> Known:
        """Returns facts about versions, all from one state of the store.

        Args:
            published: The versions that can be the previous version.
        """

    async def begin(self, manifest: Manifest, form: str, /) -> int:
        """Returns the number of the generation to build for a version: a stored or a new one.

        Other generations that are being built are dropped, unless another process builds them.
        """

    async def abandon(self) -> None:
        """Drops the generations that are being built, unless another process builds them."""

    async def make_active(self, swap: Activation, /) -> bool:
        """Activates a generation in one transaction. The generation that was active becomes the previous one.

        Returns:
            False if `swap.may` returned False, or if a document has no vector of the generation and was not
            skipped. PostgreSQL first lets `swap.last` embed a few such documents.
        """

    async def keep_decision(self, requested: str, /) -> None:
        """Records that the request with this id was carried out or has failed."""

    async def keep_verdict(self, version: str, verdict: Verdict, requested: str, /) -> None:
        """Records why a version must not be chosen automatically again, and that the request was handled."""

    async def compare_once(
        self,
        version: str,
        new: int,
        active: int,
        compare: Callable[[], Awaitable[Mapping[str, Any] | None]],
        /,
    ) -> Mapping[str, Any] | None:
        """Compares a version's search results with those of the active version, and stores the comparison.

        If several processes share the store, one of them compares. If that process fails, another one does.

        Args:
            version: The version to compare.
            new: Number of the version's generation.
            active: Number of the active generation.
            compare: Returns the comparison, or None if a comparison is not possible.

        Returns:
            The comparison, or None.
        """

    async def lacking(self, generation: int, after: int, limit: int, /) -> list[int]:
        """Returns the first revisions without a vector of the generation, in ascending order.

        Only revisions after `after` are returned; PostgreSQL ignores `after`. Skipped revisions are left out.
        """

    async def next_lacking(self, generation: int, after: int, limit: int, max_bytes: int, /) -> Lacking:
        """Returns the next documents to embed for a generation, in ascending order of revisions.

        If other processes have reserved all remaining documents, this waits a moment before it returns.

        Args:
            generation: Number of the generation.
            after: Revision after which to start. PostgreSQL ignores it.
            limit: Maximum number of documents.
            max_bytes: Maximum size of all texts together. The first document is returned in any case.
        """

    async def add_vectors(self, generation: int, rows: Mapping[int, Embedding], /) -> int:
        """Stores vectors by revision, and returns the number of revisions that still exist.

        Returns 0 if the generation was dropped.
        """

    async def lacking_tokens(
        self, space: str, collection: str, after: int, limit: int, /
    ) -> dict[int, Unembedded]:
        """Returns the next documents of a collection without token vectors, by ascending revision.

        Args:
            space: `Ranking.space`.
            collection: Name of the collection.
            after: Revision after which to start.
            limit: Maximum number of documents.
        """

    async def add_tokens(self, space: str, rows: Mapping[int, bytes], /) -> None:
        """Stores token vectors by revision, for the revisions that still exist."""

    async def forget_tokens(self, kept: Sequence[str], /) -> bool:
        """Deletes some token vectors of other spaces than `kept`. Returns whether more may exist."""

    async def share_vectors(self, generation: int, revisions: Sequence[int], /) -> set[int]:
        """Copies the vectors of some of `revisions` from other generations of the same model and form.

        Returns:
            The revisions whose vectors were copied in this step, or no revisions at the end.
        """

    async def add_stored(self, generation: int, after: int, limit: int, /) -> int | None:
        """Passes stored vectors to `on_commit`, some in each call. Deletes damaged vectors.

        Args:
            generation: Number of the generation.
            after: Revision after which to start.
            limit: Approximate number of vectors.

        Returns:
            The last revision of this call, or None at the end.
        """

    async def skip(self, generation: int, revision: int, reason: str, /) -> None:
        """Records that the generation's model fails on the text of a revision."""

    async def forget_skipped(self, generation: int, /) -> None:
        """Deletes the records of skipped texts, so that a builder tries to embed these texts again."""

    async def load(self, generation: int, indexes: VectorSink, /) -> bool:
        """Loads all stored vectors into indexes that are not searched yet.

        Deletes damaged vectors and the records of skipped texts.

        Returns:
            True if no vector was damaged.
        """

    def reload(self, generation: int, indexes: VectorSink, /) -> bool:
        """Does the same as `load`, but on the writing thread. Only `on_commit` may call this."""


class Replicas(Protocol):
    """Coordinates the processes that share a store. A SQLite store belongs to a single process."""

    @property
    def lost(self) -> str | None:
        """The reason why this process may not know the active generation. None if the process knows it."""

    @property
    def others(self) -> int:
        """The number of other processes that share the store, when it was last counted."""

    async def keep_in_touch(self, serves: Callable[[], int], follow: Callable[[Active], None], /) -> None:
        """Takes part in the swaps of all processes until it is canceled.

        Before a swap, the other processes wait for this process.

        Args:
            serves: Returns the number of the generation that this process serves.
            follow: Called with the active generation, regularly and after any process has activated one.
        """

    async def joined(self) -> None:
        """Waits until `keep_in_touch` has reached the store for the first time, at most a few seconds."""

    def starting(self) -> AbstractContextManager[None]:
        """Returns a lock for the first start: one process at a time creates the first generation."""

    async def requested(self, requested: RequestedVersion | None, at: float, /) -> RequestedVersion | None:
        """Reports the request in this process's models folder. Returns the current request of all processes.

        Requests are ordered by the time when the store receives them, so the clocks of machines do not
        matter. An older request is ignored and logged.

        Args:
            requested: The request in the models folder, or None.
            at: When the request was made: inf if it was after this process last read the folder, -inf if
                before. If this process has not read the folder yet, the file's Unix time.
        """

    async def request(self, requested: RequestedVersion, /) -> None:
        """Makes `requested` the current request of all processes."""


class DocumentStore(Documents, Feedback, Events, LiveTesting, Generations, Replicas, Protocol):
    """The document store of one service.

    Writes are durable when they return. Each write happens completely or not at all, except for methods that
    say that they work in steps. Two writes of one document run one after the other. `on_commit` receives the
    rows of a write before the write returns. If the caller is canceled before its write begins, the write is
    dropped.

    Each read sees one state of the store, with every write that returned before the read began. Reads of
    clients share the reading threads, and end when their caller is canceled. Reads of the service itself
    never wait for reads of clients.

    Methods block the event loop only if they say so.

    Raises:
        Storage: The disk is full, read-only or failing, or the store is damaged. The write stored nothing.
        Unhealthy: The store cannot work now, for example because the database cannot be reached. The write
            stored nothing, unless the connection broke during the commit.
        Timeout: The database took too long.
    """

    def start(self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]) -> None:
        """Starts to accept writes.

        Args:
            on_commit: Called with the rows of each write after the commit, on the writing thread.
            observe_seconds: Called with the duration of each write in seconds.
        """

    def close(self) -> None:
        """Completes accepted writes and closes the store. Blocks."""

    def check(self, seconds: float, /) -> str | None:
        """Returns why writes do not work, or None if they work. Called by the watchdog.

        Args:
            seconds: Time since the last call.
        """

    async def keep_noting(self) -> None:
        """Updates facts about the store, such as `damage`, until it is canceled."""

    @property
    def damage(self) -> str | None:
        """A sentence about tables, columns, indexes or rights that are missing or changed.

        The value is None if nothing is missing or changed.
        """

    def unfinished_copy(self) -> str | None:
        """Returns a sentence if a `copy` into the store has not ended, so that no service may use it. Blocks.

        Returns None if no copy is unfinished.
        """

    def indexed(self) -> tuple[list[str], set[int]]:
        """Returns the collections' names, and the numbers of the generations that are not dropped. Blocks."""

    def visitor_secret(self) -> str:
        """Returns the secret for hashing the ids of visitors. The first call creates the secret. Blocks."""

    async def tidy(self) -> bool:
        """Deletes some obsolete rows, for example of dropped generations. Returns whether more may remain."""

    def after_writes(self, work: Callable[[], None], /) -> None:
        """Runs `work` after all writes that were accepted before this call."""
