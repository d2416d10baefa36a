"""Objectives over vectors, compared with plain Python loops, numpy, and values computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from scipy.stats import entropy
from torch import Tensor, nn

from tests.parts.losses import check_gradient, softplus, vectors
from training.methods.objectives import (
    NO_TEXT,
    BceDot,
    Cosent,
    CosineMse,
    Extra,
    HardNce,
    InfoNCE,
    KlTeacher,
    MarginMse,
    Materials,
    NTXent,
    PairSoftmaxModule,
    Reps,
    Triplet,
    TwoWay,
    VectorMse,
    same_texts,
    semi_hard,
    triplet,
)

UNUSED: Any = None  # these objectives need no base
MATERIALS = Materials(UNUSED, 16, UNUSED, taught=vectors(24, 16, seed=9))
APART = torch.arange(8).reshape(4, 2)  # distinct texts
TURNED = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # two vectors at a right angle
EAST = [1.0, 0.0]


def at_cosine(cosine: float, length: float = 1.0) -> list[float]:
    """Returns a vector with this cosine to EAST and this length."""
    return [length * cosine, length * math.sqrt(1 - cosine**2)]


# Query 1 has two rows, and text 12 is the positive of two queries. Some hard negatives are also a positive
# (12, 15) or a query (3) of another row, or the positive (13) or the query (5) of their own row.
TEXTS = torch.tensor(
    [[1, 11, 12], [2, 12, 3], [3, 13, 13], [1, 14, 21], [5, 12, 5], [6, 15, 22], [7, 16, 23], [8, 17, 15]]
)
DISTINCT = torch.arange(24).reshape(8, 3)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    return 2 - 2 * cosine(a, b)


def further(rows: Tensor) -> Extra:
    """Returns the vectors `rows` as further negatives that belong to no text."""
    return Extra(rows, torch.full((len(rows),), NO_TEXT))


def info_nce_by_loops(z: Tensor, texts: Tensor, extra: Tensor, tau: float, alpha: float) -> float:
    """Returns the InfoNCE loss, computed by loops over the texts and their candidates."""
    N, V, _ = z.shape  # noqa: N806  as the papers
    t, total = texts.tolist(), 0.0
    for n in range(N):
        positive, others = 0.0, sum(math.exp(cosine(z[n, 0].tolist(), row) / tau) for row in extra.tolist())
        for m in range(N):
            for view in range(1, V):
                weight = math.exp(cosine(z[n, 0].tolist(), z[m, view].tolist()) / tau)
                if (m, view) == (n, 1):
                    positive = weight
                    continue
                if t[m][view] in (t[n][0], t[n][1]) or (view == 1 and t[m][0] == t[n][0]):
                    continue
                if view > 1 and t[m][view] == NO_TEXT:
                    continue
                others += alpha * weight if m == n and view > 1 else weight
        total -= math.log(positive / (positive + others))
    return total / N


@pytest.mark.parametrize("texts", [TEXTS, DISTINCT], ids=["equal texts", "distinct"])
@pytest.mark.parametrize("alpha", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("queued", [0, 5])
@pytest.mark.parametrize("views", [2, 3])
def test_info_nce_counts_each_candidate_as_what_it_is(
    texts: Tensor, alpha: float, queued: int, views: int
) -> None:
    z, extra = vectors(8, views, 6), vectors(queued, 6, seed=1)
    module = InfoNCE(tau=0.3, hard_weight=alpha).loss
    found = module(Reps(z, texts[:, :views], extra=further(extra)))
    expected = info_nce_by_loops(z, texts[:, :views], extra, 0.3, alpha)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_several_negatives_of_a_row_and_rows_with_fewer_follow_the_loops() -> None:
    texts = torch.tensor(
        [
            [1, 11, 12, 13, NO_TEXT],
            [2, 14, 15, NO_TEXT, NO_TEXT],
            [3, 16, 17, 18, 19],
            [1, 20, 11, 14, 21],  # a query again; its first negative is the other's positive
        ]
    )
    z, extra = vectors(4, 5, 6), vectors(3, 6, seed=1)
    for alpha in (1.0, 2.5):
        found = InfoNCE(tau=0.3, hard_weight=alpha).loss(Reps(z, texts, extra=further(extra)))
        assert found.item() == pytest.approx(info_nce_by_loops(z, texts, extra, 0.3, alpha), rel=1e-5)
    moved = z.clone()
    moved[0, 4], moved[1, 3] = vectors(6, seed=2), vectors(6, seed=3)  # what fills a row up is never seen
    assert InfoNCE(tau=0.3).loss(Reps(moved, texts)) == InfoNCE(tau=0.3).loss(Reps(z, texts))
    mined = Triplet(margin=2.0).loss
    assert mined(Reps(moved, texts)) == mined(Reps(z, texts))


def test_which_candidates_are_no_negatives_worked_out_by_hand() -> None:
    found = [(n, m) for n, m in same_texts(TEXTS).nonzero().tolist()]
    second = [(0, 3), (3, 0), (1, 4), (4, 1)]  # query 1 stands twice; text 12 is the positive of two
    third = [(1, 0), (4, 0), (2, 1), (2, 2), (4, 4), (5, 7)]  # 12 to texts 2 and 5; 3; 13; 5; 15 to text 6
    assert sorted(found) == sorted(second + [(n, 8 + m) for n, m in third])


def nt_xent_by_loops(anchors: Tensor, positives: Tensor, tau: float) -> float:
    rows = [*anchors.tolist(), *positives.tolist()]
    M, total = len(rows), 0.0  # noqa: N806
    for n in range(M):
        weights = [math.exp(cosine(rows[n], rows[m]) / tau) if m != n else 0.0 for m in range(M)]
        total -= math.log(weights[(n + M // 2) % M] / sum(weights))
    return total / M


def test_positives_are_averaged_before_they_are_brought_to_length_1() -> None:
    z = vectors(6, 4, 5)
    z[:, 2] *= 9  # so that the mean of unit vectors would be another
    expected = nt_xent_by_loops(z[:, 0], (z[:, 1] + z[:, 2] + z[:, 3]) / 3, 0.2)
    found = NTXent(tau=0.2).loss(Reps(z, torch.arange(24).reshape(6, 4))).item()
    assert found == pytest.approx(expected, rel=1e-5)


def triplet_by_loops(a: Tensor, p: Tensor, n: Tensor, margin: float) -> float:
    rows = zip(a.tolist(), p.tolist(), n.tolist(), strict=True)
    return sum(max(0.0, distance(x, y) - distance(x, z) + margin) for x, y, z in rows) / len(a)


def test_the_triplet_loss_is_of_squared_distances_between_unit_vectors() -> None:
    # By hand: of length 1, the positive is at √2 from the anchor, the negatives opposite and at the anchor.
    a, p, n = torch.tensor([[[3.0, 0], [1, 0]], [[0, 2], [0, 1]], [[-5, 0], [7, 0]]])
    assert triplet(a, p, n, margin=0.2).item() == pytest.approx((0 + (2 - 0 + 0.2)) / 2)
    a, p, n = vectors(3, 9, 4)
    assert triplet(a, p, n, margin=0.5).item() == pytest.approx(triplet_by_loops(a, p, n, 0.5), rel=1e-5)


def semi_hard_by_loops(a: Tensor, p: Tensor, keys: Tensor, same: Tensor) -> list[int]:
    chosen = []
    for n, row in enumerate(a.tolist()):
        far = {m: distance(row, keys[m].tolist()) for m in range(len(keys)) if not same[n, m]}
        farther = {m: d for m, d in far.items() if d > distance(row, p[n].tolist())}
        chosen.append(min(farther, key=farther.__getitem__) if farther else max(far, key=far.__getitem__))
    return chosen


@pytest.mark.parametrize("seed", range(5))
def test_the_semi_hard_negative_is_the_nearest_beyond_the_positive(seed: int) -> None:
    a, p = vectors(2, 12, 3, seed=seed)
    p[:4] = -a[:4]  # nothing is farther than these positives
    keys = torch.cat([p, vectors(12, 3, seed=seed + 50)])
    same = torch.rand(12, 24, generator=torch.Generator().manual_seed(seed)) < 0.3
    same[:, :12] |= torch.eye(12, dtype=torch.bool)
    assert semi_hard(a, p, keys, same).tolist() == semi_hard_by_loops(a, p, keys, same)


def test_mining_takes_the_semi_hard_negative_of_another_text() -> None:
    z = vectors(8, 3, 5)
    z[3, 0] = z[0, 0]  # equal texts
    keys = torch.cat([z[:, 1], z[:, 2]])
    same = same_texts(TEXTS)
    same[:, :8] |= torch.eye(8, dtype=torch.bool)
    chosen = semi_hard_by_loops(z[:, 0], z[:, 1], keys, same)
    assert not same[range(8), chosen].any()
    found = Triplet(margin=1.0).loss(Reps(z, TEXTS))
    expected = triplet_by_loops(z[:, 0], z[:, 1], keys[chosen], 1.0)
    assert found.item() == pytest.approx(expected, rel=1e-5)


def test_without_mining_the_third_view_is_the_negative() -> None:
    z = vectors(8, 3, 5)
    found = Triplet(margin=1.0, mine=False).loss(Reps(z, TEXTS))
    assert found.item() == pytest.approx(triplet_by_loops(z[:, 0], z[:, 1], z[:, 2], 1.0), rel=1e-5)


def test_a_batch_of_one_text_over_and_over_moves_nothing() -> None:
    z = vectors(3, 2, 5).requires_grad_()
    Triplet(margin=0.2).loss(Reps(z, torch.full((3, 2), 4))).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert not z.grad.any()


def test_equal_texts_are_no_negatives_in_nt_xent_either() -> None:
    z = vectors(4, 2, 6, seed=3)
    texts = torch.tensor([[1, 1], [2, 2], [1, 1], [3, 3]])
    found = NTXent(tau=0.3).loss(Reps(z, texts)).item()
    unit = torch.nn.functional.normalize(z.transpose(0, 1).flatten(0, 1), dim=-1).double().tolist()
    numbers = [1, 2, 1, 3] * 2
    losses = []
    for row in range(8):
        other = (row + 4) % 8
        scores = {
            column: math.exp(sum(a * b for a, b in zip(unit[row], unit[column], strict=True)) / 0.3)
            for column in range(8)
            if column != row and (column == other or numbers[column] != numbers[row])
        }
        losses.append(-math.log(scores[other] / sum(scores.values())))
    assert found == pytest.approx(sum(losses) / 8, rel=1e-5)


def test_cosine_mse_is_the_mean_of_the_squares() -> None:
    z = torch.tensor([[[1.0, 0], [2, 0]], [[1, 0], [0, 3]], [[1, 0], [-1, 0]]])  # cosines 1, 0 and -1
    scores = torch.tensor([[5.0], [2.5], [0.0]])
    found = CosineMse(highest=5.0).build(UNUSED)(Reps(z, APART[:3], scores)).item()
    assert found == pytest.approx((0**2 + 0.5**2 + 1**2) / 3)


def test_cosine_mse_reads_every_document_of_a_list() -> None:
    z = torch.tensor([[[1.0, 0], [1, 0], [0, 1]]])
    found = CosineMse().build(UNUSED)(Reps(z, torch.tensor([[0, 1, 2]]), torch.tensor([[0.8, 0.4]]))).item()
    assert found == pytest.approx((0.2**2 + 0.4**2) / 2)


def test_cosent_counts_each_pair_of_pairs_in_the_wrong_order() -> None:
    """Gold scores 1, 2, 2 give two comparisons: cosine 0.9 with 0.5, and 0.9 with 0.1. Ties are skipped."""
    z = torch.tensor([[EAST, at_cosine(0.9)], [EAST, at_cosine(0.5)], [EAST, at_cosine(0.1)]])
    reps = Reps(z, APART[:3], torch.tensor([[1.0], [2.0], [2.0]]))
    found = Cosent(scale=2.0).loss(reps).item()
    assert found == pytest.approx(math.log(1 + math.exp(2 * 0.4) + math.exp(2 * 0.8)), rel=1e-6)
    assert Cosent().loss(reps._replace(labels=torch.ones(3, 1))).item() == 0, "nothing to order"
    spread = torch.tensor([[[1.0, 0], [1, 0]], [[1, 0], [0, 1]]])
    scores = torch.tensor([[0.0], [1.0]])  # and the cosines are 1 and 0
    found = Cosent(scale=3.0).build(UNUSED)(Reps(spread, APART[:2], scores)).item()
    assert found == pytest.approx(softplus(3), rel=1e-6)


def test_hard_nce_weighs_negatives_by_their_nearness() -> None:
    """The first pair is entailed, with equal vectors. The second contradicts: it gives negatives only.

    `e` stands for exp(cosine) at τ = 1. Both vectors of the first pair have negatives at the cosines 0 and c.
    """
    c = 0.6
    z = torch.stack([TURNED[:1].repeat(2, 1), torch.tensor([[0.0, 1.0], [c, math.sqrt(1 - c * c)]])])
    found = HardNce(tau=1.0).build(UNUSED)(Reps(z, APART[:2], torch.tensor([0, 2]))).item()
    negatives = [1.0, math.exp(c)]
    weighed = sum(e * e for e in negatives) / (sum(negatives) / 2)
    assert found == pytest.approx(-math.log(math.e / (math.e + weighed)), rel=1e-6)


def test_hard_nce_without_an_entailment_teaches_nothing_and_equal_texts_are_no_negatives() -> None:
    z = vectors(4, 2, 3).requires_grad_()
    none = HardNce(tau=0.05).build(UNUSED)(Reps(z, APART, torch.tensor([1, 2, 1, 2])))
    none.backward()
    assert none.item() == 0
    assert z.grad is not None
    assert not z.grad.any()
    labels = torch.zeros(3, dtype=torch.int64)
    whole = HardNce(tau=0.5).build(UNUSED)(Reps(z[:2], APART[:2], labels[:2])).item()
    again = torch.cat([z[:2], z[:1]])
    texts = torch.cat([APART[:2], APART[:1]])  # the first pair once more
    found = HardNce(tau=0.5).build(UNUSED)(Reps(again, texts, labels)).item()
    rows = [whole_of(z.detach(), row) for row in (0, 0, 1)]
    assert whole == pytest.approx((rows[0] + rows[2]) / 2, rel=1e-5)
    assert found != pytest.approx(whole), "the second pair has its negatives twice now"


def whole_of(z: Tensor, pair: int) -> float:
    """Returns the mean loss of both vectors of a pair (0 or 1), with the other pair as negatives."""
    unit = torch.nn.functional.normalize(z[:2].double(), dim=-1)
    other = unit[1 - pair]
    losses = []
    for row in unit[pair]:
        positive = math.exp(float(unit[pair, 0] @ unit[pair, 1]) / 0.5)
        negatives = [math.exp(float(row @ each) / 0.5) for each in other]
        weighed = sum(e * e for e in negatives) / (sum(negatives) / 2)
        losses.append(-math.log(positive / (positive + weighed)))
    return sum(losses) / 2


def test_bce_dot_asks_for_a_text_s_own_and_for_those_behind_it() -> None:
    """A text's positive is its second view. Its negative is the second view of the next text, in a circle."""
    u, v = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    reps = Reps(torch.stack([u, v], 1), torch.tensor([[0, 0], [1, 1], [2, 2]]))
    found = BceDot(negatives=1).build(UNUSED)(reps).item()
    own, next_ = (1.0, -2.0, 1.5), (-1.0, 1.0, 3.0)
    right = sum(softplus(-x) for x in own)
    assert found == pytest.approx((right + sum(map(softplus, next_))) / 3, rel=1e-6)
    again = reps._replace(texts=torch.tensor([[0, 0], [0, 0], [2, 2]]))  # the first two are one text
    found = BceDot(negatives=1).build(UNUSED)(again).item()
    assert found == pytest.approx((right + sum(map(softplus, next_[1:]))) / 3, rel=1e-6)
    assert BceDot(negatives=99).build(UNUSED)(reps).isfinite(), "a batch has as many others as it has"


