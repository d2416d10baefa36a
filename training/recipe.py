"""Recipe: a method as a choice of building blocks and numbers. Read strictly from TOML; no code of its own.

A block is written as its name, or as a table with its name and its numbers:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from models.head import POOLINGS
from training.errors import TrainingError
from training.guessing import Denoise, Mlm, Rtd
from training.heads import HEADS, Head
from training.negatives import NEGATIVES, Noise, Queue
from training.objectives import InfoNCE, NTXent, Objective, PairSoftmax, Triplet
from training.post import POSTS, Post
from training.reading import (
    Wrong,
    block,
    check_keys,
    described,
    entries,
    filled,
    flag,
    known_name,
    number,
    whole,
)
from training.rules import check_fit
from training.sources import SOURCES, Documents, Lines
from training.twins import TWINS, Ema
from training.views import VIEWS, View

OBJECTIVES = {
    "info_nce": InfoNCE,
    "nt_xent": NTXent,
    "triplet": Triplet,
    "pair_softmax": PairSoftmax,
    "mlm": Mlm,
    "rtd": Rtd,
    "denoise": Denoise,
}
POOLS = (*POOLINGS, "first_last", "static", "mask")
RESULTS = ("encoder", "backbone")
DECAYS = ("linear", "constant")


@dataclass(frozen=True)
class Optim:
    """AdamW. The rate rises over the warmup and then falls linearly to 0, or stays."""

    lr: float
    batch: int  # rows of one step
    warmup: float  # share of the steps
    weight_decay: float  # not of biases and normalisations
    epsilon: float
    clip: float  # the largest norm of a gradient
    decay: str = "linear"


@dataclass(frozen=True)
class Recipe:
    name: str
    source: Lines | Documents
    views: tuple[View, ...]
    pool: str  # of a raw backbone
    head: Head  # of a raw backbone
    objectives: tuple[tuple[float, Objective], ...]  # with their weights; none: nothing is trained
    dropout: float
    max_length: int  # tokens, in training; what is published keeps the base's own
    seed: int
    optim: Optim
    negatives: tuple[Queue | Noise, ...] = ()
    twin: Ema | None = None
    post: tuple[Post, ...] = ()
    fixed_mask: bool = False  # every view has the same dropout mask: SimCSE's ablation
    result: str = "encoder"  # `backbone`: the run's end is a raw one with its masked-language head

    def digest(self) -> str:
        """SHA-256 of what was decided: all but the name and the seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """As JSON, with every block under its name; without the recipe's own name and seed."""
        return {
            "source": described(self.source, SOURCES),
            "views": [described(view, VIEWS) for view in self.views],
            "pool": self.pool,
            "head": described(self.head, HEADS),
            "objectives": [
                {"weight": weight} | described(objective, OBJECTIVES) for weight, objective in self.objectives
            ],
            "negatives": [described(negatives, NEGATIVES) for negatives in self.negatives],
            "twin": None if self.twin is None else described(self.twin, TWINS),
            "post": [described(post, POSTS) for post in self.post],
            "dropout": self.dropout,
            "fixed_mask": self.fixed_mask,
            "max_length": self.max_length,
            "optim": dataclasses.asdict(self.optim),
            "result": self.result,
        }

    def reads(self, what: str) -> bool:
        """Whether an objective reads `what` beside the vectors."""
        return any(what in objective.reads for _, objective in self.objectives)


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
