"""Plans a batch: which pending texts it contains, and how large it may be. Start at `group_of_oldest`.

In a padded graph each text of a batch costs as much as the longest. In a packed graph
(models/graph/blocks.py) only its attention does. The planner sorts the pending texts by length and cuts them
into groups of least total cost. The group with the oldest text comes first, so no text starves.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from models.engines.form import Place, Precision
from models.engines.shapes import rounded
from models.open_version import OpenVersion

# The fixed cost of a batch in tokens, and the number of token pairs whose attention costs as much as a token.
# Passes over 1 to 64 texts of 3 to 256 tokens took (24 + tokens + texts * longest² / 920) * 0.1 ms, within
# 10 %, on one core (AMD EPYC, MiniLM, ONNX Runtime 1.31). Reading the weights costs the 24 tokens.
GROUP_OVERHEAD_TOKENS = 24
ATTENTION_DIVISOR = 920
# Smallest share of the budget for a large model. With layers of width 1024 a core computed 128 tokens at 0.96
# of the pace of 512 tokens, and 64 at 0.78 (AMD EPYC, AVX-512).
MIN_SHARE = 0.25


class Costs(NamedTuple):
    """Costs of a model's batches. The unit is the time in which the model computes one token."""

    packed: bool = False  # The graph computes no padding.
    overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    attention_divisor: int = ATTENTION_DIVISOR
    step: int = 1  # Lengths are padded to multiples of this.

    def of_place(self, longest: int) -> float:
        """Returns the cost of each text in a batch whose longest text has `longest` tokens.

        In a packed graph, this is only the attention.
        """
        padded = -(-longest // self.step) * self.step
        return padded * padded / self.attention_divisor if self.packed else padded


PADDED = Costs()
# Linear layers are faster than in fp32, and attention is hardly so. With 64 clients, the service's batches
# took 9 to 16 % less time in int8 than with 360, which the speed of linear layers on a processor without AMX
# suggests (two processors of an Intel Xeon with AMX, eight turns).
_ATTENTION_DIVISORS: dict[Precision, int] = {"int8": 80, "bf16": 300}


class Sizes(NamedTuple):
    """Sizes of batches that fit a processor's cache or keep a GPU busy."""

    window: int  # Pending texts per plan. More texts sort better but take longer to plan.
    batch_tokens: int
    small_batch_tokens: int  # for the other lanes while interactive work is recent
    overhead_tokens: int  # fixed cost of a batch
    laddered: bool = False  # The engine rounds shapes up (shapes.py).
    batches_at_once: float = inf  # More would only be smaller.
    ahead: int = 0  # Texts that are tokenized while all these batches are taken.
    light_bytes: float = inf  # Larger models get smaller batches.

    def budget(self, tokens: int, encoder: OpenVersion) -> int:
        """Returns the largest cost of a batch of `encoder`, if `tokens` is the limit for a light model.

        Batches of large models are smaller, because new calls wait for running batches.
        """
        share = min(1.0, self.light_bytes / max(1, encoder.file_bytes))
        return round(tokens * max(share, MIN_SHARE))

    def costs(self, encoder: OpenVersion) -> Costs:
        divisor = _ATTENTION_DIVISORS.get(encoder.form.precision, ATTENTION_DIVISOR)
        return Costs(encoder.packs, self.overhead_tokens, divisor, encoder.step)

    def length(self, tokens: int, longest: int) -> int:
        return rounded(1, tokens, longest)[1] if self.laddered else tokens


# A core is fastest with 256 to 512 tokens. Larger batches exceed its cache.
PROCESSOR = Sizes(128, 512, 256, GROUP_OVERHEAD_TOKENS, light_bytes=400_000_000)
# While one batch is computed, the next is uploaded. The 500 tokens are an estimate of the time that launching
# a batch's hundred kernels takes.
GPU = Sizes(256, 16_384, 4_096, 500, laddered=True, batches_at_once=2, ahead=1024)


def sizes_on(place: Place) -> Sizes:
    return GPU if place.device == "cuda" else PROCESSOR


def compute_cost(lengths: Sequence[int], costs: Costs) -> int:
    """Returns the cost of a batch of texts of these lengths, without its fixed cost."""
    each = costs.of_place(max(lengths))
    return round((sum(lengths) if costs.packed else 0) + each * len(lengths))


def group_of_oldest(lengths: Sequence[int], budget_tokens: int, costs: Costs = PADDED) -> list[int]:
    """Chooses the texts of the next batch, which include the oldest text.

    Args:
        lengths: Tokens of each pending text, oldest first. At least one.
        budget_tokens: Largest cost of a batch. A text that costs more forms a batch by itself.
        costs: Costs of the model.

    Returns:
        Positions in `lengths`, sorted by length.

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
    """Returns the cuts 0, …, len(lengths) of the sorted `lengths` with the least total cost.

    Dynamic programming: cost[end] = min over begin of cost[begin] + overhead + cost of the group.
    """
    cost = [0.0] * (len(lengths) + 1)
    previous = [0] * (len(lengths) + 1)
    computed = lengths if costs.packed else [0] * len(lengths)
    for end, longest in enumerate(lengths, start=1):
        each = costs.of_place(longest)
        best, group = inf, 0.0
        for begin in range(end - 1, -1, -1):
            group += computed[begin] + each
            if group > budget_tokens and begin < end - 1:
                break
            candidate = cost[begin] + group
            if candidate < best:  # Ties keep the smaller last group.
                best, previous[end] = candidate, begin
        cost[end] = best + costs.overhead_tokens
    cuts = [len(lengths)]
    while cuts[-1]:
        cuts.append(previous[cuts[-1]])
    return cuts[::-1]
