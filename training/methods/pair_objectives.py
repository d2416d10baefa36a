"""Objectives of cross-encoders: loss functions on the raw scores (logits) of pairs of texts.

    pair_bce        a relevant document has the score 1, others 0 (binary cross-entropy)
    list_softmax    the relevant document is found among those of its row (listwise cross-entropy)
    score_mse       the score is the one that people gave (squared error)
    relation_ce     the relation of two texts: entailment, neutral or contradiction (cross-entropy)

A row has a query and V documents, so `Reps.z` has shape (N, V, outputs), and `Reps.texts` the numbers of the
documents. The first document of a row is the relevant one.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from training.methods.objectives import NO_TEXT, Objective, Reps
from training.text.corpus import RELATION_NAMES
from training.validation import AboveZero


@dataclass(frozen=True)
class PairObjective(Objective):
    """Base class of objectives on pairs."""

    labels: ClassVar[tuple[str, ...]] = ()  # names of the scores, if a pair has several


def not_negatives(texts_NV: Tensor) -> Tensor:
    """Returns which documents of a row do not count: bool, shape (N, V).

    These are empty places, and documents that equal the first, relevant document. The first counts.
    """
    wrong_NV = (texts_NV == NO_TEXT) | (texts_NV == texts_NV[:, :1])
    wrong_NV[:, 0] = False
    return wrong_NV


@dataclass(frozen=True)
class PairBce(PairObjective):
    """Binary cross-entropy of each pair, the mean over all pairs of the batch (Nogueira and Cho 2019)."""

    name: Literal["pair_bce"] = "pair_bce"

    def loss(self, reps: Reps) -> Tensor:
        scores_NV = reps.z[..., 0]
        targets_NV = torch.zeros_like(scores_NV)
        targets_NV[:, 0] = 1
        losses_NV = F.binary_cross_entropy_with_logits(scores_NV, targets_NV, reduction="none")
        return losses_NV[~not_negatives(reps.texts)].mean()


@dataclass(frozen=True)
class ListSoftmax(PairObjective):
    """Cross-entropy of finding the relevant document of a row (Gao, Dai and Callan 2021, LCE)."""

    name: Literal["list_softmax"] = "list_softmax"

    def loss(self, reps: Reps) -> Tensor:
        scores_NV = reps.z[..., 0].masked_fill(not_negatives(reps.texts), -torch.inf)
        return F.cross_entropy(scores_NV, scores_NV.new_zeros(len(scores_NV), dtype=torch.int64))


@dataclass(frozen=True)
class ScoreMse(PairObjective):
    """Mean of (sigmoid(z) - score / highest)², so that a served score is a share of the highest score."""

    highest: AboveZero = 1.0
    name: Literal["score_mse"] = "score_mse"

    def loss(self, reps: Reps) -> Tensor:
        return F.mse_loss(reps.z[..., 0].sigmoid(), reps.known.float() / self.highest)


@dataclass(frozen=True)
class RelationCe(PairObjective):
    """Cross-entropy of the relation of a premise and a hypothesis."""

    labels: ClassVar[tuple[str, ...]] = RELATION_NAMES
    name: Literal["relation_ce"] = "relation_ce"

    def loss(self, reps: Reps) -> Tensor:
        return F.cross_entropy(reps.z[:, 0], reps.known)
