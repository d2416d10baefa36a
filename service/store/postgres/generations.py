"""Manages generations in PostgreSQL: their tables, missing vectors, and the swaps of several replicas.

    ready here ─▶ called ─▶ all other living replicas are ready ─▶ one of them commits ─▶ all are notified
                              └─ after PATIENCE_SECONDS without the others

Start at `begin`, `take_lacking` and `make_active`. The table `lacking` lists exactly the documents that have
no vector of a generation. Transactions that add or remove vectors update the table. A cursor over revisions
would miss documents: of two concurrent writes, the write with the lower revision may be committed last.
A transaction that changes the state of a generation takes an exclusive lock. Work that depends on the states
takes the same lock in shared mode. A generation that is being built is dropped when no replica with a lease
has it as its candidate.

During writes, a few documents almost always have no vector of the candidate yet. So the transaction of the
swap embeds these documents while writes wait. A replica that was not ready still has the old generation. It
answers no searches until it has loaded the active generation. A swap does not wait for replicas without a
lease.
"""

import math
from collections.abc import Mapping, Sequence
from enum import Enum, auto

from models.manifest import Manifest
from models.search.content import Content
from service.errors import Conflict, StartupError
from service.store.postgres import replicas, vectors
from service.store.postgres.connection import Again, Connection
from service.store.postgres.replicas import LEASE_SECONDS, PATIENCE_SECONDS
from service.store.sql import generations, tokens
from service.store.sql.connection import fact, fetch_column, fetch_value
from service.store.sql.generations import (
    ACTIVE,
    BUILDING,
    DROPPED,
    HANDLED,
    IMPORTED,
    kept_numbers,
)
from service.store.sql.records import last_revision, unembedded
from service.store.values import Activation, Embedding, Lacking, Moved, Unembedded

LAST_DOCUMENTS = 64  # Maximum documents that a swap embeds, while writes wait.
TAKEN_SECONDS = 60  # Duration of a reservation. After that, another replica may embed the documents.
_LOCK = 7_405_812
_LEFT = (  # Generations that are being built, but are not the candidate of any replica.
    f"WHERE state = '{BUILDING}' AND NOT EXISTS "
    f"(SELECT 1 FROM replicas WHERE candidate = number AND {replicas.LIVING})"
)
# Documents that no other living replica has reserved. A reservation that ends too late is from before the
# clock was set back, and does not count.
_FREE = (
    "(taken_by = ? OR taken_until < now() "
    f"OR taken_until > now() + interval '{2 * TAKEN_SECONDS} seconds' OR NOT EXISTS "
    f"(SELECT 1 FROM replicas WHERE id = taken_by AND {replicas.LIVING}))"
)


def share_states(connection: Connection) -> None:
    """Prevents changes of the generations' states until the transaction ends.

    Several transactions can do this at the same time.
    """
    connection.execute("SELECT pg_advisory_xact_lock_shared(?)", (_LOCK,))


def hold_states(connection: Connection) -> None:
    """Prevents other transactions from writing documents, vectors and states until this transaction ends."""
    connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))


def activate(
    connection: Connection, replica: str, manifest: Manifest, form: str, *, examples: bool = False
) -> int:
    """Creates and activates a generation, like `activate` in sql/generations.py.

    Raises:
        StartupError: Other replicas are running, and may serve the generation that would be dropped.
    """
    hold_states(connection)
    if generations.active(connection) is not None and replicas.others(connection, replica):
        raise StartupError(
            f"{manifest.version} is active in a form that this machine cannot compute, and other "
            "replicas serve it. Give all of them the same SIMILE_PRECISION, one that each can compute."
        )
    number = generations.activate(connection, manifest, form, examples=examples)
    vectors.make(connection, number, manifest.dimension)
    vectors.make_index(connection, number, manifest.dimension)
    _list_lacking(connection, number)
    replicas.announce(connection)
    return number


