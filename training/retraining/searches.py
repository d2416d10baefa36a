"""Build and search the collections that judge a candidate, from documents of the user.

    titles       the title of a document must find the text of the document
    known        some rare words of a document must find the document
    judged       a query must find the documents that people called relevant

A search ranks the held-out documents together with other documents, which make the search harder. A hash of
the ids chooses the other documents, so they are the same in every run. A query searches only documents of its
collection, in the way in which the service answers a search that names no mode (`find`). Both versions get
the same queries.

The searches of the dev part choose the best step of a training, and the share of its weights to keep
(`build_choose`). Dev is used neither for training nor by the gate.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import zip_longest
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode, SearchDefaults
from models.search.content import Content
from models.search.fusion import DENSE_WEIGHT, get_mode, get_weight
from models.search.measures import judge
from models.search.passages import learned_tokens
from training.evaluation import modes
from training.evaluation.encoding import Choose, Encode, remembering
from training.evaluation.geometry import directions
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.mining.neighbors import unit_vectors
from training.mining.pairs import folded, get_body
from training.ranking.examples import Example, Texts, build_example
from training.retraining.documents import Document
from training.retraining.gate.verdict import EACH, HITS, JUDGED, NAMES
from training.retraining.grouping import group
from training.retraining.judgements import Judged
from training.retraining.split import Split, place, plain
from training.text.service import DEFAULT, fetch_nearest, qualified, split_qualified

if TYPE_CHECKING:
    from training.runs.dev import Score

MAX_QUERIES = 2000  # More take long; the interval is already a tenth of that of 20 queries.
MIN_DEV_QUERIES = 8  # enough for a choice among few settings, whose first is safe; chosen by us
MIN_QUERIES = 20  # fewer say nothing: the standard error of their mean nDCG is above 0.05 (a spread of 0.3)
CANDIDATES = 500  # documents that judged dev queries search. Their passages are encoded five times.
TOP = 10  # hits of a query that are compared, as many as nDCG@10 looks at
_KNOWN_WORDS = 4  # words of a query for a known item; chosen by us
_WORD, _LONG, _PIECE = re.compile(r"\w+"), 12, re.compile(r".{2,4}")


def collections(split: Split, candidates: int, least: int = MIN_QUERIES) -> dict[str, Collection]:
    """Builds the searches made of held-out documents, by name. Leaves out kinds with too few queries.

    Args:
        split: The documents by part.
        candidates: Maximum number of documents to rank.
        least: Minimum number of queries of a kind.

    """
    every = _sort(split)
    within = {document.id: document.collection for document in every}
    made = {"titles": _titles(split.held, every, within), "known": _known(split.held, every, within)}
    return {name: _bounded(found, candidates) for name, found in made.items() if len(found.queries) >= least}


def judged_search(
    split: Split,
    judged: Mapping[str, Sequence[str]],
    candidates: int,
    first: Container[str] = (),
    nearest: Iterable[str] = (),
) -> Collection:
    """Builds the search with judged queries. All relevant documents are among the documents to rank.

    A query that was judged in several collections is searched in each of them.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each query.
        candidates: Maximum number of documents to rank.
        first: Queries to keep first if there are too many: those that judge. Other queries only fit rankings.
        nearest: Ids of the documents to rank first of all, in this order.

    """
    by_id = {document.id: document for document in _sort(split)}
    within = {id: document.collection for id, document in by_id.items()}
    answers = (id for ids in judged.values() for id in ids)
    order = dict.fromkeys([*(id for id in nearest if id in by_id), *answers, *by_id])
    queries: dict[str, str] = {}
    relevant: dict[str, dict[str, float]] = {}
    for query, ids in judged.items():
        for id in ids:
            behind = "" if within[id] == DEFAULT else f"\0{within[id]}"
            name = f"query\0{query}{behind}"
            queries[name] = query
            within[name] = within[id]
            relevant.setdefault(name, {})[id] = 1.0
    documents = {id: by_id[id].content for id in order}
    return _bounded(Collection(documents, queries, relevant, 0, within), candidates, first)


def can_decide(searches: Mapping[str, Collection], found: Judged) -> bool:
    """Returns whether the searches can show a gain."""
    return len(found.held) >= MIN_QUERIES or bool(searches.keys() - {JUDGED})


def withheld(split: Split, judged: Iterable[str]) -> set[str]:
    """Returns the held-out queries and texts, normalized by `plain`, which training rows must not contain."""
    kept_back = (*split.held, *split.dev)
    of_documents = (text for document in kept_back for text in (document.title, document.text))
    return {plain(text) for text in (*judged, *of_documents)} - {""}


class Setting(NamedTuple):
    """How a collection is searched if a query names no mode."""

    mode: Mode
    passage_tokens: int | None = None  # None: the default length
    weight: float = DENSE_WEIGHT  # weight of vectors in hybrid search

    @classmethod
    def of(cls, learned: SearchDefaults | None, mode: Mode | None = None) -> Setting:
        """Returns the setting that a collection learned.

        `mode`, if the service sets one, replaces the learned mode.
        """
        return cls(mode or get_mode(learned), learned_tokens(learned), get_weight(learned))


def caching(model: Scorable) -> Scorable:
    """Returns the model with a cache of vectors, for several searches over almost the same documents."""
    return model._replace(
        encode_queries=remembering(model.encode_queries), encode_documents=remembering(model.encode_documents)
    )


def score(
    made: Mapping[str, Collection],
    model: Scorable,
    learned: Mapping[str, SearchDefaults] = MappingProxyType({}),
    mode: Mode | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns the `figures` of each search, by name.

    A query is answered as the service answers a search that names no mode, but without a learned ranking.

    Args:
        made: Searches by name.
        model: The encoder.
        learned: Search settings of the version, by collection of the service.
        mode: Default mode of the service. None: the learned one, or hybrid.

    """
    scores = {}
    for name, collection in made.items():
        found: dict[str, Example] = {}
        for part, queried in collection.parts():
            found |= zip(
                queried.queries, find(queried, model, Setting.of(learned.get(part), mode)), strict=True
            )
        every = [found[query] for query in collection.queries]
        hits = [each.ids[:TOP] for each in every]
        scores[name] = figures(
            [*collection.queries], [judge(each.ids, each.relevant)["ndcg10"] for each in every], hits
        )
    return scores


