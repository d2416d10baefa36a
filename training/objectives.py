"""Objectives: pure functions from representations to one number. N texts, V views, P dimensions.

info_nce    each text must find its other view among those of all texts of the batch
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor


class Reps(NamedTuple):
    """What one forward gives."""

    z: Tensor  # (N, V, P)
    texts: Tensor  # int64 (N,); equal numbers are equal texts


class Objective(Protocol):
    def __call__(self, reps: Reps) -> Tensor:
        """The mean over the batch, a float32 scalar."""


def info_nce(query_NP: Tensor, key_MP: Tensor, *, tau: float, same_NM: Tensor | None = None) -> Tensor:
    """The mean over n of log( Σ_m exp(cos(q_n, k_m)/τ) / exp(cos(q_n, k_n)/τ) ): SimCSE, equation 1.

    The key of query n is n; the other keys are its negatives, except where same_NM is true.
    In float32 whatever it is given and whatever autocast says: at τ = 0.05 similarities in bf16 move the
    gradient by 3 % (methods, 4.6).
    """
    with torch.autocast(query_NP.device.type, enabled=False):
        query_NP, key_MP = F.normalize(query_NP.float(), dim=-1), F.normalize(key_MP.float(), dim=-1)
        scores_NM = query_NP @ key_MP.T / tau
        if same_NM is not None:
            scores_NM = scores_NM.masked_fill(same_NM, -torch.inf)
        return F.cross_entropy(scores_NM, torch.arange(len(query_NP), device=query_NP.device))


@dataclass(frozen=True)
class InfoNCE:
    """One direction, from the first view to the second; equal texts of a batch are not negatives."""

    tau: float

    def __call__(self, reps: Reps) -> Tensor:
        same_NN = reps.texts[:, None] == reps.texts
        same_NN = same_NN & ~torch.eye(len(same_NN), dtype=torch.bool, device=same_NN.device)
        return info_nce(reps.z[:, 0], reps.z[:, 1], tau=self.tau, same_NM=same_NN)


OBJECTIVES = {"info_nce": InfoNCE}
