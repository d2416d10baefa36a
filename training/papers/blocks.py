"""Register the blocks of this package. `load_recipe` imports this module if a recipe names such a block.

`check_fit` rejects blocks of this package that do not work together.
"""

from __future__ import annotations

from training.methods.components import Frozen
from training.methods.objectives import InfoNCE, Triplet
from training.methods.recipe import Recipe, Unfit, register
from training.methods.sources import TextPairs
from training.methods.views import stands_aside
from training.papers.crops import Cloze, Crops, OrderedSentences
from training.papers.flow import Flow
from training.papers.objectives import Anchor, MiJsd, Neighbors, SelfGuided, WordCe
from training.papers.postprocess import DropPcs, Sif, Usif, Whiten
from training.papers.spans import DocumentSpans


def check_fit(recipe: Recipe) -> None:
    """Rejects combinations of blocks that cannot work.

    Raises:
        Unfit: Two blocks do not work together. The message names a block and what it needs.

    """
    if isinstance(recipe.source, DocumentSpans):
        _check_spans(recipe, recipe.source)
    views = sum(not stands_aside(view) for view in recipe.views)
    for objective in recipe.objectives:
        if isinstance(objective, Neighbors) and not isinstance(recipe.source, OrderedSentences):
            raise Unfit('neighbours needs the source "sentences", which has them in their order.')
        if isinstance(objective, Neighbors) and views < 2:
            raise Unfit(f"Neighbours compares two views; the recipe has {views}.")
        if isinstance(objective, WordCe) and not isinstance(recipe.source, TextPairs):
            raise Unfit('word_ce needs the source "pairs": a definition and the word that it defines.')
        if isinstance(objective, SelfGuided) and (not isinstance(recipe.twin, Frozen) or views != 1):
            raise Unfit('self_guided compares one view with the layers of the twin "frozen".')
    _check_post(recipe)


def _check_spans(recipe: Recipe, source: DocumentSpans) -> None:
    if source.shortest > source.longest:
        raise Unfit("the source's `shortest` is above its `longest`.")
    if source.positives > 1 and any(isinstance(each, InfoNCE | Triplet) for each in recipe.objectives):
        raise Unfit("further spans of a document are positives: nt_xent takes them for such.")


def _check_post(recipe: Recipe) -> None:
    weights = [isinstance(post, Sif | Usif) for post in recipe.post]
    if any(weights) and not recipe.pool.startswith("static"):
        raise Unfit("sif and usif weigh the rows of a word table: the pool must be static.")
    if weights != sorted(weights, reverse=True):
        raise Unfit("sif and usif come before other post-processors, which are fitted on weighted vectors.")
    if any(isinstance(post, Flow) for post in recipe.post[:-1]):
        raise Unfit("flow comes after all other post-processors.")


register(
    check_fit,
    source=(OrderedSentences, DocumentSpans, Crops, Cloze),
    objectives=(SelfGuided, Neighbors, Anchor, WordCe, MiJsd),
    post=(Whiten, DropPcs, Flow, Sif, Usif),
)
