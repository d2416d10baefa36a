"""Generations in PostgreSQL: their tables, what each lacks, and how one comes to live.

`lacking` lists exactly the documents without a vector, in the transactions that make and mend it. A cursor
over revisions would not do: of two writes at once the lower revision may be committed last.

A change of a generation's state holds a lock alone, and whatever depends on the states shares it. A
generation that is being built stays for as long as a replica with a lease has it for its candidate.
"""

from collections.abc import Mapping, Sequence

from models.manifest import Manifest
from models.search.content import Content
from service.errors import Conflict, StartupError
from service.store.postgres import replicas, vectors
from service.store.postgres.connection import Connection
from service.store.postgres.errors import Again
from service.store.sql import generations
from service.store.sql.generations import ACTIVE, BUILDING, DROPPED, kept_numbers
from service.store.sql.records import last_revision
from service.store.values import Embedding, Lacking, Moved, Unembedded

LAST_DOCUMENTS = 64  # that a swap embeds at most, while writes wait for it
TAKEN_SECONDS = 60  # that a replica may take to embed a step; then another one takes it
_LOCK = 7_405_812
_LEFT = (  # being built, and no replica's candidate
    f"WHERE state = '{BUILDING}' AND NOT EXISTS "
    f"(SELECT 1 FROM replicas WHERE candidate = number AND {replicas.LIVING})"
)
_FREE = (  # nobody is at it, or the database's clock was set back since
    "(taken_by = ? OR taken_until < now() "
    f"OR taken_until > now() + interval '{2 * TAKEN_SECONDS} seconds' OR NOT EXISTS "
    f"(SELECT 1 FROM replicas WHERE id = taken_by AND {replicas.LIVING}))"
)


def share_states(connection: Connection) -> None:
    """Until the transaction ends no generation changes its state."""
    connection.execute("SELECT pg_advisory_xact_lock_shared(?)", (_LOCK,))


def hold_states(connection: Connection) -> None:
    """Until the transaction ends no other one writes documents or vectors, or changes a state."""
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))


def activate(
    connection: Connection, replica: str, manifest: Manifest, form: str, *, examples: bool = False
) -> int:
    """As generations.activate.

    Raises:
        StartupError: another replica serves what would be dropped.

    """
    hold_states(connection)
    if generations.active(connection) is not None and replicas.others(connection, replica):
        raise StartupError(
            f"{manifest.version} is in service in a form that this machine cannot compute, and other "
            "replicas serve it. Give all of them the same SIMILE_PRECISION, one that each can compute."
        )
    number = generations.activate(connection, manifest, form, examples=examples)
    vectors.make(connection, number, manifest.dimension)
    vectors.make_index(connection, number, manifest.dimension)
    _list_lacking(connection, number)
    replicas.announce(connection)
    return number


def begin(connection: Connection, replica: str, manifest: Manifest, form: str) -> int:
    """As generations.begin, for a candidate of this replica; that of another one stays.

    What is written from now on lists its own gaps; `list_lacking` is due. Its index is built when its
    vectors are there (vectors.build_index). Writes are held up only for a
    generation that is new: one that another replica has begun, or that is kept, is there.
    """
    if generations.kept(connection, manifest, form) is None:
        hold_states(connection)
        number = generations.begun(connection, manifest, form)
        vectors.make(connection, number, manifest.dimension)
    else:
        share_states(connection)
        found = generations.kept(connection, manifest, form)
        if found is None:  # dropped just now
            raise Again
        number = found
    replicas.stand(connection, replica, number)
    connection.execute(  # nobody waits from now on who does not wait already
        "UPDATE generations SET called = NULL WHERE number = ? AND NOT EXISTS "
        f"(SELECT 1 FROM replicas WHERE candidate = number AND ready AND {replicas.LIVING})",
        (number,),
    )
    return number


def list_lacking(connection: Connection, number: int) -> None:
    """List what a generation that has begun lacks of the documents from before; once, by one replica.

    No write waits for it: those from before it began are seen here, later ones list themselves.
    """
    connection.execute("SELECT pg_advisory_xact_lock(?, ?)", (_LOCK, number))
    row = connection.execute("SELECT listed FROM generations WHERE number = ?", (number,)).fetchone()
    if row is not None and not row[0]:
        _list_lacking(connection, number)


def _list_lacking(connection: Connection, number: int) -> None:
    connection.take_time()
    connection.execute(
        "INSERT INTO lacking (generation, revision) SELECT ?, revision FROM documents d WHERE NOT EXISTS "
        f"(SELECT 1 FROM {vectors.table(number)} v WHERE v.revision = d.revision) ON CONFLICT DO NOTHING",
        (number,),
    )
    connection.execute("UPDATE generations SET listed = TRUE WHERE number = ?", (number,))


def abandon(connection: Connection, replica: str) -> None:
    """Give up the candidate of this replica; it is dropped unless another one has it, too."""
    replicas.stand(connection, replica, None)
    drop_left(connection)


def drop_left(connection: Connection) -> None:
    """Drop what was being built and is no replica's candidate any more."""
    if connection.execute(f"SELECT 1 FROM generations {_LEFT} LIMIT 1").fetchone() is not None:
        hold_states(connection)
        connection.execute(f"UPDATE generations SET state = '{DROPPED}' {_LEFT}")


