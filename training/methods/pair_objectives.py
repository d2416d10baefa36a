"""Objectives over what is known of pairs: a score, a relation, or which of two encoders saw a text.

    cosine_mse    the cosine is the score (SBERT's regression; Augmented SBERT with a teacher's scores)
    cosent        a pair with a higher score has a higher cosine (CoSENT)
    hard_nce      both texts of an entailment find each other; a nearer negative weighs more (PairSupCon)
    bce_dot       the two encoders' dot product says if their texts are one (CT)
    two_way       each text finds its other view, both ways, at a learned temperature (CT in-batch, CLIP)

In float32 whatever autocast says. Not here: what needs tokens (word_objectives.py) or other texts' layers
(guided_objectives.py).
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from training.methods.objectives import Materials, Objective, Reps
from training.methods.ranges import AboveZero, Count


def cosines_of(reps: Reps) -> Tensor:
    """The cosine of each row's first text with its others, float32 (N, V - 1)."""
    with torch.autocast(reps.z.device.type, enabled=False):
        z_NVP = F.normalize(reps.z.float(), dim=-1)
        return (z_NVP[:, :1] * z_NVP[:, 1:]).sum(-1)


@dataclass(frozen=True)
class CosineMse(Objective):
    """Reimers and Gurevych 2019 (SBERT), section 3: the mean of (cos(u, v) - score / highest)²."""

    highest: AboveZero = 1.0
    name: Literal["cosine_mse"] = "cosine_mse"

    def loss(self, reps: Reps) -> Tensor:
        return F.mse_loss(cosines_of(reps), reps.known.float() / self.highest)


def cosent(cosines: Tensor, scores: Tensor, *, scale: float) -> Tensor:
    """log(1 + Σ exp(scale · (cos_a - cos_b))) over all pairs a, b with a lower score of a than of b."""
    difference = scale * (cosines[:, None] - cosines[None])
    wrong = difference.masked_fill(scores[:, None] >= scores[None], -torch.inf).flatten()
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)


@dataclass(frozen=True)
class Cosent(Objective):
    """CoSENT (Su 2022, as sentence-transformers has it): the order of the scores, not their size."""

    scale: AboveZero = 20.0
    name: Literal["cosent"] = "cosent"

    def loss(self, reps: Reps) -> Tensor:
        return cosent(cosines_of(reps).flatten(), reps.known.float().flatten(), scale=self.scale)


def hard_nce(u_NP: Tensor, v_NP: Tensor, anchors_N: Tensor, same_MM: Tensor, *, tau: float) -> Tensor:
    """The mean over 2n rows of -log(e⁺ / (e⁺ + Σ w e / mean w)), w = e of each negative; e = exp(cos/τ).

    anchors_N: which pairs are positives; n of them. same_MM: rows (2N, 2N) that are no negatives. In logs:
    Σ w e / mean w is exp(lse(2s) - lse(s)) times the number of negatives.
    """
    with torch.autocast(u_NP.device.type, enabled=False):
        u_NP, v_NP = F.normalize(u_NP.float(), dim=-1), F.normalize(v_NP.float(), dim=-1)
        z_MP = torch.cat([u_NP, v_NP])
        positive_M = (u_NP * v_NP).sum(-1).repeat(2) / tau
        scores_MM = (z_MP @ z_MP.T / tau).masked_fill(same_MM, -torch.inf)
        rows_M = anchors_N.repeat(2) & ~same_MM.all(1)
        if not rows_M.any():
            return 0 * z_MP.sum()
        scores_MM, positive_M, same_MM = scores_MM[rows_M], positive_M[rows_M], same_MM[rows_M]
        count_M = (~same_MM).sum(1)
        weighed_M = (2 * scores_MM).logsumexp(1) - scores_MM.logsumexp(1) + count_M.log()
        return F.softplus(weighed_M - positive_M).mean()


@dataclass(frozen=True)
class HardNce(Objective):
    """Zhang et al. 2021 (PairSupCon), equations 1 to 3: entailments are positives, all texts negatives."""

    tau: AboveZero
    name: Literal["hard_nce"] = "hard_nce"

    def loss(self, reps: Reps) -> Tensor:
        N = len(reps.z)
        texts_M = reps.texts.T.flatten()
        own_MM = torch.eye(N, dtype=torch.bool, device=reps.z.device).repeat(2, 2)
        same_MM = own_MM | (texts_M[:, None] == texts_M)
        return hard_nce(reps.z[:, 0], reps.z[:, 1], reps.known == 0, same_MM, tau=self.tau)


@dataclass(frozen=True)
class BceDot(Objective):
    """Carlsson et al. 2021 (CT), equation 1: each text with itself, and with `negatives` others of the batch.

    Theirs are drawn for each text alone; the next ones in the batch are as random, and are encoded already.
    """

    negatives: Count = 7
    name: Literal["bce_dot"] = "bce_dot"

    def loss(self, reps: Reps) -> Tensor:
        N = len(reps.z)
        shifts = range(1 + min(self.negatives, N - 1))
        with torch.autocast(reps.z.device.type, enabled=False):
            u_NP, v_NP = reps.z[:, 0].float(), reps.z[:, 1].float()
            logits_NK = torch.stack([(u_NP * v_NP.roll(-by, 0)).sum(-1) for by in shifts], dim=1)
            targets_NK = torch.zeros_like(logits_NK)
            targets_NK[:, 0] = 1
            texts_N = reps.texts[:, 0]
            again_NK = torch.stack([texts_N == texts_N.roll(-by) for by in shifts], dim=1)
            again_NK[:, 0] = False
            losses_NK = F.binary_cross_entropy_with_logits(logits_NK, targets_NK, reduction="none")
            return losses_NK.masked_fill(again_NK, 0).sum() / N


class TwoWayModule(nn.Module):
    def __init__(self, tau: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(tau)))

    def forward(self, reps: Reps) -> Tensor:
        N = len(reps.z)
        with torch.autocast(reps.z.device.type, enabled=False):
            u_NP, v_NP = (F.normalize(reps.z[:, view].float(), dim=-1) for view in (0, 1))
            same_NN = (reps.texts[:, :1] == reps.texts[:, :1].T).fill_diagonal_(fill_value=False)
            scores_NN = (u_NP @ v_NP.T * self.log_scale.exp()).masked_fill(same_NN, -torch.inf)
            own_N = torch.arange(N, device=scores_NN.device)
            return (F.cross_entropy(scores_NN, own_N) + F.cross_entropy(scores_NN.T, own_N)) / 2


@dataclass(frozen=True)
class TwoWay(Objective):
    """Cross-entropy from each view to the other (Radford et al. 2021, CLIP, figure 3).

    tau: where the temperature begins.
    """

    tau: AboveZero
    name: Literal["two_way"] = "two_way"

    def build(self, _materials: Materials) -> nn.Module:
        return TwoWayModule(self.tau)
