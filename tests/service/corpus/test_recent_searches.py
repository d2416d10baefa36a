"""The latest searches are kept by search_id within a memory limit."""

import tracemalloc

import pytest

from service.corpus.recent_searches import RecentSearches, SearchShown


def test_a_search_is_found_under_its_own_name_unless_it_has_no_words_or_very_many() -> None:
    searches = RecentSearches()
    names = [searches.note("default", 10, f"query {at}", ["b", "a"]) for at in range(1000)]
    assert len(set(names)) == 1000
    assert searches.get(names[7]) == SearchShown("default", 10, "query 7", ("b", "a"))
    assert searches.get("never made") is None
    names = [searches.note("default", 0, query, ["a"]) for query in ("", "q" * 4097, "q" * 4096)]
    assert [searches.get(name) is not None for name in names] == [False, False, True]


def test_the_oldest_searches_are_forgotten_first() -> None:
    searches = RecentSearches(max_characters=1000)
    names = [searches.note("default", 0, "q" * 100, ["d" * 100]) for _ in range(5)]
    assert [searches.get(name) is not None for name in names] == [False, False, False, True, True]


@pytest.mark.long
def test_memory_stays_bounded_whatever_is_searched() -> None:
    searches = RecentSearches(max_characters=500_000)
    tracemalloc.start()
    try:
        for at in range(20_000):
            searches.note(
                "default", 0, chr(0x1F600 + at % 50) * (at % 4000), [f"{at}-{n}" for n in range(20)]
            )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000  # 4 bytes per character, plus the objects
