"""Events of searches in PostgreSQL, where other connections delete documents meanwhile."""

from collections.abc import Sequence

from service.store import events
from service.store.postgres.connection import Connection
from service.store.postgres.writer import in_turn
from service.store.values import Event, EventLimits, Recorded


def store(connection: Connection, given: Sequence[Event], limits: EventLimits) -> Recorded:
    """As events.store: whoever deletes one of their documents waits until they are stored, and finds them."""
    rows = connection.execute(
        "SELECT id FROM documents WHERE collection = ? AND id = ANY(?) ORDER BY id FOR KEY SHARE",
        (given[0].collection, [event.id for event in given]),
    )
    return in_turn(events.store)(connection, given, limits, {id for (id,) in rows})
