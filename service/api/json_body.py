"""A request's JSON, parsed at a cost that is known before.

The parser holds the interpreter until it is done, and makes objects of up to forty times the bytes: 16 MiB of
nested lists took 2 s and 635 MiB. So values are counted in the bytes first, and a large body is parsed on a
thread of its own, one at a time: between two of them everybody else has a turn.
"""

import asyncio
import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import orjson

from service.errors import Validation

LARGE_BYTES = 1 << 18  # smaller ones are parsed at once: in microseconds to 60 ms
# What counts for more than a number, by the time that the parser takes.
CONTAINER_VALUES = 4  # a list or an object
KEY_VALUES = 2
_SLICE_BYTES = 1 << 20
_QUOTE = ord('"')
_WEIGHTS = np.zeros(256, np.uint8)
for _mark, _weight in (b",", 1), (b":", KEY_VALUES), (b"[", CONTAINER_VALUES), (b"{", CONTAINER_VALUES):
    _WEIGHTS[ord(_mark)] = _weight

_thread = ThreadPoolExecutor(1, thread_name_prefix="json")


async def parse(content: bytes, max_values: int) -> Any:
    """`content` as JSON.

    Raises:
        Validation: it is not valid JSON, or holds more than `max_values` values.

    """
    if len(content) < LARGE_BYTES:
        return _parse(content)
    return await asyncio.get_running_loop().run_in_executor(_thread, _parse_large, content, max_values)


def _parse(content: bytes) -> Any:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Validation(f"The body is not valid JSON: {error}.") from None


def _parse_large(content: bytes, max_values: int) -> Any:
    """As `_parse`, with the garbage collector off: many new values would start it again and again."""
    count = values_in(content, max_values)
    if count > max_values:
        raise Validation(
            f"The body holds more than {max_values} JSON values (SIMILE_MAX_VALUES; a key counts as "
            f"{KEY_VALUES}, a list or an object as {CONTAINER_VALUES}). Send it in parts."
        )
    gc.disable()
    try:
        return _parse(content)
    finally:
        gc.enable()


def values_in(content: bytes, enough: int) -> int:
    """About how many values JSON holds: members of lists and objects, keys, and lists and objects once more.

    Beyond `enough` nothing is counted. What stands in texts never counts.
    """
    most = content.count(b",") + KEY_VALUES * content.count(b":")
    most += CONTAINER_VALUES * (content.count(b"[") + content.count(b"{"))
    return most if most <= enough else _outside_texts(content, enough)


def _outside_texts(content: bytes, enough: int) -> int:
    """Slice by slice, in numpy: nobody waits for the interpreter longer than a few milliseconds."""
    count = 0
    inside = False
    rest = b""
    for at in range(0, len(content), _SLICE_BYTES):
        piece = rest + content[at : at + _SLICE_BYTES]
        # A backslash at the end may belong to what follows.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" if backslashes % 2 else b""
        plain = np.frombuffer(piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        texts = np.logical_xor.accumulate(np.concatenate(([inside], plain == _QUOTE)))
        inside = bool(texts[-1])
        count += int(_WEIGHTS[plain[~texts[1:]]].sum(dtype=np.int64))
        if count > enough:
            break
    return count
