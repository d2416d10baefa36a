"""Normalization in pieces has the same result as for the whole text, and takes linear time."""

import sys
import unicodedata
from itertools import groupby

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from models.tokens import normalize
from models.tokens.normalize import (
    BREAK,
    LONGEST_RUN,
    MAX_MARKS,
    PIECE,
    begins_anew,
    normalized,
    pieces,
    stream_safe,
)

FORMS: tuple[normalize.Form, ...] = ("NFC", "NFD", "NFKC", "NFKD")
MARKS = "\u0300\u0301\u0315\u0327\u0344\u05b0\u05bc\u0345\u3099\U0001d165\u0f73\uff9e"
# Letters that change with their neighbours: jamo, vowel signs that join, and characters that decompose.
LETTERS = (
    "aeK\u00e9\u1ed7\u1100\u1161\u11a8\uac00\u0bc6\u0bbe\u09c7\u09d7\ufdfa\u1fb7\ufb01\u00a8\u0e33 \n.\u03a3"
)


CHARACTERS = st.one_of(st.sampled_from(MARKS), st.sampled_from(LETTERS), st.characters())


@pytest.mark.parametrize("form", FORMS)
@given(text=st.text(CHARACTERS, max_size=60))
@settings(max_examples=500, deadline=None)
def test_pieces_give_the_form_of_the_whole_text(form: normalize.Form, text: str) -> None:
    assume(stream_safe(text) == text)  # no run of more than 30 marks
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normalize, "PIECE", 3)
        assert "".join(pieces(text)) == text
        assert normalized(text, form) == unicodedata.normalize(form, text)


@pytest.mark.long
def test_no_character_that_begins_anew_joins_one_before_it() -> None:
    """Checks every character of Python's Unicode, and its case-folded and decomposed forms."""
    seconds = set()
    for character in map(chr, range(sys.maxunicode + 1)):
        parts = unicodedata.normalize("NFD", character)
        if len(parts) > 1 and unicodedata.normalize("NFC", character) == character:
            seconds.add(parts[-1])
    for character in map(chr, range(sys.maxunicode + 1)):
        if begins_anew(character):
            folded = unicodedata.normalize("NFKD", character).casefold()
            for form in (character, folded, unicodedata.normalize("NFD", folded)):
                assert not unicodedata.combining(form[0]), hex(ord(character))
                assert form[0] not in seconds, hex(ord(character))


def reference(text: str) -> str:
    """Applies the Stream-Safe Text Process as UAX #15 defines it."""
    safe, count = "", 0
    for character in text:
        plain = unicodedata.normalize("NFKD", character)
        starters = [at for at, one in enumerate(plain) if is_starter(one)]
        if count + (starters[0] if starters else len(plain)) > 30:
            safe, count = safe + "\u034f", 0
        safe += character
        count = len(plain) - 1 - starters[-1] if starters else count + len(plain)
    return safe


def is_starter(character: str) -> bool:
    return not unicodedata.combining(character)


@given(st.lists(st.tuples(st.sampled_from(LETTERS + MARKS), st.integers(1, 40)), max_size=6))
@settings(max_examples=500, deadline=None)
def test_runs_of_marks_are_broken_as_the_standard_says(runs: list[tuple[str, int]]) -> None:
    text = "".join(character * count for character, count in runs)
    assert stream_safe(text) == reference(text)
    assert stream_safe(text).replace(BREAK, "") == text.replace(BREAK, "")


@pytest.mark.parametrize(
    "run", ["\u0315\u0300", "\u05b0\u0591\u05bc", "\u1161", "\u0bbe", "\U0001d165\u0300"]
)
def test_no_call_sees_more_than_a_piece_and_sorts_more_than_thirty_marks(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    plain = unicodedata.normalize

    def normalize_and_note(form: normalize.Form, text: str) -> str:
        seen.append(text)
        return plain(form, text)

    monkeypatch.setattr(unicodedata, "normalize", normalize_and_note)
    text = "a" + run * (100_000 // len(run))
    normalized(text, "NFKC")
    assert max(map(len, seen)) <= (PIECE + LONGEST_RUN) * 1.1, "the breaks come on top"
    runs = [
        list(run) for text in seen for starter, run in groupby(plain("NFKD", text), is_starter) if not starter
    ]
    assert max(map(len, runs), default=0) <= MAX_MARKS
