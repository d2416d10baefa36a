"""Rewrites queries for keyword search: corrects typos and adds synonyms. Start at `rewrite_all`."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from models.search.synonyms import NO_SYNONYMS, read_synonyms
from models.search.syntax import parse_syntax
from models.search.terms import NO_SAME, NO_WEIGHTS, Weights, parse_query, stem
from service.corpus.query import NO_SOURCES, Query, Source
from service.corpus.spelling import Correction, Spelled, correct
from service.store.filters.grammar import Predicate
from service.store.protocol import Snapshot
from service.store.scheduling import pause


class Rewritten(NamedTuple):
    """A query as it is searched.

    Attributes:
        text: The query with corrected words, without its syntax.
        shown: The same with its syntax.
        corrections: The corrected words.
        weights: Weights of corrected terms and synonyms.
        same: Synonyms that count as words of the query, with these words.
        sources: Where the terms come from that were not typed.
    """

    text: str
    shown: str
    corrections: Sequence[Correction] = ()
    weights: Weights = NO_WEIGHTS
    same: Mapping[str, str] = NO_SAME
    sources: Mapping[str, Source] = NO_SOURCES


def rewrite_all(
    snapshot: Snapshot,
    queries: Sequence[Query],
    where: Predicate | None,
    collection: str,
    is_word: Callable[[str], bool],
    *,
    typos: bool,
) -> list[Rewritten]:
    """Rewrites queries.

    Args:
        snapshot: The store.
        queries: Queries with a text. Words of their conditions are not corrected.
        where: The filter of the search.
        collection: Name of the collection.
        is_word: Returns whether a word is known to the model, and so never corrected.
        typos: Whether typos are corrected.
    """
    stored = snapshot.get_synonyms(collection)
    synonyms = read_synonyms(stored) if stored else NO_SYNONYMS
    allowed = None
    if typos and where is not None:
        allowed = snapshot.matching(where, collection, lazily=True)
    found = []
    for query in queries:
        pause()
        text, spelled = query.text, Spelled(query.typed or query.text)
        if typos:
            # A correction in the query as sent must leave its conditions as they are.
            syntax = {stem("title")} if query.typed else set()
            known = synonyms.words.union(syntax, *(condition.words for condition in query.conditions))
            excluded = syntax.union(*(each.words for each in query.conditions if each.is_excluded))
            spelled = correct(snapshot, spelled.text, allowed, collection, is_word, known, excluded)
        if spelled.corrections:
            text = parse_syntax(spelled.text).text if query.typed else spelled.text
        parsed = parse_query(text)
        added = synonyms.expand(parsed)
        weights = {**added.weights, **spelled.weights}
        sources: dict[str, Source] = dict.fromkeys(chain.from_iterable(added.weights), "synonym")
        for term in (*parsed.terms, *parsed.beginnings):
            sources.pop(term, None)
        sources |= dict.fromkeys(chain.from_iterable(spelled.weights), "correction")
        found.append(Rewritten(text, spelled.text, spelled.corrections, weights, added.same, sources))
    return found
