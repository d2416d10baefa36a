"""Which texts share a batch."""

import random
from collections.abc import Sequence
from functools import cache

import pytest

from service.batching.planner import GROUP_OVERHEAD_TOKENS, Costs, cost_of, group_of_oldest


def cost(lengths: Sequence[int], packed: bool) -> float:
    """Of one batch, in tokens of computing, as it was measured."""
    longest = max(lengths)
    return sum(lengths) + len(lengths) * longest**2 / 920 if packed else len(lengths) * longest


def cheapest(lengths: tuple[int, ...], budget: int, packed: bool) -> float:
    """The least total cost over every way to cut the sorted lengths: tried one by one."""
    ordered = sorted(lengths)

    @cache
    def best(begin: int) -> float:
        if begin == len(ordered):
            return 0.0
        options = []
        for end in range(begin + 1, len(ordered) + 1):
            tokens = cost(ordered[begin:end], packed)
            if tokens > budget and end > begin + 1:
                break
            options.append(GROUP_OVERHEAD_TOKENS + tokens + best(end))
        return min(options)

    return best(0)


def cost_of_running_all(lengths: list[int], budget: int, packed: bool) -> float:
    """Run the planned group until nothing waits, the lengths in arrival order."""
    total = 0.0
    waiting = list(lengths)
    while waiting:
        group = group_of_oldest(waiting, budget, Costs(packed=packed))
        total += GROUP_OVERHEAD_TOKENS + cost([waiting[at] for at in group], packed)
        waiting = [length for at, length in enumerate(waiting) if at not in set(group)]
    return total


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_the_plan_costs_no_more_than_the_best_of_all_cuts(seed: int, packed: bool) -> None:
    rng = random.Random(seed)
    lengths = [
        rng.choice([4, 9, 16, 17, 40, 120, 256]) + rng.randrange(3) for _ in range(rng.randrange(1, 24))
    ]
    expected = cheapest(tuple(lengths), 512, packed)
    assert cost_of_running_all(lengths, 512, packed) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("packed", [False, True])
def test_the_cost_of_a_batch_is_that_of_the_plan(packed: bool) -> None:
    rng = random.Random(3)
    for _ in range(50):
        lengths = [rng.randrange(1, 300) for _ in range(rng.randrange(1, 40))]
        assert cost_of(lengths, Costs(packed=packed)) == round(cost(lengths, packed))


def test_the_oldest_text_is_always_in_the_group() -> None:
    rng = random.Random(7)
    for _ in range(200):
        lengths = [rng.randrange(1, 300) for _ in range(rng.randrange(1, 60))]
        assert 0 in group_of_oldest(lengths, 1024)


def test_a_short_text_does_not_pay_for_a_long_one() -> None:
    assert group_of_oldest([8, 256, 9, 250, 8], 1024) == [0, 4, 2]


def test_a_text_longer_than_the_budget_goes_alone() -> None:
    assert group_of_oldest([600, 5, 6], 512) == [0]


def test_no_group_is_larger_than_the_budget() -> None:
    lengths = [10] * 100
    group = group_of_oldest(lengths, 256)
    assert len(group) * 10 <= 256
    assert len(group) >= 17  # the cheapest cuts of 100 need at least four groups of at most 25


def test_without_padding_texts_of_all_lengths_fill_a_batch() -> None:
    lengths = [8, 44, 12, 30, 17, 9, 25, 16] * 3
    assert len(group_of_oldest(lengths, 512)) < 10
    assert len(group_of_oldest(lengths, 512, Costs(packed=True))) > 14
    assert 1 not in group_of_oldest([8, 256, 9, 250, 8, *[10] * 20], 1024, Costs(packed=True))


@pytest.mark.parametrize("waiting", [1, 16, 17, 18, 35, 52, 103, 128])
def test_among_texts_of_one_length_the_oldest_is_in_a_full_group(waiting: int) -> None:
    """A remainder there would make every batch small: while it is computed, one more text comes."""
    assert len(group_of_oldest([30] * waiting, 512)) == min(waiting, 17)


def test_a_dearer_batch_is_worth_more_padding() -> None:
    lengths = [8, 8, 24, 24, 8, 24]
    assert group_of_oldest(lengths, 512, Costs(overhead_tokens=24)) == [0, 1, 4]
    assert group_of_oldest(lengths, 512, Costs(overhead_tokens=500)) == [0, 1, 4, 2, 3, 5]


def test_what_is_padded_to_one_length_costs_the_same_attention() -> None:
    stepped = Costs(packed=True, step=16)
    assert cost_of([17], stepped) == round(17 + 32**2 / 920)
    assert cost_of([17, 9], stepped) == cost_of([20, 6], stepped)
    assert cost_of([17, 9], stepped) > cost_of([16, 10], stepped)
