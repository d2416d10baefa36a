"""Distillation: a query's documents become as near to it as a teacher's scores say.

The teacher is not asked here: its scores stand in the rows (mining/teacher.py).
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor

from training.methods.objectives import Objective, Reps
from training.methods.ranges import AboveZero


def kl_teacher(query_NP: Tensor, documents_NMP: Tensor, scores_NM: Tensor, *, tau: float) -> Tensor:
    """The mean over n of KL(softmax(scores_n / τ) ‖ softmax(cos(q_n, d_n) / τ)), over each query's own list.

    Scores are in cosines, so at equal numbers it is 0 (mining/teacher.py).
    """
    with torch.autocast(query_NP.device.type, enabled=False):
        query_NP, documents_NMP = (F.normalize(x.float(), dim=-1) for x in (query_NP, documents_NMP))
        cosines_NM = torch.einsum("np,nmp->nm", query_NP, documents_NMP)
        student_NM, teacher_NM = (x.log_softmax(-1) for x in (cosines_NM / tau, scores_NM.float() / tau))
        return F.kl_div(student_NM, teacher_NM, reduction="batchmean", log_target=True)


@dataclass(frozen=True)
class KlTeacher(Objective):
    """From the first view to the others, by the scores of its row (Hinton et al. 2015, over a list)."""

    tau: AboveZero
    name: Literal["kl_teacher"] = "kl_teacher"

    def loss(self, reps: Reps) -> Tensor:
        return kl_teacher(reps.z[:, 0], reps.z[:, 1:], reps.known, tau=self.tau)
