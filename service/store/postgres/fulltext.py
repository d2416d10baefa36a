"""Keyword search in PostgreSQL: BM25 over blocks of postings.

    term_postings (collection, term, first, last, body)   body: revision - first, frequency, length of each
    term_changes (collection, gained, lost, removed)      changes by writes since the last fold

Start reading at `nearest` and `change_postings`. A posting says how often a document has a term. The database
returns the blocks of a query's terms that this process has not cached. The scores are computed here
(sql/bm25.py), so that the shared database has little to do.

A write adds new small blocks and never changes existing blocks, so writers do not wait for each other. A
write only lists the revisions that it removes, and searches skip these. `fold` joins small blocks and deletes
removed revisions; one process at a time does this. The first byte of a body gives the widths of the numbers
in it. Most postings take four bytes; a row for each posting would take ninety.
"""

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from hashlib import blake2b
from itertools import chain
from struct import Struct
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.search.content import Content
from models.search.spelling import is_known_kind
from models.search.terms import NO_WEIGHTS, RULES, Query, Weights, compute_idf, get_terms, parse_query
from service.store.postgres.connection import Connection, Raw
from service.store.postgres.vectors import FilterMatches
from service.store.scheduling import pause
from service.store.sql import bm25
from service.store.sql.bm25 import Size, compute_scores, select_best
from service.store.sql.bounded_cache import BoundedCache
from service.store.sql.connection import LEXICAL_RULES, fact, fetch_value, note
from service.store.values import TIES, Ranking, Revisions

log = logging.getLogger(__name__)

MAX_BYTES = 256  # Bytes of a stored term. A longer term is stored as its hash.


class Terms(NamedTuple):
    """The terms of a text with their counts, and the total number of tokens in the text."""

    counts: Mapping[str, int]
    length: int


def parse_terms(contents: Sequence[Content]) -> list[Terms]:
    """Returns the terms of each content, title and text together."""
    counts = [Counter(map(_stored_term, get_terms(one.whole))) for one in contents]
    return [Terms(each, each.total()) for each in counts]


def _stored_term(term: str) -> str:
    encoded = term.encode()
    return term if len(encoded) <= MAX_BYTES else blake2b(encoded, digest_size=32).hexdigest()


FULL = 3900  # Bytes of a body at most. Two bodies fit a page.
# Smaller blocks, in bytes, are joined with others. The index `open_postings` has the same number.
OPEN = 2000
TOGETHER = 4  # A fold joins the small blocks of a term if there are this many.
# A fold begins if the waiting changes cost more (in terms), and takes changes until their cost is this high.
FOLDED = 20_000, 100_000
REMOVED_COST = 20  # A removed revision counts as this many terms, because every search reads it.
POSTINGS_LOCK = 7_405_831  # Only the transaction that holds it rewrites or deletes postings.
_WIDTHS = ("<u1", "<u2", "<u4", "<i8")
_LIMITS = np.array([1 << 8, 1 << 16, 1 << 32])

Numbers = NDArray[np.int64]


class Postings(NamedTuple):
    """Columns of postings, sorted by owner and then by revision. An owner is the number of a term.

    Frequencies count the term in the text. Lengths count all tokens of the text.
    """

    owners: Numbers  # Numbers of terms.
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
    """Packs postings into blocks. Each block has a single owner."""
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
    """Unpacks postings from blocks, given as owner, `first` and body."""
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


def change_postings(
    connection: Connection, collection: str, added: Mapping[int, Terms], removed: Mapping[int, Terms]
) -> None:
    """Adds the terms of documents, and records which documents are removed.

    `added` and `removed` contain the terms of documents by revision.
    """
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
        "INSERT INTO term_changes (collection, gained, lost, removed, cost) VALUES (?, ?, ?, ?, ?)",
        (
            collection,
            [*gained],
            [*lost],
            np.array([*removed], np.int64),
            len(gained) + len(lost) + REMOVED_COST * len(removed),
        ),
    )


