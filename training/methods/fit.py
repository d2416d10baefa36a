"""Rules about which building blocks work together. A recipe that cannot work is rejected when it is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training.methods.distillation import KlTeacher
from training.methods.heads import BatchNorm, Plain
from training.methods.negatives import Queue
from training.methods.objectives import InfoNCE, NTXent, PairSoftmax, Triplet
from training.methods.pair_objectives import BceDot, Cosent, CosineMse, HardNce, TwoWay
from training.methods.pieces import Pieces
from training.methods.recipe import Recipe
from training.methods.sources import LabelledPairs, Lines, ScoredLists, ScoredPairs, Triples
from training.methods.token_objectives import Denoise, Mlm, Rtd
from training.methods.twins import Clone, Ema, Frozen
from training.methods.views import Mask, Repeat, Same, Template, View, stands_aside

RULES: list[Callable[[Recipe], None]] = []  # further rules, which raise Unfit (catalogue.register)
_CONTRASTIVE = InfoNCE | NTXent | Triplet | BceDot | TwoWay
_TWO_VIEWS = InfoNCE | NTXent | PairSoftmax | BceDot | TwoWay
# Objectives, the sources that they can read, and a description of those sources.
_NEEDED: tuple[tuple[Any, Any, str], ...] = (
    (KlTeacher, ScoredLists, '"lists", whose documents have scores'),
    (CosineMse | Cosent, ScoredLists | ScoredPairs, '"scored_pairs" or "lists", which have scores'),
    (PairSoftmax | HardNce, LabelledPairs, '"labelled_pairs"'),
)


class Unfit(Exception):
    """Some blocks of a recipe do not work together."""


def check_fit(recipe: Recipe) -> None:
    """Rejects combinations of blocks that cannot work.

    Raises:
        Unfit: Says why, and what would work.

    """
    contrasted: list[View] = [view for view in recipe.views if not stands_aside(view)]
    if recipe.views[: len(contrasted)] != tuple(contrasted):
        raise Unfit("views that stand aside come after those that are contrasted.")
    if recipe.objectives and not contrasted:
        raise Unfit("all views stand aside, and one at least must not.")
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
        raise Unfit('the result "backbone" is what mlm trains; there is no such objective.')
    if recipe.result == "backbone" and recipe.post:
        raise Unfit('the result "backbone" has no vectors that a post-processor could change.')
    if not recipe.objectives and recipe.head.keep:
        raise Unfit("a head that is kept must be trained, and there is no objective.")
    for rule in RULES:
        rule(recipe)


def columns_of(recipe: Recipe) -> int:
    """The number of texts that a row of the recipe's source has: of triples, as many as it has views of."""
    if isinstance(recipe.source, Triples):
        return max(recipe.source.columns, sum(not stands_aside(view) for view in recipe.views))
    return recipe.source.columns


def column_of_each_view(recipe: Recipe) -> list[int]:
    """A source with several texts in a row gives each view its own, in their order; so for those aside."""
    columns = columns_of(recipe)
    aside = [stands_aside(view) for view in recipe.views]
    contrasted = aside.count(False)
    order = [*range(contrasted), *range(aside.count(True))]
    return [place if columns > 1 else 0 for place in order]


def _check_columns(recipe: Recipe, contrasted: list[View]) -> None:
    columns = columns_of(recipe)
    if columns > 1 and recipe.objectives and len(contrasted) != columns:
        raise Unfit(
            f"the source has {columns} texts in a row, and there are {len(contrasted)} views of them."
        )
    if columns > 1 and len(recipe.views) > 2 * columns:
        raise Unfit(f"the source has {columns} texts in a row, and more views than that stand aside.")


def _check_whole(recipe: Recipe) -> None:
    """Check that what is drawn from whole documents, up to the longest row, stays as long as it is."""
    longer = [view.name for view in recipe.views if isinstance(view, Repeat | Template)]
    if recipe.source.whole and longer:
        raise Unfit(
            f'the source "{recipe.source.name}" fills its rows, which a view `{longer[0]}` would make longer.'
        )


def _check_source(recipe: Recipe, objective: object) -> None:
    """Check that the rows say what the objective learns from."""
    source = recipe.source
    for kinds, sources, needed in _NEEDED:
        if isinstance(objective, kinds) and not isinstance(source, sources):
            raise Unfit(f"{objective.name} needs the source {needed}.")
    if not isinstance(objective, _CONTRASTIVE):
        return
    if isinstance(objective, NTXent) and isinstance(source, Triples):
        raise Unfit("nt_xent takes every further view for a positive, and a triple ends with a negative.")
    if isinstance(source, ScoredLists | ScoredPairs):
        raise Unfit(
            "documents of a list are neither right nor wrong, nor are pairs with scores: kl_teacher, "
            "cosine_mse and cosent learn from them."
        )
    if isinstance(source, LabelledPairs):
        raise Unfit(
            "labelled pairs contradict each other as well: pair_softmax and hard_nce learn from them."
        )