def test_two_way_is_the_mean_of_both_directions_and_learns_its_temperature() -> None:
    z = torch.stack([TURNED, torch.tensor([[1.0, 0.0], [1.0, 0.0]])], 1)  # both second views are the first's
    module = TwoWay(tau=0.5).build(UNUSED)
    loss = module(Reps(z, torch.tensor([[0, 0], [1, 1]])))
    forth = (math.log(2) + math.log(2)) / 2  # the rows are 2, 2 and 0, 0
    back = (math.log(1 + math.exp(-2)) + math.log(1 + math.exp(2))) / 2  # the columns are 2, 0, twice
    assert loss.item() == pytest.approx((forth + back) / 2, rel=1e-6)
    loss.backward()
    (scale,) = module.parameters()
    assert scale.grad is not None
    assert scale.grad.item() > 0, "a wrong answer that is sure costs more"


def test_pair_softmax_is_a_softmax_over_u_v_and_their_difference() -> None:
    z, labels = vectors(7, 2, 5), torch.tensor([0, 2, 1, 1, 0, 2, 2])
    module = PairSoftmaxModule(5, 3, torch.Generator().manual_seed(3))
    found = module(Reps(z, torch.arange(14).reshape(7, 2), labels)).item()
    u, v = z[:, 0].numpy().astype(float), z[:, 1].numpy().astype(float)
    weight, bias = (tensor.detach().numpy().astype(float) for tensor in module.classifier.parameters())
    logits = np.concatenate([u, v, np.abs(u - v)], axis=1) @ weight.T + bias
    log_sums = np.log(np.exp(logits).sum(1))
    assert found == pytest.approx(np.mean(log_sums - logits[range(7), labels]), rel=1e-5)


