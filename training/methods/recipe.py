"""Recipe: a method as a choice of building blocks and numbers, without code of its own.

A block is written as its name, or as a table with its name and its numbers:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from models.graph.head import POOLINGS
from training.methods.crops import Cloze, Crops
from training.methods.declared import Named
from training.methods.distillation import KlTeacher
from training.methods.heads import BatchNorm, Plain, Tanh
from training.methods.negatives import Noise, Queue
from training.methods.objectives import InfoNCE, NTXent, PairSoftmax, Triplet
from training.methods.postprocess import DropPcs, Whiten
from training.methods.ranges import AboveZero, Count, Flag, Rate, Share
from training.methods.sources import DocumentSpans, LabelledPairs, Lines, ScoredLists, TextPairs, Triples
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.twins import Ema
from training.methods.views import Crop, Delete, Mask, Repeat, Same, Template

Chosen = Field(discriminator="name")
AnySource = Annotated[
    Lines | TextPairs | Triples | LabelledPairs | ScoredLists | DocumentSpans | Crops | Cloze,
    Chosen,
    Named,
]
AnyView = Annotated[Same | Mask | Repeat | Delete | Crop | Template, Chosen, Named]
AnyHead = Annotated[Plain | Tanh | BatchNorm, Chosen, Named]
AnyObjective = Annotated[
    InfoNCE | NTXent | Triplet | PairSoftmax | KlTeacher | Mlm | Rtd | Denoise, Chosen, Named
]
AnyNegatives = Annotated[Queue | Noise, Chosen, Named]
AnyPost = Annotated[Whiten | DropPcs, Chosen, Named]
if TYPE_CHECKING:
    Pool = str
else:
    Pool = Literal[(*POOLINGS, "first_last", "static", "mask")]


@dataclass(frozen=True)
class Optim:
    """AdamW. The rate rises over the warmup and then falls linearly to 0, or stays."""

    lr: Rate
    batch: Annotated[int, Field(ge=2, le=1 << 20, strict=True)]  # rows of one step
    warmup: Share  # share of the steps
    weight_decay: Share  # not of biases and normalisations
    epsilon: Rate
    clip: AboveZero  # the largest norm of a gradient
    decay: Literal["linear", "constant"] = "linear"
    table_lr: Rate | None = None  # of the word table, where its rows are new and the layers are not
    epochs: Count = 1  # how often each row is seen, unless the number of steps is given
    train_layers: Count | None = None  # the last ones, and the head; with it embeddings and the others stay


@dataclass(frozen=True)
class Recipe:
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    source: AnySource
    views: tuple[AnyView, ...]
    pool: Pool  # of a raw backbone
    head: AnyHead  # of a raw backbone
    objectives: tuple[AnyObjective, ...]  # none: nothing is trained
    dropout: Annotated[float, Field(ge=0, le=0.9, strict=True)]
    max_length: Annotated[int, Field(ge=3, le=1 << 20, strict=True)]  # tokens, in training; not in service
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1, strict=True)]
    optim: Optim
    negatives: tuple[AnyNegatives, ...] = ()
    twin: Annotated[Ema, Named] | None = None
    post: tuple[AnyPost, ...] = ()
    fixed_mask: Flag = False  # every view has the same dropout mask: SimCSE's ablation
    # `backbone`: the run's end is a raw one with its masked-language head
    result: Literal["encoder", "backbone"] = "encoder"

    def digest(self) -> str:
        """SHA-256 of what was decided: all but the name and the seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """The recipe as JSON, with every block under its name; without the recipe's own name and seed."""
        found: dict[str, Any] = RECIPE.dump_python(self, mode="json", exclude={"name", "seed"})
        # Keys that came later are left out where they change nothing: such a recipe keeps its digest.
        if found["source"].get("queries") is False:
            del found["source"]["queries"]
        for key in ("train_layers", "table_lr"):
            if found["optim"][key] is None:
                del found["optim"][key]
        return found

    def reads(self, what: str) -> bool:
        """True if an objective reads `what` beside the vectors."""
        return any(what in objective.reads for objective in self.objectives)


RECIPE = TypeAdapter(Recipe)
