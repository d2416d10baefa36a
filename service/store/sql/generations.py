"""Generations in the store, and how another one comes to live: rows, and jobs for the writer.

    building ──▶ active ──▶ standby ──▶ dropped ──▶ (gone)        standby ──▶ active again: a rollback
        └──────────────────────────────────▲

A generation's row names the model version that made its vectors. `history` lists the versions in the order
in which they came to live; `verdicts` those that are not chosen again by themselves. How far a generation is
needs no cursor of its own: a document that lacks a vector of it is still to be embedded, and revisions only
grow, so a builder goes on from the last one it has seen.
"""

from collections.abc import Container, Mapping
from typing import Any

import orjson

from models.manifest import Manifest
from service.store.sql.connection import Connection, fact, note
from service.store.values import ROLLED_BACK, Active, Known, Verdict

ACTIVE, BUILDING, STANDBY, DROPPED = "active", "building", "standby", "dropped"
HANDLED = "handled wish"  # the fact that names the last wish that was carried out or failed
COMPARED = "canary of "  # with a version: the fact that holds how alike it answered
_COMPARISON = f"substr(name, 1, {len(COMPARED)}) = '{COMPARED}'"
EXAMPLES, WANTED, LOADED = "examples", "wanted", "loaded"  # the fact, and its two values
KEPT_HISTORY = 100


def known(connection: Connection, published: Container[str]) -> Known:
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


def active(connection: Connection) -> Active | None:
    """The generation in service; None before the first start."""
    row = connection.execute(
        "SELECT number, version, fingerprint, form FROM generations WHERE state = ?", (ACTIVE,)
    ).fetchone()
    return None if row is None else Active(*row)


def live_number(connection: Connection) -> int:
    """The generation that every write must have a vector of."""
    row = connection.execute("SELECT number FROM generations WHERE state = ?", (ACTIVE,)).fetchone()
    return int(row[0])


def kept_numbers(connection: Connection) -> set[int]:
    """The generations whose vectors are stored."""
    rows = connection.execute("SELECT number FROM generations WHERE state <> ?", (DROPPED,))
    return {row[0] for row in rows}


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
    """The number of the generation that a start serves: the first one, or the same version in another form.

    It has no vectors yet. examples: the example corpus is asked for.
    """
    execute = connection.execute
    execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, ACTIVE))
    if examples:
        note(connection, EXAMPLES, WANTED)
    return insert(connection, manifest, form, ACTIVE)


def examples_wanted(connection: Connection) -> bool:
    """True where the store was made for the example corpus and does not have it yet."""
    return fact(connection, EXAMPLES) == WANTED


def examples_loaded(connection: Connection) -> None:
    note(connection, EXAMPLES, LOADED)


def begin(connection: Connection, manifest: Manifest, form: str) -> int:
    """The generation to build for a version: the one begun or kept before, else a new one.

    One that is kept for a rollback stays `standby` meanwhile, so that giving up does not drop it. Any other
    that was being built is dropped: the newest wish wins.
    """
    number = begun(connection, manifest, form)
    connection.execute(
        "UPDATE generations SET state = ? WHERE state = ? AND number <> ?", (DROPPED, BUILDING, number)
    )
    return number


def begun(connection: Connection, manifest: Manifest, form: str) -> int:
    """The generation of a version and a form, made where there is none that is kept."""
    number = kept(connection, manifest, form)
    return insert(connection, manifest, form, BUILDING) if number is None else number


def kept(connection: Connection, manifest: Manifest, form: str) -> int | None:
    """The generation of a version and a form whose vectors are stored; None where there is none."""
    row = connection.execute(
        "SELECT number FROM generations "
        "WHERE version = ? AND fingerprint = ? AND form = ? AND state <> ? ORDER BY number DESC LIMIT 1",
        (manifest.version, manifest.fingerprint, form, DROPPED),
    ).fetchone()
    return None if row is None else int(row[0])


