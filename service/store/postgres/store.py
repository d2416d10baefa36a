"""The store in PostgreSQL: each method is one query or one transaction, as in sqlite/store.py.

Vectors are searched in the database, so no index follows the writes.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import psycopg

from models.manifest import Manifest
from service.errors import CommandError, ServiceError, StartupError, Unhealthy
from service.store.filters.grammar import compile_in
from service.store.filters.predicate import Predicate
from service.store.postgres import (
    checksums,
    documents,
    field_indexes,
    generations,
    postings,
    replicas,
    schema_check,
    vectors,
    writes,
)
from service.store.postgres.connection import PARAMETERS, Connection, Pool, Raw
from service.store.postgres.errors import reason, refusing
from service.store.postgres.filters import JsonbDialect
from service.store.postgres.reader import Readers
from service.store.postgres.schema import MIGRATIONS, migrate
from service.store.postgres.shared import Shared
from service.store.postgres.writer import Writer, in_turn
from service.store.protocol import VectorSink
from service.store.sql import feedback, records
from service.store.sql import generations as states
from service.store.sql.connection import NONE_THERE, unfinished_copy, visitor_secret
from service.store.sql.methods import reading, reading_itself, writing
from service.store.values import Active, Changes, Lacking

P = ParamSpec("P")
T = TypeVar("T")
Method: TypeAlias = Callable[Concatenate["PostgresStore", P], Coroutine[Any, Any, T]]

OWN = 2  # connections for the service's own reads, which no client's takes
LEAST_CONNECTIONS = OWN + 2
LOOK_SECONDS = 1.0  # between two looks at how large the generations are
TAKEN_SECONDS = 0.2  # between two looks at documents that other processes embed


def _writes_documents(job: Callable[Concatenate[Connection, P], T]) -> Method[P, T]:
    """`_writes` of what changes how many documents there are."""

    def write(store: "PostgresStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.counted(lambda connection: job(connection, *args, **kwargs))

    return write


class PostgresStore(Shared):
    """The store of one database, for one of the processes that share it."""

    def __init__(self, url: str, declared: Sequence[str], *, connections: int, answer_seconds: float) -> None:
        """Open a database.

        Args:
            url: postgresql://…
            declared: the fields that have indexes.
            connections: the most that are open at a time, at least LEAST_CONNECTIONS.
            answer_seconds: the most that a statement takes; 0: however long.

        Raises:
            StartupError: it cannot be reached, or is not one for this version.

        """
        super().__init__(url)
        self._declared = declared
        self._sizes: dict[int, vectors.Held] = {}  # generation to its documents and rows, as last counted
        self._counted = -inf  # time.monotonic() of that
        try:
            with self._own_connection() as raw:
                migrate(raw)
        except psycopg.ProgrammingError:  # it quotes the URL, password and all
            raise StartupError(
                "PostgreSQL cannot read the URL of SIMILE_DATABASE. "
                "Give it as postgresql://USER:PASSWORD@HOST:5432/NAME."
            ) from None
        except psycopg.Error as error:
            raise StartupError(
                f"The database of SIMILE_DATABASE cannot be used: {reason(error)}. Is it running, and are "
                "host, port, user and password right?"
            ) from error
        self.pool = Pool(url, connections, answer_seconds)
        self._writers = max(1, connections // 4)
        self.readers = Readers(self.pool, connections - self._writers - OWN, OWN)
        self.writer: Writer

    def start(self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]) -> None:  # noqa: ARG002
        """`on_commit` is not called: nothing follows the writes."""
        self.writer = Writer(self.pool, self._writers, observe_seconds)

    def close(self) -> None:
        if hasattr(self, "writer"):
            with contextlib.suppress(Unhealthy, psycopg.Error):  # its lease ends by itself, too
                self.writer.submit(lambda connection: replicas.leave(connection, self.replica)).result()
            self.writer.stop()
        self.readers.close()
        self.pool.close()

    def check(self, _seconds: float, /) -> str | None:
        """None: no thread of it can die. A database that is away makes no process ill."""
        return None

    async def keep_noting(self) -> None:
        """Check the schema, count how large the generations are, look at standbys and fold the postings.

        Until cancelled.
        """
        indexed = False
        while True:
            with contextlib.suppress(ServiceError):  # it was logged
                self._note_damage(await asyncio.to_thread(self._problem))
            with contextlib.suppress(ServiceError):  # it was logged
                if not indexed:
                    await asyncio.to_thread(self._keep_field_indexes)
                    indexed = True
                began = time.monotonic()
                sizes = await self.readers.own(vectors.held)
                if began > self._counted:  # else a write that it may not have seen has counted since
                    self._sizes = sizes
                self.lag_seconds = await self.readers.own(replicas.lag)
                await self.writer.run(postings.fold)
            await asyncio.sleep(LOOK_SECONDS)

    def _problem(self) -> str | None:
        with refusing("The check of the database's schema waits"), self.pool.connection() as raw:
            return schema_check.problem(raw, MIGRATIONS)

    def _keep_field_indexes(self) -> None:
        with refusing("The indexes of declared fields wait"), self._own_connection() as raw:
            field_indexes.keep(raw, self._declared)

    def _own_connection(self) -> Raw:
        """Connect beside the pool, for what takes long: settings and locks of its own end with it."""
        return Raw.connect(self._url, **PARAMETERS)

    def size(self, generation: int) -> vectors.Held:
        """Documents and rows of a generation, as last counted."""
        return self._sizes.get(generation, vectors.Held(0, 0))

    async def counted(self, job: Callable[[Connection], T]) -> T:
        """Run `job` in a transaction, and count how large the generations are then."""
        done, sizes = await self.writer.run(lambda connection: (job(connection), vectors.held(connection)))
        self._sizes, self._counted = sizes, time.monotonic()
        return done

    # Before the first write, on the thread that starts the service.

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Hold what keeps another copy out, and a first start.

        Raises:
            CommandError: Another copy is under way.

        """
        with self._own_connection() as raw:
            if raw.execute("SELECT pg_try_advisory_lock(%s)", (replicas.COPY_LOCK,)).fetchone() != (True,):
                raise CommandError("Another `copy` into this database is under way. Wait for its end.")
            with self.starting():
                yield

    def drop_everything(self) -> None:
        """Drop every table of ours in a database that holds an unfinished copy.

        Raises:
            CommandError: A copy is under way, or there is none.

        """
        with self.copying(), self._own_connection() as raw, raw.transaction():
            # Another process may have finished the copy, or dropped it, before the locks were held.
            made = raw.execute("SELECT to_regclass('facts')").fetchone()
            if made == (None,) or unfinished_copy(Connection(raw), "The database") is None:
                raise CommandError(NONE_THERE)
            schema_check.drop_everything(raw, MIGRATIONS)

    def unfinished_copy(self) -> str | None:
        with self.pool.connection() as raw:
            return unfinished_copy(Connection(raw), "The database of SIMILE_DATABASE")

    def active(self) -> Active | None:
        with self.pool.connection() as raw:
            return states.active(Connection(raw))

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        with self.pool.connection() as raw, raw.transaction():
            return generations.activate(Connection(raw), self.replica, manifest, form, examples=examples)

    def visitor_secret(self) -> str:
        with self.pool.connection() as raw, raw.transaction():
            return visitor_secret(Connection(raw))

    def indexed(self) -> tuple[list[str], set[int]]:
        with self.pool.connection() as raw:
            connection = Connection(raw)
            return records.collections(connection), states.kept_numbers(connection)

    # Documents and collections.

    collections = reading(documents.counts)
    count = reading(documents.count)
    matching = reading(documents.matching_revisions)
    count_all = reading_itself(documents.count_all)
    sequence = reading_itself(documents.sequence)
    unchanged = reading_itself(documents.unchanged)
    _put = _writes_documents(writes.put)
    fill_checksums = writing(checksums.fill)
    _delete_one = _writes_documents(writes.delete_one)
    delete_some = _writes_documents(writes.delete_some)
    drop_collection = writing(writes.drop_collection)

    def filter(self, conditions: object) -> Predicate:
        return compile_in(JsonbDialect(self._declared), conditions)

    # Judgements and events of searches.

    judge = writing(in_turn(feedback.store), alone=True)
    _record_some = writing(writes.record_events, alone=True)

    # Generations: what they lack, and which of them is live.

    lacking = reading_itself(generations.lacking)
    add_vectors = writing(generations.add_vectors)
    share_vectors = writing(generations.share_vectors)
    skip = writing(generations.skip)
    forget_skipped = writing(generations.forget_skipped)

    async def begin(self, manifest: Manifest, form: str) -> int:
        number = await self.writer.run(
            lambda connection: generations.begin(connection, self.replica, manifest, form)
        )
        await self.writer.run(lambda connection: generations.list_lacking(connection, number))
        await self.writer.run(generations.drop_left)
        return number

    async def next_lacking(self, generation: int, _after: int, limit: int, most_bytes: int, /) -> Lacking:
        found = await self.counted(
            lambda connection: generations.take_lacking(
                connection, self.replica, generation, limit, most_bytes
            )
        )
        ends = found.closing or not (found.documents or found.left)
        if ends and not await self.build_index(generation):
            found = Lacking({}, found.last_revision, found.skipped, left=1)
        if found.left and not found.documents:  # other processes embed the rest
            await asyncio.sleep(TAKEN_SECONDS)
        return found

    async def build_index(self, generation: int) -> bool:
        """Build the index of a generation, unless it is there. False: another process is about to."""
        with refusing("The index of a version waits"):
            return await asyncio.to_thread(self._built, generation)

    def _built(self, generation: int) -> bool:
        with self.pool.connection() as raw:
            if vectors.is_indexed(Connection(raw), generation):
                return True
            row = raw.execute("SELECT dimension FROM generations WHERE number = %s", (generation,)).fetchone()
        with self._own_connection() as raw:
            return row is None or vectors.build_index(raw, generation, row[0])

    async def add_stored(self, _generation: int, _after: int, _limit: int, /) -> int | None:
        """Nothing is to be brought into an index. Returns None."""

    async def load(self, generation: int, _indexes: VectorSink, /) -> bool:
        await self.forget_skipped(generation)
        return True

    def reload(self, _generation: int, _indexes: VectorSink, /) -> bool:
        return True

    async def tidy(self) -> bool:
        if await self.readers.own(states.has_dropped):
            with contextlib.suppress(psycopg.errors.LockNotAvailable):
                if await self.writer.run(generations.purge):
                    return True
        return await self.writer.run(writes.fold)
