"""Generations in PostgreSQL: their tables, what each lacks, and how one comes to live.

`lacking` lists exactly the documents without a vector, in the transactions that make and mend it. A cursor
over revisions would not do: of two writes at once the lower revision may be committed last.

A change of a generation's state holds a lock alone, and whatever depends on the states shares it.
"""

from collections.abc import Callable, Mapping, Sequence

from models.manifest import Manifest
from models.search.content import Content
from service.store import generations
from service.store.generations import DROPPED, kept_numbers
from service.store.postgres import vectors
from service.store.postgres.connection import Connection
from service.store.postgres.documents import last_revision
from service.store.values import Embedding, Lacking, Unembedded

TAKEN_SECONDS = 60  # that a process may take to embed a step; then another one takes it
_LOCK = 7_405_812


def share_states(connection: Connection) -> None:
    """Until the transaction ends no generation changes its state."""
    connection.execute("SELECT pg_advisory_xact_lock_shared(?)", (_LOCK,))


def hold_states(connection: Connection) -> None:
    """Until the transaction ends no other one writes documents or vectors, or changes a state."""
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))


def activate(connection: Connection, manifest: Manifest, form: str, *, examples: bool = False) -> int:
    hold_states(connection)
    number = generations.activate(connection, manifest, form, examples=examples)
    vectors.make(connection, number, manifest.dimension)
    vectors.make_index(connection, number, manifest.dimension)
    _list_lacking(connection, number)
    return number


def begin(connection: Connection, manifest: Manifest, form: str) -> int:
    """As generations.begin. What is written from now on lists its own gaps; `list_lacking` is due.

    Its index is built when its vectors are there (vectors.build_index).
    """
    hold_states(connection)
    number = generations.begin(connection, manifest, form)
    vectors.make(connection, number, manifest.dimension)
    return number


def list_lacking(connection: Connection, number: int) -> None:
    """List what a generation that has begun lacks of the documents from before; once."""
    row = connection.execute("SELECT listed FROM generations WHERE number = ?", (number,)).fetchone()
    if row is not None and not row[0]:
        share_states(connection)
        _list_lacking(connection, number)


def _list_lacking(connection: Connection, number: int) -> None:
    connection.take_time()
    connection.execute(
        "INSERT INTO lacking (generation, revision) SELECT ?, revision FROM documents d WHERE NOT EXISTS "
        f"(SELECT 1 FROM {vectors.table(number)} v WHERE v.revision = d.revision) ON CONFLICT DO NOTHING",
        (number,),
    )
    connection.execute("UPDATE generations SET listed = TRUE WHERE number = ?", (number,))


def abandon(connection: Connection) -> None:
    hold_states(connection)
    generations.abandon(connection)


def go_live(
    connection: Connection,
    generation: int,
    desired: str,
    *,
    rollback: bool,
    may: Callable[[], bool],
) -> bool:
    """Make a generation live unless a document lacks a vector of it, or it `may` not."""
    hold_states(connection)
    if not may() or not _is_whole(connection, generation):
        return False
    generations.go_live(connection, generation, desired, rollback=rollback)
    return True


def _is_whole(connection: Connection, generation: int) -> bool:
    row = connection.execute(
        "SELECT listed AND NOT EXISTS (SELECT 1 FROM lacking WHERE generation = number) "
        "FROM generations WHERE number = ?",
        (generation,),
    ).fetchone()
    return row is not None and bool(row[0]) and vectors.is_indexed(connection, generation)


def lacking(connection: Connection, generation: int, after: int, limit: int) -> list[int]:
    """The first revisions that have no vector of `generation` and were not skipped, rising.

    All of them, whatever was seen before: `after` is of a store whose revisions are committed in their order.
    """
    rows = connection.execute(
        "SELECT revision FROM lacking WHERE generation = ? ORDER BY revision LIMIT ?", (generation, limit)
    )
    return [revision for (revision,) in rows]


