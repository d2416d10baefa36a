"""Search by words: BM25 over SQLite's FTS5, in the document store's own file and transactions.

A text is cut into tokens here, and FTS5 only stems, counts and ranks them:

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
`trigram` finds no word of two characters. The table is contentless, because documents hold the texts already:
100,000 sentences of Wikipedia take 9 MB, and 24 with content. Who removes a document must therefore cut its
text once more by the rules that it was indexed by; secondary_indexes.py indexes all anew where they changed.

Each collection has a table of its own, named by the collection's number, so how rare a word is and how long a
text usually is are counted within the collection. Making one takes 5 ms and dropping one 8 ms when there are
1,000, each takes 64 KiB on disk, and readers look at the changed schema once (40 ms). One table for all, with
BM25 computed here from FTS5's counts, would read every occurrence of a query's words in every collection.

Not here: stems of other languages, synonyms, phrases, and scripts without spaces other than those above (a
run of Thai is one word).
"""

import re
import sqlite3
import unicodedata
from itertools import pairwise

import numpy as np
import orjson
from numpy.typing import NDArray

from models.tokens.normalize import BREAK, pieces, stream_safe
from service.store.documents import FEW_REVISIONS, number_of
from service.store.ids import Revisions

RULES = f"2, Unicode {unicodedata.unidata_version}"  # raise the number with any change of what is indexed
MAX_TERMS = 256  # of a query: the first that differ
TIES = 1000  # with the last hit
SPARE = 16
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

_TABLE = "lexical_"  # and the number of a collection
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


def table(number: int) -> str:
    """The name of the table of a collection's words."""
    return f"{_TABLE}{number}"


def make(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(
        f"CREATE VIRTUAL TABLE {table(number)} USING fts5 (text, content='', tokenize='porter ascii')"
    )


def drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute(f"DROP TABLE IF EXISTS {table(number)}")


def add(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    connection.execute(f"INSERT INTO {table(number)} (rowid, text) VALUES (?, ?)", (revision, cut(text)))


def remove(connection: sqlite3.Connection, number: int, revision: int, text: str) -> None:
    """`text` is what was added: FTS5 takes its tokens out one by one."""
    name = table(number)
    connection.execute(
        f"INSERT INTO {name} ({name}, rowid, text) VALUES ('delete', ?, ?)", (revision, cut(text))
    )


def clear(connection: sqlite3.Connection, number: int) -> None:
    name = table(number)
    connection.execute(f"INSERT INTO {name} ({name}) VALUES ('delete-all')")


def numbers(connection: sqlite3.Connection) -> set[int]:
    """The numbers of the collections that have a table."""
    names = connection.execute("SELECT name FROM sqlite_master WHERE name GLOB ?", (f"{_TABLE}*",)).fetchall()
    endings = (name.removeprefix(_TABLE) for (name,) in names)
    return {int(ending) for ending in endings if ending.isdecimal()}  # FTS5's own have words behind it


def optimize(connection: sqlite3.Connection, number: int) -> None:
    """Merge the table, so that words of deleted documents go."""
    name = table(number)
    connection.execute(f"INSERT INTO {name} ({name}) VALUES ('optimize')")


def nearest(
    connection: sqlite3.Connection, query: str, depth: int, allowed: Revisions | None, collection: str
) -> tuple[Revisions, NDArray[np.float32]]:
    """The revisions of the `depth` documents that rank highest, and their scores, best first.

    A score is FTS5's bm25 with its sign turned: above 0, and larger is better. As with vectors, the answer
    holds every document that ties with the last one, up to `TIES` more.

    Args:
        allowed: the revisions that pass a filter, rising; None for all.

    """
    match = expression(query)
    number = number_of(connection, collection)
    if not match or number is None or (allowed is not None and not len(allowed)):
        return np.empty(0, np.int64), np.empty(0, np.float32)
    name = table(number)
    among, parameters = "", [match]
    if allowed is not None and len(allowed) <= FEW_REVISIONS:
        # The plus keeps SQLite from asking FTS5 once for each revision.
        among = "AND +rowid IN (SELECT value FROM json_each(?))"
        parameters.append(orjson.dumps(allowed, option=orjson.OPT_SERIALIZE_NUMPY).decode())
        allowed = None
    rows = connection.execute(
        f"SELECT rowid, -rank FROM {name} WHERE {name} MATCH ? {among} ORDER BY rank", parameters
    )
    revisions, scores = np.empty(0, np.int64), np.empty(0, np.float32)
    size = depth + SPARE
    while batch := rows.fetchmany(size):
        names = np.array([row[0] for row in batch], np.int64)
        inside = slice(None) if allowed is None else np.isin(names, allowed, assume_unique=True)
        revisions = np.concatenate([revisions, names[inside]])
        scores = np.concatenate([scores, np.array([row[1] for row in batch], np.float32)[inside]])
        if len(scores) > depth and (scores[-1] < scores[depth - 1] or len(scores) > depth + TIES):
            break
        size *= 2
    kept = len(scores) if len(scores) <= depth else int(np.sum(scores >= scores[depth - 1]))
    kept = min(kept, depth + TIES)
    return revisions[:kept], scores[:kept]