def figures(names: Sequence[str], each: Sequence[float], hits: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns the mean nDCG@10, and for each query in order: its name, nDCG@10 and first hits."""
    return {"ndcg10": fmean(each), "queries": len(each), NAMES: names, EACH: [*each], HITS: hits}


def find(part: Collection, model: Scorable, setting: Setting, *, ranked: bool = False) -> list[Example]:
    """Searches one collection as the service does.

    Args:
        part: Documents and queries of one collection.
        model: The encoder.
        setting: Mode, length of passages, and weight of the vectors.
        ranked: Whether to compute the features from which a ranking learns.

    Returns:
        For each query, its best documents in the order of that mode. Equal scores are ordered by descending
        id, as in trec_eval.
    """
    ids = sorted(part.documents, reverse=True)
    contents = [part.documents[id] for id in ids]
    passages = modes.get_passages(contents, model.split, model.encode_documents, setting.passage_tokens)
    starts = np.flatnonzero(np.diff(passages.owners, prepend=-1))
    queries = [*part.queries.values()]
    vectors = np.nan_to_num(directions(model.encode_queries(queries))).astype(np.float32)
    mean = vectors.mean(axis=0)
    mean /= np.linalg.norm(mean) or 1
    texts = Texts(ids, contents, np.split(passages.vectors, starts[1:]), mean, model.unrelated)
    found = []
    with closing(modes.WordIndex([content.whole for content in contents])) as words:
        lists = modes.find(
            queries, vectors, passages, words, weight=setting.weight, unrelated=model.unrelated
        )
        for (name, query), vector, modal in zip(part.queries.items(), vectors, lists, strict=True):
            scores, worded = modal[setting.mode], modal["lexical"]
            found.append(
                build_example(query, vector, scores, worded, texts, part.relevant[name], ranked=ranked)
            )
    return found


def _sort(split: Split) -> list[Document]:
    """Returns all documents in the order in which searches add them: first those that are held out."""
    others = sorted((*split.train, *split.dev), key=lambda document: place(f"candidate\0{document.id}"))
    return [*split.held, *others]


def _titles(held: Sequence[Document], every: Sequence[Document], within: Mapping[str, str]) -> Collection:
    """Builds the search `titles`. A title that several documents of a collection have is not a query."""
    bodies = {document.id: get_body(folded(document.title), folded(document.text)) for document in every}
    used = Counter((document.collection, plain(document.title)) for document in every)
    queries = {}
    for document in held:
        title, once = folded(document.title), used[document.collection, plain(document.title)] == 1
        if title and once and bodies[document.id] not in {"", title}:
            queries[document.id] = title
    # Another document with the very text would be right as well.
    answers = {(within[id], bodies[id]) for id in queries}
    documents = {
        id: Content(body)
        for id, body in bodies.items()
        if body and (id in queries or (within[id], body) not in answers)
    }
    return Collection(documents, queries, {id: {id: 1.0} for id in queries}, 0, within)


def _known(held: Sequence[Document], every: Sequence[Document], within: Mapping[str, str]) -> Collection:
    """Builds the search `known`: a query consists of rare words of a document, in the order of the text."""
    words = {document.id: [*dict.fromkeys(_words(document.text))] for document in every}
    used = Counter(word for of_one in words.values() for word in of_one)
    queries = {}
    for document in held:
        own = words[document.id]
        if len(own) >= 2 * _KNOWN_WORDS:
            rare = sorted(own, key=lambda word: (used[word], word))[: len(own) // 2]
            chosen = sorted(rare, key=lambda word: place(f"{document.id}\0{word}"))[:_KNOWN_WORDS]
            queries[document.id] = " ".join(word for word in own if word in chosen)
    documents = {document.id: document.content for document in every}
    return Collection(documents, queries, {id: {id: 1.0} for id in queries}, 0, within)


def _bounded(collection: Collection, candidates: int, first: Container[str] = ()) -> Collection:
    """Keeps all answers, and other documents up to `candidates` in all.

    Also keeps at most MAX_QUERIES queries, those in `first` before others.
    """
    texts = collection.queries
    order = sorted(texts, key=lambda name: (texts[name] not in first, place(f"asked\0{name}")))
    queries = {name: texts[name] for name in order[:MAX_QUERIES]}
    relevant = {name: collection.relevant[name] for name in queries}
    answers = {name for found in relevant.values() for name in found}
    others = [name for name in collection.documents if name not in answers]
    kept = answers.union(others[: max(0, candidates - len(answers))])
    documents = {name: content for name, content in collection.documents.items() if name in kept}
    return collection._replace(documents=documents, queries=queries, relevant=relevant)


def _words(text: str) -> list[str]:
    """Splits a text into lower-case words. Long runs of scripts without spaces are cut into pieces."""
    found = _WORD.findall(plain(text))
    return [
        piece
        for word in found
        for piece in ([word] if word.isascii() or len(word) <= _LONG else _PIECE.findall(word))
    ]


def build_choose(
    split: Split,
    judged: Mapping[str, Sequence[str]],
    active: Callable[[], Scorable],
    learned: Mapping[str, SearchDefaults],
    mode: Mode | None,
    service: str | None,
) -> Choose | None:
    """Returns a function that scores a model on the dev part, or None if dev has too few queries.

    The function returns one score for each judged query. If too few queries are judged, it returns one for
    each query made from text. With a service, judged queries search mainly the documents that the service
    finds for any of them, because other documents hardly compete.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each dev query.
        active: Function that opens the active model. The returned function does not use this model.
        learned: Search settings of the active version, by collection.
        mode: Mode that the service uses for searches without a mode. None means the learned mode.
        service: Address of a service with the documents, or None.

    """
    choosing = Split(split.train, split.dev, split.copies)
    if len(judged) >= MIN_DEV_QUERIES:  # Judgments count more than queries made from text.
        nearest = _find_nearest(service, judged, active()) if service is not None else ()
        made = {JUDGED: judged_search(choosing, judged, CANDIDATES, nearest=nearest)}
    else:
        made = collections(choosing, CANDIDATES // 2, MIN_DEV_QUERIES)
    return choose_by(made, active(), learned, mode) if made else None


def choose_by(
    dev: Mapping[str, Collection], model: Scorable, learned: Mapping[str, SearchDefaults], mode: Mode | None
) -> Choose:
    """Returns a function that scores a model on each query of the searches `dev`. See `build_choose`."""
    unrelated = model.unrelated
    passages = {
        (content, tokens): model.split(content, tokens)
        for collection in dev.values()
        for name, part in collection.parts()
        for tokens in [learned_tokens(learned.get(name))]
        for content in part.documents.values()
    }

    def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        encoders = encode_queries, encode_queries, encode_documents
        trained = Scorable(None, None, None, *encoders, lambda *key: passages[key], 0, unrelated)
        scores = score(dev, caching(trained), learned, mode)
        return np.concatenate([each[EACH] for each in scores.values()])

    return figures


def compute_score(choose: Choose | None) -> Score | None:
    """Returns a function that gives the mean of the scores of `choose`. None if `choose` is None."""
    if choose is None:
        return None

    return lambda encoder: float(choose(encoder.encode_queries, encoder.encode_documents).mean())


def _find_nearest(service: str, judged: Mapping[str, Sequence[str]], model: Scorable) -> list[str]:
    """Returns the ids of the service's hits: the first hit of each query, then each second hit, and so on."""
    places = dict.fromkeys((split_qualified(id)[0], query) for query, ids in judged.items() for id in ids)
    lists = [
        [qualified(name, hit["id"]) for hit in found]
        for name, some in group(places).items()
        for found in fetch_nearest(
            service, name, unit_vectors(model.encode_queries, some), str(model.version)
        )
    ]
    return list(dict.fromkeys(id for rank in zip_longest(*lists) for id in rank if id is not None))
