"""The latest searches are kept by search_id within a memory limit."""

import tracemalloc

import pytest

from service.corpus.recent_searches import LISTED, RecentSearches, SearchShown, sum_up
from service.store.values import Selection


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


def searched(*queries: str, visitor: str = "", hits: int = 1) -> list[SearchShown]:
    return [SearchShown("default", 0, query, ("a",) * hits, visitor) for query in queries]


@pytest.mark.parametrize(
    ("searches", "frequent"),
    [
        (searched("red", "blue", "red"), [("red", 2)]),
        (searched("red", "blue"), []),
        (searched("Red  River", "red river", " red river "), [("red river", 3)]),
        # A page searches while its user types: only the last of these is a query.
        (searched("re", "red", "red ri", "red river") * 2, [("red river", 2)]),
        (searched("red", "red", "red river"), []),
        (searched("re", "blue", "red", "blue"), [("blue", 2)]),
        # Another visitor's search does not continue this one's.
        (
            [*searched("red", visitor="v"), *searched("red river", visitor="w")] * 2,
            [("red river", 2), ("red", 2)],
        ),
        ([SearchShown("default", 10, "red", ("a",)), *searched("red")], []),
        ([SearchShown("default", 0, "red", ("a",), "", True), *searched("red")], []),
        (searched("straße", "STRASSE"), [("STRASSE", 2)]),
        ([], []),
    ],
)
def test_frequent_queries_are_those_asked_more_than_once(
    searches: list[SearchShown], frequent: list[tuple[str, int]]
) -> None:
    assert sum_up(searches).frequent == frequent


@pytest.mark.parametrize(
    ("searches", "without"),
    [
        (searched("red", hits=0), [("red", 1)]),
        (searched("red"), []),
        ([*searched("red"), *searched("red", hits=0)], [("red", 1)]),
        (searched("red", "blue", "Red", hits=0), [("Red", 2), ("blue", 1)]),
        (searched("xq", "xqz", "xqzzt", hits=0), [("xqzzt", 1)]),
        ([SearchShown("default", 10, "red", ())], []),
        (searched("a\0b", hits=0), []),  # It cannot be judged.
    ],
)
def test_queries_without_results_are_counted(
    searches: list[SearchShown], without: list[tuple[str, int]]
) -> None:
    assert sum_up(searches).without_results == without


def test_a_summary_lists_few_queries_and_counts_all() -> None:
    found = sum_up(searched(*[f"{at} red" for at in range(100)] * 2, hits=0))
    assert (found.searches, len(found.frequent), len(found.without_results)) == (200, LISTED, LISTED)


@pytest.mark.parametrize(
    ("selection", "left"),
    [
        (Selection("default"), ["blue of other"]),
        (Selection("default", "red"), ["blue", "blue of other"]),
        (Selection(visitor="v"), ["blue", "blue of other"]),
        (Selection(), []),
        (Selection(key="ada"), ["red", "blue", "blue of other"]),
        (Selection("default", id="a"), ["red", "blue", "blue of other"]),
    ],
)
def test_searches_are_forgotten_with_what_was_deleted(selection: Selection, left: list[str]) -> None:
    searches = RecentSearches(max_characters=3 * 400)
    searches.note("default", 0, "red", ["a"], "v")
    searches.note("default", 0, "blue", ["a"], "w")
    searches.note("other", 0, "blue of other", ["a"])
    searches.forget(selection)
    found = [one.query for collection in ("default", "other") for one in searches.of(collection)]
    assert found == left
    for _ in range(3 - len(left)):  # The room is free again.
        searches.note("default", 0, "green", ["a"])
    assert len(searches.of("default")) + len(searches.of("other")) == 3


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
