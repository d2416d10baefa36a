"""Postings: in which documents a term stands, as blocks of numbers.

    postings (collection, term, first, last, body)    body: revision - first, frequency and length of each
    unfolded (collection, gained, lost, removed)      what writes did to them since they were last folded

A write adds small blocks of its own and never touches another's, so writers do not wait for each other. It
only names the revisions that it removes, and a search passes those by. `fold` joins small blocks and takes
out what was removed; one process at a time does it.

A body's first byte names the widths of its numbers: four bytes for most postings, where a row for each takes
ninety.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from struct import Struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.store.postgres.connection import Connection
from service.store.postgres.terms import Terms

FULL = 3900  # bytes of a body at most; two fit a page
OPEN = 2000  # bytes, below which a block is joined with others; `open_postings` says so, too
TOGETHER = 4  # small blocks of a term that are joined
FOLDED = 20_000, 100_000  # terms that were touched: so many are worth a fold, and so many are folded in one
REMOVED_COST = 20  # a removed revision counts as so many terms: every search reads it
_LOCK = 7_405_831
_WIDTHS = ("<u1", "<u2", "<u4", "<i8")
_LIMITS = np.array([1 << 8, 1 << 16, 1 << 32])

Numbers = NDArray[np.int64]


class Postings(NamedTuple):
    """By rising owner, and of each by rising revision: how often it stands there, and the text's tokens."""

    owners: Numbers  # numbers of terms
    revisions: Numbers
    frequencies: Numbers
    lengths: Numbers

    def where(self, kept: NDArray[np.bool_]) -> "Postings":
        return Postings(*(column[kept] for column in self))

    def without(self, removed: Numbers) -> "Postings":
        return self.where(~np.isin(self.revisions, removed)) if len(removed) else self


class Block(NamedTuple):
    owner: int
    first: int
    last: int
    body: bytes


def packed(postings: Postings) -> list[Block]:
    """Blocks of postings, each of one owner."""
    owners, revisions, frequencies, lengths = postings
    if not len(owners):
        return []
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    counts = np.diff(starts, append=len(owners))
    spans = revisions[starts + counts - 1] - revisions[starts]
    widest = spans, np.maximum.reduceat(frequencies, starts), np.maximum.reduceat(lengths, starts)
    codes = sum(np.searchsorted(_LIMITS, most, side="right") << 2 * at for at, most in enumerate(widest))
    rows = FULL // np.array([_kind(code).itemsize for code in range(64)])[codes]
    number = (np.arange(len(owners)) - np.repeat(starts, counts)) // np.repeat(rows, counts)
    # Blocks begin where the owner or the number of the block changes.
    starts = np.flatnonzero((np.diff(owners, prepend=-1) != 0) | (np.diff(number, prepend=-1) != 0))
    code = np.repeat(codes, counts)
    counts = np.diff(starts, append=len(owners))
    offsets = revisions - np.repeat(revisions[starts], counts)
    blocks: list[Block] = []
    for each in np.unique(code).tolist():
        inside = code == each
        body = np.empty(np.count_nonzero(inside), _kind(each))
        for name, column in zip(("f0", "f1", "f2"), (offsets, frequencies, lengths), strict=True):
            body[name] = column[inside]
        sent, size, head, at = body.tobytes(), body.itemsize, bytes([each]), 0
        chosen = starts[inside[starts]]
        ends = chosen + counts[inside[starts]]
        columns = owners[chosen], revisions[chosen], revisions[ends - 1], (ends - chosen) * size
        for owner, first, last, length in zip(*(column.tolist() for column in columns), strict=True):
            blocks.append(Block(owner, first, last, head + sent[at : at + length]))
            at += length
    return blocks


@cache
def _kind(code: int) -> np.dtype[np.void]:
    return np.dtype([(f"f{at}", _WIDTHS[code >> 2 * at & 3]) for at in range(3)])


