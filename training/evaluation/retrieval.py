"""Evaluate search on collections with judged queries. Start reading at `search`.

    DIR/NAME/corpus.jsonl[.gz]     {"_id": …, "title": …, "text": …} on each line; the title may be missing
    DIR/NAME/queries.jsonl[.gz]    {"_id": …, "text": …}
    DIR/NAME/qrels.test.tsv[.gz]   query_id corpus_id score, with a header; also BEIR's qrels/test.tsv

DIR is the evaluation folder. Every folder in it with a corpus and queries is a set. modes.py ranks the
documents in each search mode of the service.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from models.manifest import Mode
from models.search.content import Content
from models.search.measures import DEPTH, Ranking, judge, mean
from training.errors import TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.geometry import directions
from training.evaluation.modes import DENSE, MODES, Split, WordIndex, find, get_passages
from training.text.lines import build_text, read_records
from training.text.service import DEFAULT

_CORPUS, _QUERIES = "corpus.jsonl", "queries.jsonl"
_COLUMNS = (("query_id", "query-id"), ("corpus_id", "corpus-id"), ("score",))  # ours, and BEIR's


class Collection(NamedTuple):
    documents: dict[str, Content]  # by id; documents without text are left out
    queries: dict[str, str]  # queries with a relevant document
    relevant: dict[str, dict[str, float]]  # query id to document id to gain, above 0
    empty: int  # documents without text, which no service stores
    # From the ids of queries and documents to a part. A query finds documents of its own part only.
    within: Mapping[str, str] | None = None

    def parts(self) -> Iterator[tuple[str, Collection]]:
        """Splits the collection by `within`. Yields the name and the collection of each part with queries."""
        within = self.within or {}
        documents: dict[str, dict[str, Content]] = {}
        for id, content in self.documents.items():
            documents.setdefault(within.get(id, DEFAULT), {})[id] = content
        queries: dict[str, dict[str, str]] = {}
        for id, text in self.queries.items():
            queries.setdefault(within.get(id, DEFAULT), {})[id] = text
        for part, part_queries in sorted(queries.items()):
            found = documents.get(part, {})
            relevant = {query: self.relevant[query] for query in part_queries if query in self.relevant}
            yield part, self._replace(documents=found, queries=part_queries, relevant=relevant, within=None)


def collections(data: Path) -> dict[str, Path]:
    """Returns the folders of all sets in `data` by name, sorted."""
    folders = sorted(folder for folder in data.iterdir() if folder.is_dir())
    return {
        folder.name: folder for folder in folders if all(_found(folder, name) for name in (_CORPUS, _QUERIES))
    }


def load(folder: Path, split: str = "test") -> Collection:
    """Loads all documents of a set, and the queries that have a relevant document in `split`.

    Raises:
        TrainingError: A file cannot be read or names unknown ids. The message names the file and the line.
    """
    documents = {name: content for _, name, content in _contents(_file(folder, _CORPUS))}
    queries: dict[str, str] = {}
    for where, name, part_queries in _contents(_file(folder, _QUERIES)):
        if not part_queries.text:
            raise TrainingError(f"{where}: the query has no text.")
        queries[name] = part_queries.text
    relevant: dict[str, dict[str, float]] = {}
    judgements = _file(folder, f"qrels.{split}.tsv", f"qrels/{split}.tsv")
    for where, query, document, gain in _read(judgements):
        if query not in queries or document not in documents:
            kind, name = ("document", document) if query in queries else ("query", query)
            raise TrainingError(f"{where}: there is no {kind} {name[:100]!r} in {folder}.")
        if gain > 0 and relevant.setdefault(query, {}).setdefault(document, gain) != gain:
            raise TrainingError(f"{where}: this pair was judged before, with another score.")
    if not relevant:
        raise TrainingError(f"{judgements} names no relevant document.")
    there = {name: content for name, content in documents.items() if content.text}
    if not there:
        raise TrainingError(f"{_file(folder, _CORPUS)} holds no text.")
    judged = {query: queries[query] for query in relevant}
    return Collection(there, judged, relevant, len(documents) - len(there))


def retrieval(
    collection: Collection,
    encode_queries: Encode,
    encode_documents: Encode,
    split: Split,
    unrelated: float = 1.0,
) -> dict[str, Any]:
    """Returns the means of the figures of `judge`, and counts.

    The counts are those of queries, documents, documents without text, and vectors without a direction.
    Top-level figures are for dense search. The keys `lexical` and `hybrid` have the figures of these modes.
    """
    lists, undefined = search(collection, encode_queries, encode_documents, split, unrelated)
    means = {mode: mean(judge_all(collection, ranked)) for mode, ranked in lists.items()}
    counts = {
        "queries": len(collection.queries),
        "documents": len(collection.documents) + collection.empty,
        "empty": collection.empty,
        "undefined": undefined,  # vectors without a direction, whose cosines count as 0
    }
    return means.pop(DENSE) | counts | means


def search(
    collection: Collection,
    encode_queries: Encode,
    encode_documents: Encode,
    split: Split,
    unrelated: float = 1.0,
) -> tuple[dict[Mode, list[list[str]]], int]:
    """Ranks the documents for all queries in each search mode.

    The score of a document in dense search is the cosine of its best passage. Documents with equal scores
    are ranked by descending id, as in trec_eval. A document with the id of the query is left out, as in BEIR.

    Args:
        collection: Documents and queries.
        encode_queries: Encodes queries.
        encode_documents: Encodes passages of documents.
        split: Splits a document into passages.
        unrelated: Mean cosine of unrelated texts, for hybrid search.

    Returns:
        The rankings of each mode, as document ids for each query, best first; and the number of vectors that
        have length 0 or are not finite.
    """
    lists: dict[Mode, list[list[str]]] = {mode: [] for mode in MODES}
    ids = sorted(collection.documents, reverse=True)
    contents, queries = [collection.documents[id] for id in ids], list(collection.queries.values())
    vectors, passages = encode_queries(queries), get_passages(contents, split, encode_documents)
    undefined = np.isnan(directions(vectors)).any(axis=1).sum() + (~passages.vectors.any(axis=1)).sum()
    with closing(WordIndex([content.whole for content in contents])) as words:
        # One more, because the query's own document is left out.
        rankings = find(queries, vectors, passages, words, DEPTH + 1, unrelated=unrelated)
        for query, found in zip(collection.queries, rankings, strict=True):
            for mode, ranked in found.items():
                lists[mode].append([ids[row] for row in ranked if ids[row] != query])
    return lists, int(undefined)


def judge_all(collection: Collection, lists: Sequence[Sequence[str]]) -> list[Ranking]:
    """Returns the figures of each query. `lists` are the rankings of one mode from `search`."""
    return [
        judge(ranked, collection.relevant[query])
        for query, ranked in zip(collection.queries, lists, strict=True)
    ]


def _file(folder: Path, *names: str) -> Path:
    file = _found(folder, *names)
    if file is None:
        raise TrainingError(f"{folder} has no {' or '.join(names)}, plain or as .gz.")
    return file


def _found(folder: Path, *names: str) -> Path | None:
    files = (folder / f"{name}{suffix}" for name in names for suffix in (".gz", ""))
    return next((file for file in files if file.is_file()), None)


def _contents(file: Path) -> Iterator[tuple[str, str, Content]]:
    """Yields the position (file and line), id and content of each document or query in a file.

    A title without a text becomes the text.
    """
    seen: set[str] = set()
    for record in read_records(file, kind=".jsonl"):
        name, text = build_text(record, ["_id"]), build_text(record, ["text"])
        title = build_text(record, ["title"]) if record.fields.get("title") else ""
        if name in seen:
            raise TrainingError(f"{record.at}: the _id {name[:100]!r} was there before.")
        seen.add(name)
        title, text = title.strip(), text.strip()
        yield record.at, name, Content(text, title) if text else Content(title)


def _read(file: Path) -> Iterator[tuple[str, str, str, float]]:
    """Yields the position (file and line), query id, document id and gain of each row of judgments."""
    for record in read_records(file, _COLUMNS, ".tsv"):
        query, document, score = (build_text(record, names) for names in _COLUMNS)
        try:
            gain = float(score)
        except ValueError:
            gain = math.nan
        if not math.isfinite(gain):
            raise TrainingError(f"{record.at}: the score {score[:40]!r} is not a number.")
        yield record.at, query, document, gain
