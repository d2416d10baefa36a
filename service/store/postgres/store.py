"""The document store in PostgreSQL. Each method is one query or one transaction, as in sqlite/store.py.

The database searches vectors, so no index in memory follows the writes. Replicas share the database. The end
of the class has methods for swaps, requests, and jobs that one replica does for all.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from math import inf
from typing import Any, Concatenate, ParamSpec, TypeVar

import psycopg

from models.manifest import Manifest
from models.store import RequestedVersion
from service.errors import CommandError, ServiceError, StartupError, Unhealthy
from service.store.filters.grammar import Predicate, compile_in
from service.store.postgres import (
    documents,
    filters,
    fulltext,
    generations,
    replicas,
    schema,
    vectors,
    writes,
)
from service.store.postgres.connection import PARAMETERS, Connection, Pool, Raw, reason, refusing
from service.store.postgres.filters import JsonbDialect
from service.store.postgres.generations import Answer
from service.store.postgres.reader import Readers, Snapshot
from service.store.postgres.replicas import Touch
from service.store.postgres.writer import Writer, in_turn
from service.store.protocol import VectorSink
from service.store.sql import feedback, synonyms
from service.store.sql import generations as states
from service.store.sql.connection import NONE_THERE, UNINDEXED, unfinished_copy
from service.store.sql.methods import CommonMethods, Method, reading, reading_itself, writing
from service.store.values import Activation, Changes, Lacking, Moved, NeedsVectors, Put

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

OWN = 2  # Connections for the service's own reads.
MIN_CONNECTIONS = OWN + 2
LOOK_SECONDS = 1.0  # Seconds between checks of the schema and of the sizes of generations.
NEWS_SECONDS = 0.25  # Wait for an announcement before looking again.
TAKEN_SECONDS = 0.2  # Pause while other processes embed the remaining documents.


def _writes_documents(job: Callable[Concatenate[Connection, P], T]) -> Method[P, T]:
    """Makes a method that runs a job, which writes documents, and then counts all generations."""

    def write(store: "PostgresStore", /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        return store.counted(lambda connection: job(connection, *args, **kwargs))

    return write


class PostgresStore(Touch, CommonMethods):
    """The store in one database, for one of the processes that share the database.

    Args:
        url: The database, as postgresql://…
        declared: The metadata fields with indexes.
        connections: Maximum number of open connections; at least MIN_CONNECTIONS.
        answer_seconds: Time limit of a statement; 0 means no limit.

    Raises:
        StartupError: The database cannot be reached, or has a schema that this version does not support.
    """

    _name = "The database of SIMILE_DATABASE"

    def __init__(self, url: str, declared: Sequence[str], *, connections: int, answer_seconds: float) -> None:
        super().__init__(url)
        self._declared = declared
        self._sizes: dict[int, tuple[int, int]] = {}  # Last counted sizes, by generation.
        self._counted = -inf  # time.monotonic() of the last count.
        self.lag_seconds = math.nan  # Delay of the slowest standby.
        try:
            with self._own_connection() as raw:
                schema.migrate(raw)
        except psycopg.ProgrammingError:  # The error quotes the URL with its password.
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
        try:
            with self.pool.connection() as raw:
                fulltext.bring_up_to_date(raw)
        except BaseException as error:
            self.pool.close()
            if not isinstance(error, psycopg.Error):
                raise
            raise StartupError(
                f"The terms of the documents cannot be indexed: {reason(error)}. The next start begins again."
            ) from error
        self._writers = max(1, connections // 4)
        self.readers = Readers(self.pool, connections - self._writers - OWN, OWN)
        self.writer: Writer

    def start(self, on_commit: Callable[[Changes], None], observe_seconds: Callable[[float], None]) -> None:  # noqa: ARG002
        """Starts to accept writes.

        `on_commit` is never called, because no index in memory follows the writes.
        """
        self.writer = Writer(self.pool, self._writers, observe_seconds)

    def close(self) -> None:
        if hasattr(self, "writer"):
            with contextlib.suppress(Unhealthy, psycopg.Error):  # The lease also ends by itself.
                self.writer.submit(lambda connection: replicas.leave(connection, self.replica)).result()
            self.writer.stop()
        self.readers.close()
        self.pool.close()

    def check(self, _seconds: float, /) -> str | None:
        """Always returns None. The threads cannot die, and the process cannot repair the database."""
        return None

    async def keep_noting(self) -> None:
        """Updates facts about the database every LOOK_SECONDS, until canceled.

        Checks the schema, counts generations, measures the delay of standbys, and folds postings
        (fulltext.py). First builds the indexes of declared fields.
        """
        indexed = False
        while True:
            with contextlib.suppress(ServiceError):  # Logged already.
                self._note_damage(await asyncio.to_thread(self._problem))
            with contextlib.suppress(ServiceError):  # Logged already.
                if not indexed:
                    await asyncio.to_thread(self._keep_field_indexes)
                    indexed = True
                began = time.monotonic()
                sizes = await self.readers.own(vectors.held)
                if began > self._counted:  # Otherwise a write has counted more recently.
                    self._sizes = sizes
                self.lag_seconds = await self.readers.own(replicas.lag)
                await self.writer.run(fulltext.fold)
            await asyncio.sleep(LOOK_SECONDS)

    def _problem(self) -> str | None:
        with refusing("The check of the database's schema waits"), self.pool.connection() as raw:
            return schema.problem(raw)

    def _keep_field_indexes(self) -> None:
        with refusing("The indexes of declared fields wait"), self._own_connection() as raw:
            filters.keep_field_indexes(raw, self._declared)

    def _own_connection(self) -> Raw:
        """Opens a connection outside of the pool, for long work with separate settings and locks."""
        return Raw.connect(self._url, **PARAMETERS)

    def size(self, generation: int) -> tuple[int, int]:
        """Returns the number of documents and of rows of a generation, when it was last counted."""
        return self._sizes.get(generation, (0, 0))

    async def counted(self, job: Callable[[Connection], T]) -> T:
        """Runs a job in a transaction, and counts all generations in the same transaction."""
        done, sizes = await self.writer.run(lambda connection: (job(connection), vectors.held(connection)))
        self._sizes, self._counted = sizes, time.monotonic()
        return done

    # Used before the first write, on the thread that starts the service.

    @contextlib.contextmanager
    def copying(self) -> Iterator[None]:
        """Prevents other copies and first starts of services until the block ends.

        Raises:
            CommandError: Another copy is in progress.
        """
        with self._own_connection() as raw:
            if raw.execute("SELECT pg_try_advisory_lock(%s)", (replicas.COPY_LOCK,)).fetchone() != (True,):
                raise CommandError("Another `copy` into this database is under way. Wait for its end.")
            try:
                with self.starting():
                    yield
            finally:
                # The server notices a closed connection late, and the next copy may begin before that.
                with contextlib.suppress(psycopg.Error):
                    raw.execute("SELECT pg_advisory_unlock(%s)", (replicas.COPY_LOCK,))

    def drop_everything(self) -> None:
        """Drops all tables of Simile in a database that contains an unfinished copy.

        Raises:
            CommandError: A copy is in progress, or the database has no unfinished copy.
        """
        with self.copying(), self._own_connection() as raw, raw.transaction():
            # Before the locks, another process may have finished or dropped the copy.
            made = raw.execute("SELECT to_regclass('facts')").fetchone()
            if made == (None,) or unfinished_copy(Connection(raw), "The database") is None:
                raise CommandError(NONE_THERE)
            schema.drop_everything(raw)

    def _now(self, job: Callable[[Connection], T]) -> T:
        with self.pool.connection() as raw, raw.transaction():
            return job(Connection(raw))

    def activate(self, manifest: Manifest, form: str, *, examples: bool = False) -> int:
        return self._now(lambda it: generations.activate(it, self.replica, manifest, form, examples=examples))

    # Documents and collections.

    collections = reading(documents.counts)
    count = reading(documents.count)
    matching = reading(documents.matching_revisions)
    count_all = reading_itself(documents.count_all)
    sequence = reading_itself(documents.sequence)
    unchanged = reading_itself(documents.unchanged)
    _put = _writes_documents(writes.put)
    fill_checksums = writing(documents.fill_checksums)
    _delete_one = _writes_documents(writes.delete_one)
    delete_some = _writes_documents(writes.delete_some)
    drop_collection = writing(writes.drop_collection)

    def filter(self, conditions: object) -> Predicate:
        return compile_in(JsonbDialect(self._declared), conditions)

    # Judgments and events of searches.

    judge = writing(in_turn(feedback.store_judgments), alone=True)
    replace_clicked = writing(writes.replace_clicked, alone=True)
    _record_some = writing(writes.record_events, alone=True)
    replace_synonyms = writing(in_turn(synonyms.replace_synonyms), alone=True)

    # Generations: missing vectors, and which generation is active.

    lacking = reading_itself(generations.lacking)
    add_vectors = writing(generations.add_vectors)
    add_tokens = writing(generations.add_tokens)
    share_vectors = writing(generations.share_vectors)
    skip = writing(generations.skip)
    forget_skipped = writing(generations.forget_skipped)

    async def begin(self, manifest: Manifest, form: str) -> int:
        number = await self.writer.run(lambda it: generations.begin(it, self.replica, manifest, form))
        await self.writer.run(lambda it: generations.list_lacking(it, number))
        await self.writer.run(generations.drop_left)
        return number

    async def next_lacking(self, generation: int, _after: int, limit: int, max_bytes: int, /) -> Lacking:
        found = await self.counted(
            lambda it: generations.take_lacking(it, self.replica, generation, limit, max_bytes)
        )
        ends = found.closing or not (found.documents or found.left)
        if ends and not await self.build_index(generation):
            found = Lacking({}, found.last_revision, found.skipped, left=1)
        if found.left and not found.documents:  # Other processes embed the rest.
            await asyncio.sleep(TAKEN_SECONDS)
        return found

    async def build_index(self, generation: int) -> bool:
        """Builds the vector index of a generation if it is missing.

        Returns False if another process builds the index.
        """
        with refusing("The index of a version waits"):
            return await asyncio.to_thread(self._built, generation)

    def _built(self, generation: int) -> bool:
        with self.pool.connection() as raw:
            if vectors.is_indexed(Connection(raw), generation):
                return True
            row = raw.execute("SELECT dimension FROM generations WHERE number = %s", (generation,)).fetchone()
        with self._own_connection() as raw:
            built = row is None or vectors.build_index(raw, generation, row[0])
            Connection(raw).execute(
                "DELETE FROM facts WHERE name = ? AND value = ?", (UNINDEXED, str(generation))
            )
            return built

    async def add_stored(self, _generation: int, _after: int, _limit: int, /) -> int | None:
        """Returns None, because no index in memory needs the stored vectors."""

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

    # Other replicas: swaps, requests, and jobs that one replica does for all.

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Lets one replica start at a time. A separate connection without statement timeout has the lock."""
        with self._own_connection() as raw:
            if raw.execute("SELECT pg_try_advisory_lock(%s)", (replicas.START_LOCK,)).fetchone() != (True,):
                log.info("Another replica is starting and may publish its model: waiting for it")
                raw.execute("SELECT pg_advisory_lock(%s)", (replicas.START_LOCK,))
            yield

    async def search(self, work: Callable[[Snapshot], T], *, heavy: bool = False) -> T:
        try:
            return await super().search(work, heavy=heavy)
        except Moved as moved:
            await self.stop_serving(moved.generation)
            raise

    async def put(self, *args: Any, **kwargs: Any) -> Put:
        served = self._serves()
        try:
            return await self._put(*args, **kwargs)
        except NeedsVectors as error:
            if served != error.active:
                await self.stop_serving(served)
            raise

    async def requested(self, requested: RequestedVersion | None, at: float) -> RequestedVersion | None:
        own = "" if requested is None else requested.id
        found = await self.readers.own(lambda it: replicas.request(it, own))
        if requested is None or not replicas.is_newer(requested, at, found):
            standing = None if found is None else found.standing
            if requested is not None and found is not None and standing != requested and at > -inf:
                log.warning(
                    "The models folder names %s (%s), which is ignored: %s was requested later, maybe on "
                    "another replica. Activate %s again if you want it.",
                    *(requested.version, requested.kind, found.standing.version, requested.version),
                )
            return standing
        return await self.writer.run(lambda connection: replicas.keep_request(connection, requested, at))

    async def request(self, requested: RequestedVersion) -> None:
        await self.writer.run(lambda connection: replicas.keep_request(connection, requested))

    async def once(self, name: str, work: Callable[[], Awaitable[str]]) -> str:
        def settle(result: str | None) -> Callable[[Connection], None]:
            return lambda connection: replicas.settle(connection, name, self.replica, result)

        while True:
            mine, result = await self.writer.run(lambda it: replicas.claim(it, name, self.replica))
            if result is not None:
                return result
            if mine:
                break
            await self.news(NEWS_SECONDS)
        try:
            result = await work()
        except BaseException:
            with contextlib.suppress(Unhealthy):
                self.writer.submit(settle(None))
            raise
        await self.writer.run(settle(result))
        return result

    async def abandon(self) -> None:
        await self.writer.run(lambda connection: generations.abandon(connection, self.replica))

    async def make_active(self, swap: Activation, /) -> bool:
        call = partial(generations.roll_call, replica=self.replica, swap=swap)
        commit = partial(generations.make_active, replica=self.replica, swap=swap)
        while (answer := await self.writer.run(call)) is not Answer.LACKS:
            if answer is Answer.NOW:
                answer = await self.writer.run(commit)
            if answer is Answer.ACTIVATED and not swap.may():
                return False
            if answer in {Answer.ACTIVATED, Answer.NOW}:
                swap.then(0)
                return True
            await self.news(NEWS_SECONDS)
        return False