def _store(connection: Connection, collection: str, terms: Sequence[str], blocks: Sequence[Block]) -> None:
    """Stores blocks. The owner of a block is a position in `terms`."""
    name = collection.encode()
    fixed, body_at = Struct(f">hi{len(name)}si"), Struct(">iqiqi")

    def copied() -> Iterator[bytes]:  # The binary form of COPY, as in vectors.py.
        for owner, first, last, body in blocks:
            term = terms[owner].encode()
            yield fixed.pack(5, len(name), name, len(term)) + term
            yield body_at.pack(8, first, 8, last, len(body)) + body

    if blocks:
        connection.copy("term_postings (collection, term, first, last, body)", copied())


def fold(connection: Connection) -> bool:
    """Applies recorded changes to the postings if there are enough of them.

    Returns whether changes were applied. Each call handles the oldest changes of one collection.
    """
    least, most = FOLDED
    waiting = "SELECT collection FROM term_changes GROUP BY collection HAVING sum(cost) > ? LIMIT 1"
    collection = fetch_value(connection, waiting, least)
    lock = "SELECT pg_try_advisory_xact_lock(?)"
    if collection is None or not fetch_value(connection, lock, POSTINGS_LOCK):
        return False
    connection.take_time()
    gained, lost, removed = Counter[str](), set[str](), list[int]()
    taken: list[int] = []
    entries = connection.execute(
        "SELECT number, gained, lost, removed, cost FROM (SELECT *, sum(cost) OVER (ORDER BY number) - cost "
        "AS before FROM term_changes WHERE collection = ?) AS summed WHERE before < ?",
        (collection, most),
    )
    for number, more, fewer, gone, _ in entries:
        taken.append(number)
        gained.update(more)
        lost.update(fewer)
        removed += gone
    _rewrite(connection, collection, gained.keys() | lost, lost, np.sort(np.array(removed, np.int64)))
    _change_vocabulary(connection, collection, gained, lost)
    connection.execute("DELETE FROM term_changes WHERE number = ANY(?)", (taken,))
    return True


def _rewrite(
    connection: Connection, collection: str, touched: Iterable[str], lost: Iterable[str], removed: Numbers
) -> None:
    """Joins small blocks of terms, and deletes removed revisions.

    Args:
        connection: A connection in a transaction.
        collection: Name of the collection.
        touched: Terms whose small blocks are joined.
        lost: Terms that may have removed revisions.
        removed: The removed revisions, in ascending order.
    """
    small: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for term, first, body in connection.execute(
        "SELECT term, first, body FROM unnest(?::text[]) AS touched (term) JOIN term_postings p USING (term) "
        f"WHERE collection = ? AND octet_length(body) < {OPEN}",
        ([*touched], collection),
    ):
        small[term].append((first, body))
    spans = connection.execute(
        "SELECT term, first, last FROM unnest(?::text[]) AS lost (term) JOIN term_postings p USING (term) "
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
        f"JOIN term_postings p USING (term, first) WHERE collection = ? AND octet_length(body) >= {OPEN}",
        ([term for term, _ in hits], [first for _, first in hits], collection),
    )
    groups = [(term, [(first, body)]) for term, first, body in large]  # Every large block is rewritten alone.
    groups += [
        (term, blocks)
        for term, blocks in small.items()
        if len(blocks) >= TOGETHER or any((term, first) in hits for first, _ in blocks)
    ]
    stale = [(term, first) for term, blocks in groups for first, _ in blocks]
    connection.execute(
        "DELETE FROM term_postings p USING unnest(?::text[], ?::bigint[]) AS stale (term, first) "
        "WHERE p.collection = ? AND p.term = stale.term AND p.first = stale.first",
        ([term for term, _ in stale], [first for _, first in stale], collection),
    )
    owned = ((owner, *block) for owner, (_, blocks) in enumerate(groups) for block in blocks)
    _store(connection, collection, [term for term, _ in groups], packed(unpacked(owned).without(removed)))


