"""Corrects the words of a query that neither documents nor the model have. Start at `correct`.

    query ─▶ words of letters only ─▶ those that neither have ─▶ nearest terms ─▶ those that documents have
                                                                                 the most frequent first

Only documents that match the filter count, both for a word and for its corrections. So an answer neither
shows nor suggests what a filter hides.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from itertools import chain
from typing import NamedTuple

from models.search.features import COVER_CHARACTERS
from models.search.spelling import Word, count_edits, find_words
from models.search.terms import (
    FUNCTION_WORDS,
    NO_WEIGHTS,
    PIECE,
    Weights,
    find_terms,
    get_forms,
    parse_query,
    stem,
)
from service.store.protocol import FilterMatches, Snapshot
from service.store.scheduling import pause
from service.store.values import MAX_TRIED, TRIED

MAX_CORRECTED = 8  # Words of a query.
MAX_TERMS = 2  # Terms that replace a word.
WEIGHT = 0.7  # Of these terms in BM25.
EXAMPLES, MAX_EXAMPLES = 4, 32  # Documents that show how a term is written: at first, and in all.
MAX_ALL_EXAMPLES = 256  # Such documents of all terms near to a word.
MAX_EXAMINED = 32  # Near terms that are looked up in the documents that match the filter.


class Correction(NamedTuple):
    """A word as typed, and the words that replace it, most frequent first."""

    term: str
    to: Sequence[str]


class Spelled(NamedTuple):
    """A query with corrected words.

    Attributes:
        text: The query, with the most frequent correction of each word.
        corrections: The corrected words.
        weights: Weights of the corrected terms.
    """

    text: str
    corrections: Sequence[Correction] = ()
    weights: Weights = NO_WEIGHTS


def correct(
    snapshot: Snapshot,
    query: str,
    allowed: FilterMatches | None,
    collection: str,
    is_word: Callable[[str], bool],
    known: Container[str] = (),
    excluded: Container[str] = (),
) -> Spelled:
    """Corrects a query.

    Args:
        snapshot: The store.
        query: The query as typed.
        allowed: The documents that match the filter; None for all.
        collection: Name of the collection.
        is_word: Returns whether a word in lower case is a real one, which is never corrected.
        known: Terms that are never corrected.
        excluded: Terms that replace no word.
    """
    searched = {*parse_query(query).terms}
    words = [word for word in find_words(query) if word.term in searched and word.term not in known]
    found: dict[str, dict[str, str]] = {}
    corrections = []
    for word in _list_unknown(snapshot, query, words, allowed, collection, is_word):
        pause()
        if near := _find_corrections(snapshot, word, allowed, collection, excluded):
            found[word.term] = near
            corrections.append(Correction(query[word.start : word.end], [*near.values()]))
    text, weights = query, dict[tuple[str, ...], float]()
    for word in reversed(words):
        if word.term in found:
            text = text[: word.start] + next(iter(found[word.term].values())) + text[word.end :]
    for near in found.values():
        weights |= {(term,): WEIGHT for term in near if term not in searched}
    return Spelled(text, corrections, weights)


def _list_unknown(
    snapshot: Snapshot,
    query: str,
    words: Sequence[Word],
    allowed: FilterMatches | None,
    collection: str,
    is_word: Callable[[str], bool],
) -> list[Word]:
    """Returns the first words that no document has and that are not real, without repetitions."""
    places: dict[str, list[Word]] = {}
    for word in words:
        places.setdefault(word.term, []).append(word)
    counts = snapshot.count_documents([*places], collection) if places else {}
    unknown: list[Word] = []
    for term, same in places.items():
        pause()
        is_known = term in counts
        if is_known and allowed is not None:
            is_known = _may_match(snapshot, term, allowed, collection)
        if not is_known and not any(map(is_word, {query[at.start : at.end].lower() for at in same})):
            unknown.append(same[0])
        if len(unknown) == MAX_CORRECTED:
            break
    return unknown


def _may_match(snapshot: Snapshot, term: str, allowed: FilterMatches, collection: str) -> bool:
    """Returns whether documents with a term match a filter, or are too many to test all of them."""
    if len(snapshot.documents_with(term, allowed, 1, collection)):
        return True
    tested = TRIED + MAX_TRIED
    return len(snapshot.documents_with(term, None, tested + 1, collection)) > tested


def _find_corrections(
    snapshot: Snapshot,
    word: Word,
    allowed: FilterMatches | None,
    collection: str,
    excluded: Container[str],
) -> dict[str, str]:
    """Returns the terms that replace a word and how they are written, most frequent first."""
    left = MAX_ALL_EXAMPLES
    for edits, near in snapshot.nearest_terms(word, collection):
        terms = sorted(term for term in near if term not in excluded)
        counts = snapshot.count_documents(terms, collection) if terms else {}
        found: dict[str, str] = {}
        for term in sorted(counts, key=lambda term: (-counts[term], term))[:MAX_EXAMINED]:
            pause()
            examples = snapshot.documents_with(term, allowed, min(MAX_EXAMPLES, left), collection).tolist()
            for some in (examples[:EXAMPLES], examples):
                left -= len(some)
                measure = count_edits if some is not examples else _measure
                if some and (form := _get_form(snapshot, some, term, word, edits, measure)):
                    found[term] = form
                    break
            if len(found) == MAX_TERMS or left <= 0:
                break
        if found:
            return found
    return {}


def _get_form(
    snapshot: Snapshot,
    examples: Sequence[int],
    term: str,
    word: Word,
    edits: int,
    measure: Callable[[str, str], int],
) -> str:
    """Returns how documents write a term in lower case, or an empty text if they have no near form.

    Args:
        snapshot: The store.
        examples: Some documents with the term.
        term: The term.
        word: The word that the term replaces.
        edits: Allowed edits between the word and the form.
        measure: Counts the edits.
    """
    contents = snapshot.beginnings(examples, COVER_CHARACTERS).values()
    forms = {text: get_forms(text) for text in (each.whole[:COVER_CHARACTERS] for each in contents)}
    counts = Counter(
        form
        for form in chain.from_iterable(forms.values())
        if form[0] == term[0] and form not in FUNCTION_WORDS and stem(form) == term
    )
    near = [form for form in counts if measure(word.form, form) <= edits]
    if not near:
        return ""
    best = min(near, key=lambda form: (count_edits(word.form, form), -counts[form], form))
    return _get_written(next(text for text in forms if best in forms[text]), term, best)


def _measure(typed: str, form: str) -> int:
    """Returns the number of edits between two words. A plural s at the end of one of them is none."""
    return min(count_edits(typed, form), count_edits(typed.removesuffix("s"), form.removesuffix("s")))


def _get_written(text: str, term: str, form: str) -> str:
    """Returns a form of a term in lower case, with accents as a text writes them."""
    for piece in () if text.isascii() else PIECE.finditer(text):
        for place in find_terms(piece[0], {term}, set()):
            written = str(piece[0][place.start : place.end]).lower()
            if get_forms(written) == [form]:
                return written
    return form
