"""Computes equal texts once. Start reading at `InFlight.look_up`.

    text ──▶ key ──▶ Cache: its vector           ──▶ answered without a worker
               └───▶ InFlight: its item          ──▶ waits together with earlier calls
               └───▶ a new item                  ──▶ the scheduler

A key is a keyed hash of the text, its encoder and the options that change its vector. The cache stores no
texts, and clients cannot search for colliding keys. Everything here runs on the event loop, without a lock.
"""

import hashlib
import os
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.open_version import OpenVersion
from models.tokens.pairs import Pair
from service.batching.request import FIRST, URGENCY, EmbedCall, Item, Source, estimate, measure
from service.batching.scheduler import Scheduler
from service.errors import ServiceError
from service.observability.metrics import Metrics

PROTECTED_SHARE = 0.8  # of the bytes, for texts that were requested more than once
CHARACTERS_PER_TOKEN = 64  # Texts with more characters per token of the model's maximum have no key.
KEY_BYTES = 16
# Bytes of an entry without its vector. With this value a full cache of 64 MiB uses 64 MiB of the process.
ENTRY_BYTES = 424


class Entry(NamedTuple):
    vector: bytes  # float32
    tokens: int
    truncated: bool
    unknown: int
    space: int

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self.vector) + ENTRY_BYTES


class KeySpace:
    def __init__(self, number: int, encoder: OpenVersion, secret: bytes) -> None:
        self.number = number
        self._longest = CHARACTERS_PER_TOKEN * encoder.max_length
        self._hashes = {
            options: hashlib.blake2b(f"{number} {options} ".encode(), digest_size=KEY_BYTES, key=secret)
            for options in product(("text", "ids", "pair"), *[(False, True)] * 3)
        }

    def text_keys(self, call: EmbedCall, inputs: Sequence[Source]) -> list[bytes | None]:
        """Returns a key for each input, or None for an input that is too long for the cache."""
        options = (call.normalize, call.truncate, call.left)
        of_texts, of_ids, of_pairs = (self._hashes[kind, *options] for kind in ("text", "ids", "pair"))
        of_query, query = of_pairs, ""
        keys: list[bytes | None] = []
        for source in inputs:
            if measure(source) > self._longest:
                keys.append(None)
                continue
            if isinstance(source, str):
                named, content = of_texts.copy(), source
            elif isinstance(source, Pair):
                if of_query is of_pairs or source.query is not query:  # Usually all pairs have one query.
                    of_query, query = of_pairs.copy(), source.query
                    of_query.update(f"{len(query)} {query}".encode("utf-8", "surrogatepass"))
                named, content = of_query.copy(), source.text
            else:
                named, content = of_ids.copy(), repr(source)
            # The tokenizer rejects half of a surrogate pair later, with its position.
            named.update(content.encode("utf-8", "surrogatepass"))
            keys.append(named.digest())
        return keys