def _change_vocabulary(
    connection: Connection, collection: str, gained: Iterable[str], lost: Iterable[str]
) -> None:
    """Adds the terms of folded changes, and removes terms without postings (vocabulary.py)."""
    connection.execute(
        "INSERT INTO vocabulary (collection, term) SELECT ?, unnest(?::text[]) ON CONFLICT DO NOTHING",
        (collection, [*filter(is_known_kind, gained)]),
    )
    connection.execute(
        "DELETE FROM vocabulary v WHERE collection = ? AND term = ANY(?) AND NOT EXISTS "
        "(SELECT 1 FROM term_postings p WHERE p.collection = v.collection AND p.term = v.term)",
        (collection, [*lost]),
    )


REBUILD_LOCK = 7_405_832
REBUILT_POSTINGS = 200_000  # Postings that a rebuild stores at a time. They take about 100 MB of memory.
SAY_SECONDS = 5.0


def bring_up_to_date(raw: Raw) -> None:
    """Computes all postings again if they have other rules. Replicas that start together do so once. Blocks.

    Searches go on meanwhile, and writes wait. If the process ends, the next start begins again.
    """
    connection = Connection(raw)
    if fact(connection, LEXICAL_RULES) == RULES:
        return
    with raw.transaction():
        connection.take_time()
        if not fetch_value(connection, "SELECT pg_try_advisory_xact_lock(?)", REBUILD_LOCK):
            log.info("Another replica indexes the words of the documents: waiting for it")
            connection.execute("SELECT pg_advisory_xact_lock(?)", (REBUILD_LOCK,))
        if fact(connection, LEXICAL_RULES) == RULES:
            return
        connection.execute(
            "LOCK TABLE term_postings, term_changes, vocabulary, tally IN SHARE ROW EXCLUSIVE MODE"
        )
        for table in ("term_postings", "term_changes", "vocabulary", "tally"):
            connection.execute(f"DELETE FROM {table}")
        _add_all(raw)
        note(connection, LEXICAL_RULES, RULES)


def _add_all(raw: Raw) -> None:
    """Adds the postings and the tally of all documents."""
    connection = Connection(raw)
    total = fetch_value(connection, "SELECT count(*) FROM documents")
    added: dict[str, dict[int, Terms]] = defaultdict(dict)
    documents, tokens = Counter[str](), Counter[str]()
    size, said = 0, time.monotonic()

    def store() -> None:
        for collection, terms in added.items():
            change_postings(connection, collection, terms, {})
        added.clear()

    with raw.cursor("rebuilt") as cursor:
        cursor.itersize = 100
        cursor.execute("SELECT revision, collection, title, text FROM documents ORDER BY revision")
        for done, (revision, collection, title, text) in enumerate(cursor, start=1):
            [terms] = parse_terms([Content(text, title)])
            added[collection][revision] = terms
            documents[collection] += 1
            tokens[collection] += terms.length
            size += len(terms.counts)
            if size > REBUILT_POSTINGS or done == total:
                store()
                size = 0
            if time.monotonic() - said > SAY_SECONDS or done == total:
                said = time.monotonic()
                log.info("Indexing the words of the documents: %d of %d are done", done, total)
    rows = [(collection, count, tokens[collection]) for collection, count in documents.items()]
    connection.executemany("INSERT INTO tally VALUES (?, ?, ?)", rows)


CACHED_BYTES = 256 * 2**20  # Of decoded blocks. Those of a million documents with 20 words take 150 MB.
_Name: TypeAlias = tuple[str, str, int, int]  # Collection, term, first revision, and transaction of a block.


class BlockCache(BoundedCache[bm25.Postings]):
    """Decoded blocks of common terms. A stored block never changes. All reading threads share it."""

    def __init__(self) -> None:
        super().__init__(CACHED_BYTES)


