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
from training.methods.distillation import KlTeacher, VectorMse
from training.methods.flow import Flow
from training.methods.guided_objectives import Anchor, Neighbours, SelfGuided
from training.methods.heads import BatchNorm, Gelu, Plain, Relu, Tanh, Transform
from training.methods.negatives import Noise, Queue
from training.methods.objectives import InfoNCE, NTXent, PairSoftmax, Triplet
from training.methods.ordered import OrderedSentences
from training.methods.pair_objectives import BceDot, Cosent, CosineMse, HardNce, TwoWay
from training.methods.pieces import Pieces
from training.methods.postprocess import DropPcs, Whiten
from training.methods.ranges import AboveZero, Count, Flag, Rate, Share
from training.methods.sources import LabelledPairs, Lines, ScoredLists, ScoredPairs, TextPairs, Triples
from training.methods.spans import DocumentSpans
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.twins import Clone, Ema, Frozen
from training.methods.views import Crop, Cutoff, Delete, Mask, Repeat, Same, Shuffle, Template
from training.methods.word_objectives import MiJsd, WordCe
from training.methods.word_weights import Sif, Usif

Chosen = Field(discriminator="name")
AnySource = Annotated[
    Lines
    | Pieces
    | TextPairs
    | Triples
    | LabelledPairs
    | ScoredPairs
    | ScoredLists
    | OrderedSentences
    | DocumentSpans
    | Crops
    | Cloze,
    Chosen,
    Named,
]
AnyView = Annotated[Same | Mask | Repeat | Delete | Crop | Template | Cutoff | Shuffle, Chosen, Named]
AnyHead = Annotated[Plain | Tanh | BatchNorm | Relu | Gelu | Transform, Chosen, Named]
_OverVectors = InfoNCE | NTXent | Triplet | PairSoftmax | KlTeacher | VectorMse
_OverPairs = CosineMse | Cosent | HardNce | BceDot | TwoWay
_Guided = SelfGuided | Neighbours | Anchor
_OverTokens = Mlm | Rtd | Denoise | WordCe | MiJsd
AnyObjective = Annotated[_OverVectors | _OverPairs | _Guided | _OverTokens, Chosen, Named]
AnyNegatives = Annotated[Queue | Noise, Chosen, Named]
AnyTwin = Annotated[Ema | Clone | Frozen, Chosen, Named]
AnyPost = Annotated[Whiten | DropPcs | Flow | Sif | Usif, Chosen, Named]
if TYPE_CHECKING:
    Pool = str
else:
    Pool = Literal[(*POOLINGS, "first_last", "top2", "static", "static_max", "static_power", "mask")]


Dropout = Annotated[float, Field(ge=0, le=0.9, strict=True)]


@dataclass(frozen=True)
class Optim:
    """AdamW. The rate rises over the warmup and then falls linearly to 0, or stays (runs/optimizer.py)."""

    lr: Rate
    batch: Annotated[int, Field(ge=2, le=1 << 20, strict=True)]  # rows of one step
    warmup: Share  # share of the steps
    weight_decay: Share  # not of biases and normalisations
    epsilon: Rate
    clip: AboveZero  # the largest norm of a gradient
    decay: Literal["linear", "constant", "slanted"] = "linear"
    table_lr: Rate | None = None  # of the word table, where its rows are new and the layers are not
    head_lr: Rate | None = None  # of the head and of objectives' own weights, which begin at random
    epochs: Count = 1  # how often each row is seen, unless the number of steps is given
    # The last ones, and the head; with it embeddings and the others stay. 0: what stands beside the backbone
    train_layers: Annotated[int, Field(ge=0, le=1 << 20, strict=True)] | None = None
    train_embeddings: Flag = True  # or: all that stands before the first layer keeps its values


@dataclass(frozen=True)
class Student:
    """A smaller encoder made of the base, which is its teacher (model/student.py)."""

    layers: Annotated[int, Field(ge=0, le=1 << 20, strict=True)]  # of the base's; 0: a table of tokens


@dataclass(frozen=True)
class Recipe:
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    source: AnySource
    views: tuple[AnyView, ...]
    pool: Pool  # of a raw backbone
    head: AnyHead  # of a raw backbone
    objectives: tuple[AnyObjective, ...]  # none: nothing is trained
    dropout: Dropout
    max_length: Annotated[int, Field(ge=3, le=1 << 20, strict=True)]  # tokens, in training; not in service
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1, strict=True)]
    optim: Optim
    negatives: tuple[AnyNegatives, ...] = ()
    twin: AnyTwin | None = None
    post: tuple[AnyPost, ...] = ()
    student: Student | None = None  # trained in the base's place
    fixed_mask: Flag = False  # every view has the same dropout mask: SimCSE's ablation
    dropouts: tuple[
        Dropout, ...
    ] = ()  # rates that each view draws in each step, one for each place with dropout, instead of `dropout`
    # `backbone`: the run's end is a raw one with its masked-language head
    result: Literal["encoder", "backbone"] = "encoder"

    def digest(self) -> str:
        """SHA-256 of what was decided: all but the name and the seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """The recipe as JSON, with every block under its name; without the recipe's own name and seed."""
        found: dict[str, Any] = RECIPE.dump_python(self, mode="json", exclude={"name", "seed"})
        # Keys that came later are left out where they change nothing: such a recipe keeps its digest.
        for table, key, default in (
            (found["source"], "queries", False),
            (found["source"], "near", "any"),
            (found["optim"], "train_layers", None),
            (found["optim"], "train_embeddings", True),
            (found["optim"], "table_lr", None),
            (found["optim"], "head_lr", None),
            (found, "dropouts", []),
            (found, "student", None),
            *((block, "generator", "") for block in found["objectives"]),
            *((block, "centred", True) for block in found["post"]),
            *((block, "by_share", False) for block in found["post"]),
        ):
            if table.get(key) == default:
                table.pop(key, None)
        # What these mean has changed, so that a run of before is one of another recipe.
        if self.dropouts:
            found["dropouts_of"] = "each place"
        if self.pool.startswith("static"):
            found["pool_of"] = "words"
        return found

    def reads(self, what: str) -> bool:
        """True if an objective reads `what` beside the vectors."""
        return any(what in objective.reads for objective in self.objectives)


RECIPE = TypeAdapter(Recipe)
