"""Finds names in metadata that no filter can express. Start reading at `find_unreachable`.

Documents with such names are rejected. A field in a filter consists of names with dots between them
(grammar.py), and does not begin with `$`. So a name is rejected if it is empty, if a dot has nothing before
or after it, or if it has more than 15 dots. A name that begins with `$` is rejected at the top level only,
because inside an object it is part of a field such as `schema.$ref`. Documents that an older version stored
may have such names. They can be read, exported and deleted, and `check --data` lists them.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import orjson

from service.store.filters.grammar import MAX_NAME_PARTS
from service.store.filters.grammar import shown as shown  # noqa: PLC0414  messages about a name find it here

# A name in JSON without white space. `unreachable_names` checks whatever matches.
_TEXT = rb'[^"\\]*+(?:\\.[^"\\]*+)*+'
_NO_DOT = rb'[^"\\.]*+(?:\\.[^"\\.]*+)*+'
_FAULTS = (
    rb"",
    rb"\.%b" % _TEXT,
    rb"%b(?<=\.)" % _TEXT,
    rb"%b(?:\.(?!\.)%b)*+\.\.%b" % (_NO_DOT, _NO_DOT, _TEXT),
    rb"(?:%b\.){%d}%b" % (_NO_DOT, MAX_NAME_PARTS, _TEXT),
)
_SUSPECT = re.compile(rb'[{,]"(?=%b":)(?:%b)":' % (_TEXT, b"|".join(_FAULTS)))


def suspect(json: bytes) -> bool:
    """Returns whether metadata may contain a rejected name. Fast, because it is one pass of C code.

    Args:
        json: Metadata as JSON without white space.
    """
    return b'"$' in json or _SUSPECT.search(json) is not None


def unreachable_names(metadata: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields pairs of the enclosing objects' names, joined by dots, and the rejected name inside."""
    inside: list[tuple[str, Any]] = [("", metadata)]
    while inside:
        place, value = inside.pop()
        if isinstance(value, list):
            inside += ((place, member) for member in value if isinstance(member, dict | list))
            continue
        for name, inner in value.items():
            parts = name.split(".")
            if not all(parts) or len(parts) > MAX_NAME_PARTS or (value is metadata and name[0] == "$"):
                yield place, name
            if isinstance(inner, dict | list):
                inside.append((f"{place}.{name}" if place else name, inner))


class NameFaults(NamedTuple):
    """The documents that have rejected names.

    Attributes:
        documents: Number of documents.
        ids: Ids of the first documents.
        names: Some of the rejected names, sorted.
    """

    documents: int
    ids: list[str]
    names: list[str]


def count_unreachable(documents: Iterable[tuple[str, bytes]], shown: int) -> NameFaults:
    """Counts the documents with rejected names. Also returns examples.

    Args:
        documents: The id and the metadata of each document.
        shown: Maximum number of ids, and of names, in the examples.
    """
    count = 0
    ids: list[str] = []
    names: set[str] = set()
    for id, json in documents:
        if not suspect(json):
            continue
        try:
            parsed = orjson.loads(json)
        except orjson.JSONDecodeError:  # Damaged: the checksums report it.
            continue
        if not isinstance(parsed, dict) or not (found := {name for _, name in unreachable_names(parsed)}):
            continue
        count += 1
        ids += [id] * (len(ids) < shown)
        names = {*sorted(names | found)[:shown]}
    return NameFaults(count, ids, sorted(names))


def find_unreachable(json: bytes) -> tuple[str, str] | None:
    """Returns one rejected name in metadata, as a pair of `unreachable_names`.

    Returns None if no name is rejected.
    """
    return next(unreachable_names(orjson.loads(json)), None) if suspect(json) else None


def describe_fault(name: str) -> str:
    """Returns the reason why a name is rejected."""
    if not name:
        return "it is empty"
    if name.startswith("$") and all(name.split(".")):
        return "it begins with $, as the operators of filters do"
    if name.count(".") >= MAX_NAME_PARTS:
        return f"it has more than {MAX_NAME_PARTS - 1} dots"
    return "there is nothing before or after a dot"
