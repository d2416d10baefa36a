"""Generations in the store, and how another one comes to live: rows, and jobs for the writer.

    building ──▶ active ──▶ standby ──▶ dropped ──▶ (gone)        standby ──▶ active again: a rollback
        └──────────────────────────────────▲

A generation's row names the model version that made its vectors. `history` lists the versions in the order
in which they came to live; `verdicts` those that are not chosen again by themselves. How far a generation is
needs no cursor of its own: a document that lacks a vector of it is still to be embedded, and revisions only
grow, so a builder goes on from the last one it has seen.
"""

import sqlite3
from collections.abc import Container, Mapping
from typing import Any

import orjson

from models.manifest import Manifest
from service.store.documents import fact, sequence
from service.store.values import ROLLED_BACK, Active, Known, Verdict
from service.store.writer import Transaction

ACTIVE, BUILDING, STANDBY, DROPPED = "active", "building", "standby", "dropped"
HANDLED = "handled wish"  # the fact that names the last wish that was carried out or failed
COMPARED = "canary of "  # with a version: the fact that holds how alike it answered
EXAMPLES, WANTED, LOADED = "examples", "wanted", "loaded"  # the fact, and its two values
PURGE_ROWS = 256
KEPT_HISTORY = 100


def known(connection: sqlite3.Connection, published: Container[str]) -> Known:
    rows = connection.execute("SELECT state, version FROM generations").fetchall()
    states = dict(rows)
    return Known(
        live=states[ACTIVE],
        verdicts=verdicts(connection),
        past={version for (version,) in connection.execute("SELECT version FROM history")},
        previous=previous(connection, published),
        handled=fact(connection, HANDLED),
        canaries=canaries(connection),
        building=BUILDING in states,
    )


def active(connection: sqlite3.Connection) -> Active | None:
    """The generation in service; None before the first start."""
    row = connection.execute(
        "SELECT number, version, fingerprint, form FROM generations WHERE state = ?", (ACTIVE,)
    ).fetchone()
    return None if row is None else Active(*row)


def live_number(connection: sqlite3.Connection) -> int:
    """The generation that every write must have a vector of."""
    row = connection.execute("SELECT number FROM generations WHERE state = ?", (ACTIVE,)).fetchone()
    return int(row[0])


def kept_numbers(connection: sqlite3.Connection) -> set[int]:
    """The generations whose vectors are stored."""
    rows = connection.execute("SELECT number FROM generations WHERE state <> ?", (DROPPED,))
    return {row[0] for row in rows}


def insert(transaction: Transaction, manifest: Manifest, form: str, state: str) -> int:
    number = transaction.connection.execute(
        "INSERT INTO generations (version, fingerprint, form, dimension, state) VALUES (?, ?, ?, ?, ?)",
        (manifest.version, manifest.fingerprint, form, manifest.dimension, state),
    ).lastrowid
    assert number is not None  # noqa: S101  an INSERT always has one
    if state == ACTIVE:
        _remember(transaction, manifest.version)
    return number


def activate(transaction: Transaction, manifest: Manifest, form: str, *, examples: bool = False) -> int:
    """The number of the generation that a start serves: the first one, or the same version in another form.

    It has no vectors yet. examples: the example corpus is asked for.
    """
    execute = transaction.connection.execute
    execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, ACTIVE))
    if examples:
        execute("INSERT INTO facts (name, value) VALUES (?, ?)", (EXAMPLES, WANTED))
    return insert(transaction, manifest, form, ACTIVE)


def examples_wanted(connection: sqlite3.Connection) -> bool:
    """True where the store was made for the example corpus and does not have it yet."""
    return fact(connection, EXAMPLES) == WANTED


def examples_loaded(transaction: Transaction) -> None:
    transaction.connection.execute("UPDATE facts SET value = ? WHERE name = ?", (LOADED, EXAMPLES))


def begin(transaction: Transaction, manifest: Manifest, form: str) -> int:
    """The generation to build for a version: the one begun or kept before, else a new one.

    One that is kept for a rollback stays `standby` meanwhile, so that giving up does not drop it. Any other
    that was being built is dropped: the newest wish wins.
    """
    execute = transaction.connection.execute
    row = execute(
        "SELECT number, state FROM generations "
        "WHERE version = ? AND fingerprint = ? AND form = ? AND state IN (?, ?)",
        (manifest.version, manifest.fingerprint, form, BUILDING, STANDBY),
    ).fetchone()
    number = insert(transaction, manifest, form, BUILDING) if row is None else int(row[0])
    execute("UPDATE generations SET state = ? WHERE state = ? AND number <> ?", (DROPPED, BUILDING, number))
    return number


def abandon(transaction: Transaction) -> None:
    """Drop the generations that were being built."""
    transaction.connection.execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, BUILDING))


