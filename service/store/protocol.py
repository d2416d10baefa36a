"""The seam of the store: all that the rest of the service knows of what is on disk.

`Store` says what can be asked, and its docstring what each answer promises. Nothing above this folder sees a
connection, SQL or a transaction; values.py has what goes in and comes out. sqlite.py stands behind it.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from math import inf
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from models.manifest import Manifest
from models.store import DesiredVersion
from service.store.filters.explain import FieldSample
from service.store.filters.predicate import Predicate
from service.store.values import (
    COLUMNS,
    DEFAULT_COLLECTION,
    MAX_COLLECTIONS,
    NO_KEY,
    Active,
    Changes,
    Column,
    Document,
    Embedding,
    Event,
    EventLimits,
    Judgement,
    JudgementSummary,
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
    Vector,
    Verdict,
)

T = TypeVar("T")


FilterMatches: TypeAlias = Any  # what passes a filter, as a store's own search takes it


class VectorSink(Protocol):
    """The indexes of a generation, as the store fills them; each collection's rows come by rising name."""

    dimension: int

    def load(
        self,
        collections: Iterable[str],
        read: Callable[[str], Iterable[tuple[RowNames, Vector]]],
        sequence: int,
    ) -> None: ...

    def discard(self, revisions: Sequence[int]) -> None: ...


class Snapshot(Protocol):
    """A moment of the store, for one piece of work on a reading thread; it ends with the work."""

    def renew(self) -> None:
        """Go to the latest moment. A snapshot begins with its first answer, and again with the next one."""

    def require(self, generation: int, *, kept: bool) -> None: ...
    def sequence(self) -> int: ...
    def matching(self, where: Predicate, collection: str) -> FilterMatches: ...
    def ids_of(self, revisions: Sequence[int]) -> dict[int, str]: ...

    def answered(
        self, times: Mapping[int, int], max_bytes: float = inf, columns: Sequence[Column] = COLUMNS
    ) -> dict[int, Record]: ...

    def vector_of(self, generation: int, id: str, collection: str) -> tuple[int, Vector | None] | None: ...
    def passages(self, generation: int, names: Sequence[int]) -> dict[int, tuple[int, int]]: ...

    def nearest_words(
        self, query: str, depth: int, allowed: FilterMatches | None, collection: str
    ) -> tuple[Revisions, NDArray[np.float32]]: ...


class Documents(Protocol):
    """Documents by collection."""

    async def collections(self) -> list[tuple[str, int]]: ...
    async def has_collection(self, name: str, /) -> bool: ...
    async def document(self, id: str, collection: str, /) -> Record | None: ...

    async def page(
        self, after: str, limit: int, where: Predicate | None, max_bytes: float, collection: str, /
    ) -> tuple[list[Record], bool]: ...

    async def count(self, where: Predicate | None, collection: str, /) -> int: ...
    async def matching(self, where: Predicate | None, collection: str, /) -> tuple[list[int], int]: ...
    async def count_all(self) -> int: ...
    async def sequence(self) -> int: ...
    async def unchanged(self, documents: Sequence[Document], collection: str, /) -> set[int]: ...

    async def sample(self, count: int, characters: int, collection: str, /) -> list[str]: ...
    async def field_sample(self, collection: str, /) -> FieldSample: ...

    async def put(
        self,
        documents: Sequence[Document],
        embedded: Mapping[int, Mapping[int, Embedding]],
        *,
        split: bool = False,
        collection: str = DEFAULT_COLLECTION,
        max_collections: int = MAX_COLLECTIONS,
    ) -> Put: ...

    async def fill_checksums(self) -> int: ...
    async def without_checksums(self) -> int: ...
    async def delete_one(self, id: str, collection: str, /) -> tuple[int, int]: ...
    async def delete_some(self, revisions: Sequence[int], collection: str, /) -> Step: ...
    async def drop_judgements(self, collection: str, /) -> bool: ...
    async def drop_collection(self, collection: str, /) -> None: ...
    def filter(self, conditions: object, /) -> Predicate: ...
    async def search(self, work: Callable[[Snapshot], T], *, heavy: bool = False) -> T: ...
    async def examples_wanted(self) -> bool: ...
    async def examples_loaded(self) -> None: ...


