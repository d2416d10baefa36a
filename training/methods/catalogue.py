"""Recipes by name, as objects. `training.papers` registers its blocks here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from training.errors import TrainingError
from training.methods.declared import declared, names_paper_blocks, schema
from training.methods.fit import RULES, Unfit, check_fit, columns_of
from training.methods.recipe import BLOCKS, Recipe, recipe_type
from training.methods.sources import Triples
from training.methods.views import stands_aside
from training.validation import refusal


def register(rule: Callable[[Recipe], None], **blocks: tuple[type, ...]) -> None:
    """Adds blocks that recipes may name.

    Args:
        rule: Raises Unfit for a recipe with blocks that do not work together.
        blocks: Classes by their kind, a key of `BLOCKS`.

    """
    RULES.append(rule)
    for kind, classes in blocks.items():
        BLOCKS[kind] += classes
    recipe_type.cache_clear()


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Returns a shipped recipe by its name, or that of a TOML file.

    Args:
        name: Name of a shipped recipe, or path of a TOML file.
        changes: Other values by key. `optim.lr` is a key within a table.

    Raises:
        TrainingError: The recipe does not exist, or is wrong.

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
    """Returns the recipe with a view for each of the `columns` texts of a row of its corpus.

    Further negatives get the view of the first negative.

    Raises:
        TrainingError: The recipe cannot use that many texts.

    """
    if not isinstance(recipe.source, Triples) or not recipe.objectives or columns_of(recipe) == columns:
        return recipe
    aside = [view for view in recipe.views if stands_aside(view)]
    of_row = [view for view in recipe.views if not stands_aside(view)][:columns]
    changed = replace(recipe, views=(*of_row, *[of_row[-1]] * (columns - len(of_row)), *aside))
    try:
        check_fit(changed)
    except Unfit as error:
        raise TrainingError(f"The recipe {recipe.name}: {error}") from None
    return changed
