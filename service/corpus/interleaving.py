"""Team-draft interleaving of the hits of two rankings, so that clicks compare them. Start at `draft`.

Two sides choose hits in turn, each its best one that is not chosen yet. A coin decides which side chooses
first in each round (Radlinski, Kurup and Joachims, 2008). A hit that is the next one of both sides belongs to
neither: a click on it says nothing, and the noise would halve the signal.

The search_id has the sides of the hits, which only the test's id can read. So an event counts on any replica,
also after a restart, and a search writes nothing to disk.
"""

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Hashable, Iterable, Iterator, Sequence
from hashlib import shake_128
from typing import Literal, TypeAlias, TypeVar

Side: TypeAlias = Literal[-1, 0, 1]  # The active version, both, or the candidate.
H = TypeVar("H", bound=Hashable)

_SHARE_BYTES = 7  # A float has 53 bits.
_NONCE_BYTES, _HIT_BYTES = 8, 2  # Of a search_id: 64 characters for 20 hits.


class Coins:
    """Random decisions about one query of one visitor in one live test. They are the same on every page.

    Args:
        test: Id of the test, which clients never see.
        visitor: Hash of the visitor's id, or empty.
        collection: Name of the collection.
        query: Text of the query.
    """

    def __init__(self, test: str, visitor: str, collection: str, query: str) -> None:
        self.test = test
        named = f"{test}\0{visitor}\0{collection}\0{query}"
        self._hash = shake_128(named.encode(errors="surrogatepass"))

    @property
    def share(self) -> float:
        """A number from 0 to 1 that decides whether the search is tested."""
        drawn = int.from_bytes(self._hash.digest(_SHARE_BYTES))
        return float(drawn / 256**_SHARE_BYTES)

    def flip(self, count: int) -> Iterator[bool]:
        """Yields `count` coins. The first ones are the same for every `count`."""
        for byte in self._hash.digest(_SHARE_BYTES + count)[_SHARE_BYTES:]:
            yield byte % 2 == 1

    def find_side(self, search_id: str, id: str) -> Side:
        """Returns the side that chose a hit, which the search_id of these coins says.

        A hit that it does not name has a side by chance once in 1,600 times.
        """
        try:
            sealed = urlsafe_b64decode(f"{search_id}==")
        except ValueError:  # No such search_id.
            return 0
        code = self.code(sealed[:_NONCE_BYTES], id)
        for at in range(_NONCE_BYTES, len(sealed) - 1, _HIT_BYTES):
            match int.from_bytes(sealed[at : at + _HIT_BYTES]) ^ code:
                case 0:
                    return -1
                case 1:
                    return 1
        return 0

    def code(self, nonce: bytes, id: str) -> int:
        """Returns the code of a hit of the active version. The candidate's differs in the last bit."""
        hashed = self._hash.copy()
        hashed.update(b"\0" + nonce + id.encode(errors="surrogatepass"))
        return int.from_bytes(hashed.digest(_HIT_BYTES))


def name_search(hits: Iterable[tuple[str, Side]], coins: Coins | None) -> str:
    """Returns a search_id that looks random. With coins, it has the side of each hit."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    codes = (
        secrets.randbits(8 * _HIT_BYTES) if coins is None or not side else coins.code(nonce, id) ^ (side == 1)
        for id, side in hits
    )
    sealed = b"".join([nonce, *(code.to_bytes(_HIT_BYTES) for code in codes)])
    return urlsafe_b64encode(sealed).decode().rstrip("=")


def draft(active: Sequence[H], candidate: Sequence[H], coins: Iterator[bool]) -> list[tuple[H, Side]]:
    """Returns the hits of both sides in one order, each with the side that chose it. No hit comes twice.

    Args:
        active: Hits of the active version, best first.
        candidate: Hits of the candidate, best first.
        coins: One for each round at least. True: the candidate chooses first.
    """
    lists: dict[Side, Iterator[H]] = {-1: iter(active), 1: iter(candidate)}
    chosen: dict[H, Side] = {}

    def advance(side: Side) -> H | None:
        return next((hit for hit in lists[side] if hit not in chosen), None)

    best = {side: advance(side) for side in lists}
    turns: list[Side] = []
    while True:
        for side, hit in best.items():
            if hit in chosen:
                best[side] = advance(side)
        if best[-1] == best[1]:
            if best[1] is None:
                return [*chosen.items()]
            chosen[best[1]] = 0
            continue
        if not turns:
            turns = [-1, 1] if next(coins) else [1, -1]  # The last one is the next one.
        side = turns.pop()
        hit = best[side]
        if hit is not None:
            chosen[hit] = side
