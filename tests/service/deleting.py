"""Documents deleted in one job; the service deletes them in steps."""

from service.store.documents import sequence
from service.store.filters.planner import matching
from service.store.filters.predicate import Predicate
from service.store.values import DEFAULT_COLLECTION
from service.store.writer import Transaction
from service.store.writes import delete_some


def delete(
    transaction: Transaction, where: Predicate, collection: str = DEFAULT_COLLECTION
) -> tuple[int, int]:
    """Delete what passes `where`. Returns how many there were, and the operation sequence."""
    revisions = matching(transaction.connection, where, collection).tolist()
    for revision in revisions:
        delete_some(transaction, [revision], collection)
    return len(revisions), sequence(transaction.connection)
