"""Terms of texts and of queries, as SQLite's FTS5 makes them.

models/search/terms.py cuts a text; FTS5 itself, in memory, stems what was cut. So a term is the same in both
stores.
"""

import re
import sqlite3
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple

from models.search.content import Content
from models.search.terms import TABLE, cut, expression

MOST_BYTES = 256  # of a term as it is stored; a longer one is named by its hash
_QUOTED = re.compile(r'"([^"]*)"( \*)?')
_local = threading.local()


class Terms(NamedTuple):
    """A text's terms with their counts, and its tokens in all."""

    counts: Mapping[str, int]
    length: int


def terms_of(contents: Sequence[Content]) -> list[Terms]:
    """The terms of titles and texts."""
    return [
        Terms(counts, sum(counts.values())) for counts in _stemmed([cut(each.whole) for each in contents])
    ]


def asked(query: str) -> tuple[list[str], list[str]]:
    """The terms of a query, and the beginnings of terms; one that stands there twice counts twice."""
    found = _QUOTED.findall(expression(query))
    whole = [term for term, begins in found if not begins]
    stems = [stem for counts in _stemmed(whole) for stem in counts]
    return stems, [term for term, begins in found if begins]


class _OfOneThread(sqlite3.Connection):
    """Nobody closes it by hand: it goes after its thread, and then on whatever thread notices."""

    def __del__(self) -> None:
        self.close()


def _stemmed(texts: Sequence[str]) -> list[Counter[str]]:
    """The terms of texts that were cut, as FTS5 stems them."""
    if not hasattr(_local, "fts"):
        _local.fts = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_OfOneThread
        )
        _local.fts.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        _local.fts.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (words, instance)")
    fts: sqlite3.Connection = _local.fts
    found = [Counter[str]() for _ in texts]
    fts.execute("BEGIN")
    try:
        fts.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", enumerate(texts))
        for term, at, count in fts.execute("SELECT term, doc, count(*) FROM terms GROUP BY doc, term"):
            found[at][_stored(term)] += count
    finally:
        fts.execute("ROLLBACK")
    return found


def _stored(term: str) -> str:
    encoded = term.encode()
    return term if len(encoded) <= MOST_BYTES else blake2b(encoded, digest_size=32).hexdigest()
