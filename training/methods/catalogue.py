"""Recipes by name: those that are shipped, and TOML files of one's own, read strictly."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from training.errors import TrainingError
from training.methods.fit import check_fit
from training.methods.heads import HEADS
from training.methods.negatives import NEGATIVES
from training.methods.objectives import Objective
from training.methods.postprocess import POSTS
from training.methods.reading import (
    Wrong,
    block,
    check_keys,
    entries,
    filled,
    flag,
    known_name,
    number,
    whole,
)
from training.methods.recipe import DECAYS, OBJECTIVES, POOLS, RESULTS, Optim, Recipe
from training.methods.sources import SOURCES
from training.methods.twins import TWINS
from training.methods.views import VIEWS


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
    try:
        return _recipe(table, name)
    except Wrong as wrong:
        raise TrainingError(f"The recipe {name}: {wrong}") from None


def _recipe(table: Mapping[str, Any], name: str) -> Recipe:
    fields = [field for field in dataclasses.fields(Recipe) if field.name != "name"]
    needed = [field.name for field in fields if field.default is dataclasses.MISSING]
    check_keys(table, [field.name for field in fields], "the recipe", needed)
    optim = filled(Optim, table["optim"], "optim")
    known_name("decay", DECAYS, optim.decay)
    recipe = Recipe(
        name=name,
        source=block("source", SOURCES, table["source"]),
        views=tuple(block("view", VIEWS, view) for view in entries(table, "views")),
        pool=known_name("pool", POOLS, table["pool"]),
        head=block("head", HEADS, table["head"]),
        objectives=tuple(_objective(entry) for entry in entries(table, "objectives")),
        negatives=tuple(block("negatives", NEGATIVES, entry) for entry in entries(table, "negatives")),
        twin=block("twin", TWINS, table["twin"]) if "twin" in table else None,
        post=tuple(block("post", POSTS, entry) for entry in entries(table, "post")),
        dropout=number("dropout", table["dropout"], 0.9),
        fixed_mask=flag("fixed_mask", table.get("fixed_mask", False)),
        max_length=whole("max_length", table["max_length"], 3, 1 << 20),
        seed=whole("seed", table["seed"], 0, (1 << 63) - 1),
        optim=optim,
        result=known_name("result", RESULTS, table.get("result", "encoder")),
    )
    check_fit(recipe)
    return recipe


def _objective(entry: object) -> tuple[float, Objective]:
    entry = dict(entry) if isinstance(entry, dict) else entry
    weight = entry.pop("weight", 1.0) if isinstance(entry, dict) else 1.0
    return number("weight", weight, 1e9), block("objective", OBJECTIVES, entry)
