"""Objectives over vectors. N texts, V views of each, P dimensions.

    info_nce       each text finds its other view among those of all texts (SimCSE and similar methods)
    nt_xent        the same in both directions, and every other row is a negative (DeCLUTR)
    triplet        the positive is nearer than the negative by a margin (FaceNet)
    pair_softmax   the relation of two texts from u, v and |u - v| (SBERT)
    cosine_mse     the cosine equals the score (SBERT's regression; Augmented SBERT with a teacher's scores)
    cosent         a pair with a higher score has a higher cosine (CoSENT)
    hard_nce       both texts of an entailment find each other; nearer negatives weigh more (PairSupCon)
    bce_dot        the dot product of two encoders tells if they read the same text (CT)
    two_way        each text finds its other view, in both directions, with a learned temperature (CLIP)
    kl_teacher     cosines follow a teacher's scores (mining/teacher.py)
    vector_mse     a text's vector becomes the teacher's (runs/teacher.py)

All are computed in float32, also under autocast: at τ = 0.05, similarities in bf16 change the gradient by 3 %
(measured). token_objectives.py has objectives over tokens.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from torch import Tensor, nn

from training.text.tokens import Tokens
from training.validation import AboveZero, Count, Flag, Weight

if TYPE_CHECKING:
    from training.model.encoder import TrainedEncoder
    from training.text.lexicon import Lexicon


NO_TEXT = -1  # the number of what fills up a row that has fewer negatives than others


class Extra(NamedTuple):
    """Negatives beside those of the batch."""

    z: Tensor  # (K, P)
    texts: Tensor  # int64 (K,): of which text each is, or NO_TEXT


class Reps(NamedTuple):
    """Input of an objective in one step. Vectors are of the whole batch, tokens of this process."""

    z: Tensor  # (N, V, P), after the head; behind the views those that a frozen twin adds
    texts: Tensor  # int64 (N, V): equal numbers are equal texts; NO_TEXT is none
    labels: Tensor | None = None  # int64 (N,), or scores, float32 (N, V - 1)
    extra: Extra | None = None
    pooled: Tensor | None = None  # (N, V, D): z before the head, where there is one
    views: tuple[Tokens, ...] = ()  # contrasted ones first, then those that stand aside
    hidden: tuple[Tensor, ...] = ()  # of each view that was encoded, (all its tokens, D)
    share: slice = slice(None)  # which of the N texts `views` holds
    dropout: float = 0.0
    total: Callable[[Tensor], Tensor] = lambda count: count.clamp(min=1)  # a count, over all processes
    guest: bool = False  # fewer texts than processes: this one has another's text, which counts nothing

    @property
    def known(self) -> Tensor:
        """Labels or scores. Raise ValueError where the source has none."""
        if self.labels is None:
            raise ValueError("the objective needs a source with labels or scores")
        return self.labels

    def mean(self, losses: Tensor, count: Tensor) -> Tensor:
        """The mean over the tokens of all processes, from a sum over this one's."""
        return (0 * losses if self.guest else losses) / self.total(0 * count if self.guest else count)


class Materials(NamedTuple):
    """Materials of an objective with weights of its own."""

    encoder: TrainedEncoder
    lexicon: Lexicon
    width: int  # P
    generator: torch.Generator
    taught: Tensor | None = None  # (texts, P): a teacher's vectors, of texts by their numbers


@dataclass(frozen=True)
class Objective:
    """Numbers of an objective, as a recipe has them."""

    weight: Weight = field(default=1.0, kw_only=True)  # of its loss in the sum
    reads: ClassVar[frozenset[str]] = (
        frozenset()
    )  # of `hidden`, `aside`, `teacher`, `layers`: inputs besides z
    module: ClassVar[Any] = None  # made of Materials, where there are weights of its own

    def build(self, materials: Materials) -> nn.Module:
        """A module from Reps to the mean over the batch, a float32 scalar; with weights, if it has any."""
        made: nn.Module = self.module(materials) if self.module else Weightless(self)
        return made

    def loss(self, reps: Reps) -> Tensor:
        """The answer of that module, where it has no weights."""
        raise NotImplementedError


class Weightless(nn.Module):
    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.forward = objective.loss


