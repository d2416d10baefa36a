"""Scores equal those of mteb's tasks. Skipped if mteb is not installed."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from models.search.measures import mean
from tests.evaldata import FOLDER, needs
from training.evaluation.data import load
from training.evaluation.encoding import Vectors
from training.evaluation.modes import whole
from training.evaluation.retrieval import judge_all, search
from training.evaluation.retrieval import load as load_collection
from training.evaluation.sts import similarity

mteb: Any = pytest.importorskip("mteb")
pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # Of mteb's dependencies.
TASKS = {"stsb": "STSBenchmark", "sts12": "STS12", "sts14": "STS14", "sts16": "STS16", "sickr": "SICK-R"}
WIDTH = 64


def encode(texts: list[str]) -> Vectors:
    """Returns for each text the sum of its words' random vectors, so texts that share words are similar."""
    return np.stack([sum((_word(word) for word in text.lower().split()), _word("")) for text in texts])


def _word(word: str) -> Vectors:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8])
    found: Vectors = np.random.default_rng(seed).normal(size=WIDTH).astype(np.float32)
    return found


class Model:
    mteb_model_meta = None

    def encode(self, inputs: Any, **_: Any) -> Vectors:
        return encode([text for batch in inputs for text in batch["text"]])

    def similarity(self, left: Any, right: Any) -> Any:
        return mteb.similarity_functions.cos_sim(left, right)

    def similarity_pairwise(self, left: Any, right: Any) -> Any:
        return mteb.similarity_functions.pairwise_cos_sim(left, right)


@pytest.mark.parametrize(
    "key", [pytest.param(key, marks=needs("sick" if key == "sickr" else key)) for key in TASKS]
)
def test_similarity_is_mteb_s_cosine_spearman(key: str) -> None:
    datasets: Any = pytest.importorskip("datasets")
    pairs = load(key, FOLDER)
    rows = {"sentence1": pairs.left, "sentence2": pairs.right, "score": pairs.gold.tolist()}
    task = mteb.get_task(TASKS[key])
    table = datasets.table.InMemoryTable.from_pydict(rows)
    judged = datasets.Dataset(table, fingerprint=key)  # The default one pickles the table, which may fail.
    task.dataset, task.data_loaded = {"default": {"test": judged}}, True
    found = task.evaluate(Model(), "test", encode_kwargs={"batch_size": 512})["default"]
    ours = similarity(pairs, encode)
    # Texts of the same words tie at a cosine of 1, and rounding ranks them.
    assert ours["spearman_all"] == pytest.approx(found["cosine_spearman"], abs=1e-4)
    assert ours["pearson_all"] == pytest.approx(found["cosine_pearson"], abs=1e-6)
    assert found["main_score"] == found["cosine_spearman"]


@pytest.mark.parametrize("name", [pytest.param(name, marks=needs(name)) for name in ("scifact", "cranfield")])
def test_search_is_judged_as_mteb_s_trec_eval_does(name: str) -> None:
    metrics: Any = pytest.importorskip("mteb._evaluators.retrieval_metrics")
    collection = load_collection(FOLDER / name)
    lists, _ = search(collection, encode, encode, whole)
    results = {
        query: {document: float(-at) for at, document in enumerate(ranked)}
        for query, ranked in zip(collection.queries, lists["dense"], strict=True)
    }
    gains = {
        query: {document: int(gain) for document, gain in relevant.items()}
        for query, relevant in collection.relevant.items()
    }
    found = metrics.calculate_retrieval_scores(results, gains, [1, 10, 100])
    ours = mean(judge_all(collection, lists["dense"]))
    assert ours["ndcg10"] == pytest.approx(found.ndcg["NDCG@10"], abs=1e-5)  # it rounds to five digits
    assert ours["recall1"] == pytest.approx(found.recall["Recall@1"], abs=1e-5)
    assert ours["recall100"] == pytest.approx(found.recall["Recall@100"], abs=1e-5)
    assert ours["map100"] == pytest.approx(found.map["MAP@100"], abs=1e-5)
    assert ours["mrr10"] == pytest.approx(found.mrr["MRR@10"], abs=1e-5)
