"""Objectives of cross-encoders, compared with values worked out by hand and with torch."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  its usual name

from training.errors import TrainingError
from training.methods.objectives import NO_TEXT, Reps
from training.methods.pair_objectives import ListSoftmax, PairBce, RelationCe, ScoreMse
from training.methods.recipe import load_recipe

TEXTS = torch.tensor([[1, 2, 3], [4, 5, 6]])


def reps(scores: list[list[float]], texts: torch.Tensor = TEXTS, labels: torch.Tensor | None = None) -> Reps:
    return Reps(torch.tensor(scores)[..., None], texts, labels)


def test_bce_is_the_mean_over_all_pairs() -> None:
    found = PairBce().loss(reps([[2.0, -1.0, 0.0], [0.0, 1.0, -3.0]]))
    relevant = [math.log1p(math.exp(-2)), math.log(2)]
    others = [math.log1p(math.exp(-1)), math.log(2), math.log1p(math.exp(1)), math.log1p(math.exp(-3))]
    assert found.item() == pytest.approx(sum(relevant + others) / 6, rel=1e-6)


def test_softmax_finds_the_first_document() -> None:
    found = ListSoftmax().loss(reps([[2.0, -1.0, 0.0], [0.0, 1.0, -3.0]]))
    first = -math.log(math.exp(2) / (math.exp(2) + math.exp(-1) + 1))
    second = -math.log(1 / (1 + math.exp(1) + math.exp(-3)))
    assert found.item() == pytest.approx((first + second) / 2, rel=1e-6)


@pytest.mark.parametrize("objective", [PairBce(), ListSoftmax()])
@pytest.mark.parametrize("number", [NO_TEXT, 1])
def test_empty_places_and_equal_documents_are_no_negatives(
    objective: PairBce | ListSoftmax, number: int
) -> None:
    texts = torch.tensor([[1, 2, number]])
    found = objective.loss(reps([[2.0, -1.0, 5.0]], texts))
    assert found.item() == pytest.approx(objective.loss(reps([[2.0, -1.0]], TEXTS[:1, :2])).item())


def test_mse_is_of_the_sigmoid_and_the_share_of_the_highest_score() -> None:
    found = ScoreMse(highest=5.0).loss(reps([[0.0], [2.0]], TEXTS[:, :1], torch.tensor([[5.0], [2.0]])))
    assert found.item() == pytest.approx((0.5**2 + (1 / (1 + math.exp(-2)) - 0.4) ** 2) / 2, rel=1e-6)


def test_relations_are_classes() -> None:
    logits = torch.tensor([[[1.0, 0.0, -1.0]], [[0.5, 2.0, 0.0]]])
    found = RelationCe().loss(Reps(logits, TEXTS[:, :1], torch.tensor([0, 2])))
    by_hand = -math.log(math.e / (math.e + 1 + 1 / math.e)), -math.log(1 / (math.exp(0.5) + math.exp(2) + 1))
    assert found.item() == pytest.approx(sum(by_hand) / 2, rel=1e-6)
    assert found.item() == pytest.approx(F.cross_entropy(logits[:, 0], torch.tensor([0, 2])).item())


@pytest.mark.parametrize(
    ("recipe", "changes", "reason"),
    [
        ("cross-encoder", {"result": "encoder"}, "need the result"),
        ("simcse-unsup", {"result": "reranker"}, "need the result"),
        ("cross-encoder", {"source": "scored_pairs", "views": ["same"]}, "needs the source"),
        ("cross-encoder-nli", {"source": "scored_pairs"}, "needs the source"),
        ("cross-encoder-scores", {"source": "labelled_pairs"}, "needs the source"),
        ("cross-encoder", {"head": {"name": "tanh", "keep": True}}, "own head"),
        ("cross-encoder", {"views": [{"name": "mask", "rate": 0.1, "aside": False}] * 2}, "must be"),
        ("cross-encoder", {"twin": "clone"}, "is for encoders"),
        ("cross-encoder", {"student.layers": 2}, "is for encoders"),
        ("cross-encoder", {"optim.train_layers": 1}, "are for encoders"),
        ("cross-encoder", {"optim.head_lr": 1e-3}, "are for encoders"),
        ("cross-encoder-nli", {"objectives": ["relation_ce", {"name": "info_nce", "tau": 0.1}]}, "no other"),
    ],
)
def test_blocks_that_do_not_fit_a_reranker_are_refused(
    recipe: str, changes: dict[str, object], reason: str
) -> None:
    with pytest.raises(TrainingError, match=reason):
        load_recipe(recipe, changes)
