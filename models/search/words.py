"""The words of a text and of a query, as search by words counts them.

A text is cut into tokens here, and SQLite's FTS5 (`TABLE`) only stems, counts and ranks them by BM25:

    any text       compatibility forms become plain ones (NFKC), letters are small, accents go: Café is cafe
    words          runs of letters, digits and combining marks; whatever else stands between them divides them
    English        its endings are cut off by FTS5's Porter stemmer: searching, searched and search are one
    Chinese,       have no spaces to divide words, or endings that hide them, so a run of their characters is
    Japanese,      cut into overlapping pairs, and its last character stands alone once more: 東京都 is 東京,
    Korean         京都 and 都. So each character begins exactly one token

A query is cut by the same rules, but without the lone last character; a run of one character looks for the
tokens that begin with it, which are its occurrences. Its terms are quoted, so that no word of a user is FTS5
syntax; a document that has one of them is found, and BM25 (k1 = 1.2, b = 0.75) ranks. Of a query's function
words nothing is looked for unless it has no others: they are in almost every text, so they cost the most and
tell the least. They are indexed, so "to be or not to be" is found.

FTS5's own `unicode61` is not used: its tables end with Unicode 6.1, and it takes vowel signs for spaces. Its
`trigram` finds no word of two characters.

Not here: stems of other languages, synonyms, phrases, and scripts without spaces other than those above (a
run of Thai is one word).
"""

import re
import unicodedata
from itertools import pairwise

from models.tokens.normalize import BREAK, pieces, stream_safe

RULES = f"2, Unicode {unicodedata.unidata_version}"  # raise the number with any change of what is indexed
MAX_TERMS = 256  # of a query: the first that differ
# Characters of tokens for each character of a text, and besides. Text of Chinese alone has three; a text of
# signs that stand for phrases (U+FDFA is 18 characters) would fill the memory.
GROWTH, SLACK = 4, 1 << 16

# They say how a sentence is built and not what it is about; parts of contractions are with them.
_FUNCTION_WORDS = """
    a an the this that these those and or but nor so if then than as of at by for from in into on onto to with
    without about over under i me my mine we us our ours you your yours he him his she her hers it its they
    them their theirs who whom whose which what where when why how is am are was were be been being do does
    did doing has have had having will would shall should can could may might must not no there here such
    s t d ll m re ve
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

TABLE = "fts5 (text, content='', tokenize='porter ascii')"  # one of a collection's words; contentless
_ACCENTS = re.compile("[\u0300-\u034e\u0350-\u036f]+")
_TOKEN = re.compile("[0-9A-Za-z\x80-\U0010ffff]+")  # what FTS5's tokenizer `ascii` takes for a word
# Blocks of Han, kana, bopomofo and Hangul; by then only letters, digits and marks are left of them.
_RUN = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]+"
)
_LAST_KEPT = 0xFFFF  # of characters above nothing is remembered, so that the table stays small
_ZERO_WIDTH_SPACE = 0x200B


class _Characters(dict[int, int | None]):
    """A table for str.translate: characters of words stay, unseen ones go, any other is a space."""

    def __missing__(self, code: int) -> int | None:
        category = unicodedata.category(chr(code))
        to: int | None = code if category[0] in "LNM" else ord(" ")
        if (category == "Cf" and code != _ZERO_WIDTH_SPACE) or chr(code) == BREAK:  # soft hyphens, joiners
            to = None
        if code <= _LAST_KEPT:
            self[code] = to
        return to


_characters = _Characters()


def cut(text: str) -> str:
    """`text` as it is indexed, tokens between spaces. What is ASCII is cut alike by FTS5 itself.

    Nothing is indexed of what a text still has when it has grown as no writing does.
    """
    if text.isascii():
        return text
    room = GROWTH * len(text) + SLACK
    found: list[str] = []
    last = ""  # of a run that may go on in the next piece
    for piece in pieces(text):
        plain = last + _plain(piece)
        tokens = _RUN.sub(_pairs_and_last, plain)
        last = plain[-1:] if _RUN.match(plain[-1:]) else ""
        found.append(tokens[:-2] if last else tokens)
        room -= len(tokens)
        if room < 0:
            break
    return "".join([*found, " ", last])


def expression(query: str) -> str:
    """`query` in FTS5's language; empty when there is no word in it."""
    plain = query.lower() if query.isascii() else "".join(map(_plain, pieces(query)))
    terms: dict[str, None] = {}
    for token in _TOKEN.findall(_RUN.sub(_pairs, plain)):
        terms[f'"{token}" *' if len(token) == 1 and _RUN.match(token) else f'"{token}"'] = None
    telling = [term for term in terms if term.strip('"') not in FUNCTION_WORDS]
    return " OR ".join((telling or list(terms))[:MAX_TERMS])


def _plain(piece: str) -> str:
    """Small letters without accents, spaces between words; a piece of a text has those of the text."""
    decomposed = unicodedata.normalize("NFKD", stream_safe(piece.replace(BREAK, "")))
    unaccented = _ACCENTS.sub("", decomposed.casefold())
    return unicodedata.normalize("NFC", unaccented).translate(_characters)


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters))) or characters} "


def _pairs_and_last(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters)))} {characters[-1]} "
