"""Equal texts cost one forward pass: recent texts have their vectors here, texts in flight their items.

    text ──▶ key ──▶ Cache: its vector           ──▶ answered without a worker
               └───▶ InFlight: its item          ──▶ waits with those that asked before
               └───▶ a new item                  ──▶ the scheduler

A key is a keyed hash of the text, its encoder and the options that change its vector. So no text stays in
memory, and no client can look for two texts with equal keys. Everything here belongs to the event loop, under
no lock.
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

from models.encoder import Encoder
from service.batching.request import URGENCY, EmbedCall, Item, Lane, Source
from service.batching.scheduler import Scheduler
from service.batching.tokenizing import estimate
from service.errors import ServiceError
from service.observability.metrics import Metrics

PROTECTED_SHARE = 0.8  # of the bytes, for texts that were asked for more than once
CHARACTERS_PER_TOKEN = 64  # a text with more than so many for each token of the maximum has no key
KEY_BYTES = 16
# An entry's objects and its share of the tables, beside the vector: so much that a full cache of 64 MiB is
# 64 MiB of the process.
ENTRY_BYTES = 416


class Entry(NamedTuple):
    """A vector, and what else an answer says of its text."""

    vector: bytes  # float32
    tokens: int
    truncated: bool
    space: int

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self.vector) + ENTRY_BYTES


class KeySpace:
    """Keys of the texts of one encoder: one fingerprint in one form."""

    def __init__(self, number: int, encoder: Encoder, secret: bytes) -> None:
        self.number = number
        self._longest = CHARACTERS_PER_TOKEN * encoder.max_length
        self._hashes = {
            options: hashlib.blake2b(f"{number} {options} ".encode(), digest_size=KEY_BYTES, key=secret)
            for options in product((False, True), repeat=4)
        }

    def text_keys(self, call: EmbedCall, inputs: Sequence[Source]) -> list[bytes | None]:
        """A key for each of `inputs`; None for one that is too long to be looked up."""
        options = (call.normalize, call.truncate, call.left)
        of_texts, of_ids = self._hashes[True, *options], self._hashes[False, *options]
        keys: list[bytes | None] = []
        for source in inputs:
            if len(source) > self._longest:
                keys.append(None)
                continue
            if isinstance(source, str):
                named, content = of_texts.copy(), source
            else:
                named, content = of_ids.copy(), repr(source)
            # Half of a surrogate pair is refused by the tokenizer, which says where it is.
            named.update(content.encode("utf-8", "surrogatepass"))
            keys.append(named.digest())
        return keys


class Cache:
    """At most `limit_bytes` of vectors, keys and tables included.

    A segmented LRU. A text that was asked for once is on probation; asked for again it is protected, in at
    most four fifths of the room. The least recently used leaves first, of those on probation before the
    others. So a corpus that is embedded once, text by text, does not drive out what is asked for again and
    again.
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self.limit_bytes = limit_bytes
        self.nbytes = 0
        self._evictions = metrics.cache_evictions
        self._secret = os.urandom(32)
        self._spaces: dict[Encoder, KeySpace] = {}
        self._opened = 0  # spaces that there ever were: a number is not used twice
        self._probation: OrderedDict[bytes, Entry] = OrderedDict()
        self._protected: OrderedDict[bytes, Entry] = OrderedDict()
        self._protected_bytes = 0
        metrics.cache_bytes.set_function(lambda: self.nbytes)

    def __len__(self) -> int:
        """Vectors that it holds."""
        return len(self._probation) + len(self._protected)

    def space(self, encoder: Encoder) -> KeySpace:
        """The keys of `encoder`, which the caller has borrowed, until it is forgotten."""
        space = self._spaces.get(encoder)
        if space is None:
            self._opened += 1
            space = self._spaces[encoder] = KeySpace(self._opened, encoder, self._secret)
        return space

    def find(self, key: bytes) -> Entry | None:
        """The entry, which is protected from now on."""
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
        """The vector of `item`, unless its encoder has closed."""
        space, key = self._spaces.get(item.call.encoder), item.key
        if space is None or key is None or key in self._probation or key in self._protected:
            return
        entry = Entry(vector, len(item.ids), item.truncated, space.number)
        self._probation[key] = entry
        self.nbytes += entry.nbytes
        evicted = 0
        while self.nbytes > self.limit_bytes:
            part = self._probation or self._protected
            self._drop(part, next(iter(part)))
            evicted += 1
        if evicted:
            self._evictions.inc(evicted)

    def forget(self, encoder: Encoder) -> None:
        """The encoder has closed: its entries go, and none comes any more."""
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
    """The items that wait or are computed, each for all calls that ask for its text meanwhile.

    All waiters have borrowed the item's encoder, so it stays open whichever of them leaves. A call that
    leaves takes along the items that no other call waits for; the others keep its turns.
    """

    def __init__(self, cache: Cache | None, scheduler: Scheduler) -> None:
        self._cache = cache
        self._scheduler = scheduler
        self._items: dict[bytes, Item] = {}

    def look_up(
        self, call: EmbedCall, inputs: Sequence[Source], *, bypass_cache: bool
    ) -> tuple[list[Item], list[tuple[Item, int]]]:
        """Fill the rows of `call` that the cache has. Of the others: new items, and items to join with the
        rows that they will fill. Nothing waits yet.
        """
        space = None if self._cache is None or bypass_cache else self._cache.space(call.encoder)
        cache = self._cache if space is not None and call.lane is Lane.INTERACTIVE else None
        new: list[Item] = []
        joined: list[tuple[Item, int]] = []
        begun: dict[bytes, Item] = {}  # new ones: an equal text may follow in the same call
        keys = [None] * len(inputs) if space is None else space.text_keys(call, inputs)
        for position, (source, key) in enumerate(zip(inputs, keys, strict=True)):
            if key is not None:
                entry = None if cache is None else cache.find(key)
                if entry is not None:
                    vector = np.frombuffer(entry.vector, np.float32)
                    _fill(call, position, vector, entry.tokens, entry.truncated)
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
        """Let `call` wait for new items, which the scheduler has, and for those of others.

        A call takes an item that it joins into its own lane, if that is the more urgent one.
        """
        for item in new:
            call.items.append(item)
            if item.key is not None:
                self._items[item.key] = item
        for item, position in joined:
            call.items.append(item)
            item.waiters.append((call, position))
            if call.lane is Lane.INTERACTIVE:
                item.is_kept = True
            if URGENCY.index(call.lane) < URGENCY.index(item.call.lane):
                self._scheduler.promote(item, call)

    def leave(self, call: EmbedCall) -> None:
        """`call` waits no longer."""
        unwanted = []
        for item in call.items:
            item.waiters = [waiter for waiter in item.waiters if waiter[0] is not call]
            if not item.waiters:
                item.cancelled = True
                self._remove(item)
                unwanted.append(item)
        self._scheduler.discard(unwanted)

    def complete(
        self, items: Sequence[Item], vectors: NDArray[np.float32], started: float, seconds: float
    ) -> None:
        """`items` have their vectors, from a forward pass that `started` then and took so many seconds."""
        for item, vector in zip(items, vectors, strict=True):
            self._remove(item)
            if item.is_kept and self._cache is not None:
                self._cache.keep(item, vector.tobytes())
            for call, position in item.waiters:
                _fill(call, position, vector, len(item.ids), item.truncated)
                before = started - call.arrived  # below 0: it came in the middle of the forward pass
                call.tokenize_seconds += item.tokenize_seconds
                call.wait_seconds += max(0.0, before)
                call.inference_seconds += max(0.0, seconds + min(0.0, before))
                if not call.missing and not call.future.done():  # the client may have left meanwhile
                    call.future.set_result(None)
            item.waiters = []

    def fail(self, items: Iterable[Item], error_at: Callable[[int], ServiceError]) -> None:
        """`items` have failed, and with them every call that waits for one.

        error_at: the error, for a row of a call.
        """
        for item in items:
            self._remove(item)
            for call, position in item.waiters:
                if not call.future.done():
                    call.future.set_exception(error_at(position))
            item.waiters = []

    def _remove(self, item: Item) -> None:
        """No call joins `item` from now on."""
        if item.key is not None and self._items.get(item.key) is item:
            del self._items[item.key]


def _fill(call: EmbedCall, position: int, vector: NDArray[np.float32], tokens: int, truncated: bool) -> None:
    """A row of a call's answer."""
    call.vectors[position] = vector
    call.tokens[position] = tokens
    call.truncated[position] = truncated
    call.missing -= 1
