"""The store in SQLite: one thread writes, others read, each method is one query or one job of its own.

protocol.py says what the methods promise. The queries and jobs themselves are functions in the files beside
this one, named by what they are about.
"""

import sqlite3
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from models.manifest import Manifest
from service.store import (
    backfill,
    documents,
    events,
    feedback,
    generations,
    last_known,
    operation_log,
    writes,
)
from service.store.alone import Alone
from service.store.filters.grammar import compile_filter, indexed_fields
from service.store.filters.predicate import Predicate
from service.store.protocol import VectorSink
from service.store.reader import Readers
from service.store.schema import DATABASE, connect, migrate, starting
from service.store.secondary_indexes import bring_up_to_date
from service.store.snapshot import Snapshot
from service.store.values import Active, Changes
from service.store.writer import Transaction, Writer

P = ParamSpec("P")
T = TypeVar("T")
Query: TypeAlias = Callable[Concatenate[sqlite3.Connection, P], T]
Method: TypeAlias = Callable[Concatenate["SqliteStore", P], Coroutine[Any, Any, T]]


def _reads(query: Query[P, T]) -> Method[P, T]:
    """A method that runs `query` among the clients' reads. One that scans leaves threads for the others."""

    def read(store: "SqliteStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        heavy = any(isinstance(given, Predicate) and not given.indexed for given in args)
        return store.readers.read(lambda snapshot: query(snapshot, *args, **kwargs), heavy=heavy)

    return read


def _reads_itself(query: Query[P, T]) -> Method[P, T]:
    """A method that runs `query` for the service itself, never behind a client's read."""

    def read(store: "SqliteStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.readers.own(lambda snapshot: query(snapshot, *args, **kwargs))

    return read


def _writes(job: Callable[Concatenate[Transaction, P], T]) -> Method[P, T]:
    """A method that runs `job` in the writer's next transaction, and returns once that is on disk."""

    def write(store: "SqliteStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.writer.run(lambda transaction: job(transaction, *args, **kwargs))

    return write


def _writes_rows(job: Callable[Concatenate[sqlite3.Connection, P], T]) -> Method[P, T]:
    """`_writes` for a job that changes nothing that an index holds."""

    def write(store: "SqliteStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.writer.run(lambda transaction: job(transaction.connection, *args, **kwargs))

    return write


class SqliteStore(Alone):
    """The store of one data directory, for the process that owns it."""

    def __init__(self, data_dir: Path, fields: str = "") -> None:
        """fields: metadata that filters look up.

        Raises:
            StartupError: the file is missing, damaged, too old or too new, or the disk fails.

        """
        declared = indexed_fields(fields)
        self._data_dir, self._declared = data_dir, declared
        path = data_dir / DATABASE
        last_known.refuse_loss(data_dir)
        migrate(path)
        self.connection = connect(path)  # the writer's
        try:
            bring_up_to_date(self.connection, declared)
        except BaseException:
            self.connection.close()
            raise
        last_known.note(data_dir)
        self.readers = Readers(path)
        self.writer: Writer

    def start(self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]) -> None:
        self.writer = Writer(self.connection, on_commit, observe_seconds)

    def close(self) -> None:
        if hasattr(self, "writer"):
            self.writer.stop()
        self.readers.close()
        self.connection.close()
        last_known.note(self._data_dir)

    def check(self, seconds: float, /) -> str | None:
        return self.writer.check(seconds)

    async def keep_noting(self) -> None:
        await last_known.keep_noting(self._data_dir)

    # Before the first write, on the thread that starts the service.

    def active(self) -> Active | None:
        with starting(self._data_dir):
            return generations.active(self.connection)

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        with starting(self._data_dir), self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            return generations.activate(self.connection, manifest, form, examples=examples)

    def indexed(self) -> tuple[list[str], set[int]]:
        with starting(self._data_dir):
            return documents.collections(self.connection), generations.kept_numbers(self.connection)

    # Documents and collections.

    collections = _reads(documents.counts)
    has_collection = _reads(documents.has_collection)
    document = _reads(documents.get)
    page = _reads(documents.page)
    count = _reads(documents.count)
    passing = _reads(documents.passing)
    sample = _reads(documents.sample)
    count_all = _reads_itself(documents.count_all)
    sequence = _reads_itself(documents.sequence)
    unchanged = _reads_itself(documents.unchanged)
    put = _writes(writes.upsert)
    delete_one = _writes(writes.delete_one)
    delete_some = _writes(writes.delete_some)
    drop_judgements = _writes(writes.drop_feedback)
    drop_collection = _writes(writes.drop_name)

    def filter(self, conditions: object) -> Predicate:
        return compile_filter(conditions, self._declared)

    def search(self, work: Callable[[Snapshot], T], *, heavy: bool = False) -> Coroutine[Any, Any, T]:
        return self.readers.read(work, heavy=heavy)

    # Judgements.

    judge = _writes_rows(feedback.store)
    judgements = _reads(feedback.page)
    count_judgements = _reads(feedback.count)
    sum_up_judgements = _reads(feedback.summary)
    forget_judgements = _writes_rows(feedback.forget)

    # Events of searches.

    record_events = _writes_rows(events.store)
    list_events = _reads(events.page)
    count_events = _reads(events.count)
    forget_events = _writes_rows(events.forget)
    expire_events = _writes_rows(events.expire)

    # Generations: what they lack, and which of them is live.

    known = _reads_itself(generations.known)
    begin = _writes_rows(generations.begin)
    abandon = _writes_rows(generations.abandon)
    go_live = _writes(backfill.swap)
    keep_decision = _writes_rows(generations.handled)
    keep_verdict = _writes_rows(generations.judge)
    keep_canary = _writes_rows(generations.remember_canary)
    lacking = _reads_itself(backfill.lacking)
    next_lacking = _reads_itself(backfill.next_lacking)
    add_vectors = _writes(backfill.add_vectors)
    add_stored = _writes(backfill.add_stored)
    share_vectors = _writes(backfill.share)
    skip = _writes(backfill.skip)
    forget_skipped = _writes(backfill.forget)
    load = _writes(backfill.load)
    examples_wanted = _reads_itself(generations.examples_wanted)
    examples_loaded = _writes_rows(generations.examples_loaded)

    def reload(self, generation: int, indexes: VectorSink) -> bool:
        return backfill.load(Transaction(self.connection), generation, indexes)

    def after_writes(self, work: Callable[[], None]) -> None:
        self.writer.submit(lambda _: None).add_done_callback(lambda _: work())

    async def tidy(self) -> bool:
        if not await self.readers.own(operation_log.is_untidy):
            return False
        return await self.writer.run(operation_log.tidy)
