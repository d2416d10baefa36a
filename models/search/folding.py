"""Folds the letters, digits and signs of a text for keyword search. Start at `fold`.

    signs      ™ and № leave the words that they touch; C++ and C♯ keep theirs, as ASCII
    letters    compatibility forms normalized (NFKC), accents removed; ø, æ and ł are o, ae and l
    marks      vowel marks of Arabic and Hebrew, and variation selectors, are removed; й, ў and ї stay
    digits     of all scripts are 0 to 9
    others     dashes and apostrophes become their ASCII forms, invisible characters disappear, spaces replace
               all else outside ASCII

The case of letters stays, because it says more about a query.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, repeat

from models.tokens.normalize import BREAK, begins_anew, pieces, stream_safe

APOSTROPHE = "'"
# Signs, circled letters and fractions, whose normalized form would join the word before them. Superscripts.
_NOTES = "\xb9\xb2\xb3\u2070\u2074-\u2079"
_APART = re.compile(
    "[\u2100\u2101\u2103\u2105\u2106\u2109\u2116\u2120-\u2122\u213b\u2460-\u24ff\u2776-\u2793\u3244-\u32fe"
    f"\U0001f100-\U0001f1ff\xbc-\xbe\u2150-\u215f\u2189{_NOTES}]+"
)
_NOTE = re.compile(f"[{_NOTES}]")
_WORD_LENGTH = 4  # Letters before a superscript that is a note: m² is m2, but price¹ is the price.
# Marks that are removed: accents, vowel marks of Hebrew and Arabic, variation selectors, marks around signs.
_MARKS = re.compile(
    "[\u0300-\u0305\u0307\u0309-\u034e\u0350-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7"
    "\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed"
    "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]+"
)
# Accents that й, ў and ї keep.
_LETTERS = re.compile("(?<![\u0438\u0443\u0418\u0423])\u0306|(?<![\u0456\u0406])\u0308")
_SAME = {
    **dict.fromkeys(
        "\u2018\u2019\u201b\u02b9\u02bb\u02bc\u02bd\u02be\u02bf\u02c8\u2032\ua78b\ua78c", APOSTROPHE
    ),
    **dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-"),
    **dict.fromkeys("\u2044\u2215", "/"),
    "\u2236": ":",
    "\u266f": "#",
    "\u0640": None,  # The Arabic character that lengthens words.
    # Arabic letters as Persian and Urdu write them.
    "\u0649": "\u064a",
    "\u06a9": "\u0643",
    "\u06cc": "\u064a",
    "\u06c1": "\u0647",
    "\u0671": "\u0627",
    **dict(zip("ðÐŋŊĸƿǷəƏ", "dDnNqwWeE", strict=True)),
    **dict(zip("\u0292\u01b7\u021d\u021c\u0283\u01a9", "zZzZsS", strict=True)),  # ezh, yogh, esh
    "þ": "th",
    "Þ": "TH",
}
# Letters without a decomposition, such as LATIN SMALL LETTER O WITH STROKE.
_LATIN = re.compile(
    "LATIN (CAPITAL|SMALL) (?:LETTER|LIGATURE) (?:DOTLESS |OPEN |TURNED |REVERSED )?([A-Z]{1,2})"
    "(?: WITH .*| DIGRAPH)?"
)
_LAST_KEPT = 0xFFFF  # Characters above are not cached, so that the table stays small.
_ZERO_WIDTH_SPACE = "\u200b"
# Folded clusters that are kept in memory, and their longest.
_MAX_CLUSTERS, _LONGEST_CLUSTER = 50_000, 4


class _Characters(dict[int, int | str | None]):
    """A table for str.translate, filled when it is needed."""

    def __missing__(self, code: int) -> int | str | None:
        to = _fold_character(chr(code))
        if code <= _LAST_KEPT:
            self[code] = to
        return to


_characters = _Characters()


def set_signs_apart(text: str) -> str:
    """Puts spaces around signs. This needs the letters before a sign, so the text must be whole."""
    return _APART.sub(_set_apart, text.replace(BREAK, ""))


def fold(piece: str) -> str:
    """Folds a text of limited length (normalize.pieces) with `set_signs_apart`. ASCII stays as it is."""
    decomposed = unicodedata.normalize("NFKD", stream_safe(piece))
    unmarked = _LETTERS.sub("", _MARKS.sub("", decomposed))
    return unicodedata.normalize("NFC", unmarked).translate(_characters)


def fold_with_places(text: str) -> tuple[str, Sequence[int], Sequence[int]]:
    """Folds a text as `set_signs_apart` and `fold` do, in linear time.

    Returns:
        The folded text, and for each of its characters the start and the end of the characters in `text` that
        it comes from.
    """
    places = range(len(text) + 1)
    if text.isascii():
        return text, places, places[1:]
    kept = [at for at in places[:-1] if text[at] != BREAK] if BREAK in text else places[:-1]
    whole = text.replace(BREAK, "")
    parts, starts, ends = list[str](), list[int](), list[int]()  # Of clusters, and of spaces around signs.
    borders = [border for sign in _APART.finditer(whole) if not _joins(sign) for border in sign.span()]
    for begin, stop in pairwise([0, *borders, len(whole)]):
        begins = [at for at in range(begin, stop) if at == begin or begins_anew(whole[at])]
        parts += [_clusters[whole[start:end]] for start, end in pairwise([*begins, stop])]
        starts += [kept[at] for at in begins]
        ends += [kept[at - 1] + 1 for at in [*begins[1:], stop] if begins]
        if stop < len(whole):
            parts.append(" ")
            starts.append(kept[stop])
            ends.append(kept[stop])
    folded, lengths = "".join(parts), [*map(len, parts)]
    if max(lengths, default=1) > 1 or not all(lengths):
        starts, ends = [*_repeat(starts, lengths)], [*_repeat(ends, lengths)]
    return folded, starts, ends


def _repeat(places: Sequence[int], counts: Sequence[int]) -> Iterator[int]:
    return chain.from_iterable(map(repeat, places, counts))


class _Clusters(dict[str, str]):
    """Folded clusters: a character with the marks that combine with it."""

    def __missing__(self, cluster: str) -> str:
        folded = "".join(map(fold, pieces(cluster)))
        if len(self) >= _MAX_CLUSTERS:
            self.clear()
        if len(cluster) <= _LONGEST_CLUSTER:
            self[cluster] = folded
        return folded


_clusters = _Clusters()


def _set_apart(signs: re.Match[str]) -> str:
    return signs[0] if _joins(signs) else f" {signs[0]} "


def _joins(signs: re.Match[str]) -> bool:
    """Returns whether signs belong to the word before them."""
    before = signs.string[max(0, signs.start() - _WORD_LENGTH) : signs.start()]
    return bool(_NOTE.match(signs[0])) and not (len(before) == _WORD_LENGTH and before.isalpha())


def _fold_character(character: str) -> str | None:
    category = unicodedata.category(character)
    if character.isascii():
        return character
    if character in _SAME:
        return _SAME[character]
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if (category == "Cf" and character != _ZERO_WIDTH_SPACE) or character == BREAK:  # soft hyphens, joiners
        return None
    if found := _LATIN.fullmatch(unicodedata.name(character, "")):
        case, letters = found.groups()
        return letters if case == "CAPITAL" else letters.lower()
    return character if category[0] in "LNM" else " "
