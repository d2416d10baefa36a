"""Converts pydantic's validation errors to messages for people. Start at `sentence`."""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Mapping
from typing import Any, Union, get_args, get_origin

from annotated_types import Ge, Le
from pydantic import BaseModel

from models.messages import MAX_CHARACTERS, did_you_mean, no_field

# Suffixes of pydantic's error types for values of another type.
_ENDS = re.compile(r"(_type|_parsing|_parsing_size|_from_float)$")
_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "finite_number": "a finite number",
    "string": "a text",
    "list": "a list",
    "dict": "an object",
    "model": "an object",
    "model_attributes": "an object",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def sentence(problem: Any, model: type[BaseModel], where: str) -> str:
    """Returns the message for a validation error of pydantic.

    Args:
        problem: An item of `ValidationError.errors()`.
        model: The model that was validated.
        where: Path of the field, for the message.
    """
    kind, value = str(problem["type"]), problem["input"]
    *path, last = problem["loc"] or ("",)
    within = _at(model, path)
    if kind == "extra_forbidden":
        return no_field(str(last), _names(within), within=where.rpartition(".")[0])
    if kind == "missing":
        if hint := getattr(within, "HINT", ""):
            return f"{where} is missing. {hint}"
        known, fields = _names(within), value if isinstance(value, Mapping) else ()
        unknown = next((name for name in fields if name not in known), None)
        return f"{where} is missing." + (f" {no_field(str(unknown), known)}" if unknown is not None else "")
    expected = _expected(kind, problem.get("ctx", {}), within, str(last))
    if expected is not None:
        near = did_you_mean(value, expected.split("'")[1::2]) if isinstance(value, str) else ""
        # Bounds apply to numbers, but a query parameter is text, which must not be quoted.
        given = str(value)[:MAX_CHARACTERS] if kind in _BOUNDS else shown(value)
        around = _wrapped(model, value) if where == "the body" else ""
        return f"{where} must be {expected}, not {given}.{near}{around}"
    reason = str(problem["msg"]).removeprefix("Value error, ").rstrip(".")
    return f"{where}: {reason[:1].lower()}{reason[1:]}."


def _wrapped(model: type[BaseModel], value: object) -> str:
    """Shows the object that a body should be instead of `value`, with the field that takes `value`."""
    required = (field.alias or name for name, field in model.model_fields.items() if field.is_required())
    name = getattr(model, "LIST_FIELD", None) or next(required, None)
    inside = "[…]" if isinstance(value, list) else "…"
    return "" if name in {None, "root"} else f' Send {{"{name}": {inside}}}.'


def _expected(kind: str, ctx: Mapping[str, Any], model: type[BaseModel] | None, field: str) -> str | None:
    """Describes the value that a field expects. Returns None if an error of this `kind` does not say it."""
    if kind == "literal_error":
        return str(ctx["expected"])
    if kind in _BOUNDS:
        return _range(kind, ctx, model, field)
    if kind.startswith(("datetime_", "timezone_")):
        return 'a time with its zone, such as "2026-01-31T08:30:00Z"'
    if kind == "string_too_short":
        return f"a text of at least {ctx['min_length']} character{'s'[: ctx['min_length'] - 1]}"
    if kind == "string_too_long":
        return f"a text of at most {ctx['max_length']} characters"
    return _KINDS.get(_ENDS.sub("", kind))


def shown(value: object) -> str:
    """Formats a value for an error message. Lists and objects are shown only by their type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    return repr(value[:MAX_CHARACTERS]) if isinstance(value, str) else str(value)[:MAX_CHARACTERS]


def _range(kind: str, ctx: Mapping[str, Any], model: type[BaseModel] | None, field: str) -> str:
    """Describes both limits of a field. If the field does not have both, describes the violated limit."""
    found = None if model is None else model.model_fields.get(field)
    limits: dict[type, Any] = {} if found is None else {type(each): each for each in found.metadata}
    if Ge in limits and Le in limits:
        return f"between {limits[Ge].ge} and {limits[Le].le}"
    key, words = _BOUNDS[kind]
    return f"{words} {ctx[key]}"


def _names(model: type[BaseModel] | None) -> list[str]:
    return [] if model is None else [field.alias or name for name, field in model.model_fields.items()]


def _at(model: type[BaseModel], path: Iterable[object]) -> type[BaseModel] | None:
    """Returns the model of the value at `path` in `model`, or None if the value is not a model.

    A list or an optional value counts as a value of its inner type.
    """
    found: Any = model
    for part in path:
        if isinstance(part, str):
            field = found.model_fields.get(part) if _is_model(found) else None
            found = None if field is None else field.annotation
        kinds = get_args(found) if get_origin(found) in {list, Union, types.UnionType} else (found,)
        found = next((kind for kind in kinds if _is_model(kind)), found)
    return found if _is_model(found) else None


def _is_model(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
