"""The document store in SQLite. One thread writes, other threads read. Each method runs one query or job.

protocol.py documents the methods. The other files of this package have the queries and jobs.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import TypeVar

from models.manifest import Manifest
from models.store import RequestedVersion
from service.errors import ServiceError
from service.store.filters.grammar import Predicate, indexed_fields
from service.store.protocol import VectorSink
from service.store.sql import feedback, generations, synonyms
from service.store.sql.connection import fetch_value
from service.store.sql.methods import CommonMethods, reading, reading_itself, writing
from service.store.sqlite import documents, fulltext, last_known, vectors, writes
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.reader import Readers, Snapshot
from service.store.sqlite.schema import (
    DATABASE,
    SCHEMA_VERSION,
    connect,
    foreign,
    migrate,
    starting,
)
from service.store.sqlite.secondary_indexes import bring_up_to_date
from service.store.sqlite.writer import Transaction, Writer
from service.store.values import Active, Changes

T = TypeVar("T")
LOOK_SECONDS = 1.0  # Seconds between checks of the tables.


class Alone:
    """Implements `protocol.Replicas` for a store that a single process owns."""

    lost: str | None = None
    others = 0

    async def keep_in_touch(self, _serves: Callable[[], int], _follow: Callable[[Active], None], /) -> None:
        """Returns at once, because no other process shares the store."""

    async def joined(self) -> None:
        """Returns at once, because no other process shares the store."""

    def starting(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def requested(self, requested: RequestedVersion | None, _at: float, /) -> RequestedVersion | None:
        return requested

    async def request(self, requested: RequestedVersion) -> None:
        """Does nothing, because the request in the models folder is the current one."""

    async def once(self, _name: str, work: Callable[[], Awaitable[str]], /) -> str:
        return await work()


class SqliteStore(Alone, CommonMethods):
    """The store in one data directory, for the process that owns the directory.

    Args:
        data_dir: The data directory.
        fields: Names of metadata fields to look up, separated by commas.

    Raises:
        StartupError: The file is missing, damaged, too old or too new, or the disk fails.
    """

    def __init__(self, data_dir: Path, fields: str = "") -> None:
        declared = indexed_fields(fields)
        self._data_dir, self._name, self._declared = data_dir, str(data_dir), declared
        path = data_dir / DATABASE
        last_known.refuse_loss(data_dir)
        migrate(path)
        self.connection = connect(path)
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
        noted = time.monotonic()
        looked: object = None
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if time.monotonic() - noted > last_known.SECONDS:
                noted = time.monotonic()
                await asyncio.to_thread(last_known.note, self._data_dir)
            with contextlib.suppress(ServiceError, sqlite3.Error):
                looked = await self.readers.own(partial(self._look, looked=looked))

    def _look(self, snapshot: Snapshot, looked: object) -> object:
        """Checks the tables if they have changed since the last check. Returns a value for the next call.

        Args:
            snapshot: A snapshot of the store.
            looked: The result of the last check.
        """
        now = [snapshot.execute(f"PRAGMA {name}").fetchone() for name in ("schema_version", "user_version")]
        if now != looked:
            self._note_damage(_damage(snapshot))
        return now

    # Used before the first write, on the thread that starts the service.

    def _now(self, job: Callable[[sqlite3.Connection], T]) -> T:
        with starting(self._data_dir):
            return job(self.connection)

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        with starting(self._data_dir), self.connection:
            self.connection.execute("BEGIN IMMEDIATE")
            return generations.activate(self.connection, manifest, form, examples=examples)

    # Documents and collections.

    collections = reading(documents.counts)
    count = reading(documents.count)
    matching = reading(documents.matching_revisions)
    count_all = reading_itself(documents.count_all)
    sequence = reading_itself(documents.sequence)
    unchanged = reading_itself(documents.unchanged)
    put = writing(writes.upsert)
    fill_checksums = writing(documents.fill_checksums)
    _delete_one = writing(writes.delete_one)
    delete_some = writing(writes.delete_some)
    drop_collection = writing(writes.drop_name)

    def filter(self, conditions: object) -> Predicate:
        return compile_filter(conditions, self._declared)

    # Judgments and events of searches.

    judge = writing(feedback.store_judgments)
    replace_clicked = writing(feedback.replace_clicked)
    replace_synonyms = writing(synonyms.replace_synonyms)
    _record_some = writing(feedback.store_events)

    # Generations: missing vectors, and which generation is active.

    begin = writing(generations.begin)
    abandon = writing(generations.abandon)
    make_active = writing(vectors.swap)
    lacking = reading_itself(vectors.lacking)
    next_lacking = reading_itself(vectors.next_lacking)
    add_vectors = writing(vectors.add_vectors)
    add_tokens = writing(vectors.add_tokens)
    add_stored = writing(vectors.add_stored)
    share_vectors = writing(vectors.share_vectors)
    skip = writing(vectors.skip_text)
    forget_skipped = writing(vectors.forget_skipped)
    load = writing(vectors.load)

    def reload(self, generation: int, indexes: VectorSink) -> bool:
        return vectors.load(Transaction(self.connection), generation, indexes)

    async def tidy(self) -> bool:
        if not await self.readers.own(writes.is_untidy):
            return False
        return await self.writer.run(writes.tidy)


def _damage(snapshot: Snapshot) -> str | None:
    """Returns a sentence about changes that another process has made to the tables, or None."""
    version = int(fetch_value(snapshot, "PRAGMA user_version"))
    if version > SCHEMA_VERSION:
        return (
            f"A newer Simile has changed {DATABASE} to schema {version}, and this one knows "
            f"{SCHEMA_VERSION}. Start this service with that version."
        )
    problem = foreign(snapshot, SCHEMA_VERSION) or fulltext.lacking(snapshot)
    if problem is None:
        return None
    return (
        f"{DATABASE} is not as Simile needs it: {problem}. Stop the service, then restore a backup "
        "(simile restore --force FOLDER)."
    )
