"""Places of terms in texts, and snippets, compared with slow references and values found by hand."""

import time
from collections import Counter
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.search import highlights
from models.search.highlights import (
    MAX_CHARACTERS,
    MAX_RANGES,
    SNIPPET_CHARACTERS,
    Matcher,
    choose_snippet,
    cut_snippet,
    merge,
    split_sentences,
)
from models.search.terms import PIECE, Place, compute_idf, find_terms, get_terms, parse_query
from models.tokens import normalize
from tests.parts.marking import SCRIPTS, locate, write


def match(text: str, query: str) -> list[str]:
    """Returns the parts of a text that a query's terms cover."""
    parsed = parse_query(query)
    found = Matcher(parsed.terms, parsed.beginnings).find(text)
    return [text[start:end] for start, end in merge(found)]


@pytest.mark.parametrize("script", SCRIPTS)
def test_places_are_those_that_trying_each_part_finds(script: str) -> None:
    random = Random(script)
    found = 0
    for _ in range(100):
        text = write(random, script, 12)
        query = " ".join(random.choice(SCRIPTS[script]) for _ in range(random.randint(1, 3)))
        parsed = parse_query(query)
        ranges = merge(Matcher(parsed.terms, parsed.beginnings).find(text))
        assert ranges == locate(text, query), (text, query)
        found += len(ranges)
    assert found > 50


@given(
    st.text(
        st.one_of(
            st.sampled_from("aBÉß\u0301\u05b0\u034f\u00ad'-./_+#1²½™ﬁ東京、한ᄒㅏᆫｶﾞ \u3000\ufdfa"),
            st.characters(),
        ),
        max_size=40,
    )
)
@settings(max_examples=500, deadline=None)
def test_pieces_have_the_terms_of_their_text(text: str) -> None:
    assume(normalize.stream_safe(text) == text)
    terms = get_terms(text)
    places = [
        place for piece in PIECE.finditer(text) for place in find_terms(piece[0], {*terms}, frozenset())
    ]
    assert Counter(place.term for place in places) == Counter(terms)


@pytest.mark.parametrize(
    ("text", "query", "parts"),
    [
        ("Die Straße, STRASSE", "strasse", ["Straße", "STRASSE"]),
        ("a ﬁne ﬀ day", "fine", ["ﬁne"]),
        ("e\u0301cole, École.", "ecole", ["e\u0301cole", "École"]),
        ("Ｆｕｌｌ width", "full", ["Ｆｕｌｌ"]),  # noqa: RUF001
        ("searched, searching (Searches)", "search", ["searched", "searching", "Searches"]),
        ("the printer's tray isn't", "printers", ["printer"]),
        ("ABC-123-A and ABC 123", "abc-123", ["ABC-123", "ABC", "123"]),
        ("parseHTMLResponse", "html", ["HTML"]),
        ("C++ and C", "C++", ["C++", "C"]),
        ("東京都の京都", "東京", ["東京"]),
        ("東京都の京都", "京", ["京", "京"]),
        ("ｶﾞｽとガス", "ガス", ["ｶﾞｽ", "ガス"]),
        (
            "\u1112\u1161\u11ab\u1100\u1173\u11af 한글",
            "한글",
            ["\u1112\u1161\u11ab\u1100\u1173\u11af", "한글"],
        ),
        ("שָׁלוֹם שלום", "שלום", ["שָׁלוֹם", "שלום"]),
        ("مـــكتبة", "مكتبة", ["مـــكتبة"]),
        ("co\u00adoperate", "cooperate", ["co\u00adoperate"]),
        ("price¹ m² ½", "price m2", ["price", "m²"]),
        ("the river of the", "the river", ["river"]),
        ("nothing", "", []),
    ],
)
def test_places_by_hand(text: str, query: str, parts: list[str]) -> None:
    assert match(text, query) == parts