def go_live(transaction: Transaction, number: int, desired: str, *, rollback: bool) -> None:
    """Make `number` the active generation, and the one that was active the one to go back to.

    Args:
        desired: the id of the wish that this carries out.
        rollback: the version is gone back to: what came after it leaves the history, and the version that
            was live is not chosen again by itself.

    """
    execute = transaction.connection.execute
    [version] = execute("SELECT version FROM generations WHERE number = ?", (number,)).fetchone()
    [left] = execute("SELECT version FROM generations WHERE state = ?", (ACTIVE,)).fetchone()
    execute("UPDATE generations SET state = ? WHERE state = ?", (STANDBY, ACTIVE))
    execute("UPDATE generations SET state = ? WHERE number = ?", (ACTIVE, number))
    execute("DELETE FROM verdicts WHERE version = ?", (version,))
    if rollback:
        judge(transaction, left, Verdict(ROLLED_BACK, f"rolled back from, to {version}"), desired)
        execute(
            "DELETE FROM history WHERE position > (SELECT max(position) FROM history WHERE version = ?)",
            (version,),
        )
    _remember(transaction, version)
    back = previous(transaction.connection)
    execute("UPDATE generations SET state = ? WHERE state = ? AND version IS NOT ?", (DROPPED, STANDBY, back))
    handled(transaction, desired)
    # The index that is about to be searched must be at the store's present moment.
    transaction.changes.sequence = sequence(transaction.connection)


def judge(transaction: Transaction, version: str, verdict: Verdict, desired: str) -> None:
    """Keep `version` from being chosen by itself."""
    transaction.connection.execute(
        "INSERT OR REPLACE INTO verdicts (version, state, reason) VALUES (?, ?, ?)",
        (version, verdict.state, verdict.reason),
    )
    handled(transaction, desired)


def verdicts(connection: sqlite3.Connection) -> dict[str, Verdict]:
    rows = connection.execute("SELECT version, state, reason FROM verdicts")
    return {version: Verdict(state, reason) for version, state, reason in rows}


def handled(transaction: Transaction, desired: str) -> None:
    """Remember the last decision that was carried out; a mere wish by who writes `wanted` alone has no id."""
    if desired:
        transaction.connection.execute(
            "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)", (HANDLED, desired)
        )


def remember_canary(transaction: Transaction, version: str, canary: Mapping[str, Any]) -> None:
    """Keep how alike `version` answered; of versions long ago it is forgotten, by the time in their names."""
    execute = transaction.connection.execute
    execute(
        "INSERT OR REPLACE INTO facts (name, value) VALUES (?, ?)",
        (COMPARED + version, orjson.dumps(canary).decode()),
    )
    execute(
        "DELETE FROM facts WHERE substr(name, 1, ?1) = ?2 AND name NOT IN "
        "(SELECT name FROM facts WHERE substr(name, 1, ?1) = ?2 ORDER BY name DESC LIMIT ?3)",
        (len(COMPARED), COMPARED, KEPT_HISTORY),
    )


def canaries(connection: sqlite3.Connection) -> dict[str, Any]:
    """Overlaps of versions' answers, each with the one that was live then."""
    rows = connection.execute(
        "SELECT substr(name, ?1 + 1), value FROM facts WHERE substr(name, 1, ?1) = ?2",
        (len(COMPARED), COMPARED),
    )
    return {version: orjson.loads(value) for version, value in rows}


def previous(connection: sqlite3.Connection, known: Container[str] | None = None) -> str | None:
    """The version that was live before the one that is, and is not one that failed or was rolled back from.

    known: the versions that are still published; None: do not look.
    """
    live, *before = [
        row[0] for row in connection.execute("SELECT version FROM history ORDER BY position DESC")
    ]
    judged = verdicts(connection)
    for version in before:
        if version != live and version not in judged and (known is None or version in known):
            return str(version)
    return None


def has_dropped(connection: sqlite3.Connection) -> bool:
    sql = "SELECT 1 FROM generations WHERE state = ? LIMIT 1"
    return connection.execute(sql, (DROPPED,)).fetchone() is not None


def purge(transaction: Transaction) -> bool:
    """Delete some vectors of dropped generations; whether there are more."""
    execute = transaction.connection.execute
    row = execute("SELECT number FROM generations WHERE state = ? LIMIT 1", (DROPPED,)).fetchone()
    if row is None:
        return False
    [number] = row
    left = False
    for table in ("vectors", "skipped"):
        deleted = execute(
            f"DELETE FROM {table} WHERE generation = ?1 AND revision IN "
            f"(SELECT revision FROM {table} WHERE generation = ?1 LIMIT ?2)",
            (number, PURGE_ROWS),
        ).rowcount
        left = left or deleted >= PURGE_ROWS  # a revision may have several
    if not left:
        execute("DELETE FROM generations WHERE number = ?", (number,))
    return True


def _remember(transaction: Transaction, version: str) -> None:
    """Append to the history, unless it is its last entry already (a rollback has cut it back to there)."""
    execute = transaction.connection.execute
    last = execute("SELECT version FROM history ORDER BY position DESC LIMIT 1").fetchone()
    if last is None or last[0] != version:
        execute("INSERT INTO history (version) VALUES (?)", (version,))
    execute(
        "DELETE FROM history WHERE position NOT IN "
        "(SELECT position FROM history ORDER BY position DESC LIMIT ?)",
        (KEPT_HISTORY,),
    )
