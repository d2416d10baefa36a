"""The benchmark of cross-encoders ranks as the service does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.cross_encoders import rerank
from models.reranker import Reranker
from models.search.content import Content
from models.tokens.pairs import Pair
from tests.tiny import tiny_cross_encoder
from training.evaluation.retrieval import Collection


@pytest.mark.parametrize("title", ["", "market"])
def test_the_best_passage_of_a_hit_is_scored(
    title: str, tiny_source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_cross_encoder(tmp_path / "best")
    read: list[str] = []
    score, query = Reranker.score, "the river runs to the garden"

    def recorded(model: Reranker, pairs: Sequence[Pair], **options: Any) -> object:
        read.extend(pair.text for pair in pairs if pair.query == query)  # Not those of the proof.
        return score(model, pairs, **options)

    monkeypatch.setattr(Reranker, "score", recorded)
    long = "The red stone sleeps. " * 40 + "The river runs to the garden. " * 40
    documents = {"long": Content(long, title), "short": Content("A green letter.", title)}
    collection = Collection(documents, {"q": query}, {"q": {"long": 1.0}}, 0)
    assert 0 < rerank(collection, str(tiny_source), tmp_path / "best") <= 1
    passage = next(text for text in read if "letter" not in text)
    assert passage.startswith(title)
    assert "river" in passage[:60]
    assert len(passage) < len(long) / 2
