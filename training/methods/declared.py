"""Recipes as their files have them, checked without torch: a wrong key or value fails at once.

    TOML, changes ─▶ table ─▶ keys, kinds, ranges and names of blocks ─▶ catalogue.py makes the blocks

What is allowed stands in recipes/schema.json, the JSON Schema of `Recipe`; a test holds it to that class.
Not here: blocks that do not fit each other (fit.py).
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from functools import cache, reduce
from importlib import resources
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from models.files.bounded import parse_toml
from training.errors import TrainingError
from training.methods.names import check_name, shipped, shipped_stages
from training.validation import refusal

# A block is written as its name, or as a table.
Named = BeforeValidator(lambda entry: {"name": entry} if isinstance(entry, str) else entry)
_KINDS = {"boolean": bool, "integer": int, "number": float, "string": str}
_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}


def declared(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The table of a shipped recipe or of a TOML file, with `changes` and the recipe's name.

    Raise TrainingError for what is unknown, missing or of the wrong kind, by its name.
    """
    check_name(name)
    if name in shipped_stages():
        raise TrainingError(f"{name} runs several recipes: `python -m training train {name}` does, and auto.")
    is_shipped = name in shipped()
    file = resources.files("training") / "recipes" / f"{name}.toml" if is_shipped else Path(name)
    name = name if is_shipped else Path(name).stem
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
                raise TrainingError(f"The recipe {name}: {key} is not there, since {part} is {place!r}.")
        place[last] = value
    if "name" in table:
        raise TrainingError(f"The recipe {name}: a file's name is its recipe's; leave out the key `name`.")
    table["name"] = name
    try:
        _adapter().validate_python(table)
    except ValidationError as error:
        raise refusal(error, schema(), f"The recipe {name}", "the recipe") from None
    return table


@cache
def schema() -> dict[str, Any]:
    """The JSON Schema of `Recipe`."""
    found: dict[str, Any] = json.loads((resources.files("training") / "recipes" / "schema.json").read_bytes())
    return found


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
    """The type of what a JSON Schema allows, of the kinds of schema that `Recipe` has."""
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
    """Blocks that their names tell apart, or else a type or nothing."""
    if "anyOf" in node:
        return reduce(operator.or_, (_type(each) for each in node["anyOf"]))
    blocks = reduce(operator.or_, (_block(each["$ref"]) for each in node["oneOf"]))
    return Annotated[blocks, Field(discriminator="name"), Named]
