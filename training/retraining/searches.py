"""Build and score the searches that judge a candidate, from held-out documents of the user.

    titles       the title of a document must find the text of the document
    neighbours   a sentence must find the next sentence of the same document
    known        some rare words of a document must find the document
    judged       a query must find the documents that people called relevant
    few          like `judged`, if there are too few queries to decide

A search ranks the held-out documents together with other documents, which make the search harder. A hash of
the ids chooses the other documents, so they are the same in every run. A query searches only documents of its
collection, as in the service, in each search mode (evaluation/modes.py). Both versions get the same queries.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from statistics import fmean
from types import MappingProxyType
from typing import Any

from models.manifest import SearchDefaults
from models.search.content import Content
from models.search.passages import learned_tokens
from training.evaluation.encoding import Encode, encode_once
from training.evaluation.modes import DENSE
from training.evaluation.modes import Split as Passages
from training.evaluation.retrieval import Collection, counts, judge_all, mean, search
from training.mining.pairs import folded, get_body
from training.retraining.documents import Document
from training.retraining.gate.verdict import (
    CLICKED,
    EACH,
    GROUPS,
    HITS,
    JUDGED,
    KEYS,
    LABELLED,
    TOO_FEW_JUDGED,
    measures,
)
from training.retraining.heldout import Split, place
from training.text.service import DEFAULT

MAX_QUERIES = 2000  # more would take long and show little: the interval is a tenth of that of 20
MIN_DEV_QUERIES = 8  # dev chooses among a few settings, of which the first is safe; chosen by us
MIN_QUERIES = 20  # fewer say nothing: the standard error of their mean nDCG is above 0.05 (a spread of 0.3)
MIN_GUARDING = 5  # groups of judged queries; of fewer no fall is certain. Chosen by us
TOP = 10  # hits of a query that are compared, as many as nDCG@10 looks at
_KNOWN_WORDS = 4  # that ask for a known item; chosen by us
_WORD, _LONG, _PIECE = re.compile(r"\w+"), 12, re.compile(r".{2,4}")
_WORDS = 4  # of a sentence that can ask or answer; chosen by us
# Behind a full stop, a question or exclamation mark and white space; scripts without spaces; a new line.
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")  # noqa: RUF001  full-width marks


def collections(
    split: Split, judged: Mapping[str, Sequence[str]], candidates: int, least: int = MIN_QUERIES
) -> dict[str, Collection]:
    """Builds the searches that judge, by name. Leaves out kinds with too few queries.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each held-out query.
        candidates: Maximum number of documents to rank.
        least: Minimum number of queries of a kind.

    """
    others = _others(split)
    made = {
        "titles": _titles(split.held, others),
        "neighbours": _neighbors(split.held, others),
        "known": _known(split.held, others),
        JUDGED: _judged(split, others, judged),
    }
    enough = {name: found for name, found in made.items() if len(found.queries) >= least}
    return {name: _bounded(found, candidates) for name, found in enough.items()}


def dev_collections(
    split: Split, judged: Mapping[str, Sequence[str]], candidates: int, nearest: Sequence[str] = ()
) -> dict[str, Collection]:
    """Builds the same searches from the dev part, which choose the best step and the best weights.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each dev query.
        candidates: Maximum number of documents to rank.
        nearest: Ids of the documents that judged queries rank first of all, in this order.

    """
    choosing = Split(split.train, split.dev, split.copies)
    made = collections(choosing, judged, candidates, MIN_DEV_QUERIES)
    if nearest and JUDGED in made:
        found = _judged(choosing, _others(choosing), judged)
        order = dict.fromkeys([*nearest, *found.documents])
        documents = {id: found.documents[id] for id in order if id in found.documents}
        made[JUDGED] = _bounded(found._replace(documents=documents), candidates)
    return made


def guarding(
    split: Split,
    judged: Mapping[str, Sequence[str]],
    groups: Mapping[str, int],
    candidates: int,
    of_use: Container[str] = (),
) -> dict[str, Collection]:
    """Builds the search of judged queries that do not decide, but are enough to detect a loss.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each held-out query.
        groups: Group of each query. Queries of one group are not independent.
        candidates: Maximum number of documents to rank.
        of_use: Queries whose answers rest on clicks alone, which never decide.

    Returns:
        The search `few` if there are too few other queries to decide, or else `clicked`. Empty if there are
        too few queries for either.

    """
    others, said = _others(split), {query: ids for query, ids in judged.items() if query not in of_use}
    decide = len(_judged(split, others, said).queries) >= MIN_QUERIES  # A query counts in each collection.
    guards = {query: ids for query, ids in judged.items() if not decide or query in of_use}
    if len({groups[query] for query in guards}) < MIN_GUARDING:
        return {}
    return {CLICKED if decide else TOO_FEW_JUDGED: _bounded(_judged(split, others, guards), candidates)}


def evidence(
    searches: Mapping[str, Collection], groups: Mapping[str, int], keys: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Returns the group of each judged query, and the API key on which it rests, or None."""
    queries = [query for name in LABELLED if name in searches for query in searches[name].queries.values()]
    return {GROUPS: [groups[query] for query in queries], KEYS: [keys.get(query) for query in queries]}