def test_the_classifier_of_pairs_begins_as_torch_s_linear_does() -> None:
    module = PairSoftmaxModule(300, 3, torch.Generator().manual_seed(3))
    again = PairSoftmaxModule(300, 3, torch.Generator().manual_seed(3))
    weight = module.classifier.weight.detach()
    assert torch.equal(weight, again.classifier.weight)
    bound = 900**-0.5
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05)


def test_pair_softmax_without_labels_is_refused() -> None:
    with pytest.raises(ValueError, match="labels"):
        PairSoftmaxModule(5, 3, torch.Generator())(Reps(vectors(7, 2, 5), torch.arange(14).reshape(7, 2)))


def compute_loss(cosines: list[list[float]], scores: list[list[float]], tau: float) -> torch.Tensor:
    z = torch.tensor([[[7.0, 0.0], *(at_cosine(cosine, 3) for cosine in row)] for row in cosines])
    return KlTeacher(tau=tau).loss(Reps(z, torch.arange(z[..., 0].numel()), torch.tensor(scores)))


def test_it_is_the_mean_divergence_of_the_lists() -> None:
    cosines, scores = [[0.6, 0.2, 0.5], [0.1, 0.9, 0.3]], [[0.7, 0.6, 0.1], [1.2, 0.9, -0.3]]
    told, own = (softmax(np.array(values) / 0.5, axis=1) for values in (scores, cosines))
    assert compute_loss(cosines, scores, 0.5).item() == pytest.approx(
        entropy(told, own, axis=1).mean(), abs=1e-6
    )


