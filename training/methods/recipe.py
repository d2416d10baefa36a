"""Recipes: TOML files that describe a training method as a combination of building blocks.

A block is written as a name, or as a table with the name and parameters of the block:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]

Start reading at `load_recipe`. `check_fit` rejects blocks that do not work together. `BLOCKS` has the sources
and objectives of this package. `training.papers` registers more of them, and all post-processors.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Protocol, Union

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema, to_jsonable_python

from models.graph.head import POOLINGS
from training.errors import TrainingError
from training.methods.components import (
    BatchNorm,
    Clone,
    Ema,
    Frozen,
    Gelu,
    Noise,
    Plain,
    Queue,
    Relu,
    Tanh,
    Transform,
)
from training.methods.objectives import (
    BceDot,
    Cosent,
    CosineMse,
    HardNce,
    InfoNCE,
    KlTeacher,
    MarginMse,
    NTXent,
    Objective,
    PairSoftmax,
    Triplet,
    TwoWay,
    VectorMse,
)
from training.methods.pair_objectives import ListSoftmax, PairBce, PairObjective, RelationCe, ScoreMse
from training.methods.recipe_files import Named, declared, names_paper_blocks, schema
from training.methods.sources import (
    LabelledPairs,
    Lines,
    Pieces,
    RowSource,
    ScoredLists,
    ScoredPairs,
    TextPairs,
    Triples,
)
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.views import (
    Crop,
    Cutoff,
    Delete,
    Mask,
    Repeat,
    Same,
    Shuffle,
    Template,
    View,
    stands_aside,
)
from training.model.encoder import TrainedEncoder
from training.validation import AboveZero, Count, Flag, Rate, Share, refusal

BLOCKS: dict[str, tuple[type, ...]] = {
    "source": (Lines, Pieces, TextPairs, Triples, LabelledPairs, ScoredPairs, ScoredLists),
    "objectives": (
        *(InfoNCE, NTXent, Triplet, PairSoftmax, KlTeacher, MarginMse, VectorMse),
        *(CosineMse, Cosent, HardNce, BceDot, TwoWay),
        *(Mlm, Rtd, Denoise),
        *(PairBce, ListSoftmax, ScoreMse, RelationCe),
    ),
    "post": (),
}


class Post(Protocol):
    """A post-processor: a change of the encoder's vectors, fitted on texts after or instead of training."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Fits the change and applies it to the encoder.

        Raises:
            TrainingError: The texts are too few or too similar.

        """


class _AnyOf:
    """A pydantic annotation that accepts any block of one kind in `BLOCKS`, selected by name."""

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
    """Settings of the AdamW optimizer and the learning rate schedule (runs/step.py)."""

    lr: Rate
    batch: Annotated[int, Field(ge=2, le=1 << 20, strict=True)]  # rows of one step
    warmup: Share  # share of the steps
    weight_decay: Share  # biases and normalizations have none
    epsilon: Rate
    clip: AboveZero  # maximum norm of a gradient
    decay: Literal["linear", "constant", "slanted"] = "linear"
    table_lr: Rate | None = None  # rate of the word table, if its rows are new and the layers are not
    head_lr: Rate | None = None  # rate of the head and of objectives' own weights, which begin at random
    epochs: Count = 1  # passes over the rows, unless the number of steps is given
    # Trains only the last layers and the head. 0 trains only the weights outside the backbone.
    train_layers: Annotated[int, Field(ge=0, le=1 << 20, strict=True)] | None = None
    train_embeddings: Flag = True  # False freezes all weights before the first layer


@dataclass(frozen=True)
class Student:
    """Settings of a student: a smaller encoder built from the base, its teacher (loading.py)."""

    layers: Annotated[int, Field(ge=0, le=1 << 20, strict=True)]  # layers of the base; 0: a table of tokens


@dataclass(frozen=True)
class Recipe:
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    source: Annotated[RowSource, _AnyOf("source")]
    views: tuple[AnyView, ...]
    pool: Pool  # pooling of a raw backbone
    head: AnyHead  # head of a raw backbone
    objectives: tuple[Annotated[Objective, _AnyOf("objectives")], ...]  # empty: no training
    dropout: Dropout
    max_length: Annotated[int, Field(ge=3, le=1 << 20, strict=True)]  # tokens, in training; not in service
    seed: Annotated[int, Field(ge=0, le=(1 << 63) - 1, strict=True)]
    optim: Optim
    negatives: tuple[AnyNegatives, ...] = ()
    twin: AnyTwin | None = None
    post: tuple[Annotated[Post, _AnyOf("post")], ...] = ()
    student: Student | None = None  # trained instead of the base
    fixed_mask: Flag = False  # every view has the same dropout mask: SimCSE's ablation
    # Replaces `dropout`: in each step, each view draws one of these rates for each place with dropout.
    dropouts: tuple[Dropout, ...] = ()
    # `backbone` writes a raw backbone with its masked-language head, `reranker` a cross-encoder.
    result: Literal["encoder", "backbone", "reranker"] = "encoder"

    def digest(self) -> str:
        """Returns the SHA-256 of all settings except the recipe's name and seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """Returns the recipe as JSON values, without `name`, `seed`, and newer keys that have the default."""
        found: dict[str, Any] = to_jsonable_python(asdict(self))
        del found["name"], found["seed"]
        # Newer keys are left out at their defaults, so that older recipes keep their digests.
        for table, key, default in (
            (found["source"], "queries", False),
            (found["source"], "near", "any"),
            (found["source"], "teacher", "search"),
            (found["optim"], "train_layers", None),
            (found["optim"], "train_embeddings", True),
            (found["optim"], "table_lr", None),
            (found["optim"], "head_lr", None),
            (found, "dropouts", []),
            (found, "student", None),
            *((block, "generator", "") for block in found["objectives"]),
            *((block, "teacher_tau", None) for block in found["objectives"]),
            *((block, "centred", True) for block in found["post"]),
            *((block, "by_share", False) for block in found["post"]),
        ):
            if table.get(key) == default:
                table.pop(key, None)
        # The meaning of these keys has changed: earlier runs count as runs of another recipe.
        if self.dropouts:
            found["dropouts_of"] = "each place"
        if self.pool.startswith("static"):
            found["pool_of"] = "words"
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the scores of a cross-encoder, if a pair has several."""
        return next((each.labels for each in self.objectives if isinstance(each, PairObjective)), ())

    @property
    def outputs(self) -> int:
        """The number of scores of a pair of texts."""
        return max(1, len(self.labels))

    def reads(self, what: str) -> bool:
        """Returns True if an objective reads `what`, such as "hidden", in addition to the vectors."""
        return any(what in objective.reads for objective in self.objectives)


@cache
def recipe_type() -> TypeAdapter[Recipe]:
    """Returns the pydantic validator of recipes, which knows all registered blocks."""
    return TypeAdapter(Recipe)


RULES: list[Callable[[Recipe], None]] = []  # further rules, which raise Unfit; see `register`
_CONTRASTIVE = InfoNCE | NTXent | Triplet | BceDot | TwoWay
_TWO_VIEWS = InfoNCE | NTXent | PairSoftmax | BceDot | TwoWay
# Objectives, the sources that they can read, and a description of those sources.
_NEEDED: tuple[tuple[Any, Any, str], ...] = (
    (KlTeacher | MarginMse, ScoredLists, '"lists", whose documents have scores'),
    (CosineMse | Cosent, ScoredLists | ScoredPairs, '"scored_pairs" or "lists", which have scores'),
    (PairSoftmax | HardNce | RelationCe, LabelledPairs, '"labelled_pairs"'),
    (ScoreMse, ScoredLists | ScoredPairs, '"scored_pairs" or "lists", which have scores'),
    (PairBce | ListSoftmax, Triples, '"triples"'),
)


class Unfit(Exception):
    """Raised if some blocks of a recipe do not work together."""


def check_fit(recipe: Recipe) -> None:
    """Rejects combinations of blocks that cannot work.

    Raises:
        Unfit: Two blocks do not work together. The message says why, and what would work.

    """
    contrasted: list[View] = [view for view in recipe.views if not stands_aside(view)]
    if recipe.views[: len(contrasted)] != tuple(contrasted):
        raise Unfit("views that stand aside come after those that are contrasted.")
    if recipe.objectives and not contrasted:
        raise Unfit("all views stand aside, and at least one must be contrasted.")
    _check_reranker(recipe)
    _check_columns(recipe, contrasted)
    _check_whole(recipe)
    for objective in recipe.objectives:
        _check_source(recipe, objective)
        _check_objective(recipe, objective, contrasted)
    _check_negatives(recipe)
    _check_twin(recipe)
    if recipe.optim.table_lr and not recipe.optim.train_embeddings:
        raise Unfit("optim.table_lr is the rate of embeddings, and train_embeddings = false keeps those.")
    _check_student(recipe)
    _check_templates(recipe, contrasted)
    if recipe.result == "backbone" and not any(isinstance(objective, Mlm) for objective in recipe.objectives):
        raise Unfit('the result "backbone" needs the objective mlm, which trains it.')
    if recipe.result == "backbone" and recipe.post:
        raise Unfit('the result "backbone" has no vectors that a post-processor could change.')
    if not recipe.objectives and recipe.head.keep:
        raise Unfit("a head that is kept must be trained, and the recipe has no objective.")
    for rule in RULES:
        rule(recipe)


def count_columns(recipe: Recipe) -> int:
    """Returns the number of texts or pairs in each row.

    A row of triples has one text per contrasted view. For a cross-encoder, a row has the pairs of its first
    text with each of the others.
    """
    columns = recipe.source.columns - (recipe.result == "reranker")
    if isinstance(recipe.source, Triples):
        return max(columns, sum(not stands_aside(view) for view in recipe.views))
    return columns


def column_of_each_view(recipe: Recipe) -> list[int]:
    """Returns for each view the column of the text that the view is made from.

    The contrasted views get the texts of a row in order. So do the views that stand aside (views.py). If a
    row has only one text, all views get this text.
    """
    columns = count_columns(recipe)
    aside = [stands_aside(view) for view in recipe.views]
    contrasted = aside.count(False)
    order = [*range(contrasted), *range(aside.count(True))]
    return [place if columns > 1 else 0 for place in order]


def _check_columns(recipe: Recipe, contrasted: list[View]) -> None:
    columns = count_columns(recipe)
    if columns > 1 and recipe.objectives and len(contrasted) != columns:
        raise Unfit(
            f"the source has {columns} texts in a row, and the recipe {len(contrasted)} views of them."
        )
    if columns > 1 and len(recipe.views) > 2 * columns:
        raise Unfit(f"the source has {columns} texts in a row, and more views than that stand aside.")


def _check_whole(recipe: Recipe) -> None:
    """Rejects views that lengthen texts if the source fills each row up to the maximum length."""
    longer = [view.name for view in recipe.views if isinstance(view, Repeat | Template)]
    if recipe.source.whole and longer:
        raise Unfit(
            f'the source "{recipe.source.name}" fills its rows, which a view `{longer[0]}` would make longer.'
        )


def _check_source(recipe: Recipe, objective: object) -> None:
    """Checks that the source has the data that an objective needs, such as labels or scores."""
    source = recipe.source
    for kinds, sources, needed in _NEEDED:
        if isinstance(objective, kinds) and not isinstance(source, sources):
            raise Unfit(f"{objective.name} needs the source {needed}.")
    if not isinstance(objective, _CONTRASTIVE):
        return
    if isinstance(objective, NTXent) and isinstance(source, Triples):
        raise Unfit("nt_xent uses every further view as a positive, and a triple ends with a negative.")
    if isinstance(source, ScoredLists | ScoredPairs):
        raise Unfit(
            "documents of a list are neither right nor wrong, nor are pairs with scores: kl_teacher, "
            "margin_mse, cosine_mse and cosent learn from them."
        )
    if isinstance(source, LabelledPairs):
        raise Unfit(
            "labelled pairs contradict each other as well: pair_softmax and hard_nce learn from them."
        )


def _check_objective(recipe: Recipe, objective: object, contrasted: list[View]) -> None:
    given = f"the recipe has {len(contrasted)}."
    if isinstance(objective, Triplet) and len(contrasted) < (2 if objective.mine else 3):
        raise Unfit(f"triplet compares an anchor, a positive and a negative; {given}")
    if isinstance(objective, Triplet) and len(contrasted) > 3 and not objective.mine:
        raise Unfit("triplet without `mine` reads one negative of a row: give --negatives 1, or set `mine`.")
    if isinstance(objective, _TWO_VIEWS) and len(contrasted) < 2:
        raise Unfit(f"{type(objective).__name__} compares two views; {given}")
    if isinstance(objective, PairSoftmax) and objective.classes < 3:
        raise Unfit("labelled pairs have 3 relations, and pair_softmax must have a class for each.")
    _check_aside(recipe, objective, contrasted)


def _check_aside(recipe: Recipe, objective: object, contrasted: list[View]) -> None:
    """Checks that the recipe has the views whose tokens an objective reads."""
    aside = [view for view in recipe.views if stands_aside(view)]
    if isinstance(objective, Mlm) and not any(isinstance(view, Mask) for view in recipe.views):
        raise Unfit("mlm needs a view `mask`: it guesses the hidden tokens.")
    if isinstance(objective, Rtd) and [type(view) for view in aside] != [Mask] * len(contrasted):
        raise Unfit("rtd needs a view `mask` aside for each view that is contrasted.")
    if isinstance(objective, Rtd) and not all(isinstance(view, Same) for view in contrasted):
        raise Unfit("rtd compares masked views with the hidden tokens: the contrasted views must be `same`.")
    if isinstance(objective, Denoise) and (not aside or not isinstance(aside[-1], Same)):
        raise Unfit('denoise needs the whole text as its last view: { name = "same", aside = true }.')


def _check_negatives(recipe: Recipe) -> None:
    if recipe.negatives and not any(isinstance(objective, InfoNCE) for objective in recipe.objectives):
        raise Unfit("negatives are for info_nce.")
    queued = any(isinstance(negatives, Queue) for negatives in recipe.negatives)
    if queued != isinstance(recipe.twin, Ema):
        raise Unfit('a queue needs the twin "ema", and that twin is for a queue.')
    if queued and isinstance(recipe.head, BatchNorm):
        raise Unfit(
            "the head \"bn\" gives a queue's vectors other statistics than the batch's: use another head."
        )
    if queued and recipe.source.whole:
        raise Unfit("a queue recognizes texts by their numbers, and documents are cut again in each step.")


def _check_twin(recipe: Recipe) -> None:
    if recipe.twin is not None and not recipe.objectives:
        raise Unfit("a twin is for training, and the recipe has no objective.")
    if isinstance(recipe.twin, Frozen) and not recipe.reads("layers"):
        raise Unfit('the twin "frozen" is for self_guided.')
    alone = recipe.fixed_mask or recipe.dropouts or isinstance(recipe.twin, Clone)
    if alone and recipe.reads("hidden"):
        raise Unfit(
            'fixed_mask, dropouts and the twin "clone" encode each view by itself; mlm and mi_jsd need more.'
        )


def _check_student(recipe: Recipe) -> None:
    """Checks that student and teacher encode the same texts into vectors of the same space."""
    if not recipe.reads("teacher"):
        return
    if recipe.student is None:
        raise Unfit("vector_mse learns from the base itself: the recipe needs a `student`.")
    if not isinstance(recipe.source, Lines | Pieces):
        raise Unfit('vector_mse needs the source "pieces" or "lines".')
    if any(not isinstance(view, Same) for view in recipe.views) or recipe.twin is not None:
        raise Unfit("a teacher has vectors of whole texts: the views must be `same`, without a twin.")
    if not isinstance(recipe.head, Plain):
        raise Unfit('a student has the vectors of its base: the head must be "none".')


def _check_reranker(recipe: Recipe) -> None:
    """Checks that the objectives of a cross-encoder have a cross-encoder, which encodes no single texts."""
    pairs = [isinstance(objective, PairObjective) for objective in recipe.objectives]
    if any(pairs) != (recipe.result == "reranker") or (any(pairs) and not all(pairs)):
        raise Unfit(
            "pair_bce, list_softmax, score_mse and relation_ce score pairs of texts: they need the result "
            '"reranker", which takes no other objective.'
        )
    if not any(pairs):
        return
    if len({len(getattr(objective, "labels", ())) for objective in recipe.objectives}) > 1:
        raise Unfit("relation_ce has three scores of a pair, and the other objectives have one.")
    plain = all(isinstance(view, Same) and not view.aside for view in recipe.views)
    if not plain or not isinstance(recipe.head, Plain) or recipe.pool != "cls":
        raise Unfit('a reranker has its own head: the views must be "same", pool "cls" and head "none".')
    encoders = ("negatives", "twin", "post", "student", "fixed_mask", "dropouts")
    if given := next((key for key in encoders if getattr(recipe, key)), ""):
        raise Unfit(f"{given} is for encoders, not for a reranker.")
    optim = recipe.optim
    if optim.head_lr or optim.table_lr or optim.train_layers is not None:
        raise Unfit("optim.head_lr, table_lr and train_layers are for encoders, not for a reranker.")


def _check_templates(recipe: Recipe, contrasted: list[View]) -> None:
    templates = [isinstance(view, Template) for view in contrasted]
    less_bias = any(isinstance(view, Template) and view.less_bias for view in contrasted)
    if (recipe.fixed_mask or recipe.dropouts or isinstance(recipe.twin, Clone)) and less_bias:
        raise Unfit("templates less their bias are encoded together, and this recipe encodes view by view.")
    if len({view.less_bias for view in contrasted if isinstance(view, Template)}) > 1:
        raise Unfit("less_bias is for all templates of a recipe, or for none.")
    if (recipe.pool == "mask") != any(templates) or any(templates) != all(templates):
        raise Unfit('the pool "mask" goes with views `template`, all of them.')


def register(rule: Callable[[Recipe], None], **blocks: tuple[type, ...]) -> None:
    """Registers blocks of another package, so that recipes may name them.

    Args:
        rule: A function that raises Unfit for a recipe whose blocks do not work together.
        blocks: Classes of blocks by kind. A kind is a key of `BLOCKS`.

    """
    RULES.append(rule)
    for kind, classes in blocks.items():
        BLOCKS[kind] += classes
    recipe_type.cache_clear()


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Loads a recipe, either a shipped recipe or a TOML file.

    Args:
        name: Name of a shipped recipe, or path of a TOML file.
        changes: Values to change, by key. `optim.lr` is the key `lr` of the table `optim`.

    Raises:
        TrainingError: The recipe does not exist or is invalid.

    """
    table = declared(name, changes)
    if names_paper_blocks(table):
        import_module("training.papers.blocks")  # registers its blocks
    name = table["name"]
    try:
        recipe = recipe_type().validate_python(table)
        check_fit(recipe)
    except ValidationError as error:  # the schema cannot express every check
        raise refusal(error, schema(), f"The recipe {name}", "the recipe") from None
    except Unfit as error:
        raise TrainingError(f"The recipe {name}: {error}") from None
    return recipe


def fitted(recipe: Recipe, columns: int) -> Recipe:
    """Returns the recipe with one contrasted view for each text of a row.

    Every negative after the first gets the same view as the first negative. Recipes that do not read triples
    are not changed.

    Args:
        recipe: The recipe.
        columns: Number of texts in each row of the corpus.

    Raises:
        TrainingError: The recipe cannot use that many texts per row.

    """
    columns -= recipe.result == "reranker"
    if not isinstance(recipe.source, Triples) or not recipe.objectives or count_columns(recipe) == columns:
        return recipe
    aside = [view for view in recipe.views if stands_aside(view)]
    of_row = [view for view in recipe.views if not stands_aside(view)][:columns]
    changed = replace(recipe, views=(*of_row, *[of_row[-1]] * (columns - len(of_row)), *aside))
    try:
        check_fit(changed)
    except Unfit as error:
        raise TrainingError(f"The recipe {recipe.name}: {error}") from None
    return changed
