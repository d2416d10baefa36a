"""Objectives over vectors against loops in plain Python, numpy, and numbers worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from training.methods.objectives import (
    NO_TEXT,
    Extra,
    InfoNCE,
    NTXent,
    PairSoftmaxModule,
    Reps,
    Triplet,
    info_nce,
    nt_xent,
    same_texts,
    semi_hard,
    triplet,
)

# A query again with another positive, a positive of two queries; and hard negatives that are: the positive of
# another, the query of another, the text's own positive, the text itself, no other text.
TEXTS = torch.tensor(
    [[1, 11, 12], [2, 12, 3], [3, 13, 13], [1, 14, 21], [5, 12, 5], [6, 15, 22], [7, 16, 23], [8, 17, 15]]
)
NONE = torch.zeros(1)  # of the candidates
DISTINCT = torch.arange(24).reshape(8, 3)


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return dot / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    return 2 - 2 * cosine(a, b)


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def further(rows: Tensor) -> Extra:
    """Negatives of none of the texts."""
    return Extra(rows, torch.full((len(rows),), NO_TEXT))


def info_nce_by_loops(z: Tensor, texts: Tensor, extra: Tensor, tau: float, alpha: float) -> float:
    """What each candidate is to each text, one by one."""
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


def test_info_nce_is_the_loss_worked_out_by_hand() -> None:
    # Three texts at right angles, whose second views point at the first, at both, and away.
    queries = torch.tensor([[1.0, 0, 0], [0, 2, 0], [0, 0, 3]])
    keys = torch.tensor([[4.0, 0, 0], [1, 1, 0], [0, 0, -1]])
    half = math.sqrt(0.5)
    # cosines: [1, √½, 0], [0, √½, 0], [0, 0, -1]
    rows = [
        -math.log(math.exp(2) / (math.exp(2) + math.exp(2 * half) + 1)),
        -math.log(math.exp(2 * half) / (1 + math.exp(2 * half) + 1)),
        -math.log(math.exp(-2) / (1 + 1 + math.exp(-2))),
    ]
    assert info_nce(queries, keys, tau=0.5, same_NM=NONE.bool(), bonus_NM=NONE).item() == pytest.approx(
        sum(rows) / 3, abs=1e-6
    )


def test_info_nce_agrees_with_numpy() -> None:
    generator = np.random.default_rng(0)
    q, k = generator.normal(size=(2, 7, 5))
    scores = (q / np.linalg.norm(q, axis=1)[:, None]) @ (k / np.linalg.norm(k, axis=1)[:, None]).T / 0.05
    expected = np.mean(np.log(np.exp(scores).sum(1)) - np.diag(scores))
    found = info_nce(torch.tensor(q), torch.tensor(k), tau=0.05, same_NM=NONE.bool(), bonus_NM=NONE)
    assert found.item() == pytest.approx(expected, rel=1e-5)


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


def test_equal_texts_are_not_negatives() -> None:
    z = vectors(3, 2, 8)
    z[2, 1] = z[0, 1]  # texts 0 and 2 are one and the same
    found = InfoNCE(tau=0.1).loss(Reps(z, torch.tensor([[5, 5], [6, 6], [5, 5]])))
    q, k = (torch.nn.functional.normalize(z[:, view], dim=-1).double().numpy() for view in (0, 1))
    scores = np.exp(q @ k.T / 0.1)
    scores[0, 2] = scores[2, 0] = 0
    assert found.item() == pytest.approx(np.mean(np.log(scores.sum(1) / np.diag(scores))), rel=1e-5)


def test_the_spread_of_further_negatives_cancels() -> None:
    z, extra = vectors(4, 2, 6), vectors(12, 6, seed=1)
    module = InfoNCE(tau=0.05).loss
    found = [module(Reps(z, DISTINCT[:4, :2], extra=further(scale * extra))).item() for scale in (1, 7)]
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def nt_xent_by_loops(anchors: Tensor, positives: Tensor, tau: float) -> float:
    rows = [*anchors.tolist(), *positives.tolist()]
    M, total = len(rows), 0.0  # noqa: N806
    for n in range(M):
        weights = [math.exp(cosine(rows[n], rows[m]) / tau) if m != n else 0.0 for m in range(M)]
        total -= math.log(weights[(n + M // 2) % M] / sum(weights))
    return total / M


def test_nt_xent_goes_over_all_rows_in_both_directions() -> None:
    a, p = vectors(2, 6, 5)
    assert nt_xent(a, p, tau=0.2, same_NN=torch.zeros(6, 6).bool()).item() == pytest.approx(
        nt_xent_by_loops(a, p, 0.2), rel=1e-5
    )


def test_positives_are_averaged_before_they_are_brought_to_length_1() -> None:
    z = vectors(6, 4, 5)
    z[:, 2] *= 9  # so that the mean of unit vectors would be another
    expected = nt_xent_by_loops(z[:, 0], (z[:, 1] + z[:, 2] + z[:, 3]) / 3, 0.2)
    assert NTXent(tau=0.2).loss(Reps(z, torch.arange(24).reshape(6, 4))).item() == pytest.approx(
        expected, rel=1e-5
    )


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
    z[3, 0] = z[0, 0]  # as their texts say: else the positive of the one would be near the other
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


LOSSES: dict[str, Callable[[], Callable[[Reps], torch.Tensor]]] = {
    "info_nce": lambda: InfoNCE(tau=0.05, hard_weight=2.0).loss,
    "nt_xent": lambda: NTXent(tau=0.05).loss,
    "triplet": lambda: Triplet(margin=0.2).loss,
    "pair_softmax": lambda: PairSoftmaxModule(16, 3, torch.Generator().manual_seed(0)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss_and_gradient_are_in_float32_under_autocast(name: str) -> None:
    found = []
    for enabled in (False, True):
        z = vectors(8, 3, 16).requires_grad_()
        reps = Reps(z, TEXTS, torch.arange(8) % 3, further(vectors(4, 16, seed=1)))
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            loss = LOSSES[name]()(reps)
        assert loss.dtype == torch.float32
        loss.backward()  # type: ignore[no-untyped-call]
        assert z.grad is not None
        assert z.grad.isfinite().all()
        assert z.grad.any()
        found.append((loss.item(), z.grad))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("name", ["info_nce", "nt_xent", "triplet"])
def test_gradients_are_finite_where_vectors_are_equal_or_zero(name: str) -> None:
    z = vectors(8, 3, 16)
    z[1] = z[0]  # one and the same vector in every view
    z[2, :] = 0
    z.requires_grad_()
    LOSSES[name]()(Reps(z, TEXTS)).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert z.grad.isfinite().all()


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
