"""Remembers the latest searches of this process by search_id.

An event that has a search_id can therefore be sent without `query` and `shown`. `sum_up` counts the queries
for admins. The searches are only in memory: a search writes nothing to disk, and a restart forgets all
searches.
"""

import secrets
from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from service.store.values import MAX_QUERY_CHARACTERS, Selection

MAX_CHARACTERS = 8_000_000  # limit for all searches: 8 to 32 MB
_RANDOM_BYTES = 9  # 12 characters. Among 1e9 ids a collision has the probability 1/9,000.
LISTED = 20  # Queries in each list of a summary.
FREQUENT = 2  # A query with this many searches is frequent.
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
    pinned: bool = False  # Whether the request named a version, as a comparison does.
    tenant: str = ""  # Only keys of this tenant may refer to the search, if it has one.


class SearchSummary(NamedTuple):
    """The number of searches, and queries with their numbers of searches, highest first."""

    searches: int
    frequent: list[tuple[str, int]]
    without_results: list[tuple[str, int]]


class RecentSearches:
    """Stores the latest searches. Only the event loop may use this object."""

    def __init__(self, max_characters: int = MAX_CHARACTERS) -> None:
        self._max_characters = max_characters
        self._characters = 0
        self._searches: OrderedDict[str, SearchShown] = OrderedDict()

    def note(
        self,
        collection: str,
        offset: int,
        query: str,
        shown: Sequence[str],
        visitor: str = "",
        *,
        pinned: bool = False,
        tenant: str = "",
        search_id: str = "",
    ) -> str:
        """Stores a search and returns its search_id. A search with no or too much text is not stored."""
        search_id = search_id or secrets.token_urlsafe(_RANDOM_BYTES)
        if query and len(query) <= MAX_QUERY_CHARACTERS:
            search = SearchShown(collection, offset, query, tuple(shown), visitor, pinned, tenant)
            self._searches[search_id] = search
            self._characters += _size(search)
            while self._characters > self._max_characters:
                _, oldest = self._searches.popitem(last=False)
                self._characters -= _size(oldest)
        return search_id

    def get(self, search_id: str, tenant: str = "") -> SearchShown | None:
        """Returns a search, or None if the search is unknown, forgotten, not stored, or of another tenant.

        Without `tenant`, the search may be of any.
        """
        found = self._searches.get(search_id)
        return found if found is not None and tenant in {"", found.tenant} else None

    def of(self, collection: str) -> list[SearchShown]:
        """Returns the searches of a collection, oldest first."""
        return [search for search in self._searches.values() if search.collection == collection]

    def forget(self, selection: Selection) -> None:
        """Forgets the searches of a deleted collection, query or visitor. No search has a key or an id."""
        if selection.key is not None or selection.id is not None:
            return
        wanted = (selection.collection, selection.query, selection.visitor)
        for search_id, search in [*self._searches.items()]:
            own = (search.collection, search.query, search.visitor)
            if all(one in {None, other} for one, other in zip(wanted, own, strict=True)):
                self._characters -= _size(self._searches.pop(search_id))


def sum_up(searches: Iterable[SearchShown]) -> SearchSummary:
    """Counts the queries of searches, which come oldest first. Any thread may call this.

    Not counted: later pages, searches of a named version, and a query that the same visitor's next search
    continues, because a page may search while the user types. Case and white space are ignored. Queries with
    a null character are not counted either, because they cannot be judged.
    """
    counts, empty, spelled = Counter[str](), Counter[str](), dict[str, str]()
    following: dict[str, str] = {}  # By visitor.
    counted = [one for one in searches if not (one.pinned or one.offset or "\0" in one.query)]
    for search in reversed(counted):
        query = " ".join(search.query.split())
        plain = query.casefold()
        later = following.get(search.visitor, "")
        following[search.visitor] = plain
        if later.startswith(plain) and later != plain:
            continue
        spelled.setdefault(plain, query)
        counts[plain] += 1
        empty[plain] += not search.shown
    frequent = [(spelled[plain], count) for plain, count in counts.most_common(LISTED) if count >= FREQUENT]
    without = [(spelled[plain], count) for plain, count in empty.most_common(LISTED) if count]
    return SearchSummary(counts.total(), frequent, without)


def _size(search: SearchShown) -> int:
    return _OF_AN_ENTRY + len(search.query) + len(search.visitor) + sum(map(len, search.shown))
