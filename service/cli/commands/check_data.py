"""`python -m service check --data`: whether a data directory is sound, while a service runs or not.

A problem is what should not be, with what to do about it; a note is what mends itself. Nothing is changed.
"""

import sqlite3
from collections.abc import Iterator
from typing import NamedTuple

from models.errors import ModelError
from models.store import Store
from service.cli.commands.export import reading
from service.cli.commands.progress_bar import Progress
from service.errors import CommandError
from service.index.snapshots import damage
from service.settings import Settings
from service.store.documents import DEFAULT_COLLECTION, count_all, counts, sequence
from service.store.generations import ACTIVE, DROPPED
from service.store.schema import DATABASE
from service.store.secondary_indexes import unequal
from service.store.vectors import is_sound

_SHOWN = 5  # examples of one kind of problem
_RESTORE = "Restore a backup, or export what can be read and import it into a new directory."
_EXPORT = "Export the documents and import them into a new directory; please report it."
_ANEW = "They are embedded anew by the next start; check the disk."
# A document's id; of another collection than the default one behind its name.
_NAMED = f"iif(d.collection = '{DEFAULT_COLLECTION}', d.id, d.collection || '/' || d.id)"


class Found(NamedTuple):
    """A finding of the check."""

    text: str
    problem: bool = True


def run(settings: Settings) -> str:
    """Contents of the data directory, in words.

    Raises:
        CommandError: something is wrong; the message lists all of it.

    """
    path = settings.data_dir / DATABASE
    with reading(path) as connection:
        found = list(_look(connection, Store(settings.models_dir)))
        found += [
            Found(f"the index snapshot {one}. It is not used, and another is made; check the disk.")
            for one in damage(settings.snapshots_dir)
        ]
        facts, shares = _facts(connection), _shares(connection)
    lines = [f"{path}: {facts}", *shares]
    lines += [f"{'problem' if one.problem else 'note'}: {one.text}" for one in found]
    problems = sum(one.problem for one in found)
    if problems:
        raise CommandError("\n".join([*lines, f"{problems} problems."]))
    return "\n".join([*lines, "All is sound."])


def _facts(connection: sqlite3.Connection) -> str:
    [vectors] = connection.execute("SELECT count(*) FROM vectors").fetchone()
    [judgements] = connection.execute("SELECT count(*) FROM feedback").fetchone()
    return (
        f"{count_all(connection)} documents, {vectors} vectors, {judgements} judgements, operation "
        f"{sequence(connection)}"
    )


def _shares(connection: sqlite3.Connection) -> list[str]:
    """Contents of each collection, where there are several."""
    found = counts(connection)
    judged = dict(connection.execute("SELECT collection, count(*) FROM feedback GROUP BY collection"))
    lines = [f"{name}: {documents} documents, {judged.get(name, 0)} judgements" for name, documents in found]
    return lines if len(lines) > 1 else []


def _look(connection: sqlite3.Connection, store: Store) -> Iterator[Found]:
    wrong = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
    if wrong:  # what else would be said stands on sand
        yield Found(f"the file is damaged: {'; '.join(wrong[:_SHOWN])}. {_RESTORE}")
        return
    yield from _metadata(connection)
    yield from _generations(connection, store)
    yield from _vectors(connection)
    for one in unequal(connection):
        yield Found(f"{one}. {_EXPORT}")


def _metadata(connection: sqlite3.Connection) -> Iterator[Found]:
    ids = [
        row[0]
        for row in connection.execute(
            f"SELECT {_NAMED} FROM documents d "
            "WHERE NOT json_valid(metadata) OR json_type(metadata) <> 'object'"
        )
    ]
    if ids:
        yield Found(f"the metadata of {_some(ids)} is no JSON object. Send these documents again.")


def _generations(connection: sqlite3.Connection, store: Store) -> Iterator[Found]:
    rows = connection.execute(
        "SELECT number, version, fingerprint, state FROM generations WHERE state <> ? ORDER BY number",
        (DROPPED,),
    ).fetchall()
    if [row[3] for row in rows].count(ACTIVE) != 1:
        yield Found(f"not one generation is active, but {[row[3] for row in rows].count(ACTIVE)}. {_RESTORE}")
    for number, version, fingerprint, state in rows:
        try:
            manifest = store.verify(version)
        except ModelError as error:
            what = f"Put {version} back into {store.root}, or restore a backup made with --models."
            if state == ACTIVE:
                yield Found(f"the model in service cannot be opened: {error} {what}")
            else:
                yield Found(f"generation {number} ({state}) cannot be opened: {error}", problem=False)
            continue
        if manifest.fingerprint != fingerprint:
            yield Found(f"{version} is not the model that made its vectors: its fingerprint differs.")


def _vectors(connection: sqlite3.Connection) -> Iterator[Found]:
    """Each vector's checksum and size, and whether it is anyone's."""
    dimensions: dict[int, int] = dict(connection.execute("SELECT number, dimension FROM generations"))
    [total] = connection.execute("SELECT count(*) FROM vectors").fetchone()
    progress = Progress("vectors", total)
    damaged: list[str] = []
    lost = 0
    rows = connection.execute(
        f"SELECT v.generation, {_NAMED}, d.revision IS NULL, v.vector, v.checksum FROM vectors v "
        "LEFT JOIN documents d ON d.revision = v.revision"
    )
    for at, (generation, id, ownerless, blob, checksum) in enumerate(rows, 1):
        if ownerless or generation not in dimensions:
            lost += 1
        elif not is_sound(blob, checksum, dimensions[generation]):
            damaged.append(id)
        progress.tell(at, at)
    progress.end()
    if damaged:
        yield Found(f"the vectors of {_some(damaged)} are damaged. {_ANEW}")
    if lost:
        yield Found(f"{lost} vectors are of no document. They take room only; please report it.")
    [lacking] = connection.execute(
        "SELECT count(*) FROM documents d JOIN generations g ON g.state = ? WHERE NOT EXISTS "
        "(SELECT 1 FROM vectors v WHERE v.generation = g.number AND v.revision = d.revision)",
        (ACTIVE,),
    ).fetchone()
    if lacking:
        yield Found(f"{lacking} documents have no vector yet. The service embeds them.", problem=False)


def _some(ids: list[str]) -> str:
    distinct = list(dict.fromkeys(ids))
    more = f" and {len(distinct) - _SHOWN} more" if len(distinct) > _SHOWN else ""
    return ", ".join(f"{id[:80]!r}" for id in distinct[:_SHOWN]) + more
