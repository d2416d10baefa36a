"""Which words are corrected, and the nearest terms, compared with a slow reference."""
# ruff: noqa: RUF001  letters of many scripts are meant

import random
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.search.spelling import MAX_LETTERS, Vocabulary, Word, count_edits, find_words
from models.search.terms import stem


def reference(left: str, right: str) -> int:
    """Returns the optimal string alignment distance by its recursive definition."""

    def of(at: int, to: int) -> int:
        if min(at, to) == 0:
            return max(at, to)
        found = [of(at - 1, to) + 1, of(at, to - 1) + 1, of(at - 1, to - 1) + (left[at - 1] != right[to - 1])]
        if min(at, to) > 1 and left[at - 2 : at] == right[to - 2 : to][::-1]:
            found.append(of(at - 2, to - 2) + 1)
        return min(found)

    return of(len(left), len(right))


@given(st.text("abc", max_size=5), st.text("abc", max_size=5))
def test_edits_are_those_of_the_definition(left: str, right: str) -> None:
    assert count_edits(left, right) == reference(left, right)


@pytest.mark.parametrize(("letters", "length"), [("abc", 5), ("абв", 5), ("xyzw", 4)])
@pytest.mark.parametrize("edits", [1, 2])
def test_the_terms_within_a_number_of_edits_are_found(letters: str, length: int, edits: int) -> None:
    terms = ["".join(each) for size in (3, length) for each in product(letters, repeat=size)]
    terms += ["a" * size for size in range(3, 12)]
    vocabulary = Vocabulary()
    for first in range(0, len(terms), 100):  # Some at a time, with repetitions.
        vocabulary.add(terms[max(0, first - 7) : first + 100])
    assert len(vocabulary) == len({*terms})
    random.seed(1)
    for word in ["".join(random.choices(letters + "a", k=size)) for size in (7, 8, 9) for _ in range(20)]:
        far = [
            *vocabulary.find_nearest(Word(0, 0, f"{word}éé", word))
        ]  # Not ASCII, so only terms are compared.
        assert far[edits - 1].terms == {term for term in terms if 0 < count_edits(word, term) <= edits}


@pytest.mark.parametrize(
    ("typed", "term"),
    [
        ("organiztion", "organiz"),
        ("heatnig", "heat"),
        ("boundray", "boundari"),
        ("runing", "run"),
        ("qiuzzes", "quiz"),
    ],
)
def test_an_edit_in_an_ending_is_undone(typed: str, term: str) -> None:
    vocabulary = Vocabulary()
    vocabulary.add(["organiz", "organ", "heat", "boundari", "run", "quiz"])
    assert next(iter(vocabulary.find_nearest(Word(0, len(typed), typed, stem(typed))))).terms == {term}


def test_only_words_of_letters_are_kept() -> None:
    vocabulary = Vocabulary()
    vocabulary.add(
        ["", "ab", "abc", "a1c", "x·y·z", "हिन्दी", "東京", "abc‐d", "𝒳𐐨𐐨", "z" * MAX_LETTERS, "z" * 33]
    )
    assert len(vocabulary) == len(["abc", "हिन्दी", "z" * MAX_LETTERS])


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("How do I fix a pritner jam?", ["pritner"]),
        ("“Pritner”, (pritner) pritner's PRITNER", ["pritner"] * 4),
        ("boundary-laier state-of-the-atr", ["boundary", "laier", "state"]),
        ("Мосвка Łódźki café naïve", ["мосвка", "lodzki", "naive"]),
        ("there which would", []),  # Function words.
        ("E4711A abc12 10.0.0.1 user_nmae example.com/paeg parseHTMLRespnse getUserNmae ABC-DEFGH", []),
        ("C++ name@example.org #hashtga --optoin=valeu a:bcdefg 東京都知事選挙", []),
        ("x" * 33 + " " + "y" * 32, ["y" * 32]),
        ("हिन्दी भाषाओं", ["हिन्दी", "भाषाओं"]),
        ("cat 🦉🦉🦉🦉🦉 ☃", []),
    ],
)
def test_the_words_that_may_be_corrected(query: str, words: list[str]) -> None:
    found = [*find_words(query)]
    assert [word.form for word in found] == words
    if query.isascii():
        assert [query[word.start : word.end].lower() for word in found] == words
    assert [word.term for word in found] == [*map(stem, words)]
