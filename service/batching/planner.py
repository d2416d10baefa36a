"""Which of the waiting texts to embed together.

A batch is computed at the length of its longest text. In a padded graph a short text beside a long one costs
as much as the long one; in one that leaves padding out (models/graph/packing.py) only its attention does, so
batches of many lengths are full, and little is gained by sorting. Either way the waiting texts are sorted by
length and cut into contiguous groups so that the total cost is least; then the group that holds the *oldest*
text is run. So nothing starves, whatever its length, and padding costs little.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

# In tokens of computing: what one more batch costs, and how many pairs of tokens cost as much as a token.
# Passes over 1 to 64 texts of 3 to 256 tokens took 24 + tokens + texts * longest² / 920 times 0.1 ms,
# within 10 %, on one core (AMD EPYC, MiniLM, ONNX Runtime 1.31). The 24 are the reading of the weights.
GROUP_OVERHEAD_TOKENS = 24
ATTENTION_DIVISOR = 920


class Costs(NamedTuple):
    """What batches of one model cost in the form that it is in (sizes.py), in its own tokens of computing."""

    packed: bool = False  # whether its graph leaves padding out
    overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    attention_divisor: int = ATTENTION_DIVISOR
    step: int = 1  # lengths are padded to multiples of this

    def of_place(self, longest: int) -> float:
        """What a text costs for being in a batch with one of this length, whatever its own."""
        padded = -(-longest // self.step) * self.step
        return padded * padded / self.attention_divisor if self.packed else padded


PADDED = Costs()


def cost_of(lengths: Sequence[int], costs: Costs) -> int:
    """What a batch of texts of these lengths costs, in tokens of computing, without its overhead."""
    each = costs.of_place(max(lengths))
    return round((sum(lengths) if costs.packed else 0) + each * len(lengths))


def group_of_oldest(lengths: Sequence[int], budget_tokens: int, costs: Costs = PADDED) -> list[int]:
    """Positions of the texts to embed now, the oldest among them.

    Args:
        lengths: tokens of each waiting text, the oldest text first; at least one.
        budget_tokens: the most that one batch may cost. A text that costs more goes alone.
        costs: of batches of the model that they are for.

    Returns:
        Positions in `lengths`, by rising length.

    """
    if len(lengths) == 1:
        return [0]
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    oldest = order.index(0)
    rising = [lengths[position] for position in order]
    cuts = _cheapest_cuts(rising, budget_tokens, costs)
    for begin, end in pairwise(cuts):
        if begin <= oldest < end:
            return order[begin:end]
    raise AssertionError("the cuts cover every position")


def _cheapest_cuts(lengths: list[int], budget_tokens: int, costs: Costs) -> list[int]:
    """Where to cut the sorted `lengths` so that the groups' total cost is least: 0, …, len(lengths).

    Dynamic programme over the end of the last group: cost[end] = min over begin of
    cost[begin] + overhead + cost of the group.
    """
    cost = [0.0] * (len(lengths) + 1)
    previous = [0] * (len(lengths) + 1)
    for end, longest in enumerate(lengths, start=1):
        each = costs.of_place(longest)
        best, tokens = float("inf"), 0
        for begin in range(end - 1, -1, -1):
            tokens += lengths[begin] if costs.packed else 0
            group = tokens + each * (end - begin)
            if group > budget_tokens and begin < end - 1:
                break
            candidate = cost[begin] + group
            if candidate < best:  # of equals the smaller last group: the oldest text is in a full one
                best, previous[end] = candidate, begin
        cost[end] = best + costs.overhead_tokens
    cuts = [len(lengths)]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return cuts[::-1]
