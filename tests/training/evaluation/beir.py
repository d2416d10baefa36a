"""A tiny retrieval collection in BEIR's layout, and search figures computed from their definitions."""

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

# (title, text) by document id. `encode` of pairs.py turns a text into its vector.
DOCUMENTS = {"a": ("", "0.9"), "b": ("", "0.8"), "c": ("", "0.7"), "d": ("", "0.6")}
QUERIES = {"q1": "east", "q2": "0.0", "unjudged": "0.5"}
# q1 is east and ranks a b c d (cosines .9 .8 .7 .6). q2 is north and ranks d c b a.
QRELS = (("q1", "b", 2), ("q1", "d", 1), ("q1", "a", 0), ("q2", "d", 1))


def write_collection(
    folder: Path,
    documents: Mapping[str, tuple[str, str]] = DOCUMENTS,
    queries: Mapping[str, str] = QUERIES,
    qrels: Sequence[tuple[str, str, object]] = QRELS,
    *,
    plain: bool = False,
) -> Path:
    """Writes a collection: gzipped files with our names, or if `plain`, uncompressed files with BEIR's."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus = [{"_id": key, "title": title, "text": text} for key, (title, text) in documents.items()]
    requested = [{"_id": key, "text": text} for key, text in queries.items()]
    for name, rows in {"corpus": corpus, "queries": requested}.items():
        _write(folder / f"{name}.jsonl", [json.dumps(row) for row in rows], plain)
    header = "query-id\tcorpus-id\tscore" if plain else "query_id\tcorpus_id\tscore"
    judged = [header, *("\t".join(map(str, row)) for row in qrels)]
    _write(folder / ("qrels/test.tsv" if plain else "qrels.test.tsv"), judged, plain)
    return folder


def by_brute_force(ranked: Sequence[str], relevant: Mapping[str, float]) -> dict[str, float]:
    """Returns every figure of one query, computed from its definition. Shares no code with the package."""

    def precision(k: int) -> float:
        return len(set(ranked[:k]) & set(relevant)) / k

    def dcg(documents: Sequence[str]) -> float:
        gains = {document: relevant.get(document, 0) for document in documents}
        return sum(gains[document] / math.log2(2 + at) for at, document in enumerate(documents))

    ideal = sorted(relevant, key=lambda document: -relevant[document])[:10]
    first = [1 / (at + 1) for at, document in enumerate(ranked[:10]) if document in relevant][:1]
    precisions = [precision(at + 1) for at, document in enumerate(ranked[:100]) if document in relevant]
    return {
        "ndcg10": dcg(ranked[:10]) / dcg(ideal),
        **{f"recall{k}": precision(k) * k / len(relevant) for k in (1, 10, 100)},
        "mrr10": sum(first),
        "map100": sum(precisions) / len(relevant),
    }


def _write(file: Path, lines: Sequence[str], plain: bool) -> None:
    file.parent.mkdir(exist_ok=True)
    content = ("\n".join(lines) + "\n").encode()
    if plain:
        file.write_bytes(content)
    else:
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(content))
