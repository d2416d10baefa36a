"""Objectives over pairs: values worked out by hand, and gradients against finite differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from training.methods.objectives import (
    BceDot,
    Cosent,
    CosineMse,
    HardNce,
    PairSoftmaxModule,
    Reps,
    TwoWay,
    cosent,
)

UNUSED: Any = None  # none of them has weights that depend on the base
APART = torch.arange(8).reshape(4, 2)  # no text stands twice
TURNED = torch.tensor([[1.0, 0.0], [0.0, 1.0]])  # two vectors at a right angle


def vectors(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


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
    """Scores 1 < 2 = 2: two comparisons, of 0.9 with 0.5 and with 0.1; equal scores are not compared."""
    found = cosent(torch.tensor([0.9, 0.5, 0.1]), torch.tensor([1.0, 2.0, 2.0]), scale=2.0).item()
    assert found == pytest.approx(math.log(1 + math.exp(2 * 0.4) + math.exp(2 * 0.8)), rel=1e-6)
    assert cosent(torch.ones(3), torch.ones(3), scale=20.0).item() == 0, "nothing to order"
    spread = torch.tensor([[[1.0, 0], [1, 0]], [[1, 0], [0, 1]]])
    scores = torch.tensor([[0.0], [1.0]])  # and the cosines are 1 and 0
    assert Cosent(scale=3.0).build(UNUSED)(Reps(spread, APART[:2], scores)).item() == pytest.approx(
        softplus(3), rel=1e-6
    )


def test_hard_nce_weighs_negatives_by_their_nearness() -> None:
    """The first pair is one vector twice and entailed; the second contradicts, and is negatives alone.

    e is exp(cos / τ) at τ = 1. Of both rows of the first pair the negatives have the cosines 0 and c.
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
    """The loss of both rows of one of two pairs, by a loop."""
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
    """Three texts, one negative each: the dot products of n with n, and of n with the next."""
    u, v = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    reps = Reps(torch.stack([u, v], 1), torch.tensor([[0, 0], [1, 1], [2, 2]]))
    found = BceDot(negatives=1).build(UNUSED)(reps).item()
    own, next_ = (1.0, -2.0, 1.5), (-1.0, 1.0, 3.0)
    assert found == pytest.approx(
        sum(softplus(-x) for x in own) / 3 + sum(map(softplus, next_)) / 3, rel=1e-6
    )
    again = reps._replace(texts=torch.tensor([[0, 0], [0, 0], [2, 2]]))  # the first two are one text
    assert BceDot(negatives=1).build(UNUSED)(again).item() == pytest.approx(
        sum(softplus(-x) for x in own) / 3 + sum(map(softplus, next_[1:])) / 3, rel=1e-6
    )
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


SCORES = torch.tensor([[1.0], [3.0], [0.0], [5.0]])
LABELS = torch.tensor([0, 2, 0, 1])
CASES: dict[str, tuple[nn.Module, Tensor]] = {
    "cosine_mse": (CosineMse(highest=5.0).build(UNUSED), SCORES),
    "cosent": (Cosent().build(UNUSED), SCORES),
    "hard_nce": (HardNce(tau=0.5).build(UNUSED), LABELS),
    "bce_dot": (BceDot(negatives=2).build(UNUSED), LABELS),
    "two_way": (TwoWay(tau=0.5).build(UNUSED), LABELS),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    module, labels = CASES[name]
    check_gradient(lambda z: module(Reps(z, APART, labels)), vectors(4, 2, 5))


@pytest.mark.parametrize("name", CASES)
def test_losses_are_in_float32_under_autocast(name: str) -> None:
    module, labels = CASES[name]
    reps = Reps(vectors(4, 2, 16), APART, labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(module(reps), module(reps))
        under = module(reps)
    assert under.dtype == torch.float32
    assert torch.equal(under, module(reps))


def check_gradient(loss: Any, z: Tensor, step: float = 1e-2) -> None:
    """Along three random directions, by differences on both sides; float32 leaves three digits."""
    z = z.clone().requires_grad_()
    loss(z).backward()
    assert z.grad is not None
    for seed in range(3):
        along = vectors(*z.shape, seed=seed + 10)
        with torch.no_grad():
            change = (loss(z + step * along) - loss(z - step * along)).item() / (2 * step)
        assert (z.grad * along).sum().item() == pytest.approx(change, rel=1e-2, abs=2e-3)
