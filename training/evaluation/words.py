"""Search by words over texts in memory, as the service counts them: BM25 by SQLite's FTS5."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing

from models.search.words import TABLE, cut, expression


class WordIndex:
    """The words of `texts`, which are named by their places. Close it."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._connection = sqlite3.connect(":memory:", isolation_level=None)
        self._connection.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        rows = ((place, cut(text)) for place, text in enumerate(texts))
        self._connection.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", rows)

    def nearest(self, query: str, depth: int) -> dict[int, float]:
        """Places of the `depth` texts that rank highest, and their BM25, above 0; best first."""
        match = expression(query)
        if not match:
            return {}
        asked = "SELECT rowid, -rank FROM words WHERE words MATCH ? ORDER BY rank, rowid LIMIT ?"
        with closing(self._connection.execute(asked, (match, depth))) as rows:
            return dict(rows.fetchall())

    def close(self) -> None:
        self._connection.close()
