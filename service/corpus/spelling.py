"""Corrects the words of a query that no document has. Start at `correct`.

    query ─▶ words of letters only ─▶ those that no document has ─▶ nearest terms ─▶ those that documents have
                                                                                     the most frequent first

Only documents that match the filter count, both for a word and for its corrections. So an answer neither
shows nor suggests what a filter hides.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple

from models.search.features import COVER_CHARACTERS
from models.search.spelling import Word, count_edits, find_words
from models.search.terms import FUNCTION_WORDS, NO_WEIGHTS, Weights, get_forms, parse_query, stem
from service.store.protocol import FilterMatches, Snapshot
from service.store.scheduling import pause

MAX_CORRECTED = 8  # Words of a query.
MAX_TERMS = 2  # Terms that replace a word.
WEIGHT = 0.7  # Of these terms in BM25.
EXAMPLES = 4  # Documents that show how a term is written.
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
) -> Spelled:
    """Corrects a query.

    Args:
        snapshot: The store.
        query: The query as typed.
        allowed: The documents that match the filter; None for all.
        collection: Name of the collection.
        is_word: Returns whether a word in lower case is a real one, which is never corrected.
        known: Terms that are never corrected.
    """
    searched = {*parse_query(query).terms}
    words = [word for word in find_words(query) if word.term in searched and word.term not in known]
    found: dict[str, dict[str, str]] = {}
    corrections = []
    for word in _list_unknown(snapshot, query, words, allowed, collection, is_word):
        pause()
        if near := _find_corrections(snapshot, word, allowed, collection):
            found[word.term] = near
            corrections.append(Correction(word.form, [*near.values()]))
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
            is_known = len(snapshot.documents_with(term, allowed, 1, collection)) > 0
        if not is_known and not any(map(is_word, {query[at.start : at.end].lower() for at in same})):
            unknown.append(same[0])
        if len(unknown) == MAX_CORRECTED:
            break
    return unknown


def _find_corrections(
    snapshot: Snapshot, word: Word, allowed: FilterMatches | None, collection: str
) -> dict[str, str]:
    """Returns the terms that replace a word and how they are written, most frequent first."""
    for near in snapshot.nearest_terms(word, collection):
        counts = snapshot.count_documents(sorted(near), collection) if near else {}
        found: dict[str, str] = {}
        for term in sorted(counts, key=lambda term: (-counts[term], term))[:MAX_EXAMINED]:
            pause()
            examples = snapshot.documents_with(term, allowed, EXAMPLES, collection)
            if form := _get_form(snapshot, examples.tolist(), term, word, near[term]):
                found[term] = form
            if len(found) == MAX_TERMS:
                break
        if found:
            return found
    return {}


def _get_form(snapshot: Snapshot, examples: Sequence[int], term: str, word: Word, edited: str) -> str:
    """Returns how a term is written, or an empty text if the documents do not exist.

    Args:
        snapshot: The store.
        examples: Some documents with the term.
        term: The term.
        word: The word that the term replaces.
        edited: The form that is one edit from the word, or an empty text. It is returned if these documents
            have no form that is so near.
    """
    contents = snapshot.beginnings(examples, COVER_CHARACTERS)
    if not contents:
        return ""
    forms = Counter(
        form
        for content in contents.values()
        for form in get_forms(content.whole[:COVER_CHARACTERS])
        if form[0] == term[0] and form not in FUNCTION_WORDS and stem(form) == term
    )
    best = min(forms, key=lambda form: (count_edits(word.form, form), -forms[form], form), default=term)
    return edited if edited and count_edits(word.form, best) > 1 else best