class Feedback(Protocol):
    """Judgements of searches."""

    async def judge(
        self,
        judgements: Sequence[Judgement],
        collection: str,
        key: str = NO_KEY,
        limits: Limits | None = None,
        /,
    ) -> tuple[int, set[str]]: ...

    async def judgements(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Judgement]], bool]: ...

    async def count_judgements(self, selection: Selection, /) -> int: ...
    async def sum_up_judgements(self, selection: Selection, /) -> JudgementSummary: ...
    async def forget_judgements(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]: ...


class Events(Protocol):
    """Events of searches."""

    async def record_events(self, events: Sequence[Event], limits: EventLimits, /) -> Recorded: ...
    async def list_events(
        self, after: int, limit: int, selection: Selection, max_bytes: float, /
    ) -> tuple[list[tuple[int, Event]], bool]: ...
    async def count_events(self, selection: Selection, /) -> int: ...
    async def forget_events(
        self,
        selection: Selection,
        own: str | None = None,
        tell: Callable[[Mapping[str, int]], None] | None = None,
        /,
    ) -> dict[str, int]: ...
    async def expire_events(self, before: float, /) -> bool: ...


class Generations(Protocol):
    """Vectors by generation, and which generation is live."""

    def active(self) -> Active | None: ...
    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int: ...
    async def known(self, published: Container[str], /) -> Known: ...
    async def begin(self, manifest: Manifest, form: str, /) -> int: ...
    async def abandon(self) -> None: ...

    async def go_live(
        self,
        generation: int,
        complete_through: int,
        desired: str,
        /,
        *,
        rollback: bool,
        may: Callable[[], bool],
        last: Callable[[Mapping[int, Unembedded]], Mapping[int, Embedding] | None],
        then: Callable[[int], None],
    ) -> bool: ...

    async def keep_decision(self, desired: str, /) -> None: ...
    async def keep_verdict(self, version: str, verdict: Verdict, desired: str, /) -> None: ...
    async def keep_canary(self, version: str, canary: Mapping[str, Any], /) -> None: ...
    async def lacking(self, generation: int, after: int, limit: int, /) -> list[int]: ...

    async def next_lacking(self, generation: int, after: int, limit: int, most_bytes: int, /) -> Lacking: ...

    async def add_vectors(self, generation: int, rows: Mapping[int, Embedding], /) -> int: ...
    async def share_vectors(self, generation: int, revisions: Sequence[int], /) -> set[int]: ...
    async def add_stored(self, generation: int, after: int, limit: int, /) -> int | None: ...
    async def skip(self, generation: int, revision: int, reason: str, /) -> None: ...
    async def forget_skipped(self, generation: int, /) -> None: ...
    async def load(self, generation: int, indexes: VectorSink, /) -> bool: ...
    def reload(self, generation: int, indexes: VectorSink, /) -> bool: ...


class Replicas(Protocol):
    """Other processes on the same store; one that has an owner has none."""

    @property
    def lost(self) -> str | None: ...
    @property
    def others(self) -> int: ...
    async def keep_in_touch(self, serves: Callable[[], int], follow: Callable[[Active], None], /) -> None: ...
    async def joined(self) -> None: ...
    def starting(self) -> AbstractContextManager[None]: ...
    async def requested(self, asked: DesiredVersion | None, at: float, /) -> DesiredVersion | None: ...
    async def request(self, asked: DesiredVersion, /) -> None: ...
    async def once(self, name: str, work: Callable[[], Awaitable[str]], /) -> str: ...


