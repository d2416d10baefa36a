"""Recipes by name, looked up without torch: a wrong name fails at once."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from models.words.nearest import did_you_mean
from training.errors import TrainingError

AUTO = "auto"  # looks and chooses (retraining/auto.py)
SEARCH = "search"  # a retraining of the search alone
TRIED = ("adapt", "triples", "distil-hybrid")  # recipes that `auto` may come to, in this order
CHOSEN = (AUTO, SEARCH)


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    return _names("recipes")


def shipped_stages() -> list[str]:
    """The names of those that run several recipes one after another."""
    return _names("recipes", "stages")


def check_name(name: str) -> None:
    """Raise TrainingError where `name` is neither a shipped recipe nor a file."""
    known = sorted([*shipped(), *shipped_stages()])
    if name in known or Path(name).is_file():
        return
    if name in CHOSEN:
        raise TrainingError(
            f"{name} is no recipe of its own. Without --recipe, `python -m training retrain` chooses "
            "recipes by itself, and then tries other settings of the search."
        )
    raise TrainingError(
        f"There is no recipe {name!r}.{did_you_mean(name, [*known, *CHOSEN])} Name a TOML file or one of "
        f"{', '.join(known)}."
    )


def _names(*folders: str) -> list[str]:
    folder = resources.files("training").joinpath(*folders)
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