def begin(connection: Connection, replica: str, manifest: Manifest, form: str) -> int:
    """Returns the number of the generation to build, and makes it the candidate of this replica.

    Other replicas keep their candidates. From now on, each write lists the documents that it leaves without
    a vector. Call `list_lacking` next for older documents. The vector index is built after the vectors.
    Writes wait only while a new generation is created.
    """
    number = generations.kept(connection, manifest, form)
    if number is None or generations.get_state(connection, number) == IMPORTED:
        hold_states(connection)
        number = generations.begun(connection, manifest, form)
        vectors.make(connection, number, manifest.dimension)
    else:
        share_states(connection)
        found = generations.kept(connection, manifest, form)
        if found is None:  # It was just dropped.
            raise Again
        number = found
    replicas.stand(connection, replica, number)
    connection.execute(  # The waiting time starts again unless another replica is already ready.
        "UPDATE generations SET called = NULL WHERE number = ? AND NOT EXISTS "
        f"(SELECT 1 FROM replicas WHERE candidate = number AND ready AND {replicas.LIVING})",
        (number,),
    )
    return number


def list_lacking(connection: Connection, number: int) -> None:
    """Lists the older documents that have no vector of a new generation. Only the first call does this.

    Writes do not wait for this. It sees all writes that were committed before the generation began. Later
    writes list their own documents.
    """
    connection.execute("SELECT pg_advisory_xact_lock(?, ?)", (_LOCK, number))
    if fetch_value(connection, "SELECT listed FROM generations WHERE number = ?", number) is False:
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
    """Removes the candidate of this replica. The generation is dropped if no other replica builds it."""
    replicas.stand(connection, replica, None)
    drop_left(connection)


def drop_left(connection: Connection) -> None:
    """Drops generations that are being built, but are no longer the candidate of any replica."""
    if connection.execute(f"SELECT 1 FROM generations {_LEFT} LIMIT 1").fetchone() is not None:
        hold_states(connection)
        connection.execute(f"UPDATE generations SET state = '{DROPPED}' {_LEFT}")


def require(connection: Connection, generation: int, *, kept: bool) -> None:
    """Checks that a generation may be searched, as `protocol.Snapshot.require` says."""
    sql = "SELECT state FROM generations WHERE number = ?"
    state = fetch_value(connection, sql, generation) or DROPPED
    if not kept and state != ACTIVE:
        raise Moved(generation)
    if state == DROPPED:
        raise Conflict("This version is not loaded any more. GET /models lists the versions.")


def lacking(connection: Connection, generation: int, after: int, limit: int) -> list[int]:
    """Returns the first revisions without a vector, in ascending order. Ignores `after`.

    Skipped revisions are not in the table `lacking`, so they are not returned.
    """
    sql = "SELECT revision FROM lacking WHERE generation = ? ORDER BY revision LIMIT ?"
    return fetch_column(connection, sql, generation, limit)


def take_lacking(
    connection: Connection, replica: str, generation: int, limit: int, max_bytes: int
) -> Lacking:
    """Reserves documents without a vector for `replica`, as `protocol.Generations.next_lacking` says.

    Documents that another replica has reserved are left out until the reservation or the replica's lease
    ends.
    """
    rows = connection.execute(
        "SELECT l.revision, d.collection, d.id, d.text, d.title FROM lacking l "
        f"JOIN documents d USING (revision) WHERE generation = ? AND {_FREE} "
        "ORDER BY l.revision LIMIT ? FOR UPDATE OF l SKIP LOCKED",
        (generation, replica, limit),
    )
    found: dict[int, Unembedded] = {}
    for revision, collection, id, text, title in rows:
        max_bytes -= len(text.encode()) + len(title.encode())
        if found and max_bytes < 0:
            break
        found[revision] = Unembedded(collection, id, Content(text, title))
    if not found:  # A document that was updated during the listing may have left its old revision.
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
    skipped, documents, held, left, follows = connection.execute(
        "SELECT (SELECT count(*) FROM skipped WHERE generation = number), "
        "(SELECT coalesce(sum(documents), 0) FROM tally)::bigint, "
        "(SELECT coalesce(sum(documents), 0) FROM sizes WHERE generation = number)::bigint, "
        "(SELECT count(*) FROM (SELECT 1 FROM lacking WHERE generation = number LIMIT ?) AS first_few), "
        f"state <> '{ACTIVE}' FROM generations WHERE number = ?",
        (LAST_DOCUMENTS + 1, generation),
    ).fetchone() or (0, 0, 0, 0, True)
    closing = follows and left <= LAST_DOCUMENTS
    if left > LAST_DOCUMENTS:  # The table may list all documents, so its rows are not counted.
        left = max(left, documents - held - skipped)
    return Lacking(found, last_revision(connection), skipped, left - len(found), closing)