def withheld(split: Split, judged: Iterable[str]) -> set[str]:
    """Returns the held-out queries and texts, normalized by `plain`, which training rows must not contain."""
    kept_back = (*split.held, *split.dev)
    of_documents = (text for document in kept_back for text in (document.title, document.text))
    return {plain(text) for text in (*judged, *of_documents)} - {""}


def plain(text: str) -> str:
    """Normalizes white space and case, to compare texts."""
    return folded(text).casefold()


def score(
    made: Mapping[str, Collection],
    encode_queries: Encode,
    encode_documents: Encode,
    split: Passages,
    learned: Mapping[str, SearchDefaults] = MappingProxyType({}),
    unrelated: float = 1.0,
) -> dict[str, dict[str, Any]]:
    """Scores a model on searches. Returns nDCG@10 and other figures by search and mode.

    Figures at the top level of a search are for dense search. `each` has the nDCG@10 of every query in order,
    and `hits` the ids of the first documents.

    Args:
        made: Searches by name.
        encode_queries: Encodes queries.
        encode_documents: Encodes documents.
        split: Splits a document into passages.
        learned: Search settings of the version, by collection of the service.
        unrelated: Mean cosine of unrelated texts, for hybrid search.

    """
    passages = cache(split)
    found = (
        (content, learned_tokens(learned.get(part)))
        for collection in made.values()
        for part, queried in collection.parts()
        for content in queried.documents.values()
    )
    texts = dict.fromkeys(found)
    queried = chain.from_iterable(collection.queries.values() for collection in made.values())
    queries = encode_once(encode_queries, queried)
    parts = chain.from_iterable(passages(content, size) for content, size in texts)
    documents = encode_once(encode_documents, parts)
    scores = {}
    for name, collection in made.items():
        lists, undefined = search(collection, queries, documents, passages, learned, unrelated)
        modes = {mode: _figures(collection, ranked) for mode, ranked in lists.items()}
        scores[name] = modes.pop(DENSE) | counts(collection, undefined) | modes
    return scores


def overlap(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, float]:
    """Returns overlap@10 of each search: the mean share of the first ten hits that two versions share.

    The overlap shows how much of the results would change. The verdict does not depend on it.
    """
    was, now = measures(before), measures(after)
    return {
        name: fmean(
            len({*first} & {*second}) / max(1, len(first))
            for first, second in zip(was[name][HITS], now[name][HITS], strict=True)
        )
        for name in was
        if name in now and len(was[name][HITS]) == len(now[name][HITS])
    }


def _others(split: Split) -> list[Document]:
    """Returns the documents that are not held out, in the order in which searches add them."""
    return sorted((*split.train, *split.dev), key=lambda document: place(f"candidate\0{document.id}"))


def _figures(collection: Collection, lists: Sequence[Sequence[str]]) -> dict[str, Any]:
    rankings = judge_all(collection, lists)
    return {
        **mean(rankings),
        EACH: [ranking["ndcg10"] for ranking in rankings],
        HITS: [ranked[:TOP] for ranked in lists],
    }


def _titles(held: Sequence[Document], others: Sequence[Document]) -> Collection:
    """Builds the search `titles`. Titles of several documents in a collection are left out."""
    both = (*held, *others)
    bodies = {document.id: get_body(folded(document.title), folded(document.text)) for document in both}
    within = {document.id: document.collection for document in both}
    titles = {document.id: folded(document.title) for document in held}
    used = Counter((document.collection, plain(document.title)) for document in both)
    queries = {
        id: title
        for id, title in titles.items()
        if title and bodies[id] and used[within[id], plain(title)] == 1 and title != bodies[id]
    }
    # Another document with the very text would be right as well.
    answers = {(within[id], bodies[id]) for id in queries}
    candidates = {
        f"{id}\0text": body
        for id, body in bodies.items()
        if id in queries or (within[id], body) not in answers
    }
    documents = {name: Content(body) for name, body in candidates.items() if body}
    return _one_each(queries, documents, "\0text", within)


