"""Splits texts and queries into the terms of keyword search. Start at `cut` and `expression`.

SQLite's FTS5 (`TABLE`) stems, counts and ranks the terms with BM25 (k1 = 1.2, b = 0.75):

    any text       compatibility forms normalized (NFKC), letters lowercased, accents removed: Café is cafe
    words          runs of letters, digits and combining marks
    English        FTS5's Porter stemmer removes endings: searching, searched and search are one term
    Chinese,       have words without spaces, or with endings that a stemmer would have to remove. A run of
    Japanese,      such characters becomes overlapping pairs and the last character: 東京都 is 東京, 京都
    Korean         and 都. So each character starts exactly one term

Queries follow the same rules, but without the single last character. A query of one such character matches
the terms that start with the character. A document matches if it has any of the terms. Function words are
searched only if the query has no other words, because almost every text has them.

FTS5's own tokenizers are not used: `unicode61` ends with Unicode 6.1 and splits words at vowel signs, and
`trigram` cannot find words of two characters. For languages other than English, no endings are removed. A run
of Thai letters is one word.
"""

import re
import sqlite3
import threading
import unicodedata
from collections.abc import Iterable
from itertools import pairwise

from models.tokens.normalize import BREAK, pieces, stream_safe

RULES = f"2, Unicode {unicodedata.unidata_version}"  # Raise the number if terms of texts change.
MAX_TERMS = 256  # Distinct terms of a query; later terms are ignored.
# A text may grow by this factor and these characters. Chinese grows by three. Characters such as U+FDFA,
# which decomposes into 18, could fill the memory.
GROWTH, SLACK = 4, 1 << 16

# English function words and parts of contractions.
_FUNCTION_WORDS = """
    a an the this that these those and or but nor so if then than as of at by for from in into on onto to with
    without about over under i me my mine we us our ours you your yours he him his she her hers it its they
    them their theirs who whom whose which what where when why how is am are was were be been being do does
    did doing has have had having will would shall should can could may might must not no there here such
    s t d ll m re ve
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())

TABLE = "fts5 (text, content='', tokenize='porter ascii')"  # A contentless table.
_ACCENTS = re.compile("[\u0300-\u034e\u0350-\u036f]+")
_TOKEN = re.compile("[0-9A-Za-z\x80-\U0010ffff]+")  # A word for FTS5's tokenizer `ascii`.
# Blocks of Han, kana, bopomofo and Hangul. Their punctuation has been removed before.
_RUN = re.compile(
    "[\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00016fe0-\U0001b2ff\U00020000-\U0003ffff]+"
)
_LAST_KEPT = 0xFFFF  # Characters above are not cached, so that the table stays small.
_ZERO_WIDTH_SPACE = 0x200B
_MAX_STEMS = 100_000  # Words whose stems are kept in memory, about 15 MB.
_MAX_KEPT = 32  # Maximum number of characters of such a word.
_local = threading.local()
_stems: dict[str, str] = {}


class _Characters(dict[int, int | None]):
    """A table for str.translate that keeps letters, numbers and marks.

    Invisible characters are removed. Other characters become spaces.
    """

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
    """Returns a text for FTS5: its terms, separated by spaces. An ASCII text is returned unchanged.

    Splitting into pairs makes a text longer. Its rest is ignored when the result becomes too long (GROWTH).
    """
    if text.isascii():  # FTS5 itself splits ASCII in the same way.
        return text
    room = GROWTH * len(text) + SLACK
    found: list[str] = []
    last = ""  # The last character of a run that may continue in the next piece.
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
    """Converts a query to FTS5 syntax. Returns an empty text for a query without words."""
    terms: dict[str, None] = {}
    for token in split_query(query):
        terms[f'"{token}" *' if len(token) == 1 and _RUN.match(token) else f'"{token}"'] = None
    telling = [term for term in terms if term.strip('"') not in FUNCTION_WORDS]
    return " OR ".join((telling or list(terms))[:MAX_TERMS])


def split_query(query: str) -> list[str]:
    """Returns the words of a query in their order, before stemming."""
    plain = query.lower() if query.isascii() else "".join(map(_plain, pieces(query)))
    return _TOKEN.findall(_RUN.sub(_pairs, plain))


def split_words(text: str) -> list[str]:
    """Returns the words of a text in their order, before stemming."""
    if text.isascii():
        text = text.lower()
    else:  # Most parts of most texts are ASCII.
        text = " ".join(part.lower() if part.isascii() else cut(part) for part in text.split())
    return _TOKEN.findall(text)


class _OfOneThread(sqlite3.Connection):
    """A connection that can be closed on any thread. It is closed when its thread has ended."""

    def __del__(self) -> None:
        self.close()


def get_stemmer() -> sqlite3.Connection:
    """Returns this thread's in-memory database with FTS5.

    Texts are inserted into the table `words`. Their stemmed terms then appear in the table `terms`.
    """
    if not hasattr(_local, "fts"):
        _local.fts = sqlite3.connect(
            ":memory:", isolation_level=None, check_same_thread=False, factory=_OfOneThread
        )
        _local.fts.execute(f"CREATE VIRTUAL TABLE words USING {TABLE}")
        _local.fts.execute("CREATE VIRTUAL TABLE terms USING fts5vocab (words, instance)")
    fts: sqlite3.Connection = _local.fts
    return fts


def stem(words: Iterable[str]) -> dict[str, str]:
    """Returns a dict from each word to its stem by FTS5.

    Args:
        words: Distinct results of `split_query` or `split_words`.
    """
    stems = {word: _stems.get(word, "") for word in words}
    if missing := [word for word, stemmed in stems.items() if not stemmed]:
        fts = get_stemmer()
        fts.execute("BEGIN")
        try:
            fts.execute("INSERT INTO words (rowid, text) VALUES (0, ?)", (" ".join(missing),))
            found = fts.execute("SELECT term FROM terms ORDER BY offset").fetchall()
        finally:
            fts.execute("ROLLBACK")
        new = {word: term for word, (term,) in zip(missing, found, strict=True)}
        stems |= new
        if len(_stems) > _MAX_STEMS:
            _stems.clear()
        _stems.update((word, stemmed) for word, stemmed in new.items() if len(word) <= _MAX_KEPT)
    return stems


def _plain(piece: str) -> str:
    """Lowercases a piece of a text, removes accents, and replaces separators by spaces."""
    decomposed = unicodedata.normalize("NFKD", stream_safe(piece.replace(BREAK, "")))
    unaccented = _ACCENTS.sub("", decomposed.casefold())
    return unicodedata.normalize("NFC", unaccented).translate(_characters)


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters))) or characters} "


def _pairs_and_last(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters)))} {characters[-1]} "
