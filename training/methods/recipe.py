"""Recipe: a method as a choice of building blocks and numbers, without code of its own.

A block is written as its name, or as a table with its name and its numbers:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]

The sources and objectives of `BLOCKS` are those of the product. `training.papers` adds more, and all
post-processors (catalogue.py).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Union

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreSchema, core_schema, to_jsonable_python

from models.graph.head import POOLINGS
from training.methods.declared import Named
from training.methods.distillation import KlTeacher, VectorMse
from training.methods.heads import BatchNorm, Gelu, Plain, Relu, Tanh, Transform
from training.methods.negatives import Noise, Queue
from training.methods.objectives import InfoNCE, NTXent, Objective, PairSoftmax, Triplet
from training.methods.pair_objectives import BceDot, Cosent, CosineMse, HardNce, TwoWay
from training.methods.pieces import Pieces
from training.methods.ranges import AboveZero, Count, Flag, Rate, Share
from training.methods.sources import (
    LabelledPairs,
    Lines,
    RowSource,
    ScoredLists,
    ScoredPairs,
    TextPairs,
    Triples,
)
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.twins import Clone, Ema, Frozen
from training.methods.views import Crop, Cutoff, Delete, Mask, Repeat, Same, Shuffle, Template
from training.model.encoder import TrainedEncoder

BLOCKS: dict[str, tuple[type, ...]] = {
    "source": (Lines, Pieces, TextPairs, Triples, LabelledPairs, ScoredPairs, ScoredLists),
    "objectives": (
        *(InfoNCE, NTXent, Triplet, PairSoftmax, KlTeacher, VectorMse),
        *(CosineMse, Cosent, HardNce, BceDot, TwoWay),
        *(Mlm, Rtd, Denoise),
    ),
    "post": (),
}


class Post(Protocol):
    """A change of the encoder that is fitted on the texts after training, or instead of it."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Fits the change and applies it to the encoder.

        Raises:
            TrainingError: The texts are too few or too similar.

        """


class _AnyOf:
    """Validates a field as any block of one kind of `BLOCKS`, chosen by its name."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __get_pydantic_core_schema__(self, _type: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        blocks = BLOCKS[self._kind]
        if not blocks:  # no recipe can name one
            return core_schema.none_schema()
        return handler.generate_schema(Annotated[Union[blocks], Chosen, Named])  # noqa: UP007  a tuple


Chosen = Field(discriminator="name")
AnyView = Annotated[Same | Mask | Repeat | Delete | Crop | Template | Cutoff | Shuffle, Chosen, Named]
AnyHead = Annotated[Plain | Tanh | BatchNorm | Relu | Gelu | Transform, Chosen, Named]
AnyNegatives = Annotated[Queue | Noise, Chosen, Named]
AnyTwin = Annotated[Ema | Clone | Frozen, Chosen, Named]
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
    source: Annotated[RowSource, _AnyOf("source")]
    views: tuple[AnyView, ...]
    pool: Pool  # of a raw backbone
    head: AnyHead  # of a raw backbone
    objectives: tuple[Annotated[Objective, _AnyOf("objectives")], ...]  # none: nothing is trained
    dropout: Dropout
    max_length: Annotated[int, Field(ge=3, le=1 << 20, strict=True)]  # tokens, in training; not in service
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1, strict=True)]
    optim: Optim
    negatives: tuple[AnyNegatives, ...] = ()
    twin: AnyTwin | None = None
    post: tuple[Annotated[Post, _AnyOf("post")], ...] = ()
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
        found: dict[str, Any] = to_jsonable_python(asdict(self))
        del found["name"], found["seed"]
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


@cache
def recipe_type() -> TypeAdapter[Recipe]:
    """Returns the validator of recipes with all blocks that are registered."""
    return TypeAdapter(Recipe)