def take_lacking(
    connection: Connection, process: str, generation: int, limit: int, most_bytes: int
) -> Lacking:
    """Take some documents that a generation lacks, for `process` to embed; within both bounds, or one.

    What another process has taken is passed by until its time is over.
    """
    rows = connection.execute(
        "SELECT l.revision, d.collection, d.id, d.text, d.title FROM lacking l "
        "JOIN documents d USING (revision) WHERE generation = ? AND (taken_by = ? OR taken_until < now()) "
        "ORDER BY l.revision LIMIT ? FOR UPDATE OF l SKIP LOCKED",
        (generation, process, limit),
    )
    found: dict[int, Unembedded] = {}
    for revision, collection, id, text, title in rows:
        most_bytes -= len(text.encode()) + len(title.encode())
        if found and most_bytes < 0:
            break
        found[revision] = Unembedded(collection, id, Content(text, title))
    connection.execute(
        "UPDATE lacking SET taken_by = ?, taken_until = now() + make_interval(secs => ?) "
        "WHERE generation = ? AND revision = ANY(?)",
        (process, TAKEN_SECONDS, generation, [*found]),
    )
    row = connection.execute(
        "SELECT (SELECT count(*) FROM skipped WHERE generation = ?), "
        "(SELECT coalesce(sum(documents), 0) FROM tally)::bigint, "
        "(SELECT coalesce(sum(documents), 0) FROM sizes WHERE generation = ?)::bigint, "
        "EXISTS (SELECT 1 FROM lacking WHERE generation = ?)",
        (generation,) * 3,
    ).fetchone()
    skipped, documents, held, lacks = row or (0, 0, 0, False)
    # Not counted in `lacking`, which may have a row for each document there is.
    elsewhere = max(documents - held - skipped - len(found), 0 if found else 1) if lacks else 0
    return Lacking(found, last_revision(connection), skipped, elsewhere)


def add_vectors(connection: Connection, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Store a builder's vectors for those of its revisions that still live. Returns how many."""
    share_states(connection)
    if generation not in kept_numbers(connection):  # dropped while they were made
        return 0
    alive = connection.execute(
        "SELECT revision, collection FROM documents WHERE revision = ANY(?) ORDER BY revision FOR SHARE",
        ([*rows],),
    ).fetchall()
    places: dict[str, dict[int, Embedding]] = {}
    for revision, collection in alive:
        places.setdefault(collection, {})[revision] = rows[revision]
    for collection, embeddings in places.items():
        vectors.add(connection, generation, collection, embeddings)
    return len(alive)


def share_vectors(connection: Connection, generation: int, revisions: Sequence[int]) -> set[int]:
    """Take vectors over that another generation of the same model and form has. Returns their revisions."""
    others = connection.execute(
        "SELECT other.number FROM generations g JOIN generations other USING (fingerprint, form) "
        "WHERE g.number = ? AND other.number <> g.number AND other.state <> ?",
        (generation, DROPPED),
    ).fetchall()
    found: dict[int, Embedding] = {}
    for (other,) in others:
        found = vectors.stored(connection, other, revisions) | found
    add_vectors(connection, generation, found)
    return {*found}


def skip(connection: Connection, generation: int, revision: int, reason: str) -> None:
    """Note that a generation's model fails on a text, if it still lives."""
    share_states(connection)
    gone = connection.execute(
        "DELETE FROM lacking WHERE generation = ? AND revision = ?", (generation, revision)
    ).rowcount
    if gone:
        connection.execute(
            "INSERT INTO skipped (generation, revision, reason) VALUES (?, ?, ?) ON CONFLICT DO NOTHING",
            (generation, revision, reason),
        )


def forget_skipped(connection: Connection, generation: int) -> None:
    """Before a generation is made whole: texts that were skipped get a new chance."""
    share_states(connection)
    connection.execute(
        "WITH gone AS (DELETE FROM skipped WHERE generation = ? RETURNING revision) "
        "INSERT INTO lacking (generation, revision) SELECT ?, revision FROM gone ON CONFLICT DO NOTHING",
        (generation, generation),
    )


def purge(connection: Connection) -> bool:
    """Drop the tables of one generation that was dropped; whether there was one."""
    hold_states(connection)
    row = connection.execute("SELECT number FROM generations WHERE state = ? LIMIT 1", (DROPPED,)).fetchone()
    if row is None:
        return False
    [number] = row
    connection.execute("SET LOCAL lock_timeout = '1s'")  # a search may be reading it
    connection.execute(f"DROP TABLE IF EXISTS {vectors.table(number)}")
    for table in ("lacking", "skipped", "sizes"):
        connection.execute(f"DELETE FROM {table} WHERE generation = ?", (number,))
    connection.execute("DELETE FROM generations WHERE number = ?", (number,))
    return True
