"""Dropout drops elements independently, at its rate, and keeps the mean."""

import pytest
import torch
from torch import Tensor, nn

from training.model.dropout import Dropout, drop, replace_dropouts, set_dropout

SHAPE = 100, 1001  # not a multiple of the four elements that a random number decides


def dropped(p: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return drop(torch.ones(SHAPE, dtype=dtype), p)


@pytest.mark.parametrize("p", [0.05, 0.1, 0.5, 0.9])
def test_as_many_elements_as_p_says_are_zero_and_the_others_keep_the_mean(p: float) -> None:
    torch.manual_seed(1)
    found = dropped(p)
    zeros = int((found == 0).sum())
    count = found.numel()
    assert abs(zeros - p * count) < 5 * (count * p * (1 - p)) ** 0.5
    kept = found[found != 0]
    assert kept.min() == kept.max() == pytest.approx(1 / (1 - p), rel=2e-4)


def test_elements_of_one_random_number_are_dropped_apart() -> None:
    torch.manual_seed(2)
    gone = (dropped(0.1).flatten() == 0).double()
    for distance in range(1, 9):
        both = float((gone[distance:] * gone[:-distance]).mean())
        assert abs(both - 0.01) < 5 * (0.01 * 0.99 / len(gone)) ** 0.5, distance
    by_place = torch.stack([gone[place : len(gone) // 4 * 4 : 4].mean() for place in range(4)])
    assert (by_place - 0.1).abs().max() < 5 * (0.09 / (len(gone) / 4)) ** 0.5


def test_a_seed_brings_the_same_masks_again_and_each_call_others() -> None:
    torch.manual_seed(3)
    first, second = dropped(0.1), dropped(0.1)
    torch.manual_seed(3)
    assert torch.equal(dropped(0.1), first)
    assert not torch.equal(first, second)


def test_the_gradient_goes_where_the_value_went() -> None:
    torch.manual_seed(4)
    x = torch.randn(SHAPE, requires_grad=True)
    found = drop(x, 0.3)
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert torch.equal(x.grad * x, found)


def test_nothing_is_dropped_at_zero_and_nearly_all_at_nearly_one() -> None:
    x = torch.randn(SHAPE)
    assert drop(x, 0.0) is x
    found = drop(torch.ones(SHAPE), 0.999999)
    assert found.isfinite().all()
    assert (found == 0).float().mean() > 0.999
    assert dropped(0.1, torch.bfloat16).dtype == torch.bfloat16


def test_torchs_own_are_replaced_wherever_they_stand() -> None:
    model = nn.Sequential(nn.Linear(2, 64), nn.Sequential(nn.Dropout(0.5), nn.ReLU()))
    replace_dropouts(model)
    for p in (0.1, 0.2, 0.0):
        set_dropout(model, p)
        found = [part for part in model.modules() if isinstance(part, nn.Dropout)]
        assert [(type(part), part.p, part.training) for part in found] == [(Dropout, p, p > 0)]
    x = torch.randn(3, 2)
    assert torch.equal(model(x), model(x))
    set_dropout(model, 0.5)
    torch.manual_seed(5)
    assert not torch.equal(model(x), model(x))