class Store(Documents, Feedback, Events, Generations, Replicas, Protocol):
    """The store of one service.

    Writes are durable when they return: put, delete_*, drop_*, judge, record_events, forget_*, expire_events,
    begin, abandon, go_live, keep_*, add_*, skip, load, tidy, examples_loaded, requested, request, once. Each
    happens whole or not at all (record_events, forget_* and delete_one in steps, each by itself), and
    `on_commit` is told of its rows before it returns. Of two writes of one
    document the one is whole before the other begins. A caller that is cancelled before its write's turn
    takes the write back. Storage or Unhealthy is raised where the disk or the machine fails; nothing of that
    write was stored.

    Reads answer for one moment each, which no write divides; a `Snapshot` keeps its moment until its work
    ends. A read that begins after a write returned sees that write. Clients' reads take turns among
    themselves, and end when their caller is cancelled: collections, has_collection, document, page,
    count, passing, sample, field_sample, search, judgements, count_judgements, sum_up_judgements, list_events
    and count_events. The other reads are short, and never wait for those. Nothing blocks the event loop but
    active, activate, indexed, visitor_secret and close, which belong to a start and an end.

    filter           parsed JSON of the grammar, as this store understands it, or FilterError
    page             documents in id order, as many as fit in `limit` and `max_bytes`, but one at least; True
                     when others follow
    search           `work` of a snapshot, on a reading thread; it calls turns.pause between its steps
    require          Moved unless the generation is live at the moment of the snapshot, which begins with this
                     where it can be; of one that is `kept`, Conflict unless it still is
    answered         documents of an answer by revision, given how often each is in it, or TooMuch
    vector_of        a document's revision, and its vector of that one generation: never another's
    nearest_words    the `depth` best documents by their words and all that tie with the last, best first
    put              NeedsVectors unless each document has a vector of the generation that is live at the
                     commit; title and text that are stored unchanged keep their vectors
    fill_checksums   compute those of some documents from before they were stored with checksums; how many
    passing          the revisions that pass a filter; `delete_some` deletes the first of them, as many as one
                     write should
    go_live          one transaction: unless a living revision after `complete_through` lacks a vector of the
                     generation, or it `may` not, its state and the others' change together. `then` is called
                     with the last revision behind the commit, before any other write. Where several processes
                     write, the few that it lacks at the last moment may be embedded by `last`, on a thread
    next_lacking     the next documents that a generation lacks, by rising revision; revisions only grow
    add_vectors      vectors of revisions that still live; of others nothing is stored
    share_vectors    vectors of these revisions that another generation of the same model and form has become
                     this one's, too; the revisions of this step that have some, none at the end
    add_stored       stored vectors into indexes, a step at a time through `on_commit`; what is damaged is
                     deleted, so that it is lacking
    load             the same all at once, while nothing is searched there; `reload` is for `on_commit` alone
    after_writes     `work` behind every write that came before
    record_events    each event by itself: stored, or refused and said why. In steps: where one fails, those
                     before it are stored
    expire_events    delete some of those before a Unix time; True when there are more
    lost             the reason why this process may not know what is live, None while it does
    others           processes that share the store, as last heard
    keep_in_touch    while it runs the others wait with a swap until this process is ready, too; `follow` is
                     told what is live, by whoever made it so
    joined           the first time that it does, or a few seconds later
    starting         one process at a time, before there is any generation
    requested        the request that stands, where the models folder of this process names `asked`. A request
                     counts from the moment in which the store hears of it, so no clock of a machine matters.
                     `at` says when it was made: inf, since this folder was last looked at; -inf, before that
                     look; or, where no look is known, the file's time. An older one is ignored and logged
    request          make a request, which stands until the next one
    once             the result of `work`, which one of the processes does for all; again where it raised
    keep_noting      until cancelled: note how far the store is, and look for `damage`
    damage           tables, columns, indexes or rights that the store lacks, as a sentence; None while it is
                     whole
    unfinished_copy  why no service may use the store: a `copy` into it has not ended. Blocks
    visitor_secret   the secret of this store that visitors' ids are hashed with; made by the first call
    tidy             delete some rows of dropped generations and of the log; True when there is more
    """

    async def tidy(self) -> bool: ...
    def after_writes(self, work: Callable[[], None], /) -> None: ...
    def indexed(self) -> tuple[list[str], set[int]]: ...
    def visitor_secret(self) -> str: ...

    def start(
        self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]
    ) -> None: ...

    async def keep_noting(self) -> None: ...
    @property
    def damage(self) -> str | None: ...
    def unfinished_copy(self) -> str | None: ...
    def check(self, seconds: float, /) -> str | None: ...
    def close(self) -> None: ...
