"""Remembers the latest searches of this process by search_id, for events without `query` and `shown`.

They are only in memory, so a search writes nothing and a restart forgets them.
"""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from service.store.values import MAX_QUERY_CHARACTERS

MAX_CHARACTERS = 8_000_000  # limit for all searches: 8 to 32 MB
_RANDOM_BYTES = 9  # 12 characters. Among 1e9 ids a collision has the probability 1/9,000.
_OF_AN_ENTRY = 300  # bytes of an entry without its characters


class SearchShown(NamedTuple):
    """A search as its client saw it. `shown` are ids of hits after the first `offset`, best first."""

    collection: str
    offset: int
    query: str
    shown: tuple[str, ...]
    visitor: str = ""  # hash of the user's id


class RecentSearches:
    """The latest searches. Only the event loop may use it."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._searches: OrderedDict[str, SearchShown] = OrderedDict()

    def note(self, collection: str, offset: int, query: str, shown: Sequence[str], visitor: str = "") -> str:
        """Stores a search and returns its search_id."""
        search_id = secrets.token_urlsafe(_RANDOM_BYTES)
        if query and len(query) <= MAX_QUERY_CHARACTERS:
            search = SearchShown(collection, offset, query, tuple(shown), visitor)
            self._searches[search_id] = search
            self._characters += _size(search)
            while self._characters > self._max_characters:
                _, oldest = self._searches.popitem(last=False)
                self._characters -= _size(oldest)
        return search_id

    def get(self, search_id: str) -> SearchShown | None:
        """Returns a search, or None if it is unknown, forgotten, or had no query text."""
        return self._searches.get(search_id)


def _size(search: SearchShown) -> int:
    return _OF_AN_ENTRY + len(search.query) + len(search.visitor) + sum(map(len, search.shown))
