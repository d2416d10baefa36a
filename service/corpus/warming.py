"""Reads terms and field values in the background, before searches need them. Start at `keep_warm`.

    terms     by which misspelled words are corrected (store/vocabularies.py)
    columns   the values of declared fields, and of fields whose values were counted (store/sql/facets.py)

After a start and after writes, the first search that needs them would take seconds in a large collection.
"""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter

from service.errors import ServiceError
from service.store.protocol import DocumentStore, Snapshot

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0  # Between two looks for writes.
REST_SHARE = 20  # After a look, rests this many times as long as the look took.
MAX_COLLECTIONS = 20  # Only the largest ones.


async def keep_warm(store: DocumentStore, fields: Sequence[str], corrects: Callable[[str], bool]) -> None:
    """Reads new terms and values after each change of the store, one collection at a time, until canceled.

    Args:
        store: The document store.
        fields: The declared fields.
        corrects: Whether searches of a collection correct typos.
    """
    known: int | None = None
    is_done = False
    while True:
        began = time.monotonic()
        try:
            now = await store.search(lambda snapshot: snapshot.sequence())
            if now != known or not is_done:
                # Once more without a change, because PostgreSQL counts writes before their commit.
                is_done, known = now == known, now
                for name, _ in heapq.nlargest(MAX_COLLECTIONS, await store.collections(), itemgetter(1)):
                    work = partial(_read, collection=name, fields=fields, words=corrects(name))
                    await store.search(work, heavy=True)
        except ServiceError as error:  # The next look tries again, and searches read what they need.
            log.debug("Terms and values are not in memory: %s", error.message)
        await asyncio.sleep(max(LOOK_SECONDS, REST_SHARE * (time.monotonic() - began)))


def _read(snapshot: Snapshot, collection: str, fields: Sequence[str], *, words: bool) -> None:
    if words:
        snapshot.load_vocabulary(collection)
    snapshot.load_columns(fields, collection)
