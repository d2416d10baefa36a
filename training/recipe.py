"""Recipe: a method as a choice of building blocks and numbers. Read strictly from TOML; no code of its own.

A block is written as its name, or as a table with its name and its numbers:

    views = ["same", "same"]
    objectives = [{ name = "info_nce", tau = 0.05 }]
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, get_type_hints

from models.head import POOLINGS
from training.errors import TrainingError
from training.heads import HEADS, Tanh
from training.objectives import OBJECTIVES, Objective
from training.sources import SOURCES
from training.views import VIEWS, View

_ANY = 1e9  # no limit of meaning
_ABOVE_0 = ("lr", "tau", "epsilon", "clip")  # at 0 nothing is learned, or is divided by it


@dataclass(frozen=True)
class Optim:
    """AdamW. The rate rises over the warmup and then falls linearly to 0."""

    lr: float
    batch: int  # texts of one step
    warmup: float  # share of the steps
    weight_decay: float  # not of biases and normalisations
    epsilon: float
    clip: float  # the largest norm of a gradient


@dataclass(frozen=True)
class Recipe:
    name: str
    source: str
    views: tuple[View, ...]
    pool: str  # of a raw backbone
    head: Tanh  # of a raw backbone
    objectives: tuple[tuple[float, Objective], ...]  # with their weights
    dropout: float
    max_length: int  # tokens, in training; what is published keeps the base's own
    seed: int
    optim: Optim

    def digest(self) -> str:
        """SHA-256 of what was decided: all but the name and the seed."""
        return hashlib.sha256(json.dumps(self.described(), sort_keys=True).encode()).hexdigest()

    def described(self) -> dict[str, Any]:
        """As JSON, with every block under its name; without the recipe's own name and seed."""
        plain = {"source": self.source, "pool": self.pool, "dropout": self.dropout}
        return plain | {
            "views": [_described(view, VIEWS) for view in self.views],
            "head": _described(self.head, HEADS),
            "objectives": [
                {"weight": weight} | _described(objective, OBJECTIVES)
                for weight, objective in self.objectives
            ],
            "max_length": self.max_length,
            "optim": dataclasses.asdict(self.optim),
        }


def shipped() -> list[str]:
    """The names of the recipes that come with the package."""
    folder = resources.files("training") / "recipes"
    return sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


def load_recipe(name: str) -> Recipe:
    """A shipped recipe by its name, or a TOML file by its path. Raise TrainingError."""
    if name in shipped():
        text = (resources.files("training") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")
        return read_recipe(text, name)
    file = Path(name)
    if not file.is_file():
        raise TrainingError(
            f"There is no recipe {name!r}: name a TOML file or one of {', '.join(shipped())}."
        )
    try:
        return read_recipe(file.read_text(encoding="utf-8"), file.stem)
    except UnicodeDecodeError:
        raise TrainingError(f"{file} is not UTF-8.") from None


def read_recipe(text: str, name: str) -> Recipe:
    """Raise TrainingError for what is unknown, missing or of the wrong kind, by its name."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TrainingError(f"The recipe {name} is not TOML: {error}") from None
    try:
        return _recipe(table, name)
    except _Wrong as wrong:
        raise TrainingError(f"The recipe {name}: {wrong}") from None


class _Wrong(Exception):
    """What is wrong with one key."""


def _recipe(table: Mapping[str, Any], name: str) -> Recipe:
    fields = [field.name for field in dataclasses.fields(Recipe) if field.name != "name"]
    _check_keys(table, fields, "the recipe")
    views = tuple(_block("view", VIEWS, view) for view in _list(table, "views"))
    if len(views) != 2:
        raise _Wrong(f"info_nce compares two views; there are {len(views)}.")
    objectives = tuple(_objective(entry) for entry in _list(table, "objectives"))
    if not objectives:
        raise _Wrong("objectives is empty.")
    return Recipe(
        name=name,
        source=_known("source", SOURCES, table["source"]),
        views=views,
        pool=_known("pool", POOLINGS, table["pool"]),
        head=_block("head", HEADS, table["head"]),
        objectives=objectives,
        dropout=_number("dropout", table["dropout"], 0.9),
        max_length=_whole("max_length", table["max_length"], 3, 1 << 20),
        seed=_whole("seed", table["seed"], 0, (1 << 63) - 1),
        optim=_optim(table["optim"]),
    )


def _optim(table: object) -> Optim:
    if not isinstance(table, dict):
        raise _Wrong("optim is not a table.")
    _check_keys(table, [field.name for field in dataclasses.fields(Optim)], "optim")
    return Optim(
        lr=_number("lr", table["lr"], 1),
        batch=_whole("batch", table["batch"], 2, 1 << 20),
        warmup=_number("warmup", table["warmup"], 1),
        weight_decay=_number("weight_decay", table["weight_decay"], 1),
        epsilon=_number("epsilon", table["epsilon"], 1),
        clip=_number("clip", table["clip"], _ANY),
    )


def _objective(entry: object) -> tuple[float, Objective]:
    entry = dict(entry) if isinstance(entry, dict) else entry
    weight = entry.pop("weight", 1.0) if isinstance(entry, dict) else 1.0
    return _number("weight", weight, _ANY), _block("objective", OBJECTIVES, entry)


def _block(kind: str, known: Mapping[str, type[Any]], entry: object) -> Any:
    """A building block from its name or its table; `known` says which there are, as dataclasses."""
    options = dict(entry) if isinstance(entry, dict) else {"name": entry}
    block = known[_known(kind, known, options.pop("name", None))]
    types = get_type_hints(block)
    _check_keys(options, [field.name for field in dataclasses.fields(block)], f"the {kind}")
    for key, value in options.items():
        if types[key] is bool and not isinstance(value, bool):
            raise _Wrong(f"{key} must be true or false, not {value!r}.")
        if types[key] is float:
            options[key] = _number(key, value, _ANY)
    return block(**options)


def _known(kind: str, known: Iterable[str], name: object) -> str:
    if isinstance(name, str) and name in known:
        return name
    there = ", ".join(known)
    raise _Wrong(f"{kind} {name!r} is not known{_close(name, known)}. There are: {there}.")


def _check_keys(table: Mapping[str, Any], fields: list[str], where: str) -> None:
    for key in table:
        if key not in fields:
            raise _Wrong(f"{where} has no key {key!r}{_close(key, fields)}.")
    missing = [field for field in fields if field not in table]
    if missing:
        raise _Wrong(f"{where} lacks {', '.join(missing)}.")


def _close(name: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; {close[0]!r} is" if close else ""


def _list(table: Mapping[str, Any], key: str) -> list[Any]:
    if not isinstance(table[key], list):
        raise _Wrong(f"{key} is not a list.")
    return list(table[key])


def _number(key: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Wrong(f"{key} must be a number, not {value!r}.")
    if key in _ABOVE_0 and not 0 < value <= most:
        raise _Wrong(f"{key} must be above 0 and at most {most:g}, not {value!r}.")
    if not 0 <= value <= most:  # not NaN either
        raise _Wrong(f"{key} must be from 0 to {most:g}, not {value!r}.")
    return float(value)


def _whole(key: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Wrong(f"{key} must be a whole number, not {value!r}.")
    if not least <= value <= most:
        raise _Wrong(f"{key} must be from {least} to {most}, not {value!r}.")
    return value


def _described(block: Any, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    name = next(name for name, kind in known.items() if type(block) is kind)
    return {"name": name} | dataclasses.asdict(block)
