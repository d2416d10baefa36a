"""Deletes documents in one job. The service deletes them in steps."""

from service.store.filters.grammar import Predicate
from service.store.sqlite.documents import sequence
from service.store.sqlite.filters import matching
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import delete_some
from service.store.values import DEFAULT_COLLECTION


def delete(
    transaction: Transaction, where: Predicate, collection: str = DEFAULT_COLLECTION
) -> tuple[int, int]:
    """Deletes matching documents. Returns their number and the operation sequence."""
    revisions = matching(transaction.connection, where, collection).tolist()
    for revision in revisions:
        delete_some(transaction, [revision], collection)
    return len(revisions), sequence(transaction.connection)
