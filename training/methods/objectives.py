"""Objectives: the loss functions that a recipe can use on the vectors of a batch.

    info_nce       each text finds its other view among those of all texts (SimCSE and similar methods)
    nt_xent        the same in both directions, and every other row is a negative (DeCLUTR)
    triplet        the positive is nearer than the negative by a margin (FaceNet)
    pair_softmax   predicts the relation of two texts from their vectors u, v and |u - v| (SBERT)
    cosine_mse     the cosine equals the score (SBERT's regression; Augmented SBERT with a teacher's scores)
    cosent         a pair with a higher score has a higher cosine (CoSENT)
    hard_nce       both texts of an entailment find each other; nearer negatives weigh more (PairSupCon)
    bce_dot        the dot product of two encoders' vectors tells if both encoded the same text (CT)
    two_way        each text finds its other view, in both directions, with a learned temperature (CLIP)
    kl_teacher     cosines follow a teacher's scores (mining/teacher.py)
    vector_mse     a text's vector becomes the teacher's (runs/setup.py)

Letters at the end of a variable name are its dimensions: N texts, V views of each text, M candidates, P
components of a vector. All objectives are computed in float32, even if the encoder runs in bf16: at τ = 0.05,
similarities in bf16 change the gradient by 3 % (measured). token_objectives.py has objectives over tokens.
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


NO_TEXT = -1  # number of the texts that fill up a row with fewer negatives than others


class Extra(NamedTuple):
    """Further negatives of each row, unless its query or positive has the same number."""

    z: Tensor  # (K, P)
    texts: Tensor  # int64 (K,): number of each vector's text, or NO_TEXT


class Reps(NamedTuple):
    """Input of an objective in one step: vectors of the whole batch, and tokens of this process's texts."""

    z: Tensor  # (N, V, P), after the head; the views of a frozen twin come last
    texts: Tensor  # int64 (N, V): equal numbers are equal texts; NO_TEXT is an empty place
    labels: Tensor | None = None  # int64 (N,), or scores, float32 (N, V - 1)
    extra: Extra | None = None
    pooled: Tensor | None = None  # (N, V, D): z before the head, if the recipe has a head
    views: tuple[Tokens, ...] = ()  # contrasted views first, then those that stand aside
    hidden: tuple[Tensor, ...] = ()  # token vectors of each encoded view, (all its tokens, D)
    share: slice = slice(None)  # the texts of `views` among the N
    dropout: float = 0.0
    total: Callable[[Tensor], Tensor] = lambda count: count.clamp(min=1)  # sums a count over all processes
    # True if this process has no text of its own. It then has the text of another process, which is ignored.
    guest: bool = False

    @property
    def known(self) -> Tensor:
        """The labels or scores of the batch.

        Raises:
            ValueError: The source has neither labels nor scores.

        """
        if self.labels is None:
            raise ValueError("the objective needs a source with labels or scores")
        return self.labels

    def mean(self, losses: Tensor, count: Tensor) -> Tensor:
        """Returns this process's share of the mean loss over the tokens of all processes.

        Args:
            losses: Sum of the losses over the tokens of this process.
            count: Number of these tokens.

        """
        return (0 * losses if self.guest else losses) / self.total(0 * count if self.guest else count)


class Materials(NamedTuple):
    """Arguments for building the module of an objective that has trainable weights or teacher vectors."""

    encoder: TrainedEncoder
    width: int  # P
    generator: torch.Generator
    taught: Tensor | None = None  # (texts, P): a teacher's vectors by the numbers of their texts


@dataclass(frozen=True)
class Objective:
    """Base class of objectives. The fields are the parameters that a recipe sets."""

    weight: Weight = field(default=1.0, kw_only=True)  # weight of its loss in the sum
    # Inputs in addition to z: any of `hidden`, `aside`, `teacher`, `layers`.
    reads: ClassVar[frozenset[str]] = frozenset()
    module: ClassVar[Any] = None  # built from Materials if the objective has its own weights

    def build(self, materials: Materials) -> nn.Module:
        """Returns a torch module that maps `Reps` to the mean loss of the batch, a float32 scalar."""
        return self.module(materials) if self.module else Weightless(self)

    def loss(self, reps: Reps) -> Tensor:
        """Returns the loss of the batch. Objectives without `module` implement this method.

        Args:
            reps: Input of the objective, with `z` in float32.

        """
        raise NotImplementedError


class InFloat32(nn.Module):
    """A module that computes `loss` in float32, even under autocast."""

    loss: Callable[[Reps], Tensor]

    def forward(self, reps: Reps) -> Tensor:
        with torch.autocast(reps.z.device.type, enabled=False):
            return self.loss(reps._replace(z=reps.z.float()))


class Weightless(InFloat32):
    def __init__(self, objective: Objective) -> None:
        super().__init__()
        self.loss = objective.loss


