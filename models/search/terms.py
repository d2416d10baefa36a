"""Splits texts and queries into the terms of keyword search. Start at `get_terms` and `parse_query`.

    any text       compatibility forms normalized (NFKC), letters lowercased, accents and vowel marks removed,
                   digits of all scripts as 0 to 9: Łódź is lodz
    words          runs of letters, digits and combining marks; plain signs such as ™ are words of their own
    English        Snowball removes endings: searching, searched and search are one term
    compounds      the parts of one word, such as ABC-123-A or parseHTMLResponse. Besides its parts, each pair
                   of adjacent parts is a term, and all of them together, and a code as it was typed
    Chinese,       have words without spaces, or with endings that a stemmer would have to remove. A run of
    Japanese,      such characters becomes overlapping pairs and the last character: 東京都 is 東京, 京都
    Korean         and 都. So each character starts exactly one term

Queries follow the same rules, but without the single last character. A query of one such character matches
the terms that start with the character. A document matches if it has any of the terms. Function words are
searched only if the query has no other words, because almost every text has them, or if their capitals say
that they are names.

The stores count these terms, and rank by BM25 (k1 = 1.2, b = 0.75). FTS5's own tokenizers are not used:
`unicode61` ends with Unicode 6.1 and splits words at vowel signs, and `trigram` cannot find words of two
characters. For languages other than English, no endings are removed. A run of Thai letters is one word.
"""

import re
import threading
import unicodedata
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

import Stemmer

from models.search.folding import APOSTROPHE, fold, set_signs_apart
from models.tokens.normalize import pieces

# Raise the number if terms of texts change.
RULES = f"3, Unicode {unicodedata.unidata_version}, Snowball {Stemmer.version()}"
MAX_TERMS = 256  # Distinct terms of a query; later terms are ignored.
# The terms of a text may exceed it by this factor and these characters. Chinese grows by three. Characters
# such as U+FDFA, which decomposes into 18, could fill the memory.
GROWTH, SLACK = 4, 1 << 16

_FUNCTION_WORDS = """
    a an the this that these those and or but nor so if then than as of at by for from in into on onto to with
    without about over under i me my mine we us our ours you your yours he him his she her hers it its they
    them their theirs who whom whose which what where when why how is am are was were be been being do does
    did doing has have had having will would shall should can could may might must not no there here such
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
_OPERATORS = frozenset({"AND", "OR", "NOT"})  # Written in capitals for other search engines.
_NAMES = frozenset({"may", "will"})  # Function words that are names with one capital.

TABLE = "fts5 (text, content='', tokenize='ascii')"  # A contentless table for the result of `cut`.
# Characters of words, which FTS5's tokenizer `ascii` does not split.
_WORD = re.compile("[0-9A-Za-z\x80-\U0010ffff]+")
_SEPARATORS = {code: " " for code in range(128) if not chr(code).isalnum()}
# Blocks of Han, kana, bopomofo and Hangul. Their punctuation has been removed before.
_CJK = (
    "\u1100-\u11ff\u2e80-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff"
    "\U00016fe0-\U0001b2ff\U00020000-\U0003ffff"
)
CJK_RUN = _RUN = re.compile(f"[{_CJK}]+")
# Each begins at the first character of a word, because a start at every character takes quadratic time.
_LETTER = f"[^\\x00-/:-@\\[-`{{-\\x7f{_CJK}]"
_COMPOUND = re.compile(f"(?<!{_LETTER}){_LETTER}+(?:[-./_:]{_LETTER}+)+")
_HYPHENED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_SIGNED = re.compile(  # C++, C#, .NET
    r"(?<![A-Za-z0-9])[A-Za-z0-9]+(?:\+\+(?!\+)|[+#](?![\w+#]))|(?<![^\s(])\.[A-Za-z]\w*"
)
_HUMP = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]{2}|[0-9][A-Z][a-z]")
_HUMPS = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})|(?<=[0-9])(?=[A-Z][a-z])")
_CONTRACTION = re.compile(f"(?<=[A-Za-z]){APOSTROPHE}(?:[stdmSTDM]|ll|LL|re|RE|ve|VE)(?![0-9A-Za-z])")
# The signs of a code, as characters that no word has.
_TYPED = str.maketrans("-./_:+#", "‐․⁄‿∶＋＃")  # noqa: RUF001
_BETWEEN = "·"  # Between parts that are numbers, so that 1.5 is not 15.
_MAX_COMPOUND = 64  # Characters of a compound that is a term as a whole.

# Nouns whose s is no ending. Snowball finds neither their plurals nor the others of these forms.
_NOUNS = """
    alias atlas bias biceps biogas bus canvas chaos christmas chrysalis clitoris cosmos dais ethos gas ibis
    ios iris jones lens madras mantis metropolis pancreas pelvis penis plus portcullis proboscis rhinoceros
    thermos trellis triceps yes