CHECKED = 256  # Minimum number of documents that are checked at a time, if many match the filter.
_LAST = chr(0x10FFFF)


def nearest(
    connection: Connection,
    cache: BlockCache,
    query: str,
    depth: int,
    allowed: FilterMatches | None,
    collection: str,
    weights: Weights = NO_WEIGHTS,
) -> Ranking:
    """Ranks documents by BM25, as `protocol.Snapshot.nearest_words` says."""
    revisions, scores = _score(connection, cache, query, collection, weights)
    if allowed is None:
        return select_best(revisions, scores, depth)
    if allowed.revisions is not None:
        inside = np.isin(revisions, allowed.revisions)
        return select_best(revisions[inside], scores[inside], depth)
    size = max(2 * depth, CHECKED)
    while True:
        names, best = select_best(revisions, scores, size)
        inside = np.isin(names, allowed.among(connection, names))
        if np.count_nonzero(inside) >= depth + TIES or len(names) == len(revisions):
            return select_best(names[inside], best[inside], depth)
        if np.count_nonzero(inside) > depth and best[inside][depth] < best[inside][depth - 1]:
            return select_best(names[inside], best[inside], depth)
        size *= 4


def _score(
    connection: Connection, cache: BlockCache, query: str, collection: str, weights: Weights
) -> tuple[Revisions, NDArray[np.float32]]:
    """Returns the documents that match a query in ascending order, and their scores."""
    parsed = parse_query(query)
    postings, size = _read(connection, cache, parsed.add(chain.from_iterable(weights)), collection)
    pause()
    return compute_scores(parsed, weights, postings, size)


def _read(
    connection: Connection, cache: BlockCache, query: Query, collection: str
) -> tuple[dict[str, bm25.Postings], Size]:
    """Returns the postings of a query's terms in existing documents, and the size of the collection."""
    documents, tokens, removed = _collection(connection, collection)
    names = {_stored_term(term): term for term in query.terms}
    blocks: dict[str, list[bm25.Postings]] = {term: [] for term in names}
    needed: dict[_Name, str] = {}
    sql = (
        f"SELECT term, first, xmin::text::bigint, CASE WHEN octet_length(body) < {OPEN} THEN body END "
        "FROM term_postings WHERE collection = ? AND term = ANY(?) ORDER BY term, first"
    )
    for term, first, writer, body in connection.execute(sql, (collection, [*names])):
        if body is not None:
            blocks[term].append(_unpack(first, body))
        elif (known := cache.get(name := (collection, term, first, writer))) is not None:
            blocks[term].append(known)
        else:
            needed[name] = term
    pause()
    sql = (
        "SELECT term, first, p.xmin::text::bigint, body FROM unnest(?::text[], ?::bigint[]) "
        "AS needed (term, first) JOIN term_postings p USING (term, first) WHERE collection = ?"
    )
    columns = [name[1] for name in needed], [name[2] for name in needed], collection
    for term, first, writer, body in connection.execute(sql, columns) if needed else ():
        block = _unpack(first, body)
        cache.keep((collection, term, first, writer), block)
        blocks[term].append(block)
    found = {names[term]: _join(some).without(removed) for term, some in blocks.items()}
    for character in query.beginnings:
        every = _postings(connection, [], [character], collection)
        found[character] = bm25.Postings(*every[1:]).without(removed)
    return found, Size(documents, tokens)


def _unpack(first: int, body: bytes) -> bm25.Postings:
    rows = np.frombuffer(body, _kind(body[0]), offset=1)
    return bm25.Postings(first + rows["f0"].astype(np.int64), rows["f1"].copy(), rows["f2"].copy())


def _join(blocks: Sequence[bm25.Postings]) -> bm25.Postings:
    if not blocks:
        return bm25.Postings(*np.empty((3, 0), np.int64))
    columns = bm25.Postings(*(np.concatenate(column) for column in zip(*blocks, strict=True)))
    if (np.diff(columns.revisions) < 0).any():  # Blocks of concurrent writers overlap until they are folded.
        order = np.argsort(columns.revisions, kind="stable")
        columns = bm25.Postings(*(column[order] for column in columns))
    return columns


