"""Coordinates the replicas: processes that share a database, with their leases and requests.

Start at `Touch`.

    lease       renewed every BEAT_SECONDS. Swaps do not wait for a replica without a lease, and such a
                replica answers no requests
    candidate   the generation that a replica builds, and whether the replica is ready to swap
    request     the requested version: the last one that any replica reported. The database numbers
                requests, because the clocks of machines differ
    claim       a job that one replica does for all replicas

Changes of these, and of the state of a generation, are announced on CHANNEL. Writes of documents are not
announced, because documents are read from the database. Each renewal of the lease also reads the active
generation, so a replica knows the active generation as long as the lease lasts. Without renewals, another
version may become active, so the replica reports that it has lost the database.
"""

import asyncio
import contextlib
import logging
import math
import re
import time
import uuid
from collections.abc import Callable
from math import inf
from typing import LiteralString, NamedTuple

import psycopg

from models.store import RequestedVersion
from service.errors import Unhealthy
from service.observability import outages
from service.store.postgres.connection import PARAMETERS, reason
from service.store.sql.connection import Connection, fetch_value
from service.store.values import Active

CHANNEL = "simile"
BEAT_SECONDS, LEASE_SECONDS = 2.0, 10.0
# A swap waits this long for a living replica that is not ready. A rollback waits for LEASE_SECONDS.
PATIENCE_SECONDS = 60.0
FORGOTTEN = "interval '1 day'"  # Age at which rows of replicas and claims are deleted.
KEPT_REQUESTS = 1000
_REQUEST_LOCK = 7_405_814
START_LOCK = 7_405_815
COPY_LOCK = 7_405_818
# A lease ends within LEASE_SECONDS, unless the database's clock was set back, for example by a failover.
# Living replicas have renewed their lease.
LIVING = f"until > now() AND until < now() + interval '{6 * LEASE_SECONDS:.0f} seconds'"

# Renews the lease of (id, generation served, seconds). Returns the active generation and the number of
# other replicas.
BEAT: LiteralString = """
    WITH renewed AS (
        INSERT INTO replicas (id, serves, until) VALUES (%s, %s, now() + make_interval(secs => %s))
        ON CONFLICT (id) DO UPDATE SET serves = excluded.serves, until = excluded.until RETURNING id
    )
    SELECT number, version, fingerprint, form,
        (SELECT count(*) FROM replicas WHERE until > now() AND id <> (SELECT id FROM renewed))
    FROM generations WHERE state = 'active'
"""


def announce(connection: Connection) -> None:
    """Notifies all replicas when the current transaction is committed."""
    connection.execute("SELECT pg_notify(?, '')", (CHANNEL,))


def stand(connection: Connection, replica: str, candidate: int | None, *, ready: bool = False) -> None:
    """Records the candidate of a replica, and whether the replica is ready to swap."""
    changed = connection.execute(
        "INSERT INTO replicas AS r (id, candidate, ready, until) "
        "VALUES (?, ?, ?, now() + make_interval(secs => ?)) "
        "ON CONFLICT (id) DO UPDATE SET candidate = excluded.candidate, ready = excluded.ready "
        "WHERE (r.candidate, r.ready) IS DISTINCT FROM (excluded.candidate, excluded.ready) RETURNING 1",
        (replica, candidate, ready, LEASE_SECONDS),
    ).fetchone()
    if changed is not None:
        announce(connection)


def not_ready(connection: Connection, replica: str, candidate: int) -> int:
    """Returns the number of other replicas with a lease that are not ready for the candidate."""
    sql = f"SELECT count(*) FROM replicas WHERE {LIVING} AND id <> ? "
    sql += "AND NOT (ready AND candidate IS NOT DISTINCT FROM ?)"
    return int(fetch_value(connection, sql, replica, candidate))


def others(connection: Connection, replica: str) -> int:
    """Returns the number of other replicas with a lease."""
    return int(fetch_value(connection, f"SELECT count(*) FROM replicas WHERE {LIVING} AND id <> ?", replica))