def info_nce(query_NP: Tensor, key_MP: Tensor, *, tau: float, same_NM: Tensor, bonus_NM: Tensor) -> Tensor:
    """The mean over n of log( Σ_m exp(cos(q_n, k_m)/τ) / exp(cos(q_n, k_n)/τ) ): SimCSE, equations 1 and 5.

    The key of query n is n; the other keys are its negatives, except where same_NM is true. bonus_NM is added
    to the logits.
    """
    with torch.autocast(query_NP.device.type, enabled=False):
        query_NP, key_MP = F.normalize(query_NP.float(), dim=-1), F.normalize(key_MP.float(), dim=-1)
        scores_NM = (query_NP @ key_MP.T / tau + bonus_NM).masked_fill(same_NM, -torch.inf)
        return F.cross_entropy(scores_NM, torch.arange(len(query_NP), device=query_NP.device))


def same_texts(texts_NV: Tensor) -> Tensor:
    """Bool (N, N (V - 1)): which candidates are no negatives, as they are the query or its positive again.

    Candidates are the second view of every text, then the third … A query's own ones are never left out,
    unless a hard negative is the very text of the query or of its positive, or none. A text that stands
    twice in the batch as a query has two positives, and neither is a negative of the other.
    """
    N, V = texts_NV.shape
    own_NN = torch.eye(N, dtype=torch.bool, device=texts_NV.device)
    query_N1, positive_N1 = texts_NV[:, :1], texts_NV[:, 1:2]
    parts = []
    for view in range(1, V):
        candidate_1N = texts_NV[:, view][None]
        same_NN = (candidate_1N == query_N1) | (candidate_1N == positive_N1)
        if view == 1:
            same_NN = (same_NN | (query_N1 == query_N1.T)) & ~own_NN
        else:
            same_NN = same_NN | (candidate_1N == NO_TEXT)
        parts.append(same_NN)
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class InfoNCE(Objective):
    """From the first view to the second; further views are hard negatives.

    hard_weight: of each of a text's own hard negatives; its logarithm is added to the logit (SimCSE,
    equation 8).
    """

    tau: AboveZero
    hard_weight: AboveZero = 1.0
    name: Literal["info_nce"] = "info_nce"

    def loss(self, reps: Reps) -> Tensor:
        N, V, _ = reps.z.shape
        keys_MP = reps.z[:, 1:].transpose(0, 1).flatten(0, 1)
        same_NM = same_texts(reps.texts)
        bonus_NM = torch.zeros(same_NM.shape, device=reps.z.device)
        for view in range(1, V - 1):
            bonus_NM[:, view * N : (view + 1) * N].diagonal().fill_(math.log(self.hard_weight))
        if reps.extra is not None:
            extra_KP, extra_1K = reps.extra.z, reps.extra.texts[None]
            keys_MP = torch.cat([keys_MP, extra_KP.to(keys_MP.dtype)])
            of_query_NK = (extra_1K == reps.texts[:, :1]) | (extra_1K == reps.texts[:, 1:2])
            same_NM = torch.cat([same_NM, of_query_NK], dim=1)
            bonus_NM = F.pad(bonus_NM, (0, len(extra_KP)))
        return info_nce(reps.z[:, 0], keys_MP, tau=self.tau, same_NM=same_NM, bonus_NM=bonus_NM)


