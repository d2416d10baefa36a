"""How large a batch is: what keeps a processor in its cache, and what keeps a GPU busy."""

from typing import NamedTuple

from models.encoder import Encoder
from models.engines.form import Precision
from models.engines.place import Place
from models.engines.shapes import rounded
from service.batching.planner import ATTENTION_DIVISOR, GROUP_OVERHEAD_TOKENS, Costs

# How many pairs of tokens cost as much as a token in a form, where that is not as in fp32. Attention of int8
# is fp32's, beside linear layers that take 0.39 of the time (docs/PERFORMANCE.md, "int8").
_ATTENTION_DIVISORS: dict[Precision, int] = {"int8": 360}


class Sizes(NamedTuple):
    window: int  # waiting texts that are looked at for one batch: more sorts better, and takes longer to plan
    batch_tokens: int
    small_batch_tokens: int  # of the background lane while interactive work is about
    overhead_tokens: int  # what one more batch costs, in tokens of computing
    laddered: bool  # whether the engine rounds shapes up (shapes.py)

    def costs(self, encoder: Encoder) -> Costs:
        """What batches of `encoder` cost, in its form."""
        divisor = _ATTENTION_DIVISORS.get(encoder.form.precision, ATTENTION_DIVISOR)
        return Costs(encoder.packs, self.overhead_tokens, divisor, encoder.step)

    def length(self, tokens: int, longest: int) -> int:
        """The length that a text of so many tokens is computed in, of a model that takes `longest` ones."""
        return rounded(1, tokens, longest)[1] if self.laddered else tokens


# From 256 to 512 tokens a core computes fastest: larger batches leave its cache.
PROCESSOR = Sizes(128, 512, 256, GROUP_OVERHEAD_TOKENS, laddered=False)
# Guesses (docs/GPU.md): a hundred kernels are begun for each batch, in the time of some 500 tokens.
GPU = Sizes(256, 16_384, 4_096, 500, laddered=True)


def sizes_on(place: Place) -> Sizes:
    return GPU if place.device == "cuda" else PROCESSOR