def lag(connection: Connection) -> float:
    """Returns the delay of the slowest standby database in seconds.

    Returns NaN if no standby exists, or if the database user may not see them.
    """
    sql = "SELECT CASE WHEN count(state) > 0 THEN coalesce(extract(epoch FROM max(replay_lag)), 0)::float8 "
    return float(fetch_value(connection, f"{sql} ELSE 'NaN' END FROM pg_stat_replication"))


def leave(connection: Connection, replica: str) -> None:
    """Ends the lease of a replica, so that no other replica waits for it."""
    connection.execute("DELETE FROM replicas WHERE id = ?", (replica,))
    announce(connection)


class Request(NamedTuple):
    """The current request. `known` says whether the request that the caller named was reported before."""

    standing: RequestedVersion
    at: float  # Unix time by the clock of the database.
    known: bool


def request(connection: Connection, id: str = "") -> Request | None:
    """Returns the current request, and whether the request with this `id` was reported before.

    Returns None before the first request.
    """
    row = connection.execute(
        "SELECT version, kind, id, extract(epoch FROM at)::float8, "
        "EXISTS (SELECT 1 FROM requests WHERE id = ?) FROM requests ORDER BY number DESC LIMIT 1",
        (id,),
    ).fetchone()
    return None if row is None else Request(RequestedVersion(*row[:3]), *row[3:])


def is_newer(requested: RequestedVersion, at: float, found: Request | None) -> bool:
    """Returns whether `requested`, made at time `at`, replaces the current request `found`.

    `protocol.Replicas.requested` has the rule.
    """
    return found is None or not (found.known or found.standing == requested or at <= found.at)


def keep_request(connection: Connection, requested: RequestedVersion, at: float = inf) -> RequestedVersion:
    """Stores a request if it replaces the current one (`is_newer`).

    Returns the request that is current afterwards.
    """
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_REQUEST_LOCK,))
    found = request(connection, requested.id)
    if found is not None and not is_newer(requested, at, found):
        return found.standing
    sql = "INSERT INTO requests (id, version, kind) VALUES (?, ?, ?)"
    connection.execute(sql, (requested.id, requested.version, requested.kind))
    connection.execute(
        "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?", (KEPT_REQUESTS,)
    )
    announce(connection)
    return requested


def claim(connection: Connection, name: str, replica: str) -> tuple[bool, str | None]:
    """Claims a job that one replica does for all replicas.

    Another replica can claim a job if the replica that holds the job has lost its lease.

    Returns:
        Whether this replica has the job, and the result of the job. The result is None until the job is done.
    """
    mine = connection.execute(
        "INSERT INTO claims (name, holder) VALUES (?, ?) "
        "ON CONFLICT (name) DO UPDATE SET holder = excluded.holder WHERE claims.result IS NULL "
        "AND (claims.holder = excluded.holder OR NOT EXISTS "
        f"(SELECT 1 FROM replicas WHERE id = claims.holder AND {LIVING})) RETURNING 1",
        (name, replica),
    ).fetchone()
    if mine is not None:
        return True, None
    return False, fetch_value(connection, "SELECT result FROM claims WHERE name = ?", name)


def settle(connection: Connection, name: str, replica: str, result: str | None) -> None:
    """Stores the result of a job. None means that the job failed and another replica may claim it."""
    if result is None:
        connection.execute("DELETE FROM claims WHERE name = ? AND holder = ?", (name, replica))
    else:
        connection.execute(
            "UPDATE claims SET result = ? WHERE name = ? AND holder = ?", (result, name, replica)
        )
    announce(connection)


def forget(connection: Connection) -> None:
    """Deletes old records of replicas and claims."""
    connection.execute(f"DELETE FROM replicas WHERE until < now() - {FORGOTTEN}")
    connection.execute(f"DELETE FROM claims WHERE made < now() - {FORGOTTEN}")


log = logging.getLogger(__name__)

