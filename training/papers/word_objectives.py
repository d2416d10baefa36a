"""Objectives between the vector of a text and words.

word_ce    the vector of a definition predicts the defined word (DefSent)
mi_jsd     the vector of a text tells its own runs of words from those of other texts (IS-BERT)
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
from training.methods.objectives import Materials, Objective, Reps
from training.methods.token_objectives import word_table
from training.model.language_head import language_head
from training.model.packed import packing_of, pad, unpad
from training.text.tokens import Tokens

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
    """The first text of a row defines the second, a single token: Tsukagoshi et al. 2021 (DefSent), 3.

    The base's prediction layer and its word table are not trained.
    """

    name: Literal["word_ce"] = "word_ce"
    reads: ClassVar[frozenset[str]] = frozenset({"aside"})
    module: ClassVar = WordCeModule


class MiJsdModule(nn.Module):
    """Convolutions over the token vectors, one per length of run; together as wide as the text's vector."""

    def __init__(self, materials: Materials) -> None:
        super().__init__()
        width = materials.width
        sizes = [width // len(_WIDTHS)] * (len(_WIDTHS) - 1)
        sizes.append(width - sum(sizes))
        inputs = materials.encoder.source.width
        self.convolutions = nn.ModuleList()
        for run, out in zip(_WIDTHS, sizes, strict=True):
            convolution = nn.Conv1d(inputs, out, run, padding=run // 2)
            spread = float(inputs * run) ** -0.5
            for tensor in convolution.parameters():  # torch's own initialization, from our generator
                nn.init.uniform_(tensor, -spread, spread, generator=materials.generator)
            self.convolutions.append(convolution)

    def forward(self, reps: Reps) -> Tensor:
        view = reps.views[0]
        with torch.autocast(reps.z.device.type, enabled=False):
            local_TP = self.runs(reps.hidden[0].float(), view)
            own_T = view.rows().to(local_TP.device) + (reps.share.start or 0)
            scores_TN = local_TP @ reps.z[:, 0].float().T
            texts_N = reps.texts[:, 0]
            same_TN = texts_N[own_T][:, None] == texts_N
            positive_T = math.log(2) - F.softplus(-scores_TN.gather(1, own_T[:, None])[:, 0])
            negative_TN = (F.softplus(scores_TN) - math.log(2)).masked_fill(same_TN, 0)
            negative_T = negative_TN.sum(1) / (~same_TN).sum(1).clamp(min=1)
            tokens = torch.tensor(float(len(own_T)), device=local_TP.device)
            return reps.mean((negative_T - positive_T).sum(), tokens)

    def runs(self, hidden: Tensor, view: Tokens) -> Tensor:
        """Maps (all tokens, D) to (all tokens, P). Both ends of a text are padded with zeros."""
        packing = packing_of(view, hidden.device)
        channels_RDT = pad(hidden, packing).transpose(1, 2)
        found_RTP = torch.cat([conv(channels_RDT) for conv in self.convolutions], dim=1).transpose(1, 2)
        return unpad(found_RTP, packing)


@dataclass(frozen=True)
class MiJsd(Objective):
    """Jensen-Shannon estimate of mutual information. Zhang et al. 2020 (IS-BERT), equations 2 to 4.

    In the paper the sentence vector is the mean of the convolutions, which the published model keeps. Here it
    is the pooled vector, and the convolutions end with the run.
    """

    name: Literal["mi_jsd"] = "mi_jsd"
    reads: ClassVar[frozenset[str]] = frozenset({"hidden"})
    module: ClassVar = MiJsdModule
