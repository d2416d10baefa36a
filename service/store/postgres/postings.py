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
_LOCK = 7_405_814
_WIDTHS = ("<u1", "<u2", "<u4", "<i8")

Numbers = NDArray[np.int64]


class Postings(NamedTuple):
    """Of one term: revisions, how often it stands in each, and the tokens of each."""

    revisions: Numbers
    frequencies: Numbers
    lengths: Numbers

    def where(self, kept: NDArray[np.bool_]) -> "Postings":
        return Postings(*(column[kept] for column in self))


NONE = Postings(*[np.empty(0, np.int64)] * 3)


class Block(NamedTuple):
    first: int
    last: int
    body: bytes


def packed(postings: Postings) -> Iterator[Block]:
    """Blocks of postings, which are not empty and rise by revision."""
    revisions, frequencies, lengths = postings
    widest = int(revisions[-1] - revisions[0]), int(frequencies.max()), int(lengths.max())
    code = sum(_code(most) << 2 * at for at, most in enumerate(widest))
    kind = _kind(code)
    most = FULL // kind.itemsize
    for start in range(0, len(revisions), most):
        part = slice(start, start + most)
        first, last = int(revisions[part][0]), int(revisions[part][-1])
        body = np.empty(len(revisions[part]), kind)
        body["f0"] = revisions[part] - first
        body["f1"] = frequencies[part]
        body["f2"] = lengths[part]
        yield Block(first, last, bytes([code]) + body.tobytes())


def _code(most: int) -> int:
    return 0 if most < 1 << 8 else 1 if most < 1 << 16 else 2 if most < 1 << 32 else 3


def _kind(code: int) -> np.dtype[np.void]:
    return np.dtype([(f"f{at}", _WIDTHS[code >> 2 * at & 3]) for at in range(3)])


def unpacked(blocks: Iterable[tuple[int, bytes]]) -> Postings:
    """The postings of blocks, given as `first` and body, by rising revision."""
    alike: dict[int, tuple[list[int], list[bytes]]] = {}
    for first, body in blocks:
        firsts, bodies = alike.setdefault(body[0], ([], []))
        firsts.append(first)
        bodies.append(body[1:])
    parts = []
    for code, (firsts, bodies) in alike.items():
        kind = _kind(code)
        rows = np.frombuffer(b"".join(bodies), kind)
        start = np.repeat(np.array(firsts, np.int64), [len(body) // kind.itemsize for body in bodies])
        parts.append(Postings(start + rows["f0"], rows["f1"].astype(np.int64), rows["f2"].astype(np.int64)))
    return joined(parts)


def joined(parts: Sequence[Postings]) -> Postings:
    if not parts:
        return NONE
    revisions, *others = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(revisions, kind="stable")
    return Postings(revisions[order], *(column[order] for column in others))


def change(
    connection: Connection, collection: str, added: Mapping[int, Terms], removed: Mapping[int, Terms]
) -> None:
    """Add the terms of documents, by revision, and note whose are to go."""
    gained: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for revision, terms in sorted(added.items()):
        for term, count in terms.counts.items():
            gained[term].append((revision, count, terms.length))
    lost = {term for terms in removed.values() for term in terms.counts}
    if not gained and not lost:
        return
    blocks = [
        (term, *block)
        for term, rows in gained.items()
        for block in packed(Postings(*np.array(rows, np.int64).T))
    ]
    connection.execute(
        "WITH stored AS (INSERT INTO postings (collection, term, first, last, body) "
        "SELECT ?, * FROM unnest(?::text[], ?::bigint[], ?::bigint[], ?::bytea[])) "
        "INSERT INTO unfolded (collection, gained, lost, removed, cost) VALUES (?, ?, ?, ?, ?)",
        (
            collection,
            *([block[at] for block in blocks] for at in range(4)),
            collection,
            [*gained],
            [*lost],
            [*removed],
            len(gained) + len(lost) + REMOVED_COST * len(removed),
        ),
    )


def fold(connection: Connection) -> bool:
    """Fold what the first writes did, if that is worth it. Returns whether it was."""
    least, most = FOLDED
    waiting = "SELECT collection, sum(cost) FROM unfolded GROUP BY collection HAVING sum(cost) > ? LIMIT 1"
    row = connection.execute(waiting, (least,)).fetchone()
    if row is None or not hold(connection, wait=False):
        return False
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
    hit = [
        (term, first)
        for term, first, last in spans
        if np.searchsorted(removed, first) < np.searchsorted(removed, last, side="right")
    ]
    large = connection.execute(
        "SELECT p.term, p.first, p.body FROM unnest(?::text[], ?::bigint[]) AS hit (term, first) "
        f"JOIN postings p ON p.collection = ? AND p.term = hit.term AND p.first = hit.first "
        f"WHERE octet_length(body) >= {OPEN}",
        ([term for term, _ in hit], [first for _, first in hit], collection),
    ).fetchall()
    hits = {*hit}
    stale: list[tuple[str, int]] = []
    fresh: list[tuple[str, Block]] = []

    def replace(term: str, blocks: Sequence[tuple[int, bytes]]) -> None:
        postings = unpacked(blocks)
        postings = postings.where(~np.isin(postings.revisions, removed))
        stale.extend((term, first) for first, _ in blocks)
        if len(postings.revisions):
            fresh.extend((term, block) for block in packed(postings))

    for term, blocks in small.items():
        if len(blocks) >= TOGETHER or any((term, first) in hits for first, _ in blocks):
            replace(term, blocks)
    for term, first, body in large:
        replace(term, [(first, body)])
    connection.execute(
        "DELETE FROM postings p USING unnest(?::text[], ?::bigint[]) AS stale (term, first) "
        "WHERE p.collection = ? AND p.term = stale.term AND p.first = stale.first",
        ([term for term, _ in stale], [first for _, first in stale], collection),
    )
    connection.execute(
        "INSERT INTO postings (collection, term, first, last, body) "
        "SELECT ?, * FROM unnest(?::text[], ?::bigint[], ?::bigint[], ?::bytea[])",
        (collection, [term for term, _ in fresh], *([block[at] for _, block in fresh] for at in range(3))),
    )
