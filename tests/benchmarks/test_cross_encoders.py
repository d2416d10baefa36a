"""The benchmark of cross-encoders ranks as the service does."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cross_encoders import rerank
from models.search.content import Content
from models.tokens.pairs import Pair
from tests.tiny import tiny_cross_encoder
from training.evaluation.retrieval import Collection
from training.model.reranker import TrainedReranker


@pytest.mark.parametrize("title", ["", "market"])
def test_the_best_passage_of_a_hit_is_scored(
    title: str, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_cross_encoder(tmp_path / "best")
    read: list[str] = []
    score = TrainedReranker.score

    def recorded(model: TrainedReranker, pairs: list[Pair]) -> object:
        read.extend(pair.text for pair in pairs)
        return score(model, pairs)

    monkeypatch.setattr(TrainedReranker, "score", recorded)
    long = "The red stone sleeps. " * 40 + "The river runs to the garden. " * 40
    documents = {"long": Content(long, title), "short": Content("A green letter.", title)}
    collection = Collection(documents, {"q": "the river runs to the garden"}, {"q": {"long": 1.0}}, 0)
    assert 0 < rerank(collection, str(tiny_source), tmp_path) <= 1
    passage = next(text for text in read if "letter" not in text)
    assert passage.startswith(title)
    assert "river" in passage[:60]
    assert len(passage) < len(long) / 2
