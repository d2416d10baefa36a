"""A document's metadata, checked as the JSON that it is stored as.

Every check is one pass in C over at most `SIMILE_MAX_METADATA_KB`; nothing walks through the values, of which
there may be millions in one body.
"""

import re
from typing import Any

import numpy as np
import orjson

from service.errors import Validation
from service.store.filters.names import describe_fault, find_unreachable, shown

MAX_DEPTH = 32
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_NULL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def checked(metadata: dict[str, Any], name: str, limit_kb: int) -> str:
    """`metadata` as it is stored; `name` begins a refusal.

    Raises:
        Validation: larger than `limit_kb` KiB, nested too deep, or with a name or a text that no filter could
            match.

    """
    try:
        json = orjson.dumps(metadata)
    except orjson.JSONEncodeError as error:  # it was read as JSON, so nothing but its depth is left
        raise _too_deep(name) from error
    if len(json) > limit_kb << 10:
        raise Validation(
            f"{name} has {len(json)} bytes of JSON; at most {limit_kb} KiB (SIMILE_MAX_METADATA_KB) go with "
            "one document. Put what is long into the text, or keep it elsewhere under the document's id."
        )
    if json.count(b"{") + json.count(b"[") > MAX_DEPTH and _depth(json) > MAX_DEPTH:
        raise _too_deep(name)
    if b"\\u0000" in json and _NULL.search(json):  # SQLite's JSON functions would cut it there
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
    """Objects and arrays around the innermost value."""
    codes = np.frombuffer(_STRING.sub(b"", json), np.uint8) | 0x20  # [ and { differ by that bit, ] and } too
    steps = (codes == ord("{")).astype(np.int32) - (codes == ord("}"))
    return int(np.cumsum(steps).max(initial=0))