def require(connection: Connection, generation: int, *, kept: bool) -> None:
    """Refuse to search a generation that another replica has retired.

    kept: it was asked for by name, and need not be the live one.

    Raises:
        Moved: another one is live.
        Conflict: it was dropped.

    """
    row = connection.execute("SELECT state FROM generations WHERE number = ?", (generation,)).fetchone()
    state = DROPPED if row is None else row[0]
    if not kept and state != ACTIVE:
        raise Moved(generation)
    if state == DROPPED:
        raise Conflict("This version is not kept warm any more. GET /models lists the versions.")


def lacking(connection: Connection, generation: int, after: int, limit: int) -> list[int]:
    """The first revisions that have no vector of `generation` and were not skipped, rising.

    All of them, whatever was seen before: `after` is of a store whose revisions are committed in their order.
    """
    rows = connection.execute(
        "SELECT revision FROM lacking WHERE generation = ? ORDER BY revision LIMIT ?", (generation, limit)
    )
    return [revision for (revision,) in rows]


def take_lacking(
    connection: Connection, replica: str, generation: int, limit: int, most_bytes: int
) -> Lacking:
    """Take some documents that a generation lacks, for `replica` to embed; within both bounds, or one.

    What another replica has taken is passed by until its time is over, or its lease.
    """
    rows = connection.execute(
        "SELECT l.revision, d.collection, d.id, d.text, d.title FROM lacking l "
        f"JOIN documents d USING (revision) WHERE generation = ? AND {_FREE} "
        "ORDER BY l.revision LIMIT ? FOR UPDATE OF l SKIP LOCKED",
        (generation, replica, limit),
    )
    found: dict[int, Unembedded] = {}
    for revision, collection, id, text, title in rows:
        most_bytes -= len(text.encode()) + len(title.encode())
        if found and most_bytes < 0:
            break
        found[revision] = Unembedded(collection, id, Content(text, title))
    if not found:  # an update amid the listing has left the revision that it replaced
        connection.execute(
            "DELETE FROM lacking l WHERE generation = ? "
            "AND NOT EXISTS (SELECT 1 FROM documents d WHERE d.revision = l.revision)",
            (generation,),
        )
    connection.execute(
        "UPDATE lacking SET taken_by = ?, taken_until = now() + make_interval(secs => ?) "
        "WHERE generation = ? AND revision = ANY(?)",
        (replica, TAKEN_SECONDS, generation, [*found]),
    )
    row = connection.execute(
        "SELECT (SELECT count(*) FROM skipped WHERE generation = number), "
        "(SELECT coalesce(sum(documents), 0) FROM tally)::bigint, "
        "(SELECT coalesce(sum(documents), 0) FROM sizes WHERE generation = number)::bigint, "
        "(SELECT count(*) FROM (SELECT 1 FROM lacking WHERE generation = number LIMIT ?) AS first_few), "
        f"state <> '{ACTIVE}' FROM generations WHERE number = ?",
        (LAST_DOCUMENTS + 1, generation),
    ).fetchone()
    skipped, documents, held, left, follows = row or (0, 0, 0, 0, True)
    closing = follows and left <= LAST_DOCUMENTS
    if left > LAST_DOCUMENTS:  # it may have a row for each document there is, so they are not counted
        left = max(left, documents - held - skipped)
    return Lacking(found, last_revision(connection), skipped, left - len(found), closing)


def last_lacking(connection: Connection, generation: int) -> dict[int, Unembedded]:
    """All documents that a generation lacks, for a swap that holds the states."""
    rows = connection.execute(
        "SELECT revision, d.collection, d.id, d.text, d.title FROM lacking JOIN documents d USING (revision) "
        "WHERE generation = ?",
        (generation,),
    )
    return {
        revision: Unembedded(collection, id, Content(text, title))
        for revision, collection, id, text, title in rows
    }


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
    """Drop the tables of one generation that was dropped and that no replica serves; whether there was one.

    What it lacked goes first, without a lock: that may be a million rows.
    """
    row = connection.execute(
        "SELECT number FROM generations WHERE state = ? AND NOT EXISTS "
        f"(SELECT 1 FROM replicas WHERE number IN (serves, candidate) AND {replicas.LIVING}) "
        "AND pg_try_advisory_xact_lock(?, number::int) LIMIT 1",  # else it is being listed
        (DROPPED, _LOCK),
    ).fetchone()
    if row is None:
        return False
    [number] = row
    gone = 0
    for table in ("lacking", "skipped"):
        gone += connection.execute(f"DELETE FROM {table} WHERE generation = ?", (number,)).rowcount
    if not gone:
        connection.execute("SET LOCAL lock_timeout = '1s'")  # a search may be reading it
        connection.execute(f"DROP TABLE IF EXISTS {vectors.table(number)}")
        connection.execute("DELETE FROM sizes WHERE generation = ?", (number,))
        connection.execute("DELETE FROM generations WHERE number = ?", (number,))
    replicas.forget(connection)
    return True