"""
_STEMS = {f"{noun}{ending}": noun for noun in _NOUNS.split() for ending in ("", "es", "ses")}
_MAX_STEMS = 100_000  # Words whose stems are kept in memory, about 15 MB,
_MAX_KEPT = 32  # with at most this many characters.
_MAX_STEMMED = 64  # Longer words are not English.
_local = threading.local()


class _Stems(dict[str, str]):
    """The stems of words, which are computed when they are needed first."""

    def __missing__(self, word: str) -> str:
        if not word.isascii() or len(word) > _MAX_STEMMED:
            return word
        if (found := _STEMS.get(word)) is None:
            if not hasattr(_local, "stemmer"):  # Threads cannot share one.
                _local.stemmer = Stemmer.Stemmer("english", 0)
            found = str(_local.stemmer.stemWord(word))
            found = found.removesuffix("z") if found.endswith("zz") else found  # quizzes, quiz
        if len(self) >= _MAX_STEMS:
            self.clear()
        if len(word) <= _MAX_KEPT:
            self[word] = found
        return found


_stems = _Stems()


_FEW = 4  # Shorter queries are names and codes rather than sentences.


class Query(NamedTuple):
    """The terms of a query.

    Attributes:
        words: The words, in their order and with repetitions.
        telling: The words without function words, unless all are function words.
        terms: Terms to search for, without repetitions: `telling`, and the terms of compounds.
        beginnings: Single characters of Chinese, Japanese or Korean. The terms that start with one of them
            are searched for, too.
    """

    words: Sequence[str]
    telling: AbstractSet[str]
    terms: Sequence[str]
    beginnings: Sequence[str]


def get_terms(text: str) -> list[str]:
    """Returns the terms of a text: its words in their order, then the additional terms of compounds.

    The rest is left out when the terms become too long (GROWTH).
    """
    room = GROWTH * len(text) + SLACK
    folded = _folded(text)
    found = [*_split(folded), *_get_compounds(folded)]
    if sum(map(len, found)) + len(found) > room:
        for place, term in enumerate(found):
            room -= len(term) + 1
            if room < 0:
                return found[:place]
    return found


def cut(text: str) -> str:
    """Returns the terms of a text for FTS5, separated by spaces."""
    return " ".join(get_terms(text))


def get_words(text: str) -> list[str]:
    """Returns the terms of a text that are words, in their order."""
    return _split(_folded(text))


def fold_case(text: str) -> str:
    """Folds a text as its terms are folded, but keeps signs between words, and endings."""
    return _folded(text).casefold()


def parse_query(query: str) -> Query:
    """Returns the terms of a query, without function words unless it has no other words."""
    folded = _folded(query)
    written = _WORD.findall(_RUN.sub(_pairs, folded))
    words = [_stems[word.casefold()] for word in written]
    few = len(folded.split()) < _FEW
    tells = few or not folded.isupper()
    telling = [
        word for place, word in enumerate(words) if not _is_function_word(written, place, case_tells=tells)
    ] or words
    terms = [*dict.fromkeys([*telling, *_get_compounds(folded, sentence=not few)])][:MAX_TERMS]
    beginnings = [term for term in terms if len(term) == 1 and _RUN.match(term)]
    return Query(words, {*telling}, [term for term in terms if term not in beginnings], beginnings)


def expression(query: str) -> str:
    """Converts a query to FTS5 syntax. Returns an empty text for a query without words."""
    parsed = parse_query(query)
    return " OR ".join([f'"{term}"' for term in parsed.terms] + [f'"{term}" *' for term in parsed.beginnings])


def _is_function_word(written: Sequence[str], place: int, *, case_tells: bool) -> bool:
    """Returns whether a word is a function word, and no name such as WHO, Will Smith or Grade I."""
    word = written[place]
    if word.casefold() not in FUNCTION_WORDS:
        return False
    before = written[place - 1] if place else ""
    after = written[place + 1] if place + 1 < len(written) else ""
    if len(word) == 1:  # vitamin A, hepatitis a, Grade I; but: the item I ordered
        named = before.casefold() not in FUNCTION_WORDS and bool(before)
        told = word == "A" or (word == "I" and before[:1].isupper())
        return not (named and (not after or (told and case_tells)))
    if word.isupper():
        return not case_tells or word in _OPERATORS
    if not word.istitle():
        return True
    is_name = word.casefold() in _NAMES
    if not place:
        return not (is_name and after[:1].isupper() and after.casefold() not in FUNCTION_WORDS)
    return not (is_name or any(other.islower() and other not in FUNCTION_WORDS for other in written))


def _folded(text: str) -> str:
    """Folds a text except for the case of its letters, and removes the ends of contractions."""
    if not text.isascii():
        room = GROWTH * len(text) + SLACK
        text = "".join(_limited(map(fold, pieces(set_signs_apart(text))), room))
    return _CONTRACTION.sub(" ", text) if APOSTROPHE in text else text


def _limited(parts: Iterator[str], room: int) -> Iterator[str]:
    for part in parts:
        yield part
        room -= len(part)
        if room < 0:
            return


def _split(folded: str) -> list[str]:
    if folded.isascii():
        words = folded.lower().translate(_SEPARATORS).split()
    else:
        words = _WORD.findall(_RUN.sub(_pairs_and_last, folded.casefold()))
    return list(map(_stems.__getitem__, words))


def _get_compounds(folded: str, *, sentence: bool = False) -> list[str]:
    """Returns the terms of words with parts or signs, besides the parts.

    Words of letters and two parts, such as boundary-layer, have none, because other texts write them as two
    words.

    Args:
        folded: A folded text.
        sentence: Whether it is a long query. Its other words would count less if a code counted many times.
    """
    # Most words are plain, which this finds out in a tenth of the time.
    odd = " ".join(
        [word for word in folded.split() if not (word.isalnum() and (word.islower() or word.istitle()))]
    )
    found: list[str] = []
    for compound in _COMPOUND.findall(odd):
        parts = _WORD.findall(compound.casefold())
        joined = _join(parts)
        if _HYPHENED.fullmatch(compound) and not compound.isupper():  # Such as state-of-the-art.
            found += [] if sentence else joined[len(parts) - 1 :]
            continue
        found += joined[-1:] if sentence else joined
        if len(compound) <= _MAX_COMPOUND and any(map(str.isdigit, compound)) and not sentence:
            found.append(compound.casefold().translate(_TYPED))
    if "+" in odd or "#" in odd or "." in odd:
        found += [signed.casefold().translate(_TYPED) for signed in _SIGNED.findall(odd)]
    for word in _WORD.findall(odd) if _HUMP.search(odd) and not sentence else ():
        parts = _HUMPS.split(word) if _HUMP.search(word) else []
        if len(parts) > 1 and len(parts[0]) > 1:  # Not iPad and mRNA.
            parts = [part.lower() for part in parts]
            found += [*map(_stems.__getitem__, parts), *_join(parts)[:-1]]
    return found


def _join(parts: Sequence[str]) -> list[str]:
    """Joins each two adjacent parts, then all parts if they are three or more and short."""
    found = [_joined(left, right) for left, right in pairwise(parts)]
    if len(parts) > 2 and sum(map(len, parts)) <= _MAX_COMPOUND:
        found.append(reduce(_joined, parts))
    return [_stems[term] for term in found]


def _joined(left: str, right: str) -> str:
    return f"{left}{_BETWEEN if left[-1:].isdigit() and right[:1].isdigit() else ''}{right}"


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters))) or characters} "


def _pairs_and_last(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters)))} {characters[-1]} "