def nt_xent(anchor_NP: Tensor, positive_NP: Tensor, *, tau: float, same_NN: Tensor) -> Tensor:
    """Chen et al. 2020 (SimCLR): over all 2N rows, each with 2(N - 1) negatives, both directions.

    Where same_NN is true, two texts are no negatives of each other.
    """
    with torch.autocast(anchor_NP.device.type, enabled=False):
        z_MP = F.normalize(torch.cat([anchor_NP, positive_NP]).float(), dim=-1)
        M = len(z_MP)
        own_MM = torch.eye(M, dtype=torch.bool, device=z_MP.device)
        positive_MM = own_MM.roll(M // 2, 1)  # row n's is n + N, and back
        left_out_MM = own_MM | (same_NN.repeat(2, 2) & ~positive_MM)
        scores_MM = (z_MP @ z_MP.T / tau).masked_fill(left_out_MM, -torch.inf)
        return F.cross_entropy(scores_MM, torch.arange(M, device=z_MP.device).roll(M // 2))


@dataclass(frozen=True)
class NTXent(Objective):
    """The first view against the mean of all others: DeCLUTR's averaged positives."""

    tau: AboveZero
    name: Literal["nt_xent"] = "nt_xent"

    def loss(self, reps: Reps) -> Tensor:
        same_NN = reps.texts[:, :1] == reps.texts[:, :1].T
        return nt_xent(reps.z[:, 0], reps.z[:, 1:].float().mean(1), tau=self.tau, same_NN=same_NN)


def triplet(anchor_NP: Tensor, positive_NP: Tensor, negative_NP: Tensor, *, margin: float) -> Tensor:
    """Schroff et al. 2015 (FaceNet), equation 2, as a mean: squared distances of vectors of length 1."""
    with torch.autocast(anchor_NP.device.type, enabled=False):
        a, p, n = (F.normalize(x.float(), dim=-1) for x in (anchor_NP, positive_NP, negative_NP))
        nearer = (a - p).square().sum(-1) - (a - n).square().sum(-1) + margin
        return nearer.clamp(min=0).mean()


def semi_hard(anchor_NP: Tensor, positive_NP: Tensor, keys_MP: Tensor, same_NM: Tensor) -> Tensor:
    """The number of each anchor's negative: the nearest that is farther than its positive.

    FaceNet, section 3.2. Where no candidate is farther, the farthest of them (our choice); where there
    is none at all, key n, the positive itself, which moves nothing. int64 (N,).
    """
    with torch.no_grad(), torch.autocast(anchor_NP.device.type, enabled=False):
        a, p, k = (F.normalize(x.float(), dim=-1) for x in (anchor_NP, positive_NP, keys_MP))
        to_positive_N1 = (a - p).square().sum(-1, keepdim=True)
        distance_NM = (2 - 2 * a @ k.T).masked_fill(same_NM, torch.inf)
        farther_NM = distance_NM.masked_fill(distance_NM <= to_positive_N1, torch.inf)
        none_farther_N = farther_NM.isinf().all(1)
        farthest_N = distance_NM.masked_fill(same_NM, -torch.inf).argmax(1)
        own_N = torch.arange(len(a), device=a.device)
        farthest_N = torch.where(same_NM.all(1), own_N, farthest_N)
        return torch.where(none_farther_N, farthest_N, farther_NM.argmin(1))


@dataclass(frozen=True)
class Triplet(Objective):
    """mine: take the semi-hard negative of the batch, else the one that is given."""

    margin: AboveZero
    mine: Flag = True
    name: Literal["triplet"] = "triplet"

    def loss(self, reps: Reps) -> Tensor:
        anchor, positive = reps.z[:, 0], reps.z[:, 1]
        if not self.mine:
            return triplet(anchor, positive, reps.z[:, 2], margin=self.margin)
        N = len(anchor)
        keys_MP = reps.z[:, 1:].transpose(0, 1).flatten(0, 1)
        same_NM = same_texts(reps.texts)
        same_NM[:, :N] |= torch.eye(N, dtype=torch.bool, device=same_NM.device)  # the positive itself
        chosen = keys_MP[semi_hard(anchor, positive, keys_MP, same_NM)]
        return triplet(anchor, positive, chosen, margin=self.margin)


class PairSoftmaxModule(nn.Module):
    def __init__(self, width: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.classifier = nn.Linear(3 * width, classes)
        spread = (3 * width) ** -0.5
        for tensor in self.classifier.parameters():  # as torch makes a Linear, by our own generator
            nn.init.uniform_(tensor, -spread, spread, generator=generator)

    def forward(self, reps: Reps) -> Tensor:
        with torch.autocast(reps.z.device.type, enabled=False):
            z_NVD = reps.z if reps.pooled is None else reps.pooled  # a contrast's head is not its own
            u, v = z_NVD[:, 0].float(), z_NVD[:, 1].float()
            return F.cross_entropy(self.classifier(torch.cat([u, v, (u - v).abs()], dim=-1)), reps.known)


@dataclass(frozen=True)
class PairSoftmax(Objective):
    """Reimers and Gurevych 2019 (SBERT), section 3: softmax(W [u; v; |u - v|])."""

    classes: Count = 3
    name: Literal["pair_softmax"] = "pair_softmax"

    def build(self, materials: Materials) -> nn.Module:
        return PairSoftmaxModule(materials.width, self.classes, materials.generator)


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
    """The base's vectors, by a student (loading.py)."""

    name: Literal["vector_mse"] = "vector_mse"
    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    module: ClassVar[Any] = VectorMseModule