def _neighbors(held: Sequence[Document], others: Iterable[Document]) -> Collection:
    """Builds the search `neighbours`, with one pair of consecutive sentences from each document."""
    queries: dict[str, str] = {}
    answers: dict[str, Content] = {}
    for at, document in enumerate((*held, *others)):
        sentences = _sentences(document.text)
        if len(sentences) > 1:
            first = int(place(f"sentence\0{document.id}") * (len(sentences) - 1))
            answers[f"{document.id}\0next"] = Content(sentences[first + 1])
            if at < len(held) and sentences[first] != sentences[first + 1]:
                queries[document.id] = sentences[first]
    within = {document.id: document.collection for document in (*held, *others)}
    return _one_each(queries, answers, "\0next", within)


def _known(held: Sequence[Document], others: Sequence[Document]) -> Collection:
    """Builds the search `known`: a query consists of rare words of a document, in the order of the text."""
    both = (*held, *others)
    words = {document.id: dict.fromkeys(_words(document.text)) for document in both}
    used = Counter(word for of_one in words.values() for word in of_one)
    queries = {}
    for document in held:
        own = list(words[document.id])
        if len(own) >= 2 * _KNOWN_WORDS:
            rare = sorted(own, key=lambda word: (used[word], word))[: len(own) // 2]
            chosen = sorted(rare, key=lambda word: place(f"{document.id}\0{word}"))[:_KNOWN_WORDS]
            queries[document.id] = " ".join(word for word in own if word in chosen)
    documents = {f"{document.id}\0whole": document.content for document in both}
    return _one_each(queries, documents, "\0whole", {document.id: document.collection for document in both})


def _judged(split: Split, others: Iterable[Document], judged: Mapping[str, Sequence[str]]) -> Collection:
    """Builds the search `judged`. All relevant documents are among the documents to rank.

    A query that was judged in several collections is searched in each of them.
    """
    by_id = {document.id: document for document in (*split.held, *split.train, *split.dev)}
    within = {id: document.collection for id, document in by_id.items()}
    requested = dict.fromkeys(id for ids in judged.values() for id in ids)
    documents = {id: by_id[id].content for id in requested}
    documents |= {document.id: document.content for document in (*split.held, *others)}
    queries: dict[str, str] = {}
    relevant: dict[str, dict[str, float]] = {}
    for query, ids in judged.items():
        for id in ids:
            behind = "" if within[id] == DEFAULT else f"\0{within[id]}"
            name = f"query\0{query}{behind}"
            queries[name] = query
            within[name] = within[id]
            relevant.setdefault(name, {})[id] = 1.0
    return Collection(documents, queries, relevant, 0, within)


def _one_each(
    queries: dict[str, str], documents: dict[str, Content], suffix: str, within: Mapping[str, str]
) -> Collection:
    """Builds a collection in which each query has one answer.

    Args:
        queries: Queries by name.
        documents: Documents by name. The answer of a query has the name of the query plus `suffix`.
        suffix: End of the names of answers.
        within: Collection of the service by document id.

    """
    parts = {name: within[name] for name in queries}
    parts |= {name: within[name.removesuffix(suffix)] for name in documents}
    return Collection(documents, queries, {name: {f"{name}{suffix}": 1.0} for name in queries}, 0, parts)


def _bounded(collection: Collection, candidates: int) -> Collection:
    """Limits the documents of a collection to `candidates`. Answers are never removed."""
    queried = sorted(collection.queries, key=lambda name: place(f"asked\0{name}"))[:MAX_QUERIES]
    collection = collection._replace(
        queries={name: collection.queries[name] for name in queried},
        relevant={name: collection.relevant[name] for name in queried},
    )
    answers = {name for found in collection.relevant.values() for name in found}
    spare = max(0, candidates - len(answers))
    kept: dict[str, Content] = {}
    for name, content in collection.documents.items():
        if name in answers:
            kept[name] = content
        elif spare:
            spare -= 1
            kept[name] = content
    return collection._replace(documents=kept)


def _sentences(text: str) -> list[str]:
    found = (folded(part) for part in _SENTENCE.split(text))
    return [sentence for sentence in found if len(sentence.split()) >= _WORDS or _unspaced(sentence)]


def _words(text: str) -> list[str]:
    """Splits a text into lower-case words. Long runs of scripts without spaces are cut into pieces."""
    found = _WORD.findall(plain(text))
    return [
        piece
        for word in found
        for piece in ([word] if word.isascii() or len(word) <= _LONG else _PIECE.findall(word))
    ]


def _unspaced(sentence: str) -> bool:
    """Returns True if a sentence is long enough and in a script without spaces."""
    return " " not in sentence and len(sentence) >= 2 * _WORDS and not sentence.isascii()
