"""Types for the values of TOML files, and error messages for invalid files.

pydantic finds the problems. The message says what is allowed, as the JSON schema of the pydantic model
defines it. Values are never converted, because TOML values have types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Annotated, Any

from pydantic import Field, ValidationError

from training.errors import TrainingError

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_UNKNOWN_NAME = ("literal_error", "union_tag_invalid", "union_tag_not_found", "model_attributes_type")
_KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "object": "a table",
    "string": "a text",
}
Schema = Mapping[str, Any]


def refusal(error: ValidationError, schema: Schema, file: str, whole: str) -> TrainingError:
    """Converts pydantic's error to a TrainingError with one line per problem, unknown keys first.

    Args:
        error: Problems that pydantic found.
        schema: JSON schema of the file's content.
        file: Name of the file. It precedes each problem.
        whole: Noun for the whole content, such as "the recipe".

    """
    found = sorted(error.errors(include_url=False), key=lambda problem: problem["type"] not in _UNKNOWN_KEY)
    return TrainingError("\n".join(f"{file}: {_sentence(problem, schema, whole)}" for problem in found))


def _sentence(problem: Any, schema: Schema, whole: str) -> str:
    kind, value, path = problem["type"], problem["input"], problem["loc"]
    if kind in _UNKNOWN_KEY or kind == "missing":
        *path, key = path
        table, node = _place(schema, path, whole)
        if kind == "missing":
            return f"{table} lacks {key}."
        return f"{table} has no key {key!r}{_known(key, node['properties'])}"
    key, node = _place(schema, path, whole)
    key = key.removeprefix("the ") if path else whole
    if kind in _UNKNOWN_NAME and (isinstance(value, str) or "discriminator" in node):
        name = value.get("name") if isinstance(value, dict) else value
        return f"{key.removesuffix('.name')} {name!r} is not known{_known(name, _names(node))}"
    if kind.endswith("_type") or kind in ("int_from_float", "literal_error"):
        return f"{key} must be {_KINDS[node['type']]}, not {value!r}."
    if kind.startswith(("greater_than", "less_than")):
        return f"{key} must be {_range(node)}, not {value!r}."
    said = problem["msg"].removeprefix("Value error, ").rstrip(".")
    return f"{key}: {said[:1].lower()}{said[1:]}." if path else f"{said}."


def _place(schema: Schema, path: Sequence[str | int], whole: str) -> tuple[str, Schema]:
    """Returns the name of the key at `path`, and the JSON schema of its value, for messages."""
    key, node = "", _resolved(schema, schema)
    for part in path:
        kinds = node.get("discriminator", {}).get("mapping", {})
        if part in kinds:
            key, node = f"the {key.removeprefix('the ')}", {"$ref": kinds[part]}
        elif isinstance(part, int):
            key, node = f"the {key.removesuffix('s')}", node["items"]
        else:
            key, node = f"{key}.{part}".lstrip("."), node["properties"][part]
        node = _resolved(schema, node)
    return key or whole, node


def _resolved(schema: Schema, node: Schema) -> Schema:
    node = node["anyOf"][0] if "anyOf" in node else node  # the second is null
    return schema["$defs"][node["$ref"].rpartition("/")[2]] if "$ref" in node else node


def _names(node: Schema) -> list[str]:
    kinds = node.get("discriminator", {}).get("mapping", {})
    return list(kinds or node.get("enum") or [node["const"]])


def _known(name: object, known: Iterable[str]) -> str:
    close = get_close_matches(str(name), known, n=1)
    return f"{f'; {close[0]!r} is' if close else ''}. There are: {', '.join(known)}."


def _range(node: Schema) -> str:
    above, below = node.get("exclusiveMinimum"), node.get("exclusiveMaximum")
    least = f"from {node['minimum']}" if above is None else f"above {above}"
    if below is not None:
        return f"{least} and below {below}"
    if "maximum" not in node:
        return f"{least} on" if above is None else least
    return f"{least} {'to' if above is None else 'and at most'} {node['maximum']}"


_MOST = 10**9  # arbitrary, but excludes infinity

AboveZero = Annotated[float, Field(gt=0, le=_MOST, strict=True)]
Rate = Annotated[float, Field(gt=0, le=1, strict=True)]
Share = Annotated[float, Field(ge=0, le=1, strict=True)]
Weight = Annotated[float, Field(ge=0, le=_MOST, strict=True)]
Count = Annotated[int, Field(ge=1, le=1 << 20, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
