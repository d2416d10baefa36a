"""Search: how well queries find the documents that people judged relevant, over folders in BEIR's layout.

    DIR/NAME/corpus.jsonl[.gz]     {"_id": …, "title": …, "text": …} in each line; the title may be missing
    DIR/NAME/queries.jsonl[.gz]    {"_id": …, "text": …}
    DIR/NAME/qrels.test.tsv[.gz]   query_id corpus_id score, with a header; BEIR's qrels/test.tsv is read too

Every folder with a corpus and queries is a set. Documents are ranked in each mode that the service has
(modes.py); the figures themselves are in rankings.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from models.manifest import Mode, SearchDefaults
from models.search.content import Content
from models.search.fusion import weight_of
from models.search.passages import learned_tokens
from training.errors import TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.geometry import directions
from training.evaluation.modes import DENSE, MODES, Split, WordIndex, find, passages_of
from training.text.lines import read_records, text_of
from training.text.service_collections import DEFAULT

_CORPUS, _QUERIES = "corpus.jsonl", "queries.jsonl"
_COLUMNS = (("query_id", "query-id"), ("corpus_id", "corpus-id"), ("score",))  # ours, and BEIR's


class Collection(NamedTuple):
    documents: dict[str, Content]  # by id; those without any text are left out
    queries: dict[str, str]  # those with a relevant document
    relevant: dict[str, dict[str, float]]  # query id to document id to gain, above 0
    empty: int  # documents without text: no service would take them, so they are never found
    # Query or document id to a part: a query finds documents of its own part only. None: there is one part.
    within: Mapping[str, str] | None = None

    def parts(self) -> Iterator[tuple[str, Collection]]:
        """Each part that has queries, judged or not, by its name, with that part's documents alone."""
        within = self.within or {}
        documents: dict[str, dict[str, Content]] = {}
        for id, content in self.documents.items():
            documents.setdefault(within.get(id, DEFAULT), {})[id] = content
        queries: dict[str, dict[str, str]] = {}
        for id, text in self.queries.items():
            queries.setdefault(within.get(id, DEFAULT), {})[id] = text
        for part, asked in sorted(queries.items()):
            found = documents.get(part, {})
            relevant = {query: self.relevant[query] for query in asked if query in self.relevant}
            yield part, self._replace(documents=found, queries=asked, relevant=relevant, within=None)


def collections(data: Path) -> dict[str, Path]:
    """Every set in `data`: its folder's name and the folder, by name."""
    folders = sorted(folder for folder in data.iterdir() if folder.is_dir())
    return {
        folder.name: folder for folder in folders if all(_found(folder, name) for name in (_CORPUS, _QUERIES))
    }


def load(folder: Path, split: str = "test") -> Collection:
    """Queries with a relevant document in that split, and all documents.

    Raise TrainingError, with the file and the line, for what cannot be read or does not fit together.
    """
    documents = {name: content for _, name, content in _contents(_file(folder, _CORPUS))}
    queries: dict[str, str] = {}
    for where, name, asked in _contents(_file(folder, _QUERIES)):
        if not asked.text:
            raise TrainingError(f"{where}: the query has no text.")
        queries[name] = asked.text
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
    collection: Collection, encode_queries: Encode, encode_documents: Encode, split: Split
) -> dict[str, Any]:
    """The figures of `rankings.Ranking`, each the mean over queries, and what they are over.

    Those of dense search; those of the other modes stand behind them, under `lexical` and `hybrid`.
    """
    lists, undefined = search(collection, encode_queries, encode_documents, split)
    means = {mode: mean(judge_all(collection, ranked))._asdict() for mode, ranked in lists.items()}
    return means.pop(DENSE) | counts(collection, undefined) | means


def search(
    collection: Collection,
    encode_queries: Encode,
    encode_documents: Encode,
    split: Split,
    learned: Mapping[str, SearchDefaults] = MappingProxyType({}),
) -> tuple[dict[Mode, list[list[str]]], int]:
    """By mode, document ids for every query, in their order, best first; and the vectors without a direction.

    A document has the cosine of the best of its passages, which `split` gives. Equal scores are ranked by
    descending id, as trec_eval ranks them, and a document with the query's own id is left out of its list,
    as BEIR does. learned: the weight and the passages of each part.
    """
    lists: dict[Mode, dict[str, list[str]]] = {mode: {} for mode in MODES}
    encoded = encode_queries(list(collection.queries.values()))
    rows = {query: row for row, query in enumerate(collection.queries)}
    undefined = int(np.isnan(directions(encoded)).any(axis=1).sum())
    for name, part in collection.parts():
        ids = sorted(part.documents, reverse=True)
        some = [part.documents[id] for id in ids]
        queries = list(part.queries.values())
        vectors = encoded[[rows[query] for query in part.queries]]
        of_part = learned.get(name)
        passages = passages_of(some, split, encode_documents, learned_tokens(of_part))
        undefined += int((~passages.vectors.any(axis=1)).sum())
        with closing(WordIndex([content.whole for content in some])) as words:
            # One more, in place of the query's own.
            rankings = find(queries, vectors, passages, words, DEPTH + 1, weight_of(of_part))
            for query, found in zip(part.queries, rankings, strict=True):
                for mode, ranked in zip(MODES, found, strict=True):
                    lists[mode][query] = [ids[row] for row in ranked if ids[row] != query]
    in_order = {mode: [of_mode[query] for query in collection.queries] for mode, of_mode in lists.items()}
    return in_order, undefined


