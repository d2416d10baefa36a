"""Strict reading of a recipe's TOML: every key is known, every number has its kind and its range."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, get_origin, get_type_hints

ANY = 1e9  # no limit of meaning
_ABOVE_0 = ("lr", "tau", "epsilon", "clip", "margin", "batches", "hard_weight", "keep")
_SHARES = ("rate", "momentum", "warmup", "weight_decay", "keep")  # at most 1
_RATES = ("lr", "epsilon")  # at most 1 as well, and above 0


class Wrong(Exception):
    """An error in one key."""


def block(kind: str, known: Mapping[str, type[Any]], entry: object) -> Any:
    """A building block from its name or its table; `known` says which there are, as dataclasses."""
    options = dict(entry) if isinstance(entry, dict) else {"name": entry}
    found = known[known_name(kind, known, options.pop("name", None))]
    return filled(found, options, f"the {kind}")


def filled(kind: type[Any], table: object, where: str) -> Any:
    """A dataclass of plain values from a table of its fields; those with a default may be left out."""
    if not isinstance(table, dict):
        raise Wrong(f"{where.removeprefix('the ')} is not a table.")
    fields = {field.name: field for field in dataclasses.fields(kind)}
    needed = [name for name, field in fields.items() if field.default is dataclasses.MISSING]
    check_keys(table, list(fields), where, needed)
    types = {name: hint for name, hint in get_type_hints(kind).items() if get_origin(hint) is not ClassVar}
    return kind(**{key: _value(key, types[key], value) for key, value in table.items()})


def _value(key: str, kind: Any, value: object) -> object:
    if kind is bool:
        return flag(key, value)
    if kind is float:
        return number(key, value, 1 if key in (*_SHARES, *_RATES) else ANY)
    if kind is int:
        return whole(key, value, 2 if key == "batch" else 1, 1 << 20)
    if not isinstance(value, str):
        raise Wrong(f"{key} must be a text, not {value!r}.")
    return value


def known_name(kind: str, known: Iterable[str], name: object) -> str:
    if isinstance(name, str) and name in known:
        return name
    there = ", ".join(known)
    raise Wrong(f"{kind} {name!r} is not known{_close(name, known)}. There are: {there}.")


def check_keys(table: Mapping[str, Any], fields: list[str], where: str, needed: Iterable[str]) -> None:
    for key in table:
        if key not in fields:
            raise Wrong(f"{where} has no key {key!r}{_close(key, fields)}.")
    missing = [field for field in needed if field not in table]
    if missing:
        raise Wrong(f"{where} lacks {', '.join(missing)}.")


def entries(table: Mapping[str, Any], key: str) -> list[Any]:
    found = table.get(key, [])
    if not isinstance(found, list):
        raise Wrong(f"{key} is not a list.")
    return list(found)


def number(key: str, value: object, most: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{key} must be a number, not {value!r}.")
    if key in _ABOVE_0 and not 0 < value <= most:
        raise Wrong(f"{key} must be above 0 and at most {most:g}, not {value!r}.")
    if not 0 <= value <= most:  # not NaN either
        raise Wrong(f"{key} must be from 0 to {most:g}, not {value!r}.")
    return float(value)


def whole(key: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Wrong(f"{key} must be a whole number, not {value!r}.")
    if not least <= value <= most:
        raise Wrong(f"{key} must be from {least} to {most}, not {value!r}.")
    return value


def flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise Wrong(f"{key} must be true or false, not {value!r}.")
    return value


def described(found: Any, known: Mapping[str, type[Any]]) -> dict[str, Any]:
    """The other way: a block under its name, with all its values."""
    name = next(name for name, kind in known.items() if type(found) is kind)
    return {"name": name} | dataclasses.asdict(found)


def _close(name: object, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; {close[0]!r} is" if close else ""