def test_a_teacher_of_raw_scores_has_a_temperature_of_its_own() -> None:
    """Cosines 0.6 and 0 at tau 0.5 are the logits 1.2 and 0, as are raw scores of 2.4 and 0 at 2."""
    z = torch.tensor([[[1.0, 0.0], at_cosine(0.6, 2), [0.0, 1.0]]])
    reps = Reps(z, torch.arange(3)[None], torch.tensor([[2.4, 0.0]]))
    assert KlTeacher(tau=0.5, teacher_tau=2.0).loss(reps).item() == pytest.approx(0, abs=1e-6)
    other, same = torch.tensor([2.4, 0.0]).softmax(0), torch.tensor([1.2, 0.0]).softmax(0)
    expected = (other * (other / same).log()).sum().item()
    assert KlTeacher(tau=0.5, teacher_tau=1.0).loss(reps).item() == pytest.approx(expected, rel=1e-5)


def test_margins_by_hand() -> None:
    """Student scores 1.2, 0 and -2 at tau 0.5; teacher 3, 1 and 1: errors -1.8, -1 and -3."""
    z = torch.tensor([[[1.0, 0.0], at_cosine(0.6, 2), [0.0, 1.0], [-1.0, 0.0]]])
    reps = Reps(z, torch.arange(4)[None], torch.tensor([[3.0, 1.0, 1.0]]))
    expected = (0.8**2 + 1.2**2 + 2.0**2) / 3  # differences of the errors
    assert MarginMse(tau=0.5).loss(reps).item() == pytest.approx(expected, rel=1e-5)
    shifted = reps._replace(labels=torch.tensor([[13.0, 11.0, 11.0]]))
    assert MarginMse(tau=0.5).loss(shifted).item() == pytest.approx(expected, rel=1e-5)


