"""Replicas: the processes that share a database, and what they agree on.

    lease       renewed every BEAT_SECONDS; whoever has none is waited for by nobody, and may answer nothing
    candidate   the generation that a replica makes, and whether it is ready to go over to it
    request     the requested version: the last one that any replica reported. Requests are numbered by the
                database, because the clocks of machines differ
    claim       a job that one replica does for all

Whatever changes among these is announced on CHANNEL, and so is every change of a generation's state. Nothing
announces documents: they are read where they are written.
"""

from math import inf
from typing import LiteralString, NamedTuple

from models.store import DesiredVersion
from service.store.sql.connection import Connection

CHANNEL = "simile"
BEAT_SECONDS, LEASE_SECONDS = 2.0, 10.0
# A swap waits this long for a replica that lives and is not ready; a rollback for a lease.
PATIENCE_SECONDS = 60.0
FORGOTTEN = "interval '1 day'"  # after which rows of replicas and claims go
KEPT_REQUESTS = 1000
_REQUEST_LOCK = 7_405_814
START_LOCK = 7_405_815
COPY_LOCK = 7_405_818
# No lease ends later than LEASE_SECONDS from now, unless the database's clock was set back since, as by a
# failover to another machine. Replicas that live have renewed theirs.
LIVING = f"until > now() AND until < now() + interval '{6 * LEASE_SECONDS:.0f} seconds'"

# Renews the lease of (id, generation served, seconds), and tells what is live and how many others there are.
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
    """Wake all replicas once this transaction is committed."""
    connection.execute("SELECT pg_notify(?, '')", (CHANNEL,))


def stand(connection: Connection, replica: str, candidate: int | None, *, ready: bool = False) -> None:
    """Say which candidate a replica has, and whether it is ready to go over to it."""
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
    """Replicas beside this one that live and are not ready to go over to the candidate."""
    [count] = connection.execute(
        f"SELECT count(*) FROM replicas WHERE {LIVING} AND id <> ? "
        "AND NOT (ready AND candidate IS NOT DISTINCT FROM ?)",
        (replica, candidate),
    ).fetchone()
    return int(count)


def others(connection: Connection, replica: str) -> int:
    """Replicas beside this one that live."""
    sql = f"SELECT count(*) FROM replicas WHERE {LIVING} AND id <> ?"
    return int(connection.execute(sql, (replica,)).fetchone()[0])


def lag(connection: Connection) -> float:
    """Seconds that the slowest standby is behind; NaN without one, or where this role may not see it."""
    [seconds] = connection.execute(
        "SELECT CASE WHEN count(state) > 0 THEN coalesce(extract(epoch FROM max(replay_lag)), 0)::float8 "
        "ELSE 'NaN' END FROM pg_stat_replication"
    ).fetchone()
    return float(seconds)


def leave(connection: Connection, replica: str) -> None:
    """End a lease: nobody waits for this replica any more."""
    connection.execute("DELETE FROM replicas WHERE id = ?", (replica,))
    announce(connection)


class Request(NamedTuple):
    """The request that stands, and what is known of another one."""

    standing: DesiredVersion
    at: float  # Unix time, by the clock of the database
    known: bool  # whether the other request was reported before


def request(connection: Connection, id: str = "") -> Request | None:
    """The request that stands, and whether the one named `id` was reported; None before the first one."""
    row = connection.execute(
        "SELECT version, kind, id, extract(epoch FROM at)::float8, "
        "EXISTS (SELECT 1 FROM requests WHERE id = ?) FROM requests ORDER BY number DESC LIMIT 1",
        (id,),
    ).fetchone()
    return None if row is None else Request(DesiredVersion(*row[:3]), *row[3:])


def is_newer(asked: DesiredVersion, at: float, found: Request | None) -> bool:
    """Whether a request that was made at `at` replaces the standing one; see `protocol.Store`."""
    return found is None or not (found.known or found.standing == asked or at <= found.at)


def keep_request(connection: Connection, asked: DesiredVersion, at: float = inf) -> DesiredVersion:
    """Store a request, unless it was reported before or is older. Returns the request that stands."""
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_REQUEST_LOCK,))
    found = request(connection, asked.id)
    if found is not None and not is_newer(asked, at, found):
        return found.standing
    connection.execute(
        "INSERT INTO requests (id, version, kind) VALUES (?, ?, ?)", (asked.id, asked.version, asked.kind)
    )
    connection.execute(
        "DELETE FROM requests WHERE number <= (SELECT max(number) FROM requests) - ?", (KEPT_REQUESTS,)
    )
    announce(connection)
    return asked


def claim(connection: Connection, name: str, replica: str) -> tuple[bool, str | None]:
    """Claim a job: whether it is this replica's to do, else its result, None while another is at it.

    The job of one whose lease has ended can be claimed again.
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
    row = connection.execute("SELECT result FROM claims WHERE name = ?", (name,)).fetchone()
    return False, None if row is None else row[0]


def settle(connection: Connection, name: str, replica: str, result: str | None) -> None:
    """Keep the result of a job; None: it came to none, and another replica may do it."""
    if result is None:
        connection.execute("DELETE FROM claims WHERE name = ? AND holder = ?", (name, replica))
    else:
        connection.execute(
            "UPDATE claims SET result = ? WHERE name = ? AND holder = ?", (result, name, replica)
        )
    announce(connection)


def forget(connection: Connection) -> None:
    """Delete what replicas of long ago have left."""
    connection.execute(f"DELETE FROM replicas WHERE until < now() - {FORGOTTEN}")
    connection.execute(f"DELETE FROM claims WHERE made < now() - {FORGOTTEN}")
