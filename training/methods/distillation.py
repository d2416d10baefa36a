"""Distillation: to a teacher's scores, or to its vectors.

    kl_teacher   a query's documents become as near to it as the scores of its row say (mining/teacher.py)
    vector_mse   a text's vector becomes the teacher's

The teacher is not asked here: its scores stand in the rows, and its vectors were computed before
(runs/teacher.py).
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from training.methods.objectives import Materials, Objective, Reps
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


def vector_mse(z_NP: Tensor, teacher_NP: Tensor) -> Tensor:
    """The mean over n of |z_n - t_n|², both of length 1: Reimers and Gurevych 2020, equation 1.

    It is 2 - 2 cos, so its gradient is the cosine's. Theirs is the mean over the components as well: P times
    smaller.
    """
    with torch.autocast(z_NP.device.type, enabled=False):
        z_NP, teacher_NP = (F.normalize(x.float(), dim=-1) for x in (z_NP, teacher_NP))
        return (z_NP - teacher_NP).square().sum(-1).mean()


class VectorMseModule(nn.Module):
    """The teacher's vectors are no part of a checkpoint: the run's folder keeps them."""

    def __init__(self, materials: Materials) -> None:
        super().__init__()
        if materials.taught is None:
            raise ValueError("the objective needs a teacher's vectors")
        self._taught = materials.taught  # (texts, P)

    def forward(self, reps: Reps) -> Tensor:
        texts = reps.texts[:, 0]
        teacher = self._taught[texts.to(self._taught.device)].to(texts.device)
        return vector_mse(reps.z[:, 0], teacher)


@dataclass(frozen=True)
class VectorMse(Objective):
    """The base's vectors, by a student (model/student.py)."""

    name: Literal["vector_mse"] = "vector_mse"
    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    module: ClassVar[Any] = VectorMseModule
