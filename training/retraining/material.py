"""What a recipe reads, made of the documents and judgements that may be trained on.

    texts      each document's text
    pairs      a judged query with its document, and a title with its text
    triples    the same pairs, each with negatives that the active model finds close (mining/negatives.py)

No query, title or text that was held out is in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from training.corpus import PAIRS, TEXTS, TRIPLES, Corpus, Kind
from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Encode
from training.mining.labelled import Labelled, folded
from training.mining.negatives import Counts, Rules, mine_negatives
from training.mining.pairs import title_pairs

from .documents import Document

Row = tuple[tuple[str, ...], int | None]


def corpus_of(
    kind: Kind,
    documents: Sequence[Document],
    judged: Mapping[str, Sequence[str]],
    encoders: tuple[Encode, Encode],
    negatives: int,
) -> Corpus:
    """Raise NothingToLearn when there is nothing of that kind.

    judged: ids of relevant documents by query, of the queries to train on. encoders: the active model's, for
    queries and for documents; asked for triples only. negatives: of each pair.
    """
    if kind is TEXTS:
        return Corpus.of((document.text for document in documents), "what may be trained on")
    if kind not in (PAIRS, TRIPLES):
        raise TrainingError("This recipe reads pairs that people labelled; a retraining has none to give it.")
    pairs = list(dict.fromkeys(_pairs(documents, judged)))
    if not pairs:
        raise NothingToLearn(
            "There is no pair to learn from: documents need a title, or queries that people judged."
        )
    if kind is PAIRS:
        return Corpus.of_rows(((pair, None) for pair in pairs), "the pairs to train on")
    return Corpus.of_rows(_triples(pairs, documents, encoders, negatives), "the triples to train on")


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
    encoders: tuple[Encode, Encode],
    negatives: int,
) -> Iterator[Row]:
    positives: dict[str, list[str]] = {}
    for anchor, positive in pairs:
        positives.setdefault(anchor, []).append(positive)
    candidates = list(dict.fromkeys(folded(document.text) for document in documents))
    labelled = Labelled(positives, candidates, 0, 0)
    for triple in mine_negatives(labelled, *encoders, Rules(count=negatives), Counts()):
        yield (triple.anchor, triple.positive, triple.negative), None