def test_the_distance_to_the_teachers_vectors_by_hand() -> None:
    """For unit vectors, |z - t|² = 2 - 2 cos: 0.8 at a cosine of 0.6, and 0 at 1. Lengths are ignored."""
    z, teacher = torch.tensor([[5.0, 0.0], [0.0, 2.0]]), torch.tensor([at_cosine(0.6, 3), [0.0, 1.0]])
    module = VectorMse().build(MATERIALS._replace(taught=teacher))
    assert module(Reps(z[:, None], torch.arange(2)[:, None])).item() == pytest.approx(0.4, abs=1e-6)


def test_a_mean_over_tokens_is_of_all_processes_and_a_guest_s_text_counts_nothing() -> None:
    """The losses of 2 tokens sum to 3. Another process has 4 tokens. A guest (`Reps.guest`) adds nothing."""
    z, texts = torch.zeros(2, 1, 1), torch.zeros(2, 1, dtype=torch.int64)
    counts = {"own": 2.0, "other": 4.0}

    def total(count: torch.Tensor) -> torch.Tensor:
        return count + sum(counts.values()) - (counts["own"] if count else 0.0)

    own = Reps(z, texts, total=total).mean(torch.tensor(3.0), torch.tensor(2.0))
    assert own.item() == pytest.approx(3 / 6)
    losses = torch.tensor(7.0, requires_grad=True)
    guest = Reps(z, texts, total=total, guest=True).mean(losses, torch.tensor(9.0))
    assert guest.item() == 0
    assert torch.autograd.grad(guest, losses)[0].item() == 0, "there is a graph, and nothing flows"
    alone = Reps(z, texts).mean(torch.tensor(3.0), torch.tensor(0.0))
    assert alone.item() == 3, "nothing was masked: no division by 0"


