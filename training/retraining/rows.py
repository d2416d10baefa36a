"""Build the rows that a recipe reads, from the documents and judgments of the training part.

    texts      each document's text
    pairs      a judged query with its document, and a title with its text
    triples    the same pairs, each with negatives: first documents that people called not relevant or passed
               over, then documents that the active model ranks high (mining/negatives.py)
    lists      queries made of titles, headings and first sentences, and queries of users, each with documents
               and their scores in hybrid search with the active model (mining/teacher.py)

Held-out queries, titles and texts are never used. Titles and negatives are from the collection of the query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from hashlib import sha256
from itertools import starmap

from training.errors import NothingToLearn, TrainingError
from training.evaluation.scorable import Scorable
from training.mining.negatives import Rules, mine_negatives
from training.mining.pairs import Labelled, folded, get_body, title_pairs
from training.mining.queries import Query, build_queries
from training.mining.teacher import lists
from training.retraining.documents import Document
from training.retraining.searches import plain
from training.text.corpus import LISTED, LISTS, PAIRS, TEXTS, TRIPLES, Corpus, Kind, Row

# Two processors train on fewer lists than this in half an hour. Each costs an encoding of the text that its
# query was cut out of, before the first step.
MAX_LISTS = 16_000


def build_corpus(
    kind: Kind,
    documents: Sequence[Document],
    judged: Mapping[str, Sequence[str]],
    active: Callable[[], Scorable],
    negatives: int,
    withheld: AbstractSet[str] = frozenset(),
    not_relevant: Mapping[str, Sequence[str]] | None = None,
    queried: Mapping[str, Sequence[str]] | None = None,
) -> Corpus:
    """Builds the corpus for a recipe.

    Args:
        kind: Kind of rows that the recipe reads.
        documents: Documents to train on.
        judged: Ids of the relevant documents of each training query.
        active: Function that opens the active model. Called for triples and lists only.
        negatives: Number of negatives for each pair.
        withheld: Held-out texts, as `searches.plain` returns them.
        not_relevant: Ids of documents that are not relevant, by query.
        queried: Queries of users without judgments, by collection.

    Raises:
        NothingToLearn: There are no rows of that kind.

    """
    if kind is TEXTS:
        texts = (document.text for document in documents if plain(document.text) not in withheld)
        return Corpus.of(texts, "what may be trained on")
    if kind is LISTS:
        return _lists(documents, active, withheld, queried or {})
    if kind not in (PAIRS, TRIPLES):
        raise TrainingError("This recipe reads pairs that people labelled; a retraining has none to give it.")
    kept: dict[str, list[Document]] = {}
    for document in documents:
        kept.setdefault(document.collection, []).append(document)
    named_pairs = {
        collection: [
            pair
            for pair in dict.fromkeys(_pairs(some, judged))
            if not withheld & {plain(each) for each in pair}
        ]
        for collection, some in kept.items()
    }
    if not any(named_pairs.values()):
        raise NothingToLearn(
            "There is no pair to learn from: documents need a title, or queries that people judged."
        )
    rows = ((pair, None) for pairs in named_pairs.values() for pair in pairs)
    of_pairs = Corpus.of_rows(rows, "the pairs to train on")
    if kind is PAIRS:
        return of_pairs
    found = (
        row
        for collection, pairs in named_pairs.items()
        if pairs
        for row in _triples(
            pairs,
            [document for document in kept[collection] if plain(document.text) not in withheld],
            active(),
            negatives,
            not_relevant or {},
        )
    )
    triples = Corpus.of_rows(found, "the triples to train on")
    # Named by what they are made of: rounding may give other negatives, and that is no new text.
    said = f" {sorted(not_relevant.items())}" if not_relevant else ""
    name = f"{of_pairs.digest} {negatives} negatives{said}"
    return replace(triples, digest=sha256(name.encode()).hexdigest())


def _lists(
    documents: Sequence[Document],
    active: Callable[[], Scorable],
    withheld: AbstractSet[str],
    queried: Mapping[str, Sequence[str]],
) -> Corpus:
    """Builds lists of scored documents for the queries of each collection.

    Collections with fewer documents than a list needs are skipped.
    """
    of_collection: dict[str, list[Document]] = {}
    for document in documents:
        if plain(document.text) not in withheld:
            bare = plain(document.title) in withheld
            of_collection.setdefault(document.collection, []).append(
                document._replace(title="") if bare else document
            )
    queries_in = {
        collection: [
            query
            for query in (
                *build_queries([(document.title, document.text) for document in some]),
                *map(Query, queried.get(collection, ())),
            )
            if not withheld & {plain(query.text), plain(query.rest)}
        ]
        for collection, some in of_collection.items()
        if len(some) >= LISTED
    }
    if not any(queries_in.values()):
        raise NothingToLearn(
            f"No query can be made of the text: a collection needs {LISTED} documents, and some of them a "
            "title, headings or two sentences."
        )
    queries_in = _at_most(MAX_LISTS, queries_in)
    teacher = active()
    found = (
        each.row()
        for collection, queries in queries_in.items()
        for each in lists([document.content for document in of_collection[collection]], queries, teacher)
    )
    corpus = Corpus.of_rows(found, "the lists to train on")
    # Named by what they are made of; another active model is another teacher, and there is more to learn.
    sources = [(query.text, query.title, query.rest) for queries in queries_in.values() for query in queries]
    return replace(
        corpus, digest=sha256(f"lists {teacher.fingerprint} {sorted(sources)}".encode()).hexdigest()
    )


def _at_most(count: int, queries_in: Mapping[str, Sequence[Query]]) -> dict[str, list[Query]]:
    """Chooses `count` queries of all collections, the same in each run. Queries of users come first.

    Returns:
        The chosen queries by collection, without collections that have none.

    """

    def place(collection: str, query: Query) -> tuple[bool, bytes, str]:
        return query.source is not None, sha256(query.text.encode()).digest(), collection

    all_queries = [(collection, query) for collection, queries in queries_in.items() for query in queries]
    last = sorted(starmap(place, all_queries))[:count][-1]
    kept: dict[str, list[Query]] = {}
    for collection, query in all_queries:
        if place(collection, query) <= last:
            kept.setdefault(collection, []).append(query)
    return kept


def _pairs(documents: Sequence[Document], judged: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    text = {document.id: folded(document.text) for document in documents}
    for query, ids in judged.items():
        for id in ids:
            if id in text and text[id] != query:  # a document that is held out is in no pair
                yield query, text[id]
    for pair in title_pairs([(document.title, document.text) for document in documents if document.title]):
        yield pair.anchor, pair.positive


def _triples(
    pairs: Sequence[tuple[str, str]],
    documents: Sequence[Document],
    active: Scorable,
    negatives: int,
    not_relevant: Mapping[str, Sequence[str]],
) -> Iterator[Row]:
    """Yields triples. Documents that people called not relevant are the first negatives of a pair.

    The margin rule of the mining does not apply to these, because they are known to be not relevant.
    """
    positives: dict[str, list[str]] = {}
    for anchor, positive in pairs:
        positives.setdefault(anchor, []).append(positive)
    candidates = list(dict.fromkeys(folded(document.text) for document in documents))
    labelled = Labelled(positives, candidates, 0, 0)
    wholes = {get_body(folded(each.title), folded(each.text)): folded(each.text) for each in documents}
    encoders = active.encode_queries, active.encode_documents
    mined: dict[tuple[str, str], list[str]] = {}
    for row in mine_negatives(labelled, *encoders, Rules(count=negatives), Counter()):
        own = wholes.get(row.positive)  # its own document, with the title before it
        mined[row.anchor, row.positive] = [negative for negative in row.negatives if negative != own]
    text = {document.id: folded(document.text) for document in documents}
    for anchor, positive in pairs:
        said = [text[id] for id in not_relevant.get(anchor, ()) if id in text]
        both = dict.fromkeys(each for each in said if each not in positives[anchor])
        found = [*both, *(each for each in mined.get((anchor, positive), ()) if each not in both)]
        if found:
            yield (anchor, positive, *found[:negatives]), None
