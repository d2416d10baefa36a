"""Rewrites queries for keyword search: corrects typos and adds synonyms. Start at `rewrite_all`."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from models.search.synonyms import NO_SYNONYMS, read_synonyms
from models.search.terms import NO_SAME, NO_WEIGHTS, Weights, parse_query
from service.corpus.search import NO_SOURCES, Query, Source
from service.corpus.spelling import Correction, Spelled, correct
from service.store.filters.grammar import Predicate
from service.store.protocol import Snapshot
from service.store.scheduling import pause


class Rewritten(NamedTuple):
    """A query as it is searched.

    Attributes:
        text: The query with corrected words.
        corrections: The corrected words.
        weights: Weights of corrected terms and synonyms.
        same: Synonyms that count as words of the query, with these words.
        sources: Where the terms come from that were not typed.
    """

    text: str
    corrections: Sequence[Correction] = ()
    weights: Weights = NO_WEIGHTS
    same: Mapping[str, str] = NO_SAME
    sources: Mapping[str, Source] = NO_SOURCES


def rewrite_all(
    snapshot: Snapshot, queries: Sequence[Query], where: Predicate | None, collection: str, *, typos: bool
) -> list[Rewritten]:
    """Rewrites queries.

    Args:
        snapshot: The store.
        queries: Queries with a text. Words of their conditions are not corrected.
        where: The filter of the search.
        collection: Name of the collection.
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
        spelled = Spelled(query.text)
        if typos:
            known = synonyms.words.union(*(condition.words for condition in query.conditions))
            spelled = correct(snapshot, query.text, allowed, collection, known)
        parsed = parse_query(spelled.text)
        added = synonyms.expand(parsed)
        weights = {**added.weights, **spelled.weights}
        sources: dict[str, Source] = dict.fromkeys(chain.from_iterable(added.weights), "synonym")
        for term in (*parsed.terms, *parsed.beginnings):
            sources.pop(term, None)
        sources |= dict.fromkeys(chain.from_iterable(spelled.weights), "correction")
        found.append(Rewritten(spelled.text, spelled.corrections, weights, added.same, sources))
    return found
