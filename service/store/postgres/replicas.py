"""Replicas: the processes that share a database, and what they agree on.

    lease       renewed every BEAT_SECONDS; whoever has none is waited for by nobody, and may answer nothing
    candidate   the generation that a replica makes, and whether it is ready to go over to it
    wish        the version that is wanted: the newest of what any models folder names
    claim       a job that one replica does for all

Whatever changes among these is announced on CHANNEL, and so is every change of a generation's state. Nothing
announces documents: they are read where they are written.
"""

from typing import LiteralString

import orjson

from models.store import DesiredVersion
from service.store.connection import Connection
from service.store.facts import fact, note

CHANNEL = "simile"
BEAT_SECONDS, LEASE_SECONDS = 2.0, 10.0
# A swap waits this long for a replica that lives and is not ready; a rollback for a lease.
PATIENCE_SECONDS = 60.0
FORGOTTEN = "interval '1 day'"  # after which rows of replicas and claims go
_WISH = "wish"
_WISH_LOCK = 7_405_814
START_LOCK = 7_405_815
LIVING = "until > now()"

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


def wish(connection: Connection) -> tuple[DesiredVersion, float] | None:
    """The version that is wanted, and when that was asked for (Unix time); None before the first wish."""
    stored = fact(connection, _WISH)
    if stored is None:
        return None
    *desired, at = orjson.loads(stored)
    return DesiredVersion(*desired), at


def keep_wish(connection: Connection, desired: DesiredVersion, at: float) -> DesiredVersion:
    """Keep a wish that a models folder names, unless another is newer. Returns the one that stands."""
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_WISH_LOCK,))
    known = wish(connection)
    if known is not None and known[1] > at:
        return known[0]
    note(connection, _WISH, orjson.dumps([*desired, at]).decode())
    announce(connection)
    return desired


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
