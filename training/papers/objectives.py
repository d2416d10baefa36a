"""Further objectives, which reproduce the losses of papers.

self_guided    a text finds its own layer vectors of a frozen twin among those of all texts (SG-OPT)
neighbours     a sentence finds the sentences next to it in the document (QuickThoughts)
anchor         keeps the weights near their initial values (the regularizer of SG-OPT)
word_ce        the vector of a definition predicts the defined word (DefSent)
mi_jsd         the vector of a text distinguishes phrases of the text from phrases of other texts (IS-BERT)
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from training.errors import TrainingError
from training.methods.objectives import (
    InFloat32,
    Materials,
    Objective,
    Reps,
    first_texts_equal,
    init_as_torch,
)
from training.methods.token_objectives import word_table
from training.model.language_head import language_head
from training.model.packed import build_packing, pad, unpad
from training.text.tokens import Tokens
from training.validation import AboveZero, Count


@dataclass(frozen=True)
class SelfGuided(Objective):
    """Contrastive loss with the layers of a frozen twin (Kim, Yoo and Lee 2021, SG-OPT, equation 7).

    The loss is the mean over texts n and layers k of -log(e_nnk / (e_nnk + Σ e_nml over m ≠ n and all l)).
    e_nml is exp(cos / τ) for the vector of text n and layer l of text m. Only layers of other texts are
    negatives.
    """

    tau: AboveZero
    name: Literal["self_guided"] = "self_guided"
    reads: ClassVar[frozenset[str]] = frozenset({"layers"})

    def loss(self, reps: Reps) -> Tensor:
        z_NP, layers_NKP = F.normalize(reps.z[:, 0], dim=-1), F.normalize(reps.z[:, 1:], dim=-1)
        scores_NMK = torch.einsum("np,mkp->nmk", z_NP, layers_NKP) / self.tau
        own_NK = scores_NMK.diagonal(dim1=0, dim2=1).T
        same_NN = first_texts_equal(reps).fill_diagonal_(fill_value=True)
        others_NMK = scores_NMK.masked_fill(same_NN[..., None], -torch.inf)
        others_N1 = others_NMK.flatten(1).logsumexp(1, keepdim=True)
        return F.softplus(others_N1 - own_NK).mean()


@dataclass(frozen=True)
class Neighbors(Objective):
    """Prediction of neighboring sentences (Logeswaran and Lee 2018, QuickThoughts, equation 2).

    The correct answers are the `reach` sentences before and after a sentence n, with equal probability. The
    loss is the mean cross-entropy of softmax(f_n · g_m) to these answers. Sentences without neighbors do not
    count. The scores of a sentence with itself and with equal sentences are left out. The code of the paper
    sets the score with itself to 0.
    """

    reach: Count = 1
    name: Literal["neighbours"] = "neighbours"

    def loss(self, reps: Reps) -> Tensor:
        places_N = torch.arange(len(reps.z), device=reps.z.device)
        distance_NN = (places_N[:, None] - places_N).abs()
        one_document_NN = reps.known[:, None] == reps.known
        near_NN = one_document_NN & (distance_NN <= self.reach) & (distance_NN > 0)
        scores_NN = reps.z[:, 0] @ reps.z[:, 1].T
        counts_N = near_NN.any(1)
        if not counts_N.any():
            return 0 * scores_NN.sum()
        left_out_NN = first_texts_equal(reps) & ~near_NN
        logs_NN = scores_NN.masked_fill(left_out_NN, -torch.inf)[counts_N].log_softmax(1)
        near_NN = near_NN[counts_N]
        return -(logs_NN.masked_fill(~near_NN, 0).sum(1) / near_NN.sum(1)).mean()


class AnchorModule(InFloat32):
    """The loss of `Anchor`. The initial weights are buffers, so checkpoints contain them."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self._backbone = (backbone,)  # a tuple hides the encoder's own weights from this module
        trained = (each for each in backbone.parameters() if each.requires_grad)
        for number, tensor in enumerate(trained):
            self.register_buffer(f"began_{number}", tensor.detach().clone())

    def loss(self, _reps: Reps) -> Tensor:
        trained = (each for each in self._backbone[0].parameters() if each.requires_grad)
        pairs = zip(trained, self.buffers(), strict=True)
        return torch.stack([(tensor - began).square().sum() for tensor, began in pairs]).sum()


@dataclass(frozen=True)
class Anchor(Objective):
    """Regularizer ‖θ - θ₀‖² on the backbone's weights (Kim, Yoo and Lee 2021, equation 8, weight 0.1)."""

    name: Literal["anchor"] = "anchor"

    def build(self, materials: Materials) -> nn.Module:
        return AnchorModule(materials.encoder.backbone)


