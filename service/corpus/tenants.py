"""Keeps the writes of a key within its scope: stamps its filter, and holds its quotas. Start at `Tenants`.

A quota is checked before documents are embedded. Each scope has an upper bound of what it holds: the last
count, plus all writes since then as if every document were new. Only if the bound exceeds the quota, or is
old, the store counts again. So one process never exceeds a quota. Replicas count before each write, and can
exceed a quota by the writes that are in progress on the others.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from math import inf

import orjson

from service.auth.key_scope import KeyScope, Scalar
from service.errors import Conflict, Validation
from service.store.filters.grammar import Predicate
from service.store.protocol import DocumentStore
from service.store.values import Document, Usage

clock = time.monotonic
COUNTED_SECONDS = 10.0  # A count is renewed after this time.
NOTHING = Usage(0, 0)


@dataclass
class _Bound:
    """An upper bound of what a scope holds: `counted`, and `since`, `in_flight` writes."""

    counted: Usage = NOTHING
    since: Usage = NOTHING
    in_flight: Usage = NOTHING
    counted_at: float = -inf
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def total(self) -> Usage:
        return self.counted.plus(self.since).plus(self.in_flight)


class Tenants:
    """Stamps and counts the documents of keys with a scope.

    Args:
        store: The document store.
    """

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._bounds: defaultdict[str, _Bound] = defaultdict(_Bound)

    @asynccontextmanager
    async def reserved(
        self, scope: KeyScope | None, documents: Sequence[Document], collection: str
    ) -> AsyncIterator[None]:
        """Holds room for documents while they are written.

        Raises:
            Conflict: The documents would exceed a quota of the scope.
        """
        if scope is None or scope.max_documents is scope.max_bytes is None:
            yield
            return
        size = Usage(len(documents), sum(map(_count_bytes, documents)))
        bound = self._bounds[scope.tenant]
        async with bound.counting:  # Every write waits for a count, so that its own room is counted once.
            await self._check(scope, bound, size, documents, collection)
            bound.in_flight = bound.in_flight.plus(size)
        try:
            yield
        finally:  # A write that failed may have been stored. The next count corrects the bound.
            bound.in_flight = bound.in_flight.minus(size)
            bound.since = bound.since.plus(size)

    async def _check(
        self, scope: KeyScope, bound: _Bound, size: Usage, documents: Sequence[Document], collection: str
    ) -> None:
        is_old = self._store.others > 0 or clock() > bound.counted_at + COUNTED_SECONDS
        if not is_old and not _exceeds(bound.total.plus(size), scope):
            return
        where = build_bounds(self._store, scope)
        bound.since, bound.counted_at = NOTHING, clock()  # Before the state of the store that is counted.
        bound.counted = await self._store.measure(scope.allows, where)
        total = bound.total.plus(size)
        if not _exceeds(total, scope):
            return
        # Documents that are replaced give their room back.
        ids = [document.id for document in documents]
        if _exceeds(total.minus(await self._store.measure(collection.__eq__, where, ids)), scope):
            held = bound.counted
            raise Conflict(
                f"With these documents the key would have more than its quota: {_describe(scope)}. It has "
                f"{held.documents} documents with {held.bytes} bytes. Nothing of this was stored; delete "
                "some documents, or ask for a larger quota."
            )


def build_bounds(store: DocumentStore, scope: KeyScope | None) -> Predicate | None:
    """Returns the condition of the documents that exist for a scope, or None for all documents."""
    return store.filter(scope.conditions) if scope is not None and scope.filter else None


def stamp(scope: KeyScope, documents: Sequence[Document]) -> list[Document]:
    """Returns documents with the filter of a scope in their metadata.

    Raises:
        Validation: A document has another value.
    """
    return [_stamp(document, scope.filter) for document in documents]


def _stamp(document: Document, conditions: Sequence[tuple[str, Scalar]]) -> Document:
    metadata = orjson.loads(document.metadata_json)
    missing = {}
    for name, value in conditions:
        if name not in metadata:
            missing[name] = value
        elif isinstance(metadata[name], bool) != isinstance(value, bool) or metadata[name] != value:
            raise Validation(
                f"The document {document.id[:80]!r} must have metadata.{name} = "
                f"{orjson.dumps(value).decode()}, the value of the key's filter. Leave the field out, and it "
                "is added."
            )
    if not missing:
        return document
    # The rest of the text stays, because numbers may have digits that Python would not write again.
    added = orjson.dumps(missing)[1:-1].decode()
    rest = document.metadata_json[1:]
    return replace(document, metadata_json=f"{{{added}{rest if rest == '}' else ',' + rest}")


def _count_bytes(document: Document) -> int:
    return sum(len(part.encode()) for part in (document.title, document.text, document.metadata_json))


def _exceeds(usage: Usage, scope: KeyScope) -> bool:
    limits = (scope.max_documents, usage.documents), (scope.max_bytes, usage.bytes)
    return any(limit is not None and used > limit for limit, used in limits)


def _describe(scope: KeyScope) -> str:
    limits = (scope.max_documents, "documents"), (scope.max_bytes, "bytes")
    return " and ".join(f"{limit} {noun}" for limit, noun in limits if limit is not None)
