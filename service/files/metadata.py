"""Checks metadata of documents before they are stored. Start at `check_metadata`."""

import re
from typing import Any

import numpy as np
import orjson

from service.errors import Validation
from service.store.filters.names import describe_fault, find_unreachable, shown

MAX_DEPTH = 32  # levels of nested metadata
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NULL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def check_metadata(metadata: dict[str, Any], name: str, limit_kb: int) -> str:
    """Validates metadata and returns them as the JSON text to store.

    Each check is one pass in C over at most `SIMILE_MAX_METADATA_KB`. Python code does not visit the values,
    because a body may hold millions of them.

    Args:
        metadata: The parsed metadata.
        name: Name of the field. Error messages begin with it.
        limit_kb: Maximum size in KiB.

    Raises:
        Validation: The metadata are larger than `limit_kb`, are nested too deep, or contain a name or a text
            that no filter could match.

    """
    try:
        json = orjson.dumps(metadata)
    except orjson.JSONEncodeError as error:  # It was parsed from JSON, so only its depth can be wrong.
        raise _too_deep(name) from error
    if len(json) > limit_kb << 10:
        raise Validation(
            f"{name} has {len(json)} bytes of JSON; at most {limit_kb} KiB (SIMILE_MAX_METADATA_KB) go with "
            "one document. Put what is long into the text, or keep it elsewhere under the document's id."
        )
    if json.count(b"{") + json.count(b"[") > MAX_DEPTH and _depth(json) > MAX_DEPTH:
        raise _too_deep(name)
    if b"\\u0000" in json and _NULL.search(json):  # SQLite's JSON functions would end the text at U+0000.
        raise Validation(f"{name} holds a null character, which no filter could match. Leave it out.")
    if (found := find_unreachable(json)) is not None:
        place, field = found
        where = f" in {shown(place)}" if place else ""
        raise Validation(
            f"{name}: the name {shown(field)}{where} cannot be stored, because no filter could name it: "
            f"{describe_fault(field)}. Rename it."
        )
    return json.decode()


def _too_deep(name: str) -> Validation:
    return Validation(f"{name} is nested more than {MAX_DEPTH} levels deep.")


def _depth(json: bytes) -> int:
    """Returns the nesting depth of JSON: the largest number of objects and arrays around one value."""
    # `[` and `{` differ by one bit, and so do `]` and `}`.
    codes = np.frombuffer(_STRING.sub(b"", json), np.uint8) | 0x20
    steps = (codes == ord("{")).astype(np.int32) - (codes == ord("}"))
    return int(np.cumsum(steps).max(initial=0))
