"""The default model reaches its published retrieval quality over HTTP."""

import math
from pathlib import Path

import numpy as np
import pytest

from tests import evaldata
from tests.service.process import Service


def ndcg_at_10(ranking: list[str], gains: dict[str, int]) -> float:
    """Returns nDCG@10 with linear gains and log2 discounts."""

    def dcg(values: list[int]) -> float:
        return sum(value / math.log2(rank + 2) for rank, value in enumerate(values[:10]))

    return dcg([gains.get(id, 0) for id in ranking]) / dcg(sorted(gains.values(), reverse=True))


def test_ndcg_of_a_ranking_worked_out_by_hand() -> None:
    gains = {"a": 3, "b": 1}
    best = 3 / 1 + 1 / math.log2(3)
    assert ndcg_at_10(["a", "b"], gains) == 1.0
    assert ndcg_at_10(["x", "b", "a"], gains) == pytest.approx((1 / math.log2(3) + 3 / 2) / best)


@pytest.mark.long
@evaldata.needs("cranfield")
def test_cranfield_gives_the_published_ndcg(tmp_path: Path, default_models_dir: Path) -> None:
    corpus = [
        (row["_id"], f"{row['title']} {row['text']}") for row in evaldata.jsonl("cranfield/corpus.jsonl.gz")
    ]
    documents = {id: text for id, text in corpus if text.strip()}
    assert sorted(id for id, text in corpus if not text.strip()) == ["471", "995"]
    queries = {row["_id"]: row["text"] for row in evaldata.jsonl("cranfield/queries.jsonl.gz")}
    relevant = evaldata.qrels("cranfield/qrels.test.tsv.gz")
    with Service(tmp_path, default_models_dir) as service:
        ids = list(documents)
        for start in range(0, len(ids), 200):
            part = {id: documents[id] for id in ids[start : start + 200]}
            assert service.put(part).json()["upserted"] == len(part)
        judged = [id for id in queries if id in relevant]
        assert len(judged) == 225

        def ndcg(**options: object) -> float:
            body = {"queries": [queries[id] for id in judged], "k": 10, **options}
            results = service.client.post("/search", json=body).json()["results"]
            scores = [
                ndcg_at_10([hit["id"] for hit in hits], relevant[id])
                for id, hits in zip(judged, results, strict=True)
            ]
            return float(np.mean(scores))

        # The first is the published score of this model. The others are those of exact search over the same
        # passages (docs/SEARCH.md).
        assert ndcg(mode="dense", passages=False) == pytest.approx(0.371, abs=0.003)
        assert ndcg(mode="dense") == pytest.approx(0.361, abs=0.003)
        assert ndcg(mode="lexical") == pytest.approx(0.361, abs=0.003)
        assert ndcg(mode="hybrid") == pytest.approx(0.411, abs=0.003)
