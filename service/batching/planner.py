"""The plan of a batch: which of the waiting texts it takes, and how large it may be.

A batch is computed at the length of its longest text. In a padded graph a short text beside a long one costs
as much as the long one; in one that leaves padding out (models/graph/packing.py) only its attention does, so
batches of many lengths are full, and little is gained by sorting. Either way the waiting texts are sorted by
length and cut into contiguous groups so that the total cost is least; then the group that holds the *oldest*
text is run. So nothing starves, whatever its length, and padding costs little.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from typing import NamedTuple

from models.encoder import Encoder
from models.engines.form import Precision
from models.engines.place import Place
from models.engines.shapes import rounded

# In tokens of computing: what one more batch costs, and how many pairs of tokens cost as much as a token.
# Passes over 1 to 64 texts of 3 to 256 tokens took 24 + tokens + texts * longest² / 920 times 0.1 ms,
# within 10 %, on one core (AMD EPYC, MiniLM, ONNX Runtime 1.31). The 24 are the reading of the weights.
GROUP_OVERHEAD_TOKENS = 24
ATTENTION_DIVISOR = 920
# Of a batch of a large model. With layers of width 1024 a core computed 128 tokens at 0.96 of the pace of
# 512, and 64 at 0.78 (AMD EPYC, AVX-512).
LEAST_SHARE = 0.25


class Costs(NamedTuple):
    """Costs of batches of one model in the form that it is in, in its own tokens of computing."""

    packed: bool = False  # whether its graph leaves padding out
    overhead_tokens: int = GROUP_OVERHEAD_TOKENS
    attention_divisor: int = ATTENTION_DIVISOR
    step: int = 1  # lengths are padded to multiples of this

    def of_place(self, longest: int) -> float:
        """Cost of a text's place in a batch with one of this length, whatever its own."""
        padded = -(-longest // self.step) * self.step
        return padded * padded / self.attention_divisor if self.packed else padded


PADDED = Costs()
# How many pairs of tokens cost as much as a token in a form, where that is not as in fp32. Attention of int8
# is fp32's, beside linear layers that take 0.39 of the time (docs/PERFORMANCE.md, "int8").
_ATTENTION_DIVISORS: dict[Precision, int] = {"int8": 360}


class Sizes(NamedTuple):
    """Sizes of batches that keep a processor in its cache, or a GPU busy."""

    window: int  # waiting texts that are looked at for one batch: more sorts better, and takes longer to plan
    batch_tokens: int
    small_batch_tokens: int  # of the background lane while interactive work is recent
    overhead_tokens: int  # what one more batch costs, in tokens of computing
    laddered: bool  # whether the engine rounds shapes up (shapes.py)
    light_bytes: float = inf  # of a model up to which a batch may be as large as that

    def budget(self, tokens: int, encoder: Encoder) -> int:
        """Most that a batch of `encoder` may cost, of `tokens` that one of a light model may.

        A worker is busy with one batch for as long as the model is large, and what comes meanwhile waits.
        """
        share = min(1.0, self.light_bytes / max(1, encoder.file_bytes))
        return round(tokens * max(share, LEAST_SHARE))

    def costs(self, encoder: Encoder) -> Costs:
        """Costs of batches of `encoder`, in its form."""
        divisor = _ATTENTION_DIVISORS.get(encoder.form.precision, ATTENTION_DIVISOR)
        return Costs(encoder.packs, self.overhead_tokens, divisor, encoder.step)

    def length(self, tokens: int, longest: int) -> int:
        """The length that a text of so many tokens is computed in, of a model that takes `longest` ones."""
        return rounded(1, tokens, longest)[1] if self.laddered else tokens


# From 256 to 512 tokens a core computes fastest: larger batches leave its cache.
PROCESSOR = Sizes(128, 512, 256, GROUP_OVERHEAD_TOKENS, laddered=False, light_bytes=400_000_000)
# Guesses (docs/GPU.md): a hundred kernels are begun for each batch, in the time of some 500 tokens.
GPU = Sizes(256, 16_384, 4_096, 500, laddered=True)


def sizes_on(place: Place) -> Sizes:
    return GPU if place.device == "cuda" else PROCESSOR


def cost_of(lengths: Sequence[int], costs: Costs) -> int:
    """Cost of a batch of texts of these lengths, in tokens of computing, without its overhead."""
    each = costs.of_place(max(lengths))
    return round((sum(lengths) if costs.packed else 0) + each * len(lengths))


def group_of_oldest(lengths: Sequence[int], budget_tokens: int, costs: Costs = PADDED) -> list[int]:
    """Positions of the texts to embed now, the oldest among them.

    Args:
        lengths: tokens of each waiting text, the oldest text first; at least one.
        budget_tokens: the most that one batch may cost. A text that costs more goes by itself.
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
    """Cuts of the sorted `lengths` that make the groups' total cost least: 0, …, len(lengths).

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