def get_idf(connection: Connection, cache: BlockCache, query: Query, collection: str) -> dict[str, float]:
    """Implements `protocol.Snapshot.get_idf`."""
    postings, size = _read(connection, cache, query, collection)
    return {term: compute_idf(size.documents, len(found.revisions)) for term, found in postings.items()}


def read_postings(connection: Connection, terms: Sequence[str], collection: str) -> Postings:
    """Returns the postings of terms in existing documents. The owners are positions in `terms`."""
    found = _postings(connection, [*map(_stored_term, terms)], [], collection)
    return found.without(_collection(connection, collection)[2])


def list_worded(
    connection: Connection, cache: BlockCache, query: str, collection: str, weights: Weights = NO_WEIGHTS
) -> Revisions:
    """Returns the documents that have a term of a query, as `protocol.Snapshot.list_worded` says."""
    return _score(connection, cache, query, collection, weights)[0]


def count_postings(connection: Connection, terms: Sequence[str], collection: str) -> dict[str, int]:
    """Returns the number of existing documents with each term."""
    changes = "SELECT 1 FROM term_changes WHERE collection = ? AND removed <> '{}' LIMIT 1"
    if connection.execute(changes, (collection,)).fetchone() is not None:
        found = read_postings(connection, terms, collection)
        counts = np.bincount(found.owners, minlength=len(terms)).tolist()
        return dict(zip(terms, counts, strict=True))
    sizes = connection.execute(  # Bodies stay in the database.
        "SELECT term, get_byte(body, 0), sum(octet_length(body) - 1)::bigint FROM term_postings "
        "WHERE collection = ? AND term = ANY(?) GROUP BY 1, 2",
        (collection, [*terms]),
    )
    summed = Counter[str]()
    for term, code, size in sizes:
        summed[term] += size // _kind(code).itemsize
    return summed


def _postings(
    connection: Connection, whole: Sequence[str], beginnings: Sequence[str], collection: str
) -> Postings:
    """Returns the postings of a query's terms. The owners are positions in `whole`, then in `beginnings`."""
    owners = {term: owner for owner, term in enumerate(whole)}
    blocks = []
    if owners:
        sql = "SELECT term, first, body FROM term_postings WHERE collection = ? AND term = ANY(?)"
        rows = connection.execute(sql, (collection, [*owners]))
        blocks += [(owners[term], first, body) for term, first, body in rows]
    for owner, beginning in enumerate(beginnings, start=len(owners)):
        sql = "SELECT first, body FROM term_postings WHERE collection = ? AND term >= ? AND term < ?"
        rows = connection.execute(sql, (collection, beginning, beginning + _LAST))
        blocks += [(owner, first, body) for first, body in rows]
    found = unpacked(blocks)
    if not beginnings:
        return found
    # Several terms with the same beginning count as one posting of a document.
    changes = (np.diff(found.owners, prepend=-1) != 0) | (np.diff(found.revisions, prepend=-1) != 0)
    starts = np.flatnonzero(changes)
    if len(starts):
        summed = np.add.reduceat(found.frequencies, starts)
        found = found.where(changes)._replace(frequencies=summed)
    return found


def _collection(connection: Connection, collection: str) -> tuple[int, int, Revisions]:
    """Returns a collection's numbers of documents and tokens, and the revisions with obsolete postings."""
    documents, tokens, removed = connection.execute(
        "SELECT sum(documents)::bigint, sum(tokens)::bigint, ARRAY(SELECT unnest(removed) FROM term_changes "
        "WHERE collection = ? AND removed <> '{}') FROM tally WHERE collection = ?",
        (collection, collection),
    ).fetchone() or (0, 0, [])
    return documents or 0, tokens or 0, np.array(removed, np.int64)
