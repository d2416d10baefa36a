"""Stores generations and versions: queries of their rows, and jobs that change them.

    building ──▶ active ──▶ standby ──▶ dropped ──▶ (gone)        standby ──▶ active again: a rollback
    ▲   └──────────────────────────────────▲
    └──── imported: its vectors came from files, before any build

The row of a generation names the version that computed the vectors. The table `history` lists the versions in
the order of their activation. The table `verdicts` lists versions that are not chosen automatically again. A
build stores no position: revisions only grow, so a builder continues with documents that have no vector yet.
"""

from collections.abc import Container, Mapping
from typing import Any

import orjson

from models.manifest import Manifest
from service.store.sql.connection import Connection, fact, fetch_column, fetch_value, note
from service.store.values import ROLLED_BACK, Active, Known, Verdict

ACTIVE, BUILDING, STANDBY, DROPPED = "active", "building", "standby", "dropped"
IMPORTED = "imported"
HANDLED = "handled wish"  # The fact with the id of the last request that was carried out or failed.
COMPARED = "canary of "  # Followed by a version: the fact with the comparison of its answers.
_COMPARISON = f"substr(name, 1, {len(COMPARED)}) = '{COMPARED}'"
EXAMPLES, NEEDED, LOADED = "examples", "wanted", "loaded"  # A fact and its two values.
KEPT_HISTORY = 100


def known(connection: Connection, published: Container[str]) -> Known:
    rows = connection.execute("SELECT state, version FROM generations").fetchall()
    states = dict(rows)
    return Known(
        active=states[ACTIVE],
        verdicts=verdicts(connection),
        past={*fetch_column(connection, "SELECT version FROM history")},
        previous=previous(connection, published),
        handled=fact(connection, HANDLED),
        canaries=canaries(connection),
        building=BUILDING in states,
    )


def active(connection: Connection) -> Active | None:
    """Returns the active generation, or None before the first start."""
    row = connection.execute(
        "SELECT number, version, fingerprint, form FROM generations WHERE state = ?", (ACTIVE,)
    ).fetchone()
    return None if row is None else Active(*row)


def get_active_number(connection: Connection) -> int:
    """Returns the number of the active generation. Every write needs a vector of this generation."""
    return int(fetch_value(connection, "SELECT number FROM generations WHERE state = ?", ACTIVE))


def kept_numbers(connection: Connection) -> set[int]:
    """Returns the numbers of the generations that are not dropped."""
    return {*fetch_column(connection, "SELECT number FROM generations WHERE state <> ?", DROPPED)}


def alike_numbers(connection: Connection, number: int) -> list[int]:
    """Returns the numbers of the other generations with the same model and form, without dropped ones."""
    sql = (
        "SELECT other.number FROM generations g JOIN generations other USING (fingerprint, form) "
        "WHERE g.number = ? AND other.number <> g.number AND other.state <> ?"
    )
    return fetch_column(connection, sql, number, DROPPED)


def insert(connection: Connection, manifest: Manifest, form: str, state: str) -> int:
    [number] = connection.execute(
        "INSERT INTO generations (version, fingerprint, form, dimension, state) VALUES (?, ?, ?, ?, ?) "
        "RETURNING number",
        (manifest.version, manifest.fingerprint, form, manifest.dimension, state),
    ).fetchone()
    if state == ACTIVE:
        _remember(connection, manifest.version)
    return int(number)


def activate(connection: Connection, manifest: Manifest, form: str, *, examples: bool = False) -> int:
    """Creates and activates a generation without vectors, when the service starts. Returns its number.

    The generation that was active is dropped.

    Args:
        connection: A connection to either store.
        manifest: The model version.
        form: The form of the vectors.
        examples: Whether the example corpus is requested.
    """
    connection.execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, ACTIVE))
    if examples:
        note(connection, EXAMPLES, NEEDED)
    return insert(connection, manifest, form, ACTIVE)


def begin(connection: Connection, manifest: Manifest, form: str) -> int:
    """Returns the number of the generation to build for a version: a stored or a new one.

    Other generations that are being built are dropped, because the latest request wins. A generation that is
    stored for a rollback stays in the state `standby`, so that `abandon` does not drop it.
    """
    number = begun(connection, manifest, form)
    connection.execute(
        "UPDATE generations SET state = ? WHERE state = ? AND number <> ?", (DROPPED, BUILDING, number)
    )
    return number


def begun(connection: Connection, manifest: Manifest, form: str) -> int:
    """Returns the number of the generation of a version and a form. If none is stored, creates one.

    An imported generation is being built from now on.
    """
    number = kept(connection, manifest, form)
    if number is None:
        return insert(connection, manifest, form, BUILDING)
    sql = "UPDATE generations SET state = ? WHERE number = ? AND state = ?"
    connection.execute(sql, (BUILDING, number, IMPORTED))
    return number


def begin_import(connection: Connection, manifest: Manifest, form: str) -> tuple[int, str]:
    """Returns the number and the state of the generation that receives imported vectors of a version.

    If none is stored, creates one, and drops other imported generations.
    """
    number = kept(connection, manifest, form)
    if number is None:
        connection.execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, IMPORTED))
        return insert(connection, manifest, form, IMPORTED), IMPORTED
    return number, get_state(connection, number)