RETRY_SECONDS = 0.5
JOIN_SECONDS = 5.0
FOLLOW_SECONDS = 5.0  # Wait for a version that another replica activated.
LOOK_SECONDS = 0.005  # Seconds between checks for that version.
# The part of an error that clients may read. The rest may name the host and the user.
_MISSING = re.compile(r'(?:database|relation|column) "[^"]*" (?:of relation "[^"]*" )?does not exist')


class Touch:
    """Renews the lease of this replica, and listens for announcements.

    Only the event loop may use this object, except for `lost` and `lease_age`.
    """

    def __init__(self, url: str) -> None:
        self.replica = uuid.uuid4().hex
        self.others = 0  # Number of other replicas at the last renewal.
        self._url = url
        self._serves: Callable[[], int | None] = lambda: None
        self._renewed = -math.inf  # time.monotonic() shortly before the last renewal.
        self._heard = asyncio.Event()  # Replaced with each announcement.
        self._cause = ""  # Why the last renewal failed, for clients.

    @property
    def lost(self) -> str | None:
        """The reason why this process may not know the active version. None if the process knows it."""
        if self.lease_age < LEASE_SECONDS:
            return None
        return (
            f"This replica has lost touch with the database{self._cause}, so another version may be active "
            "by now. Send again later, or to another replica."
        )

    @property
    def lease_age(self) -> float:
        """Seconds since the last renewal of the lease. Infinite before the first one."""
        return time.monotonic() - self._renewed

    async def keep_in_touch(self, serves: Callable[[], int], follow: Callable[[Active], None]) -> None:
        """Renews the lease until it is canceled.

        Args:
            serves: Returns the generation that this process serves.
            follow: Called with the active generation after each renewal and announcement.
        """
        self._serves = serves
        while True:
            try:
                await self._listen(serves, follow)
            except (psycopg.Error, OSError, TimeoutError) as error:
                self._cause = "".join(f" ({found})" for found in _MISSING.findall(str(error))[:1])
                outages.warn(log, f"Lost touch with the database: {reason(error)}")
            await asyncio.sleep(RETRY_SECONDS)

    async def stop_serving(self, generation: int | None) -> None:
        """Waits until this process no longer serves `generation`, which is not active any more.

        Raises:
            Unhealthy: It takes too long.
        """
        deadline = time.monotonic() + FOLLOW_SECONDS
        while generation is not None and self._serves() == generation:
            if time.monotonic() > deadline:
                raise Unhealthy(
                    "Another version became active, and this replica has not loaded it yet. Send again.",
                    retry_after_seconds=1,
                )
            await asyncio.sleep(LOOK_SECONDS)

    async def joined(self) -> None:
        """Waits for the first lease, for JOIN_SECONDS at most."""
        deadline = time.monotonic() + JOIN_SECONDS
        while self.lost and time.monotonic() < deadline:
            await self.news(RETRY_SECONDS)

    async def news(self, seconds: float) -> None:
        """Waits for an announcement, for `seconds` at most."""
        heard = self._heard
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await heard.wait()

    async def _listen(self, serves: Callable[[], int], follow: Callable[[Active], None]) -> None:
        async with asyncio.timeout(LEASE_SECONDS):
            connection = await psycopg.AsyncConnection.connect(
                self._url, **PARAMETERS | {"application_name": "simile lease", "prepare_threshold": None}
            )
        try:
            await connection.execute(f"LISTEN {CHANNEL}")
            while True:
                began = time.monotonic()
                async with asyncio.timeout(LEASE_SECONDS):
                    cursor = await connection.execute(BEAT, (self.replica, serves(), LEASE_SECONDS))
                    row = await cursor.fetchone()
                self._renewed, self._cause = began, ""
                if row is not None:
                    *active, self.others = row
                    follow(Active(*active))
                self._heard.set()
                self._heard = asyncio.Event()
                async for _ in connection.notifies(timeout=BEAT_SECONDS, stop_after=1):
                    pass
        finally:
            await connection.close()
