"""Find recipe files and check them without torch, so that invalid recipes are rejected within a second.

    name ─▶ file ─▶ table, with changes ─▶ checked ─▶ recipe.py builds the blocks

Start reading at `declared`. recipes/schema.json is the JSON Schema of `Recipe`: keys, types, ranges and names
of blocks. papers/schema.json has the blocks that `training.papers` adds. A test compares both schemas with
the classes. Blocks that do not work together are rejected later, in recipe.py.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from models.files.bounded import parse_toml
from models.messages import did_you_mean
from training.errors import TrainingError
from training.validation import refusal

AUTO = "auto"  # chooses a recipe (retraining/auto.py)
SEARCH = "search"  # retrains only the search settings
TRIED = ("adapt", "triples", "distil-rerank", "distil-hybrid")  # recipes that `auto` may try, in this order
CHOSEN = (AUTO, SEARCH)
_ROOT = resources.files("training")
_FOLDERS = (_ROOT / "recipes", _ROOT / "papers" / "recipes")

# A block is written as its name, or as a table.
Named = BeforeValidator(lambda entry: {"name": entry} if isinstance(entry, str) else entry)
_KINDS = {"boolean": bool, "integer": int, "number": float, "string": str}
_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}


def shipped() -> list[str]:
    """Returns the names of the recipes that are part of the package."""
    return sorted(name for folder in _FOLDERS for name in _names(folder))


def shipped_stages() -> list[str]:
    """Returns the names of the files in the package that run several recipes as stages."""
    return sorted(_names(_FOLDERS[0] / "stages"))


def check_name(name: str) -> None:
    """Raises TrainingError if `name` is neither a shipped recipe, nor shipped stages, nor a file."""
    known = sorted([*shipped(), *shipped_stages()])
    if name in known or Path(name).is_file():
        return
    if name in CHOSEN:
        raise TrainingError(
            f"{name} is not a recipe. Without --recipe, `simile retrain` chooses "
            "recipes by itself, and then tries other settings of the search."
        )
    raise TrainingError(
        f"There is no recipe {name!r}.{did_you_mean(name, [*known, *CHOSEN])} Name a TOML file or one of "
        f"{', '.join(known)}."
    )


def declared(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the checked table of a recipe, with the recipe's name.

    Args:
        name: Name of a shipped recipe, or path of a TOML file.
        changes: Values to change, by key. `optim.lr` is the key `lr` of the table `optim`.

    Raises:
        TrainingError: The recipe does not exist, or a key is unknown, missing or of the wrong type. The
            message names each such key.

    """
    check_name(name)
    if name in shipped_stages():
        raise TrainingError(f"{name} runs several recipes: `simile train {name}` does, and auto.")
    files = (folder / f"{name}.toml" for folder in _FOLDERS)
    file = next((found for found in files if found.is_file()), Path(name))
    name = file.name.removesuffix(".toml")
    try:
        table = parse_toml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise TrainingError(f"{file} is not UTF-8.") from None
    except ValueError as error:
        raise TrainingError(f"The recipe {name} is not TOML: {error}") from None
    for key, value in (changes or {}).items():
        *within, last = key.split(".")
        place = table
        for part in within:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                raise TrainingError(f"The recipe {name} has no key {key}, because {part} is {place!r}.")
        place[last] = value
    if "name" in table:
        raise TrainingError(f"The recipe {name} is named after its file: remove the key `name`.")
    table["name"] = name
    try:
        _adapter().validate_python(table)
    except ValidationError as error:
        raise refusal(error, schema(), f"The recipe {name}", "the recipe") from None
    return table


def names_paper_blocks(table: Mapping[str, Any]) -> bool:
    """Returns True if the table of a recipe names a block of `training.papers`."""
    for kind, mapping in _papers()["blocks"].items():
        entries = table.get(kind, ())
        for entry in entries if isinstance(entries, list | tuple) else (entries,):
            if (entry if isinstance(entry, str) else entry["name"]) in mapping:
                return True
    return False


@cache
def schema() -> dict[str, Any]:
    """Returns the JSON Schema of `Recipe`, including the blocks of `training.papers`."""
    found: dict[str, Any] = json.loads((_FOLDERS[0] / "schema.json").read_bytes())
    papers = _papers()
    found["$defs"] |= papers["$defs"]
    for kind, mapping in papers["blocks"].items():
        node = found["properties"][kind]
        node = node.get("items", node)
        node["discriminator"]["mapping"] |= mapping
        node["oneOf"] += [{"$ref": reference} for reference in mapping.values()]
    return found


@cache
def _papers() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((_ROOT / "papers" / "schema.json").read_bytes())
    return found


def _names(folder: Any) -> Iterator[str]:
    return (file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))


@cache
def _adapter() -> TypeAdapter[Any]:
    return TypeAdapter(_table("Recipe", schema()))


def _table(title: str, node: Mapping[str, Any]) -> Any:
    required = node.get("required", ())
    fields: dict[str, Any] = {
        key: (_type(field), ... if key in required else field.get("default"))
        for key, field in node["properties"].items()
    }
    return create_model(title, __config__=ConfigDict(extra="forbid"), **fields)


@cache
def _block(reference: str) -> Any:
    title = reference.rpartition("/")[2]
    return _table(title, schema()["$defs"][title])


def _type(node: Mapping[str, Any]) -> Any:
    """Converts a JSON Schema to a Python type. Supports only the kinds of schema that `Recipe` has."""
    if "$ref" in node:
        block = _block(node["$ref"])
        return Annotated[block, Named] if "name" in block.model_fields else block
    if "oneOf" in node or "anyOf" in node:
        return _union(node)
    if "const" in node or "enum" in node:
        return Literal[tuple(node.get("enum") or [node["const"]])]
    if node["type"] == "null":
        return None
    if node["type"] == "array":
        return GenericAlias(tuple, (_type(node["items"]), ...))
    bounds = {bound: node[key] for key, bound in _BOUNDS.items() if key in node}
    return Annotated[_KINDS[node["type"]], Field(strict=True, **bounds)]


def _union(node: Mapping[str, Any]) -> Any:
    """Converts `anyOf` or `oneOf` of a JSON Schema: several blocks, or a type that may be None."""
    if "anyOf" in node:
        return reduce(operator.or_, (_type(each) for each in node["anyOf"]))
    blocks = reduce(operator.or_, (_block(each["$ref"]) for each in node["oneOf"]))
    return Annotated[blocks, Field(discriminator="name"), Named]
