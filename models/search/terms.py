"""Splits texts and queries into the terms of keyword search. Start at `get_terms` and `parse_query`.

`find_terms` returns the places of terms in a text.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import reduce
from itertools import chain, islice, pairwise
from math import log
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import Stemmer

from models.search.folding import APOSTROPHE, fold, fold_with_places, set_signs_apart
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
_RUN_OR_OTHERS = re.compile(f"[{_CJK}]+|[^{_CJK}]+")
# Each begins at the first character of a word, because a start at every character takes quadratic time.
_LETTER = f"[^\\x00-/:-@\\[-`{{-\\x7f{_CJK}]"
_COMPOUND = re.compile(f"(?<!{_LETTER}){_LETTER}+(?:[-./_:]{_LETTER}+)+")
_HYPHENED = re.compile(r"[^\W\d_]+(?:-[^\W\d_]+)+")
_SIGNED = re.compile(  # C++, C#, .NET
    r"(?<![A-Za-z0-9])[A-Za-z0-9]+(?:\+\+(?!\+)|[+#](?![\w+#]))|(?<![^\s(])\.[A-Za-z]\w*"
)
HUMP = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]{2}|[0-9][A-Z][a-z]")
_HUMPS = re.compile("(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z]{2})|(?<=[0-9])(?=[A-Z][a-z])")
_CONTRACTION = re.compile(f"(?<=[A-Za-z]){APOSTROPHE}(?:[stdmSTDM]|ll|LL|re|RE|ve|VE)(?![0-9A-Za-z])")
# The signs of a code, as characters that no word has.
_TYPED = str.maketrans("-./_:+#", "‐․⁄‿∶＋＃")  # noqa: RUF001
_NOT_SPACE = re.compile(r"\S+")
_AROUND = "\"'`*()[]{},;:!?"  # Signs around words that are not part of a code.
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
        found = stem(word)
        if len(self) >= _MAX_STEMS:
            self.clear()
        if len(word) <= _MAX_KEPT:
            self[word] = found
        return found


_stems = _Stems()


def stem(word: str) -> str:
    """Returns the stem of a folded word without keeping it in memory."""
    if not word.isascii() or len(word) > _MAX_STEMMED:
        return word
    if (found := _STEMS.get(word)) is None:
        if not hasattr(_local, "stemmer"):  # Threads cannot share one.
            _local.stemmer = Stemmer.Stemmer("english", 0)
        found = str(_local.stemmer.stemWord(word))
        found = found.removesuffix("z") if found.endswith("zz") else found  # quizzes, quiz
    return found


# Groups of terms with their weights in BM25. A document must have all terms of a group. A term of the query
# that is a group has this weight, and other terms of the query have the weight 1.
Weights: TypeAlias = Mapping[tuple[str, ...], float]
NO_WEIGHTS: Weights = MappingProxyType({})
NO_SAME: Mapping[str, str] = MappingProxyType({})  # No synonyms.

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

    def add(self, terms: Iterable[str]) -> "Query":
        """Returns the query with more terms to search for."""
        every = dict.fromkeys(chain(self.terms, self.beginnings, terms))
        beginnings = [term for term in every if len(term) == 1 and _RUN.match(term)]
        return self._replace(terms=[term for term in every if term not in beginnings], beginnings=beginnings)


NO_TERMS = Query((), frozenset(), (), ())


class Place(NamedTuple):
    """A term with its start and end in a text. `end` is exclusive."""

    term: str
    start: int
    end: int


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


def get_forms(text: str) -> list[str]:
    """Returns the words of a text in their order, folded, with their endings."""
    return _cut_words(_folded(text))


# A text between these characters has its terms by itself. They separate words whatever is next to them.
PIECE = re.compile(r"[^\s、。「」]+")


def find_terms(piece: str, terms: AbstractSet[str], beginnings: AbstractSet[str]) -> list[Place]:
    """Returns the places of some terms in a text. Takes linear time.

    A place covers all characters that its term comes from, such as marks and the whole of a ligature.

    Args:
        piece: A text without white space, as PIECE finds them. `get_terms` of a text returns the terms of
            all its pieces.
        terms: The terms to find.
        beginnings: Characters as in `Query.beginnings`. The places are those of these characters alone.
    """
    plain = piece.lstrip(_AROUND).rstrip(_AROUND + ".")
    if plain.isascii() and plain.isalnum() and (plain.islower() or plain.istitle()):  # Most pieces are.
        start = piece.index(plain)
        term = _stems[plain.lower()]
        return [Place(term, start, start + len(plain))] if term in terms else []
    folded, starts, ends = fold_with_places(piece)
    folded = _without_contractions(folded[: GROWTH * len(piece) + SLACK])
    places = [*_locate_words(folded, terms, beginnings)]
    for word in _NOT_SPACE.finditer(folded):
        if odd := _select_odd(word[0]):
            at, compounds = word.start(), _locate_compounds(odd)
            places += [Place(term, at + start, at + end) for term, start, end in compounds if term in terms]
    return [Place(term, starts[start], ends[end - 1]) for term, start, end in places]


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
    return NO_TERMS._replace(words=words, telling={*telling}).add(terms)


def compute_idf(documents: int, count: int) -> float:
    """Returns the inverse document frequency of a term in BM25, as FTS5 computes it.

    Args:
        documents: Number of documents.
        count: Number of documents with the term.
    """
    return max(1e-6, log((documents - count + 0.5) / (count + 0.5)))


def expression(query: str, weights: Weights = NO_WEIGHTS) -> str:
    """Converts a query to FTS5 syntax, without terms in `weights`. Returns an empty text if none is left."""
    return " OR ".join(
        match for term, match in expressions(parse_query(query)).items() if (term,) not in weights
    )


def expressions(query: Query) -> dict[str, str]:
    """Returns each term of a query in FTS5 syntax."""
    whole = {term: f'"{term}"' for term in query.terms}
    return whole | {term: f'"{term}" *' for term in query.beginnings}


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
    return _without_contractions(text)


def _without_contractions(text: str) -> str:
    """Replaces the ends of contractions by as many spaces."""
    return _CONTRACTION.sub(_blank, text) if APOSTROPHE in text else text


def _blank(found: re.Match[str]) -> str:
    return " " * len(found[0])


def _limited(parts: Iterator[str], room: int) -> Iterator[str]:
    for part in parts:
        yield part
        room -= len(part)
        if room < 0:
            return


def _split(folded: str) -> list[str]:
    return list(map(_stems.__getitem__, _cut_words(folded)))


def _cut_words(folded: str) -> list[str]:
    if folded.isascii():
        return folded.lower().translate(_SEPARATORS).split()
    return _WORD.findall(_RUN.sub(_pairs_and_last, folded.casefold()))


def _locate_words(folded: str, terms: AbstractSet[str], beginnings: AbstractSet[str]) -> Iterator[Place]:
    """Yields some of the terms of `_split` with their places, as `find_terms` describes."""
    for word in _WORD.finditer(folded):
        for part in _RUN_OR_OTHERS.finditer(word[0]):
            run, start = part[0], word.start() + part.start()
            if not _RUN.match(run):
                if (term := _stems[run.casefold()]) in terms:
                    yield Place(term, start, start + len(run))
                continue
            last = len(run) - 1
            for at, character in enumerate(run):
                term = run[at : at + 2]  # The last term is a single character.
                if term in terms:
                    yield Place(term, start + at, start + min(at + 2, last + 1))
                if character in beginnings:
                    yield Place(character, start + at, start + at + 1)


def _get_compounds(folded: str, *, sentence: bool = False) -> list[str]:
    """Returns the terms of words with parts or signs, besides the parts. `sentence`: a long query."""
    return [place.term for place in _locate_compounds(_select_odd(folded), sentence=sentence)]


def _select_odd(folded: str) -> str:
    """Returns the words that may be compounds. Most are not, which this finds in a tenth of the time."""
    return " ".join(
        [word for word in folded.split() if not (word.isalnum() and (word.islower() or word.istitle()))]
    )


def _locate_compounds(odd: str, *, sentence: bool = False) -> Iterator[Place]:
    """Yields the terms of words with parts or signs, besides the parts, with their places.

    Words of letters and two parts, such as boundary-layer, have none, because other texts write them as two
    words. Nothing is kept, because one word may have millions of parts.

    Args:
        odd: Folded words that are not plain.
        sentence: Whether it is a long query. Its other words would count less if a code counted many times.
    """
    for compound in _COMPOUND.finditer(odd):
        whole = _join_all(_split_compound(compound))
        hyphened = _HYPHENED.fullmatch(compound[0]) and not compound[0].isupper()  # Such as state-of-the-art.
        if not hyphened and not sentence:
            yield from _join_pairs(_split_compound(compound))
        elif not hyphened and not whole:
            whole = [*_join_pairs(_split_compound(compound))][-1:]
        if not sentence or not hyphened:
            yield from whole
        if hyphened or sentence or len(compound[0]) > _MAX_COMPOUND:
            continue
        if any(map(str.isdigit, compound[0])):
            yield _typed(compound)
    if "+" in odd or "#" in odd or "." in odd:
        yield from map(_typed, _SIGNED.finditer(odd))
    if HUMP.search(odd) and not sentence:
        for word in _WORD.finditer(odd):
            yield from _locate_humps(word)


def _locate_humps(word: re.Match[str]) -> Iterator[Place]:
    border = _HUMPS.search(word[0]) if HUMP.search(word[0]) else None
    if border is None or border.start() < 2:  # iPad and mRNA have no parts.
        return
    for part in _split_humps(word):
        yield part._replace(term=_stems[part.term])
    # The last pair of two parts is the word itself.
    pairs = _join_pairs(_split_humps(word))
    yield from pairs if _join_all(_split_humps(word)) else (pair for pair, _ in pairwise(pairs))


def _split_compound(compound: re.Match[str]) -> Iterator[Place]:
    for part in _WORD.finditer(compound.string, *compound.span()):
        yield Place(part[0].casefold(), *part.span())


def _split_humps(word: re.Match[str]) -> Iterator[Place]:
    borders = (border.start() for border in _HUMPS.finditer(word[0]))
    for start, end in pairwise(chain([0], borders, [len(word[0])])):
        yield Place(word[0][start:end].lower(), word.start() + start, word.start() + end)


def _typed(code: re.Match[str]) -> Place:
    return Place(code[0].casefold().translate(_TYPED), *code.span())


def _join_pairs(parts: Iterable[Place]) -> Iterator[Place]:
    for left, right in pairwise(parts):
        yield Place(_stems[_joined(left.term, right.term)], left.start, right.end)


def _join_all(parts: Iterable[Place]) -> list[Place]:
    """Joins all parts if they are three or more and short. Returns a list of one place, or of none."""
    first = [*islice(parts, _MAX_COMPOUND + 1)]
    if len(first) < 3 or sum(len(part.term) for part in first) > _MAX_COMPOUND:
        return []
    whole = reduce(_joined, [part.term for part in first])
    return [Place(_stems[whole], first[0].start, first[-1].end)]


def _joined(left: str, right: str) -> str:
    return f"{left}{_BETWEEN if left[-1:].isdigit() and right[:1].isdigit() else ''}{right}"


def _pairs(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters))) or characters} "


def _pairs_and_last(run: re.Match[str]) -> str:
    characters = run[0]
    return f" {' '.join(map(''.join, pairwise(characters)))} {characters[-1]} "