def add_vectors(connection: Connection, generation: int, rows: Mapping[int, Embedding]) -> int:
    """Stores a builder's vectors for the revisions that still exist. Returns the number of revisions."""
    share_states(connection)
    if generation not in kept_numbers(connection):  # It was dropped in the meantime.
        return 0
    sql = "SELECT revision, collection FROM documents WHERE revision = ANY(?) ORDER BY revision FOR SHARE"
    alive = connection.execute(sql, ([*rows],)).fetchall()
    places: dict[str, dict[int, Embedding]] = {}
    for revision, collection in alive:
        places.setdefault(collection, {})[revision] = rows[revision]
    for collection, embeddings in places.items():
        vectors.add(connection, generation, collection, embeddings)
    return len(alive)


def add_tokens(connection: Connection, space: str, rows: Mapping[int, bytes]) -> None:
    """Stores token vectors for the revisions that still exist."""
    sql = "SELECT revision FROM documents WHERE revision = ANY(?) ORDER BY revision FOR SHARE"
    alive = fetch_column(connection, sql, [*rows])
    tokens.insert(connection, space, {revision: rows[revision] for revision in alive})


def share_vectors(connection: Connection, generation: int, revisions: Sequence[int]) -> set[int]:
    """Copies the vectors of `revisions` from other generations of the same model and form.

    Returns the revisions whose vectors were found.
    """
    found: dict[int, Embedding] = {}
    for other in generations.alike_numbers(connection, generation):
        found = vectors.stored(connection, other, revisions) | found
    add_vectors(connection, generation, found)
    return {*found}


def skip(connection: Connection, generation: int, revision: int, reason: str) -> None:
    """Records that a generation's model fails on a text. Does nothing if the text is not in `lacking`."""
    share_states(connection)
    gone = connection.execute(
        "DELETE FROM lacking WHERE generation = ? AND revision = ?", (generation, revision)
    ).rowcount
    if gone:
        sql = "INSERT INTO skipped (generation, revision, reason) VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
        connection.execute(sql, (generation, revision, reason))


def forget_skipped(connection: Connection, generation: int) -> None:
    """Deletes the records of skipped texts, and lists the texts in `lacking` again."""
    share_states(connection)
    connection.execute(
        "WITH gone AS (DELETE FROM skipped WHERE generation = ? RETURNING revision) "
        "INSERT INTO lacking (generation, revision) SELECT ?, revision FROM gone ON CONFLICT DO NOTHING",
        (generation, generation),
    )


def purge(connection: Connection) -> bool:
    """Deletes the data of a dropped generation that no replica serves. Returns False if none exists.

    The first call deletes only the generation's rows in `lacking` and `skipped`, which may be a million. So
    it takes only the lock of this generation. The next call drops the generation's table of vectors.
    """
    sql = (
        "SELECT number FROM generations WHERE state = ? AND NOT EXISTS "
        f"(SELECT 1 FROM replicas WHERE number IN (serves, candidate) AND {replicas.LIVING}) "
        "AND pg_try_advisory_xact_lock(?, number::int) LIMIT 1"  # Skips a generation that is being listed.
    )
    number = fetch_value(connection, sql, DROPPED, _LOCK)
    if number is None:
        return False
    gone = 0
    for table in ("lacking", "skipped"):
        gone += connection.execute(f"DELETE FROM {table} WHERE generation = ?", (number,)).rowcount
    if not gone:
        connection.execute("SET LOCAL lock_timeout = '1s'")  # A search may be reading the table.
        connection.execute(f"DROP TABLE IF EXISTS {vectors.table(number)}")
        connection.execute("DELETE FROM sizes WHERE generation = ?", (number,))
        connection.execute("DELETE FROM generations WHERE number = ?", (number,))
    replicas.forget(connection)
    return True