def abandon(connection: Connection) -> None:
    """Drop the generations that were being built."""
    connection.execute("UPDATE generations SET state = ? WHERE state = ?", (DROPPED, BUILDING))


def go_live(connection: Connection, number: int, desired: str, *, rollback: bool) -> None:
    """Make `number` the active generation, and the one that was active the one to go back to.

    Args:
        desired: the id of the wish that this carries out.
        rollback: the version is gone back to: what came after it leaves the history, and the version that
            was live is not chosen again by itself.

    """
    execute = connection.execute
    [version] = execute("SELECT version FROM generations WHERE number = ?", (number,)).fetchone()
    [left] = execute("SELECT version FROM generations WHERE state = ?", (ACTIVE,)).fetchone()
    execute("UPDATE generations SET state = ? WHERE state = ?", (STANDBY, ACTIVE))
    execute("UPDATE generations SET state = ? WHERE number = ?", (ACTIVE, number))
    execute("DELETE FROM verdicts WHERE version = ?", (version,))
    if rollback:
        judge(connection, left, Verdict(ROLLED_BACK, f"rolled back from, to {version}"), desired)
        execute(
            "DELETE FROM history WHERE position > (SELECT max(position) FROM history WHERE version = ?)",
            (version,),
        )
    _remember(connection, version)
    back = previous(connection)
    execute(
        "UPDATE generations SET state = ? WHERE state = ? AND version <> ?", (DROPPED, STANDBY, back or "")
    )
    handled(connection, desired)


def judge(connection: Connection, version: str, verdict: Verdict, desired: str) -> None:
    """Keep `version` from being chosen by itself."""
    connection.execute(
        "INSERT INTO verdicts (version, state, reason) VALUES (?, ?, ?) "
        "ON CONFLICT (version) DO UPDATE SET state = excluded.state, reason = excluded.reason",
        (version, verdict.state, verdict.reason),
    )
    handled(connection, desired)


def verdicts(connection: Connection) -> dict[str, Verdict]:
    rows = connection.execute("SELECT version, state, reason FROM verdicts")
    return {version: Verdict(state, reason) for version, state, reason in rows}


def handled(connection: Connection, desired: str) -> None:
    """Remember the last decision that was carried out; a mere wish by who writes `wanted` alone has no id."""
    if desired:
        note(connection, HANDLED, desired)


def remember_canary(connection: Connection, version: str, canary: Mapping[str, Any]) -> None:
    """Keep how alike `version` answered; of versions long ago it is forgotten, by the time in their names."""
    note(connection, COMPARED + version, orjson.dumps(canary).decode())
    connection.execute(
        f"DELETE FROM facts WHERE {_COMPARISON} AND name NOT IN "
        f"(SELECT name FROM facts WHERE {_COMPARISON} ORDER BY name DESC LIMIT ?)",
        (KEPT_HISTORY,),
    )


def canaries(connection: Connection) -> dict[str, Any]:
    """Overlaps of versions' answers, each with the one that was live then."""
    rows = connection.execute(f"SELECT name, value FROM facts WHERE {_COMPARISON}")
    return {name.removeprefix(COMPARED): orjson.loads(value) for name, value in rows}


def previous(connection: Connection, known: Container[str] | None = None) -> str | None:
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


def has_dropped(connection: Connection) -> bool:
    sql = "SELECT 1 FROM generations WHERE state = ? LIMIT 1"
    return connection.execute(sql, (DROPPED,)).fetchone() is not None


def _remember(connection: Connection, version: str) -> None:
    """Append to the history, unless it is its last entry already (a rollback has cut it back to there)."""
    execute = connection.execute
    last = execute("SELECT version FROM history ORDER BY position DESC LIMIT 1").fetchone()
    if last is None or last[0] != version:
        execute("INSERT INTO history (version) VALUES (?)", (version,))
    execute(
        "DELETE FROM history WHERE position NOT IN "
        "(SELECT position FROM history ORDER BY position DESC LIMIT ?)",
        (KEPT_HISTORY,),
    )