def get_state(connection: Connection, number: int) -> str:
    return fetch_value(connection, "SELECT state FROM generations WHERE number = ?", number) or DROPPED


def kept(connection: Connection, manifest: Manifest, form: str) -> int | None:
    """Returns the number of the latest generation of a version and a form, or None.

    Dropped generations do not count.
    """
    sql = (
        "SELECT number FROM generations "
        "WHERE version = ? AND fingerprint = ? AND form = ? AND state <> ? ORDER BY number DESC LIMIT 1"
    )
    number: int | None = fetch_value(connection, sql, manifest.version, manifest.fingerprint, form, DROPPED)
    return number


def abandon(connection: Connection) -> None:
    """Drops the generations that are being built."""
    connection.execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, BUILDING))


def make_active(connection: Connection, number: int, requested: str, *, rollback: bool) -> None:
    """Activates a generation. The generation of the previous version stays for a rollback.

    Other active or standby generations are dropped.

    Args:
        connection: A connection to either store.
        number: Number of the generation.
        requested: Id of the request.
        rollback: Whether this is a rollback. Later versions are then removed from the history, and the
            version that was active gets a verdict.
    """
    execute = connection.execute
    [version] = execute("SELECT version FROM generations WHERE number = ?", (number,)).fetchone()
    [left] = execute("SELECT version FROM generations WHERE state = ?", (ACTIVE,)).fetchone()
    execute("UPDATE generations SET state = ? WHERE state = ?", (STANDBY, ACTIVE))
    execute("UPDATE generations SET state = ? WHERE number = ?", (ACTIVE, number))
    execute("DELETE FROM verdicts WHERE version = ?", (version,))
    if rollback:
        judge(connection, left, Verdict(ROLLED_BACK, f"rolled back from, to {version}"), requested)
        sql = "DELETE FROM history WHERE position > (SELECT max(position) FROM history WHERE version = ?)"
        execute(sql, (version,))
    _remember(connection, version)
    back = previous(connection)
    execute(
        "UPDATE generations SET state = ? WHERE state = ? AND version <> ?", (DROPPED, STANDBY, back or "")
    )
    handled(connection, requested)


def judge(connection: Connection, version: str, verdict: Verdict, requested: str) -> None:
    """Stores why a version must not be chosen automatically again, and that the request was handled."""
    connection.execute(
        "INSERT INTO verdicts (version, state, reason) VALUES (?, ?, ?) "
        "ON CONFLICT (version) DO UPDATE SET state = excluded.state, reason = excluded.reason",
        (version, verdict.state, verdict.reason),
    )
    handled(connection, requested)


def verdicts(connection: Connection) -> dict[str, Verdict]:
    rows = connection.execute("SELECT version, state, reason FROM verdicts")
    return {version: Verdict(state, reason) for version, state, reason in rows}


def handled(connection: Connection, requested: str) -> None:
    """Stores the id of the last request that was carried out or failed.

    A request without an id is not stored.
    """
    if requested:
        note(connection, HANDLED, requested)


def remember_canary(connection: Connection, version: str, canary: Mapping[str, Any]) -> None:
    """Stores how a version's search results differ from those of the active version.

    Only KEPT_HISTORY comparisons stay: those of the latest versions, by the time in the version's name.
    """
    note(connection, COMPARED + version, orjson.dumps(canary).decode())
    connection.execute(
        f"DELETE FROM facts WHERE {_COMPARISON} AND name NOT IN "
        f"(SELECT name FROM facts WHERE {_COMPARISON} ORDER BY name DESC LIMIT ?)",
        (KEPT_HISTORY,),
    )


def canaries(connection: Connection) -> dict[str, Any]:
    """Returns the stored comparisons by version."""
    rows = connection.execute(f"SELECT name, value FROM facts WHERE {_COMPARISON}")
    return {name.removeprefix(COMPARED): orjson.loads(value) for name, value in rows}


def previous(connection: Connection, known: Container[str] | None = None) -> str | None:
    """Returns the version to roll back to, or None.

    This is the latest version in the history that has no verdict and is not active.

    Args:
        connection: A connection to either store.
        known: The versions that are still published. None if all versions count.
    """
    current, *before = fetch_column(connection, "SELECT version FROM history ORDER BY position DESC")
    judged = {current, *verdicts(connection)}
    kept = (name for name in before if name not in judged and (known is None or name in known))
    return next(kept, None)


def has_dropped(connection: Connection) -> bool:
    return fetch_value(connection, "SELECT 1 FROM generations WHERE state = ? LIMIT 1", DROPPED) is not None


def _remember(connection: Connection, version: str) -> None:
    """Appends a version to the history, unless it is the last entry. Keeps the last KEPT_HISTORY entries."""
    execute = connection.execute
    if fetch_value(connection, "SELECT version FROM history ORDER BY position DESC LIMIT 1") != version:
        execute("INSERT INTO history (version) VALUES (?)", (version,))
    execute(
        "DELETE FROM history WHERE position NOT IN "
        "(SELECT position FROM history ORDER BY position DESC LIMIT ?)",
        (KEPT_HISTORY,),
    )