LAST_CHARACTERS = 1 << 20  # Maximum characters of the texts that a swap embeds.
_SWAP_LOCK = 7_405_816


class Answer(Enum):
    """Tells a replica that is ready if it may commit a swap."""

    ACTIVATED = auto()  # Another replica has committed the swap.
    LACKS = auto()  # Too many vectors are missing, or the vector index, or this replica must not swap.
    WAIT = auto()  # Another replica is not ready, or the request has changed.
    NOW = auto()  # This replica may commit the swap. From `make_active`: it has committed.


def roll_call(connection: Connection, replica: str, swap: Activation) -> Answer:
    """Records this replica as ready for a swap, if it is ready. Returns whether it may commit the swap."""
    generation = swap.generation
    row = connection.execute(
        "SELECT state, version, listed AND NOT EXISTS "
        "(SELECT 1 FROM lacking WHERE generation = number OFFSET ?) FROM generations WHERE number = ?",
        (LAST_DOCUMENTS, generation),
    ).fetchone()
    if row is None or row[0] == DROPPED:
        return Answer.WAIT
    state, version, nearly = row
    if state == ACTIVE:
        return Answer.ACTIVATED
    if not nearly or not vectors.is_indexed(connection, generation):
        return Answer.LACKS
    active = generations.active(connection)
    other_form = active is not None and active.version == version
    if not (other_form or _is_requested(connection, version, swap.requested)):
        return Answer.WAIT
    replicas.stand(connection, replica, generation, ready=True)
    sql = "UPDATE generations SET called = least(called, now()) WHERE number = ? "
    sql += "RETURNING extract(epoch FROM now() - called)::float8"
    waited = fetch_value(connection, sql, generation) or 0.0
    patience = math.inf if other_form else LEASE_SECONDS if swap.rollback else PATIENCE_SECONDS
    if waited < patience and replicas.not_ready(connection, replica, generation):
        return Answer.WAIT
    return Answer.NOW


def _is_requested(connection: Connection, version: str, requested: str) -> bool:
    """Returns True if the request for a version still has to be carried out.

    Another version may have been requested since then, or the request may have failed on another replica.
    """
    found = replicas.request(connection)
    if found is not None and found.standing.version != version:
        return False
    judged = version in generations.verdicts(connection)
    return not judged or (requested != "" and fact(connection, HANDLED) != requested)


def make_active(connection: Connection, replica: str, swap: Activation) -> Answer:
    """Activates a generation in one transaction, if `swap.may` and `roll_call` allow it.

    First embeds the last few documents with `swap.last`. Returns `Answer.NOW` if this replica activated the
    generation.
    """
    generation = swap.generation
    # Another replica may be committing the swap.
    if not fetch_value(connection, "SELECT pg_try_advisory_xact_lock(?)", _SWAP_LOCK):
        return Answer.WAIT
    hold_states(connection)
    if not swap.may():
        return Answer.LACKS
    answer = roll_call(connection, replica, swap)
    if answer is not Answer.NOW:
        return answer
    missing = unembedded(connection, lacking(connection, generation, 0, LAST_DOCUMENTS))
    if missing:
        if sum(len(each.content.whole) for each in missing.values()) > LAST_CHARACTERS:
            return Answer.LACKS
        embedded = swap.last(missing)
        if embedded is None:
            return Answer.LACKS
        add_vectors(connection, generation, embedded)
    # No write is in progress, so the remaining rows belong to deleted documents.
    connection.execute("DELETE FROM lacking WHERE generation = ?", (generation,))
    generations.make_active(connection, generation, swap.requested, rollback=swap.rollback)
    replicas.announce(connection)
    return Answer.NOW
