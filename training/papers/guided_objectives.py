"""Objectives with a reference: a frozen twin's layers, the neighbors of a sentence, the initial weights.

self_guided    a text finds its own layers in a frozen twin among those of all texts (SG-OPT)
neighbours     a sentence finds the sentences next to it in its document (QuickThoughts)
anchor         the weights stay near their initial values (SG-OPT's regularizer)
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from training.methods.objectives import Materials, Objective, Reps
from training.methods.ranges import AboveZero, Count


def self_guided(z_NP: Tensor, layers_NKP: Tensor, same_NN: Tensor, *, tau: float) -> Tensor:
    """Mean over n and k of -log(e_nnk / (e_nnk + Σ e_nml over m ≠ n and all l)), e = exp(cos / τ).

    Args:
        z_NP: Vectors of the texts.
        layers_NKP: Vectors of each text's layers in the twin.
        same_NN: True for pairs of equal texts, which are not negatives of each other.
        tau: Temperature.

    """
    with torch.autocast(z_NP.device.type, enabled=False):
        z_NP, layers_NKP = F.normalize(z_NP.float(), dim=-1), F.normalize(layers_NKP.float(), dim=-1)
        scores_NMK = torch.einsum("np,mkp->nmk", z_NP, layers_NKP) / tau
        own_NK = scores_NMK.diagonal(dim1=0, dim2=1).T
        own_NN = torch.eye(len(z_NP), dtype=torch.bool, device=z_NP.device)
        others_NMK = scores_NMK.masked_fill((same_NN | own_NN)[..., None], -torch.inf)
        others_N1 = others_NMK.flatten(1).logsumexp(1, keepdim=True)
        return F.softplus(others_N1 - own_NK).mean()


@dataclass(frozen=True)
class SelfGuided(Objective):
    """Kim, Yoo and Lee 2021 (SG-OPT), equation 7. Only the layers of other texts are negatives."""

    tau: AboveZero
    name: Literal["self_guided"] = "self_guided"
    reads: ClassVar[frozenset[str]] = frozenset({"layers"})

    def loss(self, reps: Reps) -> Tensor:
        same_NN = reps.texts[:, :1] == reps.texts[:, :1].T
        return self_guided(reps.z[:, 0], reps.z[:, 1:], same_NN, tau=self.tau)


def neighbours(f_NP: Tensor, g_NP: Tensor, near_NN: Tensor, same_NN: Tensor) -> Tensor:
    """Mean over n of the cross-entropy of softmax(f_n · g_m) to an even choice among those near n.

    A sentence is not a candidate for itself. Sentences without neighbors do not count.
    """
    with torch.autocast(f_NP.device.type, enabled=False):
        scores_NN = f_NP.float() @ g_NP.float().T
        counts_N = near_NN.any(1)
        if not counts_N.any():
            return 0 * scores_NN.sum()
        logs_NN = scores_NN.masked_fill(same_NN & ~near_NN, -torch.inf)[counts_N].log_softmax(1)
        near_NN = near_NN[counts_N]
        return -(logs_NN.masked_fill(~near_NN, 0).sum(1) / near_NN.sum(1)).mean()


@dataclass(frozen=True)
class Neighbours(Objective):
    """Logeswaran and Lee 2018 (QuickThoughts), equation 2. `reach` sentences on each side are correct.

    The paper's code sets a sentence's score with itself to 0; here the score is left out.
    """

    reach: Count = 1
    name: Literal["neighbours"] = "neighbours"

    def loss(self, reps: Reps) -> Tensor:
        places_N = torch.arange(len(reps.z), device=reps.z.device)
        distance_NN = (places_N[:, None] - places_N).abs()
        one_document_NN = reps.known[:, None] == reps.known
        near_NN = one_document_NN & (distance_NN <= self.reach) & (distance_NN > 0)
        same_NN = reps.texts[:, :1] == reps.texts[:, :1].T
        return neighbours(reps.z[:, 0], reps.z[:, 1], near_NN, same_NN)


class AnchorModule(nn.Module):
    """Keeps the initial weights as buffers, so that a resumed run has the same anchor."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self._backbone = (backbone,)  # a tuple hides the encoder's own weights from this module
        trained = (each for each in backbone.parameters() if each.requires_grad)
        for number, tensor in enumerate(trained):
            self.register_buffer(f"began_{number}", tensor.detach().clone())

    def forward(self, _reps: Reps) -> Tensor:
        trained = (each for each in self._backbone[0].parameters() if each.requires_grad)
        with torch.autocast(next(self.buffers()).device.type, enabled=False):
            pairs = zip(trained, self.buffers(), strict=True)
            return torch.stack([(tensor - began).square().sum() for tensor, began in pairs]).sum()


@dataclass(frozen=True)
class Anchor(Objective):
    """‖θ - θ₀‖² over the backbone's trained weights. Kim, Yoo and Lee 2021, equation 8: times 0.1."""

    name: Literal["anchor"] = "anchor"

    def build(self, materials: Materials) -> nn.Module:
        return AnchorModule(materials.encoder.backbone)
