"""A swap on several replicas: the roll call before it, and the transaction that makes a generation live.

While documents are written there is hardly a moment at which a candidate lacks none: of each write its part
comes a little later. So the transaction embeds the last few itself, while writes wait for it.

    ready here ─▶ called ─▶ the others that live are ready, too ─▶ one of them commits ─▶ all hear of it
                              └─ after PATIENCE_SECONDS without them: they are left behind

A replica that is left behind has another generation than the live one, and answers nothing before it has that
one, too. Nobody waits for a replica without a lease.
"""

import math
from collections.abc import Callable, Mapping
from enum import Enum, auto

from service.store.postgres import replicas, vectors
from service.store.postgres.connection import Connection
from service.store.postgres.generations import LAST_DOCUMENTS, add_vectors, hold_states, last_lacking
from service.store.postgres.replicas import LEASE_SECONDS, PATIENCE_SECONDS
from service.store.sql import generations
from service.store.sql.connection import fact
from service.store.sql.generations import ACTIVE, DROPPED, HANDLED
from service.store.values import Embedding, Unembedded

LAST_BYTES = 1 << 20  # of the texts of the last few
_LOCK = 7_405_816

Last = Callable[[Mapping[int, Unembedded]], Mapping[int, Embedding] | None]


class Answer(Enum):
    """The answer to a replica that is ready to go over to a generation."""

    LIVE = auto()  # another replica has committed the swap
    LACKS = auto()  # documents, or the generation is not to go live here
    WAIT = auto()  # for another replica, or for who looks at what is wanted
    NOW = auto()


def call(connection: Connection, replica: str, generation: int, desired: str, *, rollback: bool) -> Answer:
    """Say that this replica is ready, and ask whether a swap can be committed.

    desired: the id of the wish that is carried out.
    """
    row = connection.execute(
        "SELECT state, version, listed AND NOT EXISTS "
        "(SELECT 1 FROM lacking WHERE generation = number OFFSET ?) FROM generations WHERE number = ?",
        (LAST_DOCUMENTS, generation),
    ).fetchone()
    if row is None or row[0] == DROPPED:
        return Answer.WAIT
    state, version, nearly = row
    if state == ACTIVE:
        return Answer.LIVE
    if not nearly or not vectors.is_indexed(connection, generation):
        return Answer.LACKS
    active = generations.active(connection)
    other_form = active is not None and active.version == version
    if not (other_form or _is_wanted(connection, version, desired)):
        return Answer.WAIT
    replicas.stand(connection, replica, generation, ready=True)
    [waited] = connection.execute(
        "UPDATE generations SET called = least(called, now()) WHERE number = ? "
        "RETURNING extract(epoch FROM now() - called)::float8",
        (generation,),
    ).fetchone() or (0.0,)
    patience = math.inf if other_form else LEASE_SECONDS if rollback else PATIENCE_SECONDS
    if waited < patience and replicas.not_ready(connection, replica, generation):
        return Answer.WAIT
    return Answer.NOW


def _is_wanted(connection: Connection, version: str, desired: str) -> bool:
    """Whether the wish still stands: it may have changed, or failed elsewhere, since this replica read it."""
    found = replicas.request(connection)
    if found is not None and found.standing.version != version:
        return False
    judged = version in generations.verdicts(connection)
    return not judged or (desired != "" and fact(connection, HANDLED) != desired)


def go_live(
    connection: Connection,
    replica: str,
    generation: int,
    desired: str,
    *,
    rollback: bool,
    may: Callable[[], bool],
    last: Last,
) -> Answer:
    """Make a generation live if it `may` and the roll call still says so, in one transaction.

    last: embeds what it lacks, within a moment, or returns None.
    """
    [alone] = connection.execute("SELECT pg_try_advisory_xact_lock(?)", (_LOCK,)).fetchone() or (False,)
    if not alone:  # another replica is at it
        return Answer.WAIT
    hold_states(connection)
    if not may():
        return Answer.LACKS
    answer = call(connection, replica, generation, desired, rollback=rollback)
    if answer is not Answer.NOW:
        return answer
    lacking = last_lacking(connection, generation)
    if lacking:
        if sum(len(each.content.whole) for each in lacking.values()) > LAST_BYTES:
            return Answer.LACKS
        embedded = last(lacking)
        if embedded is None:
            return Answer.LACKS
        add_vectors(connection, generation, embedded)
    # No write is under way, so what is listed still is of documents that are gone.
    connection.execute("DELETE FROM lacking WHERE generation = ?", (generation,))
    generations.go_live(connection, generation, desired, rollback=rollback)
    replicas.announce(connection)
    return Answer.NOW