LABELS = torch.arange(8) % 3
EXTRA = further(vectors(4, 16, seed=1))
SCORES = vectors(8, 2, seed=4)
CASES: dict[str, tuple[nn.Module, int, Tensor]] = {  # with the number of views, and labels
    "info_nce": (InfoNCE(tau=0.05, hard_weight=2.0).build(UNUSED), 3, LABELS),
    "nt_xent": (NTXent(tau=0.05).build(UNUSED), 3, LABELS),
    "triplet": (Triplet(margin=0.2).build(UNUSED), 3, LABELS),
    "pair_softmax": (PairSoftmaxModule(16, 3, torch.Generator().manual_seed(0)), 2, LABELS),
    "cosine_mse": (CosineMse(highest=5.0).build(UNUSED), 3, SCORES),
    "cosent": (Cosent().build(UNUSED), 3, SCORES),
    "hard_nce": (HardNce(tau=0.5).build(UNUSED), 2, LABELS),
    "bce_dot": (BceDot(negatives=2).build(UNUSED), 2, LABELS),
    "two_way": (TwoWay(tau=0.5).build(UNUSED), 2, LABELS),
    "kl_teacher": (KlTeacher(tau=0.5).build(UNUSED), 3, SCORES),
    "margin_mse": (MarginMse(tau=0.5).build(UNUSED), 3, SCORES),
    "vector_mse": (VectorMse().build(MATERIALS), 1, LABELS),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient_are_in_float32_under_autocast(name: str) -> None:
    module, views, labels = CASES[name]
    found = []
    for enabled in (False, True):
        z = vectors(8, views, 16).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = module(Reps(z, TEXTS[:, :views], labels, EXTRA))
        assert loss.dtype == torch.float32
        loss.backward()
        assert z.grad is not None
        assert z.grad.isfinite().all()
        assert z.grad.any()
        found.append((loss.item(), z.grad))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", [name for name in CASES if name not in ("info_nce", "nt_xent", "triplet")])
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    module, views, labels = CASES[name]
    check_gradient(lambda z: module(Reps(z, DISTINCT[:, :views], labels)), vectors(8, views, 16))


@pytest.mark.parametrize("name", ["info_nce", "nt_xent", "triplet"])
def test_gradients_are_finite_where_vectors_are_equal_or_zero(name: str) -> None:
    z = vectors(8, 3, 16)
    z[1] = z[0]
    z[2, :] = 0
    z.requires_grad_()
    CASES[name][0](Reps(z, TEXTS)).backward()
    assert z.grad is not None
    assert z.grad.isfinite().all()
