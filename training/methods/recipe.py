"""Recipe: a method as a choice of building blocks and numbers, without code of its own.

A block is written as its name, or as a table with its name and its numbers:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from models.graph.head import POOLINGS
from training.methods.heads import HEADS, Head
from training.methods.negatives import NEGATIVES, Noise, Queue
from training.methods.objectives import InfoNCE, NTXent, Objective, PairSoftmax, Triplet
from training.methods.postprocess import POSTS, Post
from training.methods.reading import described
from training.methods.sources import SOURCES, DocumentSpans, Lines
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.twins import TWINS, Ema
from training.methods.views import VIEWS, View

OBJECTIVES = {
    "info_nce": InfoNCE,
    "nt_xent": NTXent,
    "triplet": Triplet,
    "pair_softmax": PairSoftmax,
    "mlm": Mlm,
    "rtd": Rtd,
    "denoise": Denoise,
}
POOLS = (*POOLINGS, "first_last", "static", "mask")
RESULTS = ("encoder", "backbone")
DECAYS = ("linear", "constant")


@dataclass(frozen=True)
class Optim:
    """AdamW. The rate rises over the warmup and then falls linearly to 0, or stays."""

    lr: float
    batch: int  # rows of one step
    warmup: float  # share of the steps
    weight_decay: float  # not of biases and normalisations
    epsilon: float
    clip: float  # the largest norm of a gradient
    decay: str = "linear"
    epochs: int = 1  # how often each row is seen, unless the number of steps is given


@dataclass(frozen=True)
class Recipe:
    name: str
    source: Lines | DocumentSpans
    views: tuple[View, ...]
    pool: str  # of a raw backbone
    head: Head  # of a raw backbone
    objectives: tuple[tuple[float, Objective], ...]  # with their weights; none: nothing is trained
    dropout: float
    max_length: int  # tokens, in training; what is published keeps the base's own
    seed: int
    optim: Optim
    negatives: tuple[Queue | Noise, ...] = ()
    twin: Ema | None = None
    post: tuple[Post, ...] = ()
    fixed_mask: bool = False  # every view has the same dropout mask: SimCSE's ablation
    result: str = "encoder"  # `backbone`: the run's end is a raw one with its masked-language head

    def digest(self) -> str:
        """SHA-256 of what was decided: all but the name and the seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """The recipe as JSON, with every block under its name; without the recipe's own name and seed."""
        return {
            "source": described(self.source, SOURCES),
            "views": [described(view, VIEWS) for view in self.views],
            "pool": self.pool,
            "head": described(self.head, HEADS),
            "objectives": [
                {"weight": weight} | described(objective, OBJECTIVES) for weight, objective in self.objectives
            ],
            "negatives": [described(negatives, NEGATIVES) for negatives in self.negatives],
            "twin": None if self.twin is None else described(self.twin, TWINS),
            "post": [described(post, POSTS) for post in self.post],
            "dropout": self.dropout,
            "fixed_mask": self.fixed_mask,
            "max_length": self.max_length,
            "optim": dataclasses.asdict(self.optim),
            "result": self.result,
        }

    def reads(self, what: str) -> bool:
        """True if an objective reads `what` beside the vectors."""
        return any(what in objective.reads for _, objective in self.objectives)
