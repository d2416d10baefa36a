"""The latest searches of this process, by their search_id, for events that do not say what was shown.

In memory alone: a search writes nothing, and a restart forgets them. A page that sends `query` and `shown`
with its events does not depend on it.
"""

import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from service.store.values import MAX_QUERY_CHARACTERS

MAX_CHARACTERS = 8_000_000  # of all searches together: 8 to 32 MB
_RANDOM_BYTES = 9  # 12 characters; of a thousand million ids two are equal once in 9,000 times
_OF_AN_ENTRY = 300  # bytes of an entry besides its characters


class SearchShown(NamedTuple):
    """A search as its caller saw it: the ids of the hits behind the first `offset`, best first."""

    collection: str
    offset: int
    query: str
    shown: tuple[str, ...]
    visitor: str = ""  # the hash of the user's id


class RecentSearches:
    """Used on the event loop alone."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._searches: OrderedDict[str, SearchShown] = OrderedDict()

    def note(self, collection: str, offset: int, query: str, shown: Sequence[str], visitor: str = "") -> str:
        """Keep a search and name it. Returns its search_id."""
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
        """The search of that name; None when it is forgotten, or had no words."""
        return self._searches.get(search_id)


def _size(search: SearchShown) -> int:
    return _OF_AN_ENTRY + len(search.query) + len(search.visitor) + sum(map(len, search.shown))
