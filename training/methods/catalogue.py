"""Recipes by name: those that are shipped, and TOML files of one's own, read strictly."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from training.errors import TrainingError
from training.methods.fit import Unfit, check_fit, columns_of
from training.methods.recipe import RECIPE, Recipe
from training.methods.sources import Triples
from training.methods.views import stands_aside
from training.validation import refusal


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = resources.files("training") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_recipe(name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """A shipped recipe by its name, or a TOML file by its path. Raise TrainingError.

    changes: keys of the recipe with other values; `optim.lr` is a key within a table.
    """
    if name in shipped():
        text = (resources.files("training") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
        return read_recipe(text, name, changes)
    file = Path(name)
    if not file.is_file():
        raise TrainingError(
            f"There is no recipe {name!r}: name a TOML file or one of {', '.join(shipped())}."
        )
    try:
        return read_recipe(file.read_text(encoding="utf-8"), file.stem, changes)
    except UnicodeDecodeError:
        raise TrainingError(f"{file} is not UTF-8.") from None


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


def read_recipe(text: str, name: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    """Raise TrainingError for what is unknown, missing or of the wrong kind, by its name."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrainingError(f"The recipe {name} is not TOML: {error}") from None
    for key, value in (changes or {}).items():
        *within, last = key.split(".")
        place = table
        for part in within:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise TrainingError(f"The recipe {name}: {key} is not there, since {part} is {place!r}.")
        place[last] = value
    if "name" in table:
        raise TrainingError(f"The recipe {name}: a file's name is its recipe's; leave out the key `name`.")
    try:
        recipe = RECIPE.validate_python(table | {"name": name})
        check_fit(recipe)
    except ValidationError as error:
        raise refusal(error, RECIPE.json_schema(), f"The recipe {name}", "the recipe") from None
    except Unfit as error:
        raise TrainingError(f"The recipe {name}: {error}") from None
    return recipe