def info_nce(query_NP: Tensor, key_MP: Tensor, *, tau: float, same_NM: Tensor, bonus_NM: Tensor) -> Tensor:
    """Returns the InfoNCE loss (SimCSE, equations 1 and 5).

    The loss is the mean over n of log( Σ_m exp(cos(q_n, k_m)/τ) / exp(cos(q_n, k_n)/τ) ).

    Args:
        query_NP: Query vectors.
        key_MP: Key vectors. Key n is the positive of query n, and the other keys are negatives.
        tau: Temperature τ.
        same_NM: True where key m must not count as a negative of query n.
        bonus_NM: Values to add to the logits.

    """
    scores_NM = (_unit(query_NP) @ _unit(key_MP).T / tau + bonus_NM).masked_fill(same_NM, -torch.inf)
    return F.cross_entropy(scores_NM, torch.arange(len(query_NP), device=query_NP.device))


def same_texts(texts_NV: Tensor) -> Tensor:
    """Returns which candidates are excluded as negatives: bool, shape (N, N (V - 1)).

    The query is the first text of a row, and the positive is the second. The candidates of every query are
    the second texts of all rows, then the third texts of all rows, and so on. Excluded are candidates that
    equal the query or the positive, empty hard negatives, and positives of an equal query in another row. The
    positive of the row itself is not excluded.

    Args:
        texts_NV: Numbers of the texts. Equal numbers mean equal texts.

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
    """InfoNCE from the first view to the second. Further views are hard negatives.

    Attributes:
        tau: Temperature.
        hard_weight: Weight of the hard negatives of the same row. The logarithm of this weight is added to
            their logits (SimCSE, equation 8).

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
            keys_MP = torch.cat([keys_MP, extra_KP])
            of_query_NK = (extra_1K == reps.texts[:, :1]) | (extra_1K == reps.texts[:, 1:2])
            same_NM = torch.cat([same_NM, of_query_NK], dim=1)
            bonus_NM = F.pad(bonus_NM, (0, len(extra_KP)))
        return info_nce(reps.z[:, 0], keys_MP, tau=self.tau, same_NM=same_NM, bonus_NM=bonus_NM)


