"""Vectors of what was asked for lately: what comes again costs no forward pass.

    text ──▶ its name ──┐
                        ├──▶ entry: a vector and how many tokens it was made of
    ids  ──▶ its name ──┘

Looked up twice: by the text before it is tokenised, on the event loop and in microseconds; then by the final
token ids, for texts that differ and have the same tokens. A name is a keyed hash that holds the encoder and
whether the vector is normalised, so nobody's words stay in memory and nobody can look for two equal names. An
encoder is one fingerprint in one form; its entries go when it closes.

Two parts. What was asked for once is on trial; asked for again it stays, in at most four fifths of the room.
What leaves is the least recently used, of those on trial first. So a whole corpus that is embedded once, text
by text, does not drive out what is asked for again and again, as it would from one list by use.
Not here: equal texts that are computed at this moment (coalescing.py).
"""

import hashlib
import os
import sys
import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from models.encoder import Encoder
from service.batching.request import Source
from service.observability.metrics import Metrics

STAYING_SHARE = 0.8  # of the bytes, for what was asked for more than once
SPELLINGS = 4  # texts of one entry that are known by their text; the others are found by their ids
CHARACTERS_PER_TOKEN = 8  # a text with more than so many for each token of the maximum is not looked up
NAME_BYTES = 16
CLEARED_AT_ONCE = 256
# What an entry and a spelling take beside the vector, objects and their shares of the tables: so much that a
# full cache of 64 MiB is 64 MiB of the process (0.99 to 1.01 at 384 and 768 dimensions, 0.88 at 32).
ENTRY_BYTES = 416
SPELLING_BYTES = 224


class Entry(NamedTuple):
    """One vector. `spellings` are the names of texts that it is found by."""

    vector: bytes  # float32
    tokens: int
    space: int
    spellings: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        return sys.getsizeof(self.vector) + ENTRY_BYTES + SPELLING_BYTES * len(self.spellings)


class Computed(NamedTuple):
    """What a forward pass gave: the name of its ids, its vector, and the texts that it is the vector of."""

    name: bytes
    vector: bytes
    tokens: int
    spellings: tuple[bytes, ...]


class _Space:
    """How the texts and ids of one encoder are named."""

    def __init__(self, number: int, longest: int, key: bytes) -> None:
        self.number = number
        self.longest = longest  # characters of a text
        self._hashes = {
            (kind, normalize): hashlib.blake2b(
                f"{number} {normalize} ".encode(), digest_size=NAME_BYTES, key=key, person=kind
            )
            for kind in (b"text", b"ids")
            for normalize in (False, True)
        }

    def name(self, kind: bytes, content: bytes, normalize: bool) -> bytes:
        named = self._hashes[kind, normalize].copy()
        named.update(content)
        return named.digest()


