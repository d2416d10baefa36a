"""Build the rows that a recipe reads, from the documents and judgments of the training part.

    texts      each document's text
    pairs      a judged query with its document, and a title with its text
    triples    the same pairs, each with negatives: first documents that people called not relevant or passed
               over, then documents that the active model ranks high
    lists      queries made of titles, headings and first sentences, and queries of users, each with documents
               and their scores in hybrid search with the active model (mining/teacher.py). With a reranker,
               its scores, and only queries of users

In a row, a document is its title and the passage that fits the query best, as the service embeds them. The
service finds the nearest documents of each query, because it has their vectors. Without a service, the
documents are embedded. Title pairs are at most as many as judged pairs, and a short training leaves out title
pairs first (Corpus.first).

Held-out queries, titles and texts are never used. Titles and negatives are from the same collection as the
query.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from hashlib import sha256
from itertools import groupby
from typing import Any, NamedTuple

from models.search.content import Content
from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Vectors, remembering
from training.evaluation.scorable import Scorable
from training.mining.negatives import Hits, Passages, Rules, search
from training.mining.neighbors import unit_vectors
from training.mining.pairs import folded, get_body, title_pairs
from training.mining.queries import Query, build_queries
from training.mining.rerankers import Score
from training.mining.teacher import lists, rescore
from training.retraining.documents import Document
from training.retraining.grouping import group
from training.retraining.split import place, plain
from training.text.corpus import LISTED, LISTS, PAIRS, TEXTS, TRIPLES, Corpus, Kind, Row
from training.text.service import fetch_nearest, split_qualified

# Two processors train on fewer lists than this in half an hour. Each costs an encoding of the text that its
# query was cut out of, before the first step.
MAX_LISTS = 16_000


class _Pair(NamedTuple):
    anchor: str  # a judged query, or a title
    answer: Content  # the content of the document, without its title if the title is the query
    document: Document
    judged: bool


def build_corpus(
    kind: Kind,
    documents: Sequence[Document],
    judged: Mapping[str, Sequence[str]],
    active: Callable[[], Scorable] | None,
    negatives: int,
    withheld: AbstractSet[str] = frozenset(),
    not_relevant: Mapping[str, Sequence[str]] | None = None,
    queried: Mapping[str, Sequence[str]] | None = None,
    service: str | None = None,
    reranker: Score | None = None,
) -> Corpus:
    """Builds the corpus for a recipe.

    Args:
        kind: Kind of rows that the recipe reads.
        documents: Documents to train on.
        judged: Ids of the relevant documents of each training query.
        active: Function that opens the active model. Not called for texts. None: its vocabulary does not suit
            the text. Then pairs have all titles and whole documents.
        negatives: Number of negatives for each pair.
        withheld: Held-out texts, as `split.plain` returns them.
        not_relevant: Ids of documents that are not relevant, by query.
        queried: Queries of users without judgments, by collection.
        service: Address of a service with the documents. None: documents are embedded.
        reranker: The reranker that scores the lists. None: hybrid search.

    Raises:
        NothingToLearn: The documents give no rows of that kind.
        TrainingError: A retraining has no rows of that kind.

    """
    documents = [document for document in documents if plain(document.text) not in withheld]
    if kind is TEXTS:
        return Corpus.of((document.text for document in documents), "what may be trained on")
    parts: dict[str, list[Document]] = {}
    for document in documents:
        bare = plain(document.title) in withheld
        parts.setdefault(document.collection, []).append(document._replace(title="") if bare else document)
    if kind is LISTS and active is not None:
        return _lists(parts, active, withheld, queried or {}, service, reranker)
    if kind not in (PAIRS, TRIPLES):
        raise TrainingError("This recipe reads pairs that people labelled; a retraining has none to give it.")
    labelled = [pair for part in parts.values() for pair in _pairs(part, judged, withheld)]
    if active is not None:
        labelled = _balanced(labelled)
    if not labelled:
        raise NothingToLearn(
            "There is no pair to learn from: documents need a title, or queries that people judged."
        )
    first = {pair.anchor for pair in labelled if pair.judged}
    whole: Iterator[Row] = (((pair.anchor, folded(pair.answer.whole)), None) for pair in labelled)
    of_documents = Corpus.of_rows(whole, "the pairs to train on", first)
    if active is None:
        return of_documents
    model = active()
    model = model._replace(encode_documents=remembering(model.encode_documents))
    if kind is PAIRS:
        return Corpus.of_rows(_best_passages(labelled, model), "the pairs to train on", first)
    rows = (
        row
        for name, some in groupby(labelled, lambda pair: pair.document.collection)
        for row in _triples([*some], parts[name], model, negatives, not_relevant or {}, service)
    )
    triples = Corpus.of_rows(rows, "the triples to train on", first)
    # Rounding may give other negatives, so the digest is that of the sources.
    said = f" {sorted(not_relevant.items())}" if not_relevant else ""
    return triples.of_source(f"{of_documents.digest} {negatives} negatives{said}")


def _lists(
    parts: Mapping[str, Sequence[Document]],
    active: Callable[[], Scorable],
    withheld: AbstractSet[str],
    queried: Mapping[str, Sequence[str]],
    service: str | None,
    reranker: Score | None,
) -> Corpus:
    """Builds lists of scored documents for the queries of each collection.

    Collections with fewer documents than a list needs are skipped.
    """
    every = [
        (collection, query)
        for collection, some in parts.items()
        if len(some) >= LISTED
        for query in (
            *(build_queries([(document.title, document.text) for document in some]) if not reranker else ()),
            *map(Query, queried.get(collection, ())),
        )
        if not withheld & {plain(query.text), plain(query.rest)}
    ]
    if not every:
        raise NothingToLearn(
            "A reranker teaches with unjudged queries of users, and there are none. Once clients send "
            "events, set events.queries = true."
            if reranker
            else f"No query can be made of the text: a collection needs {LISTED} documents, and some of them "
            "a title, headings or two sentences."
        )
    # Queries of users come first. Then a hash decides, so each run chooses the same queries.
    every.sort(key=lambda each: (each[1].source is not None, sha256(each[1].text.encode()).digest(), each[0]))
    queries_in = group(every[:MAX_LISTS])
    teacher = active()
    listed = (
        each
        for collection, queries in queries_in.items()
        for each in lists(
            [document.content for document in parts[collection]],
            queries,
            teacher,
            partial(_find_nearest, service, parts[collection], teacher),
        )
    )
    found = listed if reranker is None else rescore(listed, reranker)
    corpus = Corpus.of_rows((each.row() for each in found), "the lists to train on")
    # The digest is that of the sources. With another active model, the teacher is another one.
    sources = [(query.text, query.title, query.rest) for queries in queries_in.values() for query in queries]
    return corpus.of_source(f"lists {teacher.fingerprint} {sorted(sources)}")


def _pairs(
    documents: Sequence[Document], judged: Mapping[str, Sequence[str]], withheld: AbstractSet[str]
) -> list[_Pair]:
    """Returns the judged pairs and the title pairs of a collection."""
    by_id = {document.id: document for document in documents}
    found = [
        _Pair(query, by_id[id].content, by_id[id], judged=True)
        for query, ids in judged.items()
        if plain(query) not in withheld
        for id in ids
        if id in by_id and folded(by_id[id].text) != query
    ]
    titled = title_pairs([(document.title, document.text) for document in documents if document.title])
    bodies = {pair.anchor: pair.positive for pair in titled if plain(pair.positive) not in withheld}
    titles = ((folded(document.title), document) for document in documents)
    found += [_Pair(title, Content(bodies[title]), each, False) for title, each in titles if title in bodies]
    return found


def _balanced(pairs: Sequence[_Pair]) -> list[_Pair]:
    """Keeps at most as many title pairs as judged pairs, or all of them if no pair is judged.

    Title pairs gain nothing by themselves (training/RESULTS.md), so they must not displace judged pairs.
    Every run keeps the same titles.
    """
    titles = [pair for pair in pairs if not pair.judged]
    titles.sort(key=lambda pair: place(f"title\0{pair.document.collection}\0{pair.anchor}"))
    kept = {*titles[: len(pairs) - len(titles) or len(titles)]}
    return [pair for pair in pairs if pair.judged or pair in kept]


def _best_passages(pairs: Sequence[_Pair], model: Scorable) -> Iterator[Row]:
    answers = Passages([pair.answer for pair in pairs], model)
    vectors = unit_vectors(model.encode_queries, [pair.anchor for pair in pairs])
    for at, (pair, vector) in enumerate(zip(pairs, vectors, strict=True)):
        yield (pair.anchor, answers.nearest(at, vector)[1]), None


def _triples(
    pairs: Sequence[_Pair],
    documents: Sequence[Document],
    model: Scorable,
    negatives: int,
    not_relevant: Mapping[str, Sequence[str]],
    service: str | None,
) -> Iterator[Row]:
    """Yields triples. Documents that people called not relevant are the first negatives of a pair.

    The margin rule of mining does not apply to those documents, because people judged them. If no other
    document satisfies the rule, the least near of the found documents are used.
    """
    texts = [folded(document.text) for document in documents]
    places = {document.id: at for at, document in enumerate(documents)}
    of_anchor = group((pair.anchor, number) for number, pair in enumerate(pairs))
    answers = Passages([pair.answer for pair in pairs], model)
    vectors = unit_vectors(model.encode_queries, [*of_anchor])
    found = _find_nearest(service, documents, model, vectors)
    for (anchor, some), vector, hits in zip(of_anchor.items(), vectors, found, strict=True):
        known = {texts[places[pairs[number].document.id]] for number in some}
        said = [places[id] for id in not_relevant.get(anchor, ()) if id in places]
        said = [at for at in said if texts[at] not in known]
        known.update(texts[at] for at in said)
        others = {at: cosine for at, cosine in hits.cosines.items() if texts[at] not in known}
        for number in some:
            score, positive = answers.nearest(number, vector)
            ceiling = score - Rules.margin * abs(score)
            mined = [at for at, cosine in others.items() if cosine <= ceiling] or [*others][-negatives:]
            chosen = {at: hits.text(at) for at in [*said, *mined][:negatives]}
            if not pairs[number].judged:  # The positive has no title either.
                chosen = {at: get_body(folded(documents[at].title), text) for at, text in chosen.items()}
            if shown := [text for text in dict.fromkeys(chosen.values()) if text != positive]:
                yield (anchor, positive, *shown), None


def _find_nearest(
    service: str | None, documents: Sequence[Document], model: Scorable, queries: Vectors
) -> Iterator[Hits]:
    """Yields the nearest documents of query vectors, from the service or by embedding the documents.

    Args:
        service: Address of the service, or None.
        documents: Documents of one collection. Other documents that the service finds are left out.
        model: The active model.
        queries: Unit vectors of the queries, shape (q, d).

    """
    contents = [document.content for document in documents]
    if service is None:
        yield from search(contents, queries, model)
        return
    places = {split_qualified(document.id)[1]: at for at, document in enumerate(documents)}
    for found in fetch_nearest(service, documents[0].collection, queries, str(model.version)):
        hits = {places[hit["id"]]: hit for hit in found if hit["id"] in places}
        yield Hits({at: hit["score"] for at, hit in hits.items()}, partial(_get_passage, contents, hits))


def _get_passage(contents: Sequence[Content], hits: Mapping[int, Mapping[str, Any]], at: int) -> str:
    """Returns the best passage of a document after its title, or the whole document if it is not split."""
    content, passage = contents[at], hits.get(at, {}).get("passage")
    if passage:
        content = content._replace(text=content.text[passage["start"] : passage["end"]])
    return folded(content.whole)
