"""Recipes by name: those that are shipped, and TOML files of one's own, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from training.errors import TrainingError
from training.methods.declared import declared, schema
from training.methods.fit import Unfit, check_fit, columns_of
from training.methods.recipe import RECIPE, Recipe
from training.methods.sources import Triples
from training.methods.views import stands_aside
from training.validation import refusal


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped recipe by its name, or a TOML file by its path. Raise TrainingError.

    changes: keys of the recipe with other values; `optim.lr` is a key within a table.
    """
    table = declared(name, changes)
    name = table["name"]
    try:
        recipe = RECIPE.validate_python(table)
        check_fit(recipe)
    except ValidationError as error:  # what no schema can say, as a template without its {text}
        raise refusal(error, schema(), f"The recipe {name}", "the recipe") from None
    except Unfit as error:
        raise TrainingError(f"The recipe {name}: {error}") from None
    return recipe


def fitted(recipe: Recipe, columns: int) -> Recipe:
    """The recipe with a view for each of the `columns` texts of a row of its corpus.

    Further negatives are seen as the first one is. Raise TrainingError when it has no use for so many.
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