class Cache:
    """At most `limit_bytes`, names and tables included. Thread safe."""

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self.limit_bytes = limit_bytes
        self._evictions = metrics.cache_evictions
        self._key = os.urandom(32)
        self._lock = threading.Lock()
        self._spaces: dict[Encoder, _Space] = {}
        self._opened = 0  # spaces that there ever were: a number is not used twice
        self._texts: dict[bytes, bytes] = {}  # name of a text to that of its ids
        self._on_trial: OrderedDict[bytes, Entry] = OrderedDict()
        self._staying: OrderedDict[bytes, Entry] = OrderedDict()
        self._staying_bytes = 0
        self.nbytes = 0
        metrics.cache_bytes.set_function(lambda: self.nbytes)

    def __len__(self) -> int:
        """Vectors that it holds."""
        return len(self._on_trial) + len(self._staying)

    def open(self, encoder: Encoder) -> None:
        """Take what `encoder` computes from now on, until it is forgotten; its caller has borrowed it."""
        if encoder not in self._spaces:
            with self._lock:
                self._opened += 1
                longest = CHARACTERS_PER_TOKEN * encoder.max_length
                self._spaces.setdefault(encoder, _Space(self._opened, longest, self._key))

    def names_of_texts(
        self, encoder: Encoder, sources: Sequence[Source], normalize: bool
    ) -> list[bytes | None]:
        """One for each of `sources`, of an open encoder; None for ids, and for a text that is too long."""
        space = self._spaces[encoder]
        names: list[bytes | None] = []
        for source in sources:
            name = None
            if isinstance(source, str) and len(source) <= space.longest:
                # Half of a surrogate pair is refused by the tokenizer, which says where it is.
                name = space.name(b"text", source.encode("utf-8", "surrogatepass"), normalize)
            names.append(name)
        return names

    def name_of_ids(self, encoder: Encoder, ids: Sequence[int], normalize: bool) -> bytes | None:
        """None when `encoder` has closed."""
        space = self._spaces.get(encoder)
        return None if space is None else space.name(b"ids", array("I", ids).tobytes(), normalize)

    def find_texts(self, names: Sequence[bytes | None]) -> list[Entry | None]:
        """The entry of each name of a text, as far as there is one."""
        found: list[Entry | None] = []
        with self._lock:
            for name in names:
                ids = None if name is None else self._texts.get(name)
                found.append(None if ids is None else self._find(ids))
        return found

    def find_ids(self, name: bytes, spelling: bytes | None) -> Entry | None:
        """The entry of ids by their name; from now on it is found by `spelling` too, the name of a text."""
        with self._lock:
            entry = self._find(name)
            if entry is not None and spelling is not None:
                self._spell(name, (spelling,))
                self._shrink()
            return entry

    def keep(self, encoder: Encoder, computed: Iterable[Computed]) -> None:
        """What `encoder` computed; of one that has closed nothing is kept."""
        with self._lock:
            space = self._spaces.get(encoder)
            if space is None:
                return
            for name, vector, tokens, spellings in computed:
                if name not in self._staying and name not in self._on_trial:
                    entry = Entry(vector, tokens, space.number, ())
                    self._on_trial[name] = entry
                    self.nbytes += entry.nbytes
                self._spell(name, spellings)
            self._shrink()

    def forget(self, encoder: Encoder) -> None:
        """The encoder has closed: nothing of it is found or kept any more, and its entries go.

        On a thread of their own, a few at a time: all take some 0.1 s, and who closes may be the event loop.
        """
        with self._lock:
            space = self._spaces.pop(encoder, None)
        if space is not None:
            threading.Thread(target=self._clear, args=[space.number], name="forget", daemon=True).start()

    def _clear(self, space: int) -> None:
        for part in (self._staying, self._on_trial):  # what leaves the first meanwhile goes to the second
            with self._lock:
                names = [name for name, entry in part.items() if entry.space == space]
            for at in range(0, len(names), CLEARED_AT_ONCE):
                with self._lock:
                    for name in names[at : at + CLEARED_AT_ONCE]:
                        if name in part:
                            self._drop(part, name)

    def _find(self, name: bytes) -> Entry | None:
        """The entry, which was asked for once more."""
        entry = self._staying.get(name)
        if entry is not None:
            self._staying.move_to_end(name)
            return entry
        entry = self._on_trial.pop(name, None)
        if entry is not None:
            self._staying[name] = entry
            self._staying_bytes += entry.nbytes
            while self._staying_bytes > STAYING_SHARE * self.limit_bytes:
                oldest, left = self._staying.popitem(last=False)
                self._staying_bytes -= left.nbytes
                self._on_trial[oldest] = left
        return entry

    def _spell(self, name: bytes, spellings: Iterable[bytes]) -> None:
        """The entry `name` is found by these texts too, while it has few."""
        part = self._staying if name in self._staying else self._on_trial
        entry = part[name]
        new = [text for text in spellings if text not in self._texts][: SPELLINGS - len(entry.spellings)]
        if not new:
            return
        part[name] = entry._replace(spellings=(*entry.spellings, *new))
        self._texts.update(dict.fromkeys(new, name))
        self.nbytes += SPELLING_BYTES * len(new)
        if part is self._staying:
            self._staying_bytes += SPELLING_BYTES * len(new)

    def _shrink(self) -> None:
        evicted = 0
        while self.nbytes > self.limit_bytes:
            part = self._on_trial or self._staying
            self._drop(part, next(iter(part)))
            evicted += 1
        if evicted:
            self._evictions.inc(evicted)

    def _drop(self, part: OrderedDict[bytes, Entry], name: bytes) -> None:
        entry = part.pop(name)
        for text in entry.spellings:
            del self._texts[text]
        self.nbytes -= entry.nbytes
        if part is self._staying:
            self._staying_bytes -= entry.nbytes
