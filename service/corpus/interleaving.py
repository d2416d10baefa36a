"""Team-draft interleaving of the hits of two rankings, so that clicks compare them. Start at `draft`.

Two sides choose hits in turn, each its best one that is not chosen yet. A coin decides which side chooses
first in each round (Radlinski, Kurup and Joachims, 2008). A hit that is the next one of both sides belongs to
neither: a click on it says nothing, and the noise would halve the signal.
"""

from collections.abc import Hashable, Iterator, Sequence
from hashlib import shake_128
from typing import Literal, TypeAlias, TypeVar

Side: TypeAlias = Literal[-1, 0, 1]  # The active version, both, or the candidate.
H = TypeVar("H", bound=Hashable)

_SHARE_BYTES = 7  # A float has 53 bits.


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