class Cache:
    """A segmented LRU cache of at most `limit_bytes`, keys and tables included.

    A text starts on probation, and its second request protects it. Protected texts use at most
    PROTECTED_SHARE of the bytes. Texts on probation are evicted first, least recently used first. So a
    corpus that is embedded once does not displace frequent texts.
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._evictions = metrics.cache_evictions
        self._secret = os.urandom(32)
        self._spaces: dict[OpenVersion, KeySpace] = {}
        self._opened = 0  # Key spaces so far. Their numbers are never reused.
        self._probation: OrderedDict[bytes, Entry] = OrderedDict()
        self._protected: OrderedDict[bytes, Entry] = OrderedDict()
        self._protected_bytes = 0
        metrics.cache_bytes.set_function(lambda: self.nbytes)

    def __len__(self) -> int:
        return len(self._probation) + len(self._protected)

    def space(self, encoder: OpenVersion) -> KeySpace:
        """Returns the key space of `encoder`, which the caller must have borrowed."""
        space = self._spaces.get(encoder)
        if space is None:
            self._opened += 1
            space = self._spaces[encoder] = KeySpace(self._opened, encoder, self._secret)
        return space

    def find(self, key: bytes) -> Entry | None:
        """Returns the entry of a key and protects it, or returns None."""
        entry = self._protected.get(key)
        if entry is not None:
            self._protected.move_to_end(key)
            return entry
        entry = self._probation.pop(key, None)
        if entry is not None:
            self._protected[key] = entry
            self._protected_bytes += entry.nbytes
            while self._protected_bytes > PROTECTED_SHARE * self.limit_bytes:
                oldest, left = self._protected.popitem(last=False)
                self._protected_bytes -= left.nbytes
                self._probation[oldest] = left
        return entry

    def keep(self, item: Item, vector: bytes) -> None:
        """Stores the vector of `item`, unless its encoder has closed."""
        space, key = self._spaces.get(item.call.encoder), item.key
        if space is None or key is None or key in self._probation or key in self._protected:
            return
        entry = Entry(vector, len(item.ids), item.truncated, item.unknown, space.number)
        self._probation[key] = entry
        self.nbytes += entry.nbytes
        evicted = 0
        while self.nbytes > self.limit_bytes:
            part = self._probation or self._protected
            self._drop(part, next(iter(part)))
            evicted += 1
        if evicted:
            self._evictions.inc(evicted)

    def forget(self, encoder: OpenVersion) -> None:
        space = self._spaces.pop(encoder, None)
        if space is None:
            return
        for part in (self._protected, self._probation):
            for key in [key for key, entry in part.items() if entry.space == space.number]:
                self._drop(part, key)

    def _drop(self, part: OrderedDict[bytes, Entry], key: bytes) -> None:
        entry = part.pop(key)
        self.nbytes -= entry.nbytes
        if part is self._protected:
            self._protected_bytes -= entry.nbytes


class InFlight:
    """Pending and running items, each shared by all calls that wait for its text.

    Every waiting call has borrowed the item's encoder, so the encoder stays open when one of them leaves. An
    item is dropped when its last call leaves.
    """

    def __init__(self, cache: Cache | None, scheduler: Scheduler) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._items: dict[bytes, Item] = {}

    def look_up(
        self, call: EmbedCall, inputs: Sequence[Source], *, bypass_cache: bool
    ) -> tuple[list[Item], list[tuple[Item, int]]]:
        """Fills the rows of `call` that the cache has. Queues nothing yet.

        Returns:
            New items, and items that the call joins, each with the row that the item will fill.

        """
        space = None if self._cache is None or bypass_cache else self._cache.space(call.encoder)
        cache = self._cache if space is not None and call.lane in FIRST else None
        new: list[Item] = []
        joined: list[tuple[Item, int]] = []
        begun: dict[bytes, Item] = {}  # New items, because a call may contain equal texts.
        keys = [None] * len(inputs) if space is None else space.text_keys(call, inputs)
        for position, (source, key) in enumerate(zip(inputs, keys, strict=True)):
            if key is not None:
                entry = None if cache is None else cache.find(key)
                if entry is not None:
                    vector = np.frombuffer(entry.vector, np.float32)
                    _fill(call, position, vector, entry.tokens, entry.truncated, entry.unknown)
                    continue
                item = self._items.get(key) or begun.get(key)
                if item is not None:
                    joined.append((item, position))
                    continue
            cost = estimate(source, call.encoder)
            item = Item(call, source, cost, [(call, position)], key, is_kept=cache is not None)
            new.append(item)
            if key is not None:
                begun[key] = item
        return new, joined

    def add(self, call: EmbedCall, new: list[Item], joined: list[tuple[Item, int]]) -> None:
        """Makes `call` wait for its new items and for items that it joins.

        A joined item moves to the lane of `call` if that is more urgent.
        """
        for item in new:
            call.items.append(item)
            if item.key is not None:
                self._items[item.key] = item
        for item, position in joined:
            call.items.append(item)
            item.waiters.append((call, position))
            if call.lane in FIRST:
                item.is_kept = True
            if URGENCY.index(call.lane) < URGENCY.index(item.call.lane):
                self._scheduler.promote(item, call)

    def leave(self, call: EmbedCall) -> None:
        """Removes `call` from its items, and drops the items for which no other call waits."""
        unneeded = []
        for item in call.items:
            item.waiters = [waiter for waiter in item.waiters if waiter[0] is not call]
            if not item.waiters:
                item.cancelled = True
                self._remove(item)
                unneeded.append(item)
        self._scheduler.discard(unneeded)

    def complete(
        self, items: Sequence[Item], vectors: NDArray[np.float32], started: float, seconds: float
    ) -> None:
        """Hands the vectors of a forward pass to the calls that wait for `items`.

        The pass began at `started` by `time.monotonic()` and took `seconds`.
        """
        for item, vector in zip(items, vectors, strict=True):
            self._remove(item)
            if item.is_kept and self._cache is not None:
                self._cache.keep(item, vector.tobytes())
            for call, position in item.waiters:
                _fill(call, position, vector, len(item.ids), item.truncated, item.unknown)
                before = started - call.arrived  # Negative if the call joined during the forward pass.
                call.tokenize_seconds += item.tokenize_seconds
                call.wait_seconds += max(0.0, before)
                call.inference_seconds += max(0.0, seconds + min(0.0, before))
                if not call.missing and not call.future.done():  # It is done if the client disconnected.
                    call.future.set_result(None)
            item.waiters = []

    def fail(self, items: Iterable[Item], error_at: Callable[[int], ServiceError]) -> None:
        """Fails every call that waits for one of `items`. `error_at` returns the error for a row."""
        for item in items:
            self._remove(item)
            for call, position in item.waiters:
                if call.partial:
                    call.fault = error_at(position)
                    call.missing -= 1
                    if not call.missing and not call.future.done():
                        call.future.set_result(None)
                elif not call.future.done():
                    call.future.set_exception(error_at(position))
            item.waiters = []

    def _remove(self, item: Item) -> None:
        if item.key is not None and self._items.get(item.key) is item:
            del self._items[item.key]


def _fill(
    call: EmbedCall, position: int, vector: NDArray[np.float32], tokens: int, truncated: bool, unknown: int
) -> None:
    call.vectors[position] = vector
    call.tokens[position] = tokens
    call.truncated[position] = truncated
    call.unknown[position] = unknown
    call.missing -= 1
