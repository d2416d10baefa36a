"""Remembers the latest searches of this process by search_id.

An event that has a search_id can therefore be sent without `query` and `shown`. The searches are only in
memory: a search writes nothing to disk, and a restart forgets all searches.
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
    """A search, and the hits that the client saw.

    `shown` has the ids of the hits after the first `offset` hits, best first.
    """

    collection: str
    offset: int
    query: str
    shown: tuple[str, ...]
    visitor: str = ""  # hash of the user's id


class RecentSearches:
    """Stores the latest searches. Only the event loop may use this object."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._searches: OrderedDict[str, SearchShown] = OrderedDict()

    def note(self, collection: str, offset: int, query: str, shown: Sequence[str], visitor: str = "") -> str:
        """Stores a search and returns its search_id. A search with no or too much text is not stored."""
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
        """Returns a search, or None if the search is unknown or forgotten, or was not stored."""
        return self._searches.get(search_id)


def _size(search: SearchShown) -> int:
    return _OF_AN_ENTRY + len(search.query) + len(search.visitor) + sum(map(len, search.shown))