def _check_objective(recipe: Recipe, objective: object, contrasted: list[View]) -> None:
    there = f"there are {len(contrasted)}."
    if isinstance(objective, Triplet):
        _check_triplet(objective, len(contrasted))
    if isinstance(objective, _TWO_VIEWS) and len(contrasted) < 2:
        raise Unfit(f"{type(objective).__name__} compares two views; {there}")
    if isinstance(objective, PairSoftmax) and objective.classes < 3:
        raise Unfit("labelled pairs have 3 relations, and pair_softmax must have a class for each.")
    _check_aside(recipe, objective, contrasted)


def _check_aside(recipe: Recipe, objective: object, contrasted: list[View]) -> None:
    """Check the views that an objective reads by their tokens."""
    aside = [view for view in recipe.views if stands_aside(view)]
    if isinstance(objective, Mlm) and not any(isinstance(view, Mask) for view in recipe.views):
        raise Unfit("mlm guesses what a view `mask` hides, and there is none.")
    if isinstance(objective, Rtd) and [type(view) for view in aside] != [Mask] * len(contrasted):
        raise Unfit("rtd needs a view `mask` aside for each view that is contrasted.")
    if isinstance(objective, Rtd) and not all(isinstance(view, Same) for view in contrasted):
        raise Unfit("rtd compares masked views with what they hide: the contrasted views must be `same`.")
    if isinstance(objective, Denoise) and (not aside or not isinstance(aside[-1], Same)):
        raise Unfit('denoise needs the whole text as its last view: { name = "same", aside = true }.')


def _check_triplet(objective: Triplet, count: int) -> None:
    """Check the number of views that are contrasted."""
    if count < (2 if objective.mine else 3):
        raise Unfit(f"triplet compares an anchor, a positive and a negative; there are {count}.")
    if count > 3 and not objective.mine:
        raise Unfit("triplet without `mine` reads one negative of a row: give --negatives 1, or set `mine`.")


def _check_negatives(recipe: Recipe) -> None:
    if recipe.negatives and not any(isinstance(objective, InfoNCE) for objective in recipe.objectives):
        raise Unfit("negatives are for info_nce.")
    queued = any(isinstance(negatives, Queue) for negatives in recipe.negatives)
    if queued != isinstance(recipe.twin, Ema):
        raise Unfit('a queue needs the twin "ema", and that twin is for a queue.')
    if queued and isinstance(recipe.head, BatchNorm):
        raise Unfit(
            "the head \"bn\" gives a queue's vectors other statistics than the batch's: take another."
        )
    if queued and recipe.source.whole:
        raise Unfit("a queue knows texts again by their numbers, and documents are cut anew in each step.")


def _check_twin(recipe: Recipe) -> None:
    if recipe.twin is not None and not recipe.objectives:
        raise Unfit("a twin is for training, and there is no objective.")
    if isinstance(recipe.twin, Frozen) and not recipe.reads("layers"):
        raise Unfit('the twin "frozen" is for self_guided.')
    alone = recipe.fixed_mask or recipe.dropouts or isinstance(recipe.twin, Clone)
    if alone and recipe.reads("hidden"):
        raise Unfit(
            'fixed_mask, dropouts and the twin "clone" encode each view alone; mlm and mi_jsd need more.'
        )


def _check_student(recipe: Recipe) -> None:
    """Check that a student meets its teacher's vectors in the same texts, and in the same space."""
    if not recipe.reads("teacher"):
        return
    if recipe.student is None:
        raise Unfit("vector_mse learns from the base itself: the recipe needs a `student`.")
    if not isinstance(recipe.source, Lines | Pieces):
        raise Unfit('vector_mse needs the source "pieces" or "lines".')
    if any(not isinstance(view, Same) for view in recipe.views) or recipe.twin is not None:
        raise Unfit("a teacher's vectors are of whole texts: the views must be `same`, without a twin.")
    if not isinstance(recipe.head, Plain):
        raise Unfit('a student has the vectors of its base: the head must be "none".')


def _check_templates(recipe: Recipe, contrasted: list[View]) -> None:
    templates = [isinstance(view, Template) for view in contrasted]
    less_bias = any(isinstance(view, Template) and view.less_bias for view in contrasted)
    if (recipe.fixed_mask or recipe.dropouts or isinstance(recipe.twin, Clone)) and less_bias:
        raise Unfit("templates less their bias are encoded together, and this recipe encodes view by view.")
    if len({view.less_bias for view in contrasted if isinstance(view, Template)}) > 1:
        raise Unfit("less_bias is for all templates of a recipe, or for none.")
    if (recipe.pool == "mask") != any(templates) or any(templates) != all(templates):
        raise Unfit('the pool "mask" goes with views `template`, all of them.')