_WIDTHS = (1, 3, 5)  # tokens of a run: Zhang et al. 2020, section 4.1


class WordCeModule(nn.Module):
    def __init__(self, materials: Materials) -> None:
        super().__init__()
        encoder = materials.encoder
        self.head, stored = language_head(encoder.source, materials.generator)
        if not stored or materials.width != encoder.source.width:
            raise TrainingError(
                "word_ce needs a base with a masked-language head, and vectors as wide as its tokens'. "
                "Give the base a head first: train mlm-head,defsent."
            )
        self.head.requires_grad_(requires_grad=False)
        self.register_buffer("table", word_table(encoder).detach().clone())
        self.table: Tensor
        self._around = sum(map(len, encoder.lexicon.affixes))
        self._at = len(encoder.lexicon.before)

    def forward(self, reps: Reps) -> Tensor:
        words = reps.views[1]
        named = (words.lengths == self._around + 1).nonzero()[:, 0]  # skips words of several tokens
        targets = words.ids[words.starts[named] + self._at].to(reps.z.device)
        logits = self.head(reps.z[reps.share, 0][named.to(reps.z.device)], self.table)
        losses = F.cross_entropy(logits.float(), targets, reduction="sum")
        return reps.mean(losses, torch.tensor(float(len(named)), device=reps.z.device))


@dataclass(frozen=True)
class WordCe(Objective):
    """Prediction of a defined word from its definition (Tsukagoshi et al. 2021, DefSent, section 3).

    The first text of a row is the definition, and the second is the word. Words of several tokens are
    skipped. The prediction head of the base and the word embeddings in it are not trained.
    """

    name: Literal["word_ce"] = "word_ce"
    reads: ClassVar[frozenset[str]] = frozenset({"aside"})
    module: ClassVar = WordCeModule


class MiJsdModule(InFloat32):
    """The loss of `MiJsd`, with one convolution over token vectors for each phrase length.

    The outputs of all convolutions together are as wide as the vector of a text.
    """

    def __init__(self, materials: Materials) -> None:
        super().__init__()
        width = materials.width
        sizes = [width // len(_WIDTHS)] * (len(_WIDTHS) - 1)
        sizes.append(width - sum(sizes))
        inputs = materials.encoder.source.width
        self.convolutions = nn.ModuleList()
        for run, out in zip(_WIDTHS, sizes, strict=True):
            convolution = nn.Conv1d(inputs, out, run, padding=run // 2)
            init_as_torch(convolution, inputs * run, materials.generator)
            self.convolutions.append(convolution)

    def loss(self, reps: Reps) -> Tensor:
        view = reps.views[0]
        local_TP = self.runs(reps.hidden[0].float(), view)
        own_T = view.rows().to(local_TP.device) + (reps.share.start or 0)
        scores_TN = local_TP @ reps.z[:, 0].T
        texts_N = reps.texts[:, 0]
        same_TN = texts_N[own_T][:, None] == texts_N
        positive_T = math.log(2) - F.softplus(-scores_TN.gather(1, own_T[:, None])[:, 0])
        negative_TN = (F.softplus(scores_TN) - math.log(2)).masked_fill(same_TN, 0)
        negative_T = negative_TN.sum(1) / (~same_TN).sum(1).clamp(min=1)
        tokens = torch.tensor(float(len(own_T)), device=local_TP.device)
        return reps.mean((negative_T - positive_T).sum(), tokens)

    def runs(self, hidden: Tensor, view: Tokens) -> Tensor:
        """Applies the convolutions to token vectors, with zero padding at both ends of a text.

        `hidden` has shape (all tokens, D), and the result has shape (all tokens, P).
        """
        packing = build_packing(view, hidden.device)
        channels_RDT = pad(hidden, packing).transpose(1, 2)
        found_RTP = torch.cat([conv(channels_RDT) for conv in self.convolutions], dim=1).transpose(1, 2)
        return unpad(found_RTP, packing)


@dataclass(frozen=True)
class MiJsd(Objective):
    """Jensen-Shannon estimate of mutual information (Zhang et al. 2020, IS-BERT, equations 2 to 4).

    In the paper, the vector of a sentence is the mean of the convolutions, which are part of the published
    model. Here it is the pooled vector, and the convolutions are used in training only.
    """

    name: Literal["mi_jsd"] = "mi_jsd"
    reads: ClassVar[frozenset[str]] = frozenset({"hidden"})
    module: ClassVar = MiJsdModule
