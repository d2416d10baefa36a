"""A sample of documents that depends on their ids alone, so that every store takes the same one."""

import heapq
from collections.abc import Iterable
from hashlib import blake2b


def smallest_hashes(count: int, steps: Iterable[Iterable[str]]) -> list[str]:
    """The `count` ids with the smallest hashes, of those that come in steps."""
    chosen: list[tuple[bytes, str]] = []
    for ids in steps:
        hashed = [(blake2b(id.encode(), digest_size=8).digest(), id) for id in ids]
        chosen = heapq.nsmallest(count, [*chosen, *hashed])
    return [id for _, id in chosen]