@dataclass(frozen=True)
class NTXent(Objective):
    """NT-Xent between the first view and the mean of the other views, as in DeCLUTR.

    Both together are 2N vectors. The loss is the mean cross-entropy of finding the other vector of the same
    text among all vectors, as in SimCLR (Chen et al. 2020). Equal texts are not negatives of each other.
    """

    tau: AboveZero
    name: Literal["nt_xent"] = "nt_xent"

    def loss(self, reps: Reps) -> Tensor:
        z_MP = _unit(torch.cat([reps.z[:, 0], reps.z[:, 1:].mean(1)]))
        M = len(z_MP)
        own_MM = torch.eye(M, dtype=torch.bool, device=z_MP.device)
        positive_MM = own_MM.roll(M // 2, 1)  # the partner of row n is n + N, and vice versa
        left_out_MM = own_MM | (first_texts_equal(reps).repeat(2, 2) & ~positive_MM)
        scores_MM = (z_MP @ z_MP.T / self.tau).masked_fill(left_out_MM, -torch.inf)
        return F.cross_entropy(scores_MM, torch.arange(M, device=z_MP.device).roll(M // 2))


def triplet(anchor_NP: Tensor, positive_NP: Tensor, negative_NP: Tensor, *, margin: float) -> Tensor:
    """Returns the mean triplet loss (Schroff et al. 2015, FaceNet, equation 2).

    The loss uses squared distances of vectors of length 1.
    """
    a, p, n = map(_unit, (anchor_NP, positive_NP, negative_NP))
    nearer = (a - p).square().sum(-1) - (a - n).square().sum(-1) + margin
    return nearer.clamp(min=0).mean()


@torch.no_grad()
def semi_hard(anchor_NP: Tensor, positive_NP: Tensor, keys_MP: Tensor, same_NM: Tensor) -> Tensor:
    """Chooses the semi-hard negative of each anchor (FaceNet, section 3.2).

    The negative is the nearest key that is farther than the positive. If no key is farther, the farthest key
    is chosen (our choice). If `same_NM` excludes every key, key n is chosen. It is the positive itself, and
    gives no gradient.

    Returns:
        The index of a key for each anchor, int64, shape (N,).

    """
    a, p, k = map(_unit, (anchor_NP, positive_NP, keys_MP))
    to_positive_N1 = (a - p).square().sum(-1, keepdim=True)
    distance_NM = (2 - 2 * a @ k.T).masked_fill(same_NM, torch.inf)
    farther_NM = distance_NM.masked_fill(distance_NM <= to_positive_N1, torch.inf)
    farthest_N = distance_NM.masked_fill(same_NM, -torch.inf).argmax(1)
    farthest_N = torch.where(same_NM.all(1), torch.arange(len(a), device=a.device), farthest_N)
    return torch.where(farther_NM.isinf().all(1), farthest_N, farther_NM.argmin(1))


@dataclass(frozen=True)
class Triplet(Objective):
    """Triplet loss. The negative is the third text of the row, or with `mine` the semi-hard negative."""

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
        same_NM[:, :N].fill_diagonal_(fill_value=True)  # the positive itself
        chosen = keys_MP[semi_hard(anchor, positive, keys_MP, same_NM)]
        return triplet(anchor, positive, chosen, margin=self.margin)


class PairSoftmaxModule(InFloat32):
    def __init__(self, width: int, classes: int, generator: torch.Generator) -> None:
        super().__init__()
        self.classifier = nn.Linear(3 * width, classes)
        init_as_torch(self.classifier, 3 * width, generator)

    def loss(self, reps: Reps) -> Tensor:
        z_NVD = reps.z if reps.pooled is None else reps.pooled.float()  # the head belongs to a contrast
        u, v = z_NVD[:, 0], z_NVD[:, 1]
        return F.cross_entropy(self.classifier(torch.cat([u, v, (u - v).abs()], dim=-1)), reps.known)


def init_as_torch(layer: nn.Module, inputs: int, generator: torch.Generator) -> None:
    """Initializes a layer with `inputs` inputs from the same distribution as torch, but with `generator`."""
    for tensor in layer.parameters():
        nn.init.uniform_(tensor, -(inputs**-0.5), inputs**-0.5, generator=generator)


@dataclass(frozen=True)
class PairSoftmax(Objective):
    """Classification of pairs by softmax(W [u; v; |u - v|]) (Reimers and Gurevych 2019, SBERT)."""

    classes: Count = 3
    name: Literal["pair_softmax"] = "pair_softmax"

    def build(self, materials: Materials) -> nn.Module:
        return PairSoftmaxModule(materials.width, self.classes, materials.generator)


def compute_cosines(reps: Reps) -> Tensor:
    """Returns the cosines of the first text of each row with the other texts, shape (N, V - 1)."""
    z_NVP = _unit(reps.z)
    return (z_NVP[:, :1] * z_NVP[:, 1:]).sum(-1)


@dataclass(frozen=True)
class CosineMse(Objective):
    """Regression of scores: the mean of (cos(u, v) - score / highest)² (SBERT, section 3)."""

    highest: AboveZero = 1.0
    name: Literal["cosine_mse"] = "cosine_mse"

    def loss(self, reps: Reps) -> Tensor:
        return F.mse_loss(compute_cosines(reps), reps.known.float() / self.highest)


@dataclass(frozen=True)
class Cosent(Objective):
    """CoSENT loss (Su 2022, as in sentence-transformers). Only the order of the scores counts.

    The loss is log(1 + Σ exp(scale · (cos_a - cos_b))) over all a and b where a has a lower score than b.
    """

    scale: AboveZero = 20.0
    name: Literal["cosent"] = "cosent"

    def loss(self, reps: Reps) -> Tensor:
        cosines, scores = compute_cosines(reps).flatten(), reps.known.flatten()
        difference = self.scale * (cosines[:, None] - cosines[None])
        wrong = difference.masked_fill(scores[:, None] >= scores[None], -torch.inf).flatten()
        return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(0)


@dataclass(frozen=True)
class HardNce(Objective):
    """Contrastive loss with weighted negatives (Zhang et al. 2021, PairSupCon, equations 1 to 3).

    The texts of an entailment are positives of each other, and all other texts are negatives. The loss is the
    mean over both texts of each entailment of -log(e⁺ / (e⁺ + Σ w e / mean w)), with e = exp(cos/τ). The
    weight w of a negative is its e. With s = cos/τ and lse for log-sum-exp, Σ w e / mean w is exp(lse(2s) -
    lse(s)) times the number of negatives.
    """

    tau: AboveZero
    name: Literal["hard_nce"] = "hard_nce"

    def loss(self, reps: Reps) -> Tensor:
        u_NP, v_NP = _unit(reps.z[:, 0]), _unit(reps.z[:, 1])
        z_MP = torch.cat([u_NP, v_NP])
        texts_M = reps.texts.T.flatten()
        own_MM = torch.eye(len(u_NP), dtype=torch.bool, device=z_MP.device).repeat(2, 2)
        same_MM = own_MM | (texts_M[:, None] == texts_M)
        rows_M = (reps.known == 0).repeat(2) & ~same_MM.all(1)
        if not rows_M.any():
            return 0 * z_MP.sum()
        positive_M = ((u_NP * v_NP).sum(-1).repeat(2) / self.tau)[rows_M]
        same_MM = same_MM[rows_M]
        scores_MM = (z_MP[rows_M] @ z_MP.T / self.tau).masked_fill(same_MM, -torch.inf)
        weighed_M = (2 * scores_MM).logsumexp(1) - scores_MM.logsumexp(1) + (~same_MM).sum(1).log()
        return F.softplus(weighed_M - positive_M).mean()


@dataclass(frozen=True)
class BceDot(Objective):
    """Binary cross-entropy of dot products between two encoders (Carlsson et al. 2021, CT, equation 1).

    Each text is compared with itself and with `negatives` other texts. The paper draws those texts at random.
    Here they are the next texts of the batch, which are as random and already encoded.
    """

    negatives: Count = 7
    name: Literal["bce_dot"] = "bce_dot"

    def loss(self, reps: Reps) -> Tensor:
        N = len(reps.z)
        shifts = range(1 + min(self.negatives, N - 1))
        u_NP, v_NP = reps.z[:, 0], reps.z[:, 1]
        logits_NK = torch.stack([(u_NP * v_NP.roll(-by, 0)).sum(-1) for by in shifts], dim=1)
        targets_NK = torch.zeros_like(logits_NK)
        targets_NK[:, 0] = 1
        texts_N = reps.texts[:, 0]
        again_NK = torch.stack([texts_N == texts_N.roll(-by) for by in shifts], dim=1)
        again_NK[:, 0] = False
        losses_NK = F.binary_cross_entropy_with_logits(logits_NK, targets_NK, reduction="none")
        return losses_NK.masked_fill(again_NK, 0).sum() / N


class TwoWayModule(InFloat32):
    def __init__(self, tau: float) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(tau)))

    def loss(self, reps: Reps) -> Tensor:
        same_NN = first_texts_equal(reps).fill_diagonal_(fill_value=False)
        scores_NN = _unit(reps.z[:, 0]) @ _unit(reps.z[:, 1]).T * self.log_scale.exp()
        scores_NN = scores_NN.masked_fill(same_NN, -torch.inf)
        own_N = torch.arange(len(scores_NN), device=scores_NN.device)
        return (F.cross_entropy(scores_NN, own_N) + F.cross_entropy(scores_NN.T, own_N)) / 2


@dataclass(frozen=True)
class TwoWay(Objective):
    """Cross-entropy from each view to the other (Radford et al. 2021, CLIP, figure 3).

    `tau` is the initial temperature.
    """

    tau: AboveZero
    name: Literal["two_way"] = "two_way"

    def build(self, _materials: Materials) -> nn.Module:
        return TwoWayModule(self.tau)


@dataclass(frozen=True)
class KlTeacher(Objective):
    """Distillation of a teacher's scores for a list of documents (after Hinton et al. 2015).

    The first view is the query q, and the other views are the documents d of its list. The loss is the mean
    over n of KL(softmax(scores_n / τ) ‖ softmax(cos(q_n, d_n) / τ)). The scores are cosines
    (mining/teacher.py), so the loss is 0 if the student has the same cosines.
    """

    tau: AboveZero
    name: Literal["kl_teacher"] = "kl_teacher"

    def loss(self, reps: Reps) -> Tensor:
        student_NM, teacher_NM = (
            x.log_softmax(-1) for x in (compute_cosines(reps) / self.tau, reps.known / self.tau)
        )
        return F.kl_div(student_NM, teacher_NM, reduction="batchmean", log_target=True)


class VectorMseModule(InFloat32):
    def __init__(self, materials: Materials) -> None:
        super().__init__()
        assert materials.taught is not None  # noqa: S101  check_fit requires a student
        self._taught = materials.taught  # (texts, P); not in a checkpoint, because the run's folder keeps it

    def loss(self, reps: Reps) -> Tensor:
        texts = reps.texts[:, 0]
        teacher_NP = self._taught[texts.to(self._taught.device)].to(texts.device).float()
        return (_unit(reps.z[:, 0]) - _unit(teacher_NP)).square().sum(-1).mean()


@dataclass(frozen=True)
class VectorMse(Objective):
    """Distillation of vectors from the base into a student (Reimers and Gurevych 2020, equation 1).

    The loss is the mean over n of |z_n - t_n|², for student vectors z and teacher vectors t of length 1. It
    equals 2 - 2 cos(z_n, t_n). The paper also takes the mean over the components, so its loss is P times
    smaller.
    """

    name: Literal["vector_mse"] = "vector_mse"
    reads: ClassVar[frozenset[str]] = frozenset({"teacher"})
    module: ClassVar[Any] = VectorMseModule


def first_texts_equal(reps: Reps) -> Tensor:
    """Returns for each pair of rows whether their first texts are equal: bool, shape (N, N)."""
    return reps.texts[:, :1] == reps.texts[:, :1].T


def _unit(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)