def unpacked(blocks: Iterable[tuple[int, int, bytes]]) -> Postings:
    """The postings of blocks, given as owner, `first` and body."""
    alike: dict[int, list[tuple[int, int, bytes]]] = defaultdict(list)
    for block in blocks:
        alike[block[2][0]].append(block)
    parts = [np.empty((4, 0), np.int64)]
    for code, some in alike.items():
        kind = _kind(code)
        rows = np.frombuffer(b"".join([body[1:] for _, _, body in some]), kind)
        heads = np.array([(owner, first, len(body) // kind.itemsize) for owner, first, body in some])
        owner, first = (np.repeat(heads[:, at], heads[:, 2]) for at in range(2))
        parts.append(np.stack([owner, first + rows["f0"], rows["f1"], rows["f2"]]))
    columns = np.concatenate(parts, axis=1)
    return Postings(*columns[:, np.lexsort((columns[1], columns[0]))])


def change(
    connection: Connection, collection: str, added: Mapping[int, Terms], removed: Mapping[int, Terms]
) -> None:
    """Add the terms of documents, by revision, and note whose are to go."""
    gained: dict[str, int] = {}
    rows = [
        (gained.setdefault(term, len(gained)), revision, count, terms.length)
        for revision, terms in added.items()
        for term, count in terms.counts.items()
    ]
    lost = {term for terms in removed.values() for term in terms.counts}
    if not gained and not lost:
        return
    columns = np.array(rows, np.int64).reshape(-1, 4).T
    blocks = packed(Postings(*columns[:, np.lexsort((columns[1], columns[0]))]))
    _store(connection, collection, [*gained], blocks)
    connection.execute(
        "INSERT INTO unfolded (collection, gained, lost, removed, cost) VALUES (?, ?, ?, ?, ?)",
        (
            collection,
            [*gained],
            [*lost],
            np.array([*removed], np.int64),
            len(gained) + len(lost) + REMOVED_COST * len(removed),
        ),
    )


def _store(connection: Connection, collection: str, terms: Sequence[str], blocks: Sequence[Block]) -> None:
    """Store blocks, whose owners are places in `terms`."""
    name = collection.encode()
    fixed, body_at = Struct(f">hi{len(name)}si"), Struct(">iqiqi")

    def copied() -> Iterator[bytes]:  # in the binary form of COPY, as in vectors.py
        for owner, first, last, body in blocks:
            term = terms[owner].encode()
            yield fixed.pack(5, len(name), name, len(term)) + term
            yield body_at.pack(8, first, 8, last, len(body)) + body

    if blocks:
        connection.copy("postings (collection, term, first, last, body)", copied())


def fold(connection: Connection) -> bool:
    """Fold what the first writes did, if that is worth it. Returns whether it was."""
    least, most = FOLDED
    waiting = "SELECT collection, sum(cost) FROM unfolded GROUP BY collection HAVING sum(cost) > ? LIMIT 1"
    row = connection.execute(waiting, (least,)).fetchone()
    if row is None or not hold(connection, wait=False):
        return False
    connection.take_time()
    [collection, _] = row
    gained, lost, removed = Counter[str](), set[str](), list[int]()
    taken: list[int] = []
    entries = connection.execute(
        "SELECT number, gained, lost, removed, cost FROM (SELECT *, sum(cost) OVER (ORDER BY number) - cost "
        "AS before FROM unfolded WHERE collection = ?) AS summed WHERE before < ?",
        (collection, most),
    )
    for number, more, fewer, gone, _ in entries:
        taken.append(number)
        gained.update(more)
        lost.update(fewer)
        removed += gone
    _rewrite(connection, collection, gained.keys() | lost, lost, np.sort(np.array(removed, np.int64)))
    connection.execute("DELETE FROM unfolded WHERE number = ANY(?)", (taken,))
    return True


def hold(connection: Connection, *, wait: bool) -> bool:
    """Until the transaction ends no other one rewrites postings.

    Returns False without `wait` when another one does.
    """
    if wait:
        connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
        return True
    row = connection.execute("SELECT pg_try_advisory_xact_lock(?)", (_LOCK,)).fetchone()
    return row is not None and bool(row[0])


def _rewrite(
    connection: Connection, collection: str, touched: Iterable[str], lost: Iterable[str], removed: Numbers
) -> None:
    """Join the small blocks of terms, and take removed revisions out of the blocks of `lost` ones."""
    small: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for term, first, body in connection.execute(
        "SELECT term, first, body FROM unnest(?::text[]) AS touched (term) JOIN postings p USING (term) "
        f"WHERE collection = ? AND octet_length(body) < {OPEN}",
        ([*touched], collection),
    ):
        small[term].append((first, body))
    spans = connection.execute(
        "SELECT term, first, last FROM unnest(?::text[]) AS lost (term) JOIN postings p USING (term) "
        "WHERE collection = ?",
        ([*lost], collection),
    ).fetchall()
    hits = {
        (term, first)
        for term, first, last in spans
        if np.searchsorted(removed, first) < np.searchsorted(removed, last, side="right")
    }
    large = connection.execute(
        "SELECT term, first, body FROM unnest(?::text[], ?::bigint[]) AS hit (term, first) "
        f"JOIN postings p USING (term, first) WHERE collection = ? AND octet_length(body) >= {OPEN}",
        ([term for term, _ in hits], [first for _, first in hits], collection),
    )
    groups = [(term, [(first, body)]) for term, first, body in large]  # each is rewritten by itself
    groups += [
        (term, blocks)
        for term, blocks in small.items()
        if len(blocks) >= TOGETHER or any((term, first) in hits for first, _ in blocks)
    ]
    stale = [(term, first) for term, blocks in groups for first, _ in blocks]
    connection.execute(
        "DELETE FROM postings p USING unnest(?::text[], ?::bigint[]) AS stale (term, first) "
        "WHERE p.collection = ? AND p.term = stale.term AND p.first = stale.first",
        ([term for term, _ in stale], [first for _, first in stale], collection),
    )
    owned = ((owner, *block) for owner, (_, blocks) in enumerate(groups) for block in blocks)
    _store(connection, collection, [term for term, _ in groups], packed(unpacked(owned).without(removed)))