def judge_all(collection: Collection, lists: Sequence[Sequence[str]]) -> list[Ranking]:
    """The figures of every query, in their order; `lists` as `search` gives them."""
    return [
        judge(ranked, collection.relevant[query])
        for query, ranked in zip(collection.queries, lists, strict=True)
    ]


def counts(collection: Collection, undefined: int) -> dict[str, int]:
    """The numbers of what a collection's figures are over."""
    return {
        "queries": len(collection.queries),
        "documents": len(collection.documents) + collection.empty,
        "empty": collection.empty,
        "undefined": undefined,  # vectors without a direction: their cosines count as 0
    }


def _file(folder: Path, *names: str) -> Path:
    file = _found(folder, *names)
    if file is None:
        raise TrainingError(f"{folder} has no {' or '.join(names)}, plain or as .gz.")
    return file


def _found(folder: Path, *names: str) -> Path | None:
    files = (folder / f"{name}{suffix}" for name in names for suffix in (".gz", ""))
    return next((file for file in files if file.is_file()), None)


def _contents(file: Path) -> Iterator[tuple[str, str, Content]]:
    """(file and line, id, title and text) of each line; a title alone is the text."""
    seen: set[str] = set()
    for record in read_records(file, kind=".jsonl"):
        name, text = text_of(record, ["_id"]), text_of(record, ["text"])
        title = text_of(record, ["title"]) if record.fields.get("title") else ""
        if name in seen:
            raise TrainingError(f"{record.at}: the _id {name[:100]!r} was there before.")
        seen.add(name)
        title, text = title.strip(), text.strip()
        yield record.at, name, Content(text, title) if text else Content(title)


def _read(file: Path) -> Iterator[tuple[str, str, str, float]]:
    """(file and line, query id, document id, gain) of each row."""
    for record in read_records(file, _COLUMNS, ".tsv"):
        query, document, score = (text_of(record, names) for names in _COLUMNS)
        try:
            gain = float(score)
        except ValueError:
            gain = math.nan
        if not math.isfinite(gain):
            raise TrainingError(f"{record.at}: the score {score[:40]!r} is not a number.")
        yield record.at, query, document, gain


DEPTH = 100  # of the longest list that a figure looks at


class Ranking(NamedTuple):
    """Figures from 0 to 1, of one query or the means over many; trec_eval's definitions."""

    ndcg10: float
    recall1: float
    recall10: float
    recall100: float
    mrr10: float
    map100: float


def judge(ranked: Sequence[str], relevant: Mapping[str, float]) -> Ranking:
    """`ranked`: document ids, best first, none twice. `relevant`: id to gain above 0, at least one.

    nDCG has linear gain, and the ideal list is of all relevant documents, found or not (Järvelin & Kekäläinen
    2002). Recall and average precision divide by the number of all relevant documents.
    """
    gains = [relevant.get(document, 0.0) for document in ranked[:DEPTH]]
    hits = [rank for rank, gain in enumerate(gains, 1) if gain > 0]
    ideal = sorted(relevant.values(), reverse=True)
    return Ranking(
        ndcg10=_dcg(gains[:10]) / _dcg(ideal[:10]),
        recall1=sum(rank <= 1 for rank in hits) / len(relevant),
        recall10=sum(rank <= 10 for rank in hits) / len(relevant),
        recall100=len(hits) / len(relevant),
        mrr10=1 / hits[0] if hits and hits[0] <= 10 else 0.0,
        map100=sum(found / rank for found, rank in enumerate(hits, 1)) / len(relevant),
    )


def mean(rankings: Sequence[Ranking]) -> Ranking:
    """Every query counts once."""
    return Ranking(*(math.fsum(figure) / len(rankings) for figure in zip(*rankings, strict=True)))


def _dcg(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1))
