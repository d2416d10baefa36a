"""What replicas do together, as methods of the store: swaps, requests, and jobs that one does for all."""

import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from math import inf
from typing import Any, TypeVar

from models.store import DesiredVersion
from service.errors import Unhealthy
from service.store.postgres import generations, replicas, roll_call
from service.store.postgres.connection import Connection, Pool, Raw
from service.store.postgres.reader import Snapshot
from service.store.postgres.roll_call import Answer, Last
from service.store.postgres.touch import Touch
from service.store.postgres.writer import Writer
from service.store.sql.methods import CommonMethods
from service.store.values import Moved, NeedsVectors, Put

log = logging.getLogger(__name__)

T = TypeVar("T")

NEWS_SECONDS = 0.25  # after which one that waits for another replica looks by itself


class Shared(Touch, CommonMethods):
    """The part of the store that knows of other replicas."""

    pool: Pool
    writer: Writer
    lag_seconds: float = math.nan  # of the slowest standby, as last looked at
    _own_connection: Callable[[], Raw]
    _put: Callable[..., Coroutine[Any, Any, Put]]

    @property
    def connections(self) -> Mapping[str, int]:
        return self.pool.get_stats()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Hold a lock that ends with a connection of its own, on which no statement has to be quick."""
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
            if served != error.live:
                await self.stop_serving(served)
            raise

    async def requested(self, asked: DesiredVersion | None, at: float) -> DesiredVersion | None:
        found = await self.readers.own(lambda it: replicas.request(it, "" if asked is None else asked.id))
        if asked is None or not replicas.is_newer(asked, at, found):
            standing = None if found is None else found.standing
            if asked is not None and found is not None and standing != asked and at > -inf:
                log.warning(
                    "The models folder names %s (%s), which is ignored: %s was requested later, maybe on "
                    "another replica. Activate %s again if you want it.",
                    *(asked.version, asked.kind, found.standing.version, asked.version),
                )
            return standing
        return await self.writer.run(lambda connection: replicas.keep_request(connection, asked, at))

    async def request(self, asked: DesiredVersion) -> None:
        await self.writer.run(lambda connection: replicas.keep_request(connection, asked))

    async def once(self, name: str, work: Callable[[], Awaitable[str]]) -> str:
        def settle(result: str | None) -> Callable[[Connection], None]:
            return lambda connection: replicas.settle(connection, name, self.replica, result)

        while True:
            mine, result = await self.writer.run(
                lambda connection: replicas.claim(connection, name, self.replica)
            )
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

    async def go_live(
        self,
        generation: int,
        _complete_through: int,
        desired: str,
        /,
        *,
        rollback: bool,
        may: Callable[[], bool],
        last: Last,
        then: Callable[[int], None],
    ) -> bool:
        def call(connection: Connection) -> Answer:
            return roll_call.call(connection, self.replica, generation, desired, rollback=rollback)

        def commit(connection: Connection) -> Answer:
            return roll_call.go_live(
                connection, self.replica, generation, desired, rollback=rollback, may=may, last=last
            )

        while (answer := await self.writer.run(call)) is not Answer.LACKS:
            if answer is Answer.NOW:
                answer = await self.writer.run(commit)
            if answer is Answer.LIVE and not may():
                return False
            if answer in {Answer.LIVE, Answer.NOW}:
                then(0)
                return True
            await self.news(NEWS_SECONDS)
        return False
