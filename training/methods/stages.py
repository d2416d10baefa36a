"""Stages: several recipes that run one after another. Each recipe gets a share of the total time.

    vocabulary = 8000
    minutes = 60.0
    stages = [
        { recipe = "simcse-unsup", share = 0.7, set = { "optim.lr" = 1e-4 } },
        { recipe = "triples", share = 0.3 },
    ]

A stage is skipped if no corpus has the kind of rows that its recipe reads. The other stages share the time.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from models.files.bounded import parse_toml
from training.methods.recipe_files import declared
from training.validation import AboveZero, Rate, refusal

if TYPE_CHECKING:
    from training.methods.recipe import Recipe


@dataclass(frozen=True)
class Stage:
    recipe: str  # name or path, as for `train`
    share: Rate  # share of the minutes, relative to the other stages
    set: dict[str, Any] = field(default_factory=dict)  # keys of the recipe with other values


@dataclass(frozen=True)
class Stages:
    __pydantic_config__: ClassVar = ConfigDict(extra="forbid")

    name: str
    stages: Annotated[tuple[Stage, ...], Field(min_length=1)]
    minutes: AboveZero  # maximum time of all stages, which end earlier if the texts end
    vocabulary: Annotated[int, Field(ge=0, le=1 << 20, strict=True)] = 0  # tokens to learn from the texts

    def recipes(self) -> list[Recipe]:
        """Loads the recipe of each stage.

        Raises:
            TrainingError: A recipe does not exist or is invalid.

        """
        from training.methods.recipe import load_recipe  # noqa: PLC0415  torch

        return [load_recipe(stage.recipe, stage.set) for stage in self.stages]

    def check(self) -> None:
        """Checks the recipe file of each stage, without importing torch.

        Raises:
            TrainingError: A recipe does not exist or is invalid.

        """
        for stage in self.stages:
            declared(stage.recipe, stage.set)

    def digest(self) -> str:
        """Returns the SHA-256 of the stages and all settings except the name."""
        recipes = zip(self.stages, self.recipes(), strict=True)
        about = [[stage.share, recipe.digest()] for stage, recipe in recipes]
        decided = [self.minutes, self.vocabulary, about]
        return hashlib.sha256(json.dumps(decided).encode()).hexdigest()


_STAGES = TypeAdapter(Stages)


def find_stages(name: str) -> Stages | None:
    """Loads the stages of a shipped name or a TOML file. None if `name` is neither, or has no stages.

    Raises:
        TrainingError: The stages are invalid.

    """
    shipped = resources.files("training") / "recipes" / "stages" / f"{name}.toml"
    file = shipped if shipped.is_file() else Path(name)
    try:
        table = parse_toml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # load_recipe reports the error
    if "stages" not in table:
        return None
    try:
        return _STAGES.validate_python(table | {"name": file.name.removesuffix(".toml")})
    except ValidationError as error:
        raise refusal(error, _STAGES.json_schema(), f"The recipe {name}", "the recipe") from None