def test_a_long_text_is_searched_at_its_start_and_in_its_best_passage() -> None:
    text = "river " * (2 * MAX_CHARACTERS // 6)
    matcher = Matcher(["river"])
    assert len(merge(matcher.find(text))) == MAX_RANGES
    places = matcher.find(text)
    assert places[-1].end <= MAX_CHARACTERS < places[-1].end + 12
    start = text.index("river", 3 * MAX_CHARACTERS // 2)
    later = matcher.find(text, (start, start + 50))
    assert {place.start for place in later} - {place.start for place in places} >= {start, start + 6}
    assert not matcher.find("x" * MAX_CHARACTERS + "river", None), "a border may cut a word"
    assert not Matcher(["x"]).find("x " * 10 + "x" * MAX_CHARACTERS)[10:], "the rest of a word"


def test_long_words_and_runs_take_linear_time() -> None:
    """A hundred thousand characters without a space, in the worst kinds."""

    def seconds(part: str) -> float:
        began = time.thread_time()
        Matcher(["b", "京都", "a"]).find(part)
        return time.thread_time() - began

    for unit in ("a", "aB", "a-", "é", "東京", "é\u0315\u0300", "\ufdfa", "½", "'s", "\u034f"):
        text = (unit * MAX_CHARACTERS)[:MAX_CHARACTERS]
        # The best of three, because a pass may contain a garbage collection of the whole suite.
        quarter, whole = (
            min(seconds(part) for _ in range(3)) for part in (text[: MAX_CHARACTERS // 4], text)
        )
        assert whole < 16 * quarter + 0.5, unit


def test_the_snippet_has_the_rarest_terms_and_whole_sentences() -> None:
    filler = "Nothing is said here about any of it. " * 8
    text = f"{filler}The printer jams. {filler}A paper jam stops the printer now. {filler}"
    places = Matcher(["printer", "jam", "paper"]).find(text)
    idf = {"printer": 1.0, "jam": 2.0, "paper": 3.0}
    start, end = choose_snippet(text, places, idf, None)
    assert text[start:end].startswith("A paper jam stops the printer now. Nothing is said")
    assert text[start:end].endswith("any of it.")
    assert 200 < end - start <= SNIPPET_CHARACTERS
    first = text.index("The printer jams")
    start, end = choose_snippet(text, places, idf, (first, first + 300))
    assert text[start:end].startswith("The printer jams."), "the best passage comes first"
    start, end = choose_snippet(text, places, idf, (0, 100))
    assert text[start:end].startswith("A paper jam"), "the best passage has no term"


def test_rare_terms_count_more_than_many_common_ones() -> None:
    text = "a b c " * 3 + "x " * 300 + "rare " + "x " * 300
    places = Matcher(["a", "b", "c", "rare"]).find(text)
    start, end = choose_snippet(text, places, {"a": 1.0, "b": 1.0, "c": 1.0, "rare": 3.5}, None)
    assert "rare" in text[start:end]
    start, end = choose_snippet(text, places, {"a": 1.0, "b": 1.0, "c": 1.0, "rare": 2.5}, None)
    assert text[start:end].startswith("a b c a b c")


@given(
    st.text(st.sampled_from("ab \n.。!東é\u0301\u05b0"), max_size=900),
    st.integers(0, 900),
    st.integers(0, 300),
)
@settings(max_examples=100, deadline=None)
def test_a_snippet_is_short_and_has_what_it_should_show(text: str, first: int, length: int) -> None:
    assume(first < len(text))
    last = min(len(text), first + length)
    start, end = cut_snippet(text, (first, last), (0, len(text)))
    assert 0 <= start <= end <= len(text)
    assert end - start <= SNIPPET_CHARACTERS + normalize.MAX_MARKS
    assert text[start:end] == text[start:end].strip()
    shown = text[first : min(last, first + SNIPPET_CHARACTERS)].strip()
    assert shown in text[start:end]


def test_words_are_not_cut() -> None:
    text = "word " * 200
    for first in range(0, 700, 5):
        start, end = cut_snippet(text, (first, first + 4), (0, len(text)))
        assert {*text[start:end].split(" ")} == {"word"}
        assert end - start > SNIPPET_CHARACTERS - 10


def test_sentences_are_split_within_their_passage() -> None:
    text = "One. Two!  Three\nFour。五、六。 "
    found = [text[start:end] for start, end in split_sentences(text, (0, len(text)))]
    assert found == ["One.", "Two!", "Three", "Four。", "五、六。"]
    assert [text[start:end] for start, end in split_sentences(text, (5, 17))] == ["Two!", "Three"]
    assert split_sentences(" \n ", (0, 3)) == []


def test_overlapping_places_share_a_range() -> None:
    assert merge([Place("a", 0, 2), Place("b", 1, 3), Place("c", 3, 4), Place("d", 3, 7)]) == [(0, 3), (3, 7)]


def test_the_idf_is_that_of_bm25() -> None:
    assert compute_idf(10, 1) == pytest.approx(1.84583, abs=1e-5)  # ln(9.5 / 1.5)
    assert compute_idf(10, 9) == 1e-6


def test_a_matcher_without_terms_reads_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(highlights, "find_terms", None)
    assert Matcher([]).find("text") == []
