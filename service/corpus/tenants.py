"""Keeps the writes of a key within its scope: stamps its filter, and holds its quotas. Start at `Tenants`.

A quota is checked before documents are embedded. Each scope has an upper bound of what it holds: the last
count, plus all writes since then as if every document were new. Only if the bound exceeds the quota, or is
old, the store counts again, together with what the writes in progress replace. So the keys of one scope never
exceed a quota in one process. Replicas count before each write, and can exceed a quota by the writes that are
in progress on the others. Writes of overlapping scopes count after COUNTED_SECONDS.
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


@dataclass(frozen=True, eq=False)
class _Write:
    """A write in progress."""

    collection: str
    ids: Sequence[str]
    size: Usage


@dataclass
class _Bound:
    """An upper bound of what a scope holds: `counted`, and `since`, `in_flight` writes."""

    counted: Usage = NOTHING
    since: Usage = NOTHING
    in_flight: set[_Write] = field(default_factory=set)
    counted_at: float = -inf
    counting: asyncio.Lock = field(default_factory=asyncio.Lock)
    creating: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def total(self) -> Usage:
        total = self.counted.plus(self.since)
        for write in self.in_flight:
            total = total.plus(write.size)
        return total


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
        """Holds room for documents, and for a new collection, while they are written.

        Raises:
            Conflict: The documents, or the collection, would exceed a quota of the scope.
        """
        async with self._room_for_collection(scope, collection), self._room(scope, documents, collection):
            yield

    @asynccontextmanager
    async def _room_for_collection(self, scope: KeyScope | None, collection: str) -> AsyncIterator[None]:
        if scope is None or scope.max_collections is None or await self._store.has_collection(collection):
            yield
            return
        # The next new collection waits until this one is stored, and counts it.
        async with self._bounds[scope.tenant].creating:
            names = [*filter(scope.allows, await self._store.collection_names())]
            if collection not in names and len(names) >= scope.max_collections:
                raise Conflict(
                    f"With the collection {collection!r} the key would have more than its quota: "
                    f"{scope.max_collections} collections. Delete one, or ask for a larger quota."
                )
            yield

    @asynccontextmanager
    async def _room(
        self, scope: KeyScope | None, documents: Sequence[Document], collection: str
    ) -> AsyncIterator[None]:
        if scope is None or scope.max_documents is scope.max_bytes is None:
            yield
            return
        size = Usage(len(documents), sum(map(_count_bytes, documents)))
        write = _Write(collection, [document.id for document in documents], size)
        bound = self._bounds[scope.tenant]
        async with bound.counting:  # Every write waits for a count, so that its own room is counted once.
            await self._check(scope, bound, write)
            bound.in_flight.add(write)
        try:
            yield
        finally:  # A write that failed may have been stored. The next count corrects the bound.
            bound.in_flight.remove(write)
            bound.since = bound.since.plus(size)

    async def _check(self, scope: KeyScope, bound: _Bound, write: _Write) -> None:
        is_old = self._store.others > 0 or clock() > bound.counted_at + COUNTED_SECONDS
        if not is_old and not _exceeds(bound.total.plus(write.size), scope):
            return
        where, others = build_bounds(self._store, scope), [*bound.in_flight]
        # Before the state of the store that is counted. A count that fails or is canceled is repeated.
        bound.since, bound.counted_at, started = NOTHING, -inf, clock()
        writes = [(each.collection, each.ids) for each in (write, *others)]
        bound.counted, (replaced, *theirs) = await self._store.measure(scope.allows, where, writes)
        bound.counted_at = started
        total = bound.counted.plus(write.size).minus(replaced)
        for other, held in zip(others, theirs, strict=True):
            total = total.plus(other.size.beyond(held))  # It may fail, so what it makes smaller is no room.
        if _exceeds(total, scope):
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
