"""Parses JSON, and rejects bodies with values that the parser would change. Start reading at `loads`.

orjson turns integers beyond 64 bits into floats, keeps only the last of two members with the same name, and
rounds tiny numbers to 0. If a body has such a value, a slow parser reads the body again to find the field's
name.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from models.messages import MAX_CHARACTERS

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**64 - 1  # whole numbers that orjson reads as such
_LONGEST = len(str(MIN_INTEGER))
_SLICE_BYTES = 1 << 20
_QUOTE = ord('"')
# Numbers that may be changed. The first pattern is fast, and also matches inside strings.
_SUSPECT = re.compile(rb"\d{19}|[eE]-\d{3}|0\.0{300}")
_LONG = re.compile(rb"(?<![\d.eE+-])-?\d{19,}(?![\d.eE])")
_TINY = re.compile(rb"[\d.]+[eE]-\d{3,}|0\.0{300}\d*")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_ZERO = re.compile("[1-9]")


class Inexact(ValueError):
    """Raised if the parser would change a value of the body. The message names the field."""


class _Refused(NamedTuple):
    """Placeholder for a value that the parser would change, with the reason."""

    reason: str


# Path of a value: the path of its object or list, and its name or number there. None is the body itself.
_Place: TypeAlias = "tuple[_Place, str | int] | None"
_LOOKED_AT = (_Refused, str, dict, list)
_SHOWN_NAMES = 10
_END = object()


def loads(content: bytes) -> Any:
    """Parses JSON.

    Raises:
        Inexact: The parser would change a value. The message names the field and says what to do.
        orjson.JSONDecodeError: `content` is not JSON in UTF-8.

    """
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError:
        if (found := _find(content)) is not None:
            raise Inexact(found) from None
        raise
    if _has_changed_number(content) or _has_equal_names(content, value):
        raise Inexact(_find(content) or "The body has two members with one name, or a number out of range.")
    return value


def structure(content: bytes) -> Iterator[NDArray[np.uint8]]:
    """Yields the bytes of JSON that are not part of strings: brackets, commas, colons, numbers and literals.

    Works on one slice of the body at a time, so that other threads wait at most a few milliseconds for the
    interpreter lock.
    """
    inside = False
    rest = b""
    for at in range(0, len(content), _SLICE_BYTES):
        piece = rest + content[at : at + _SLICE_BYTES]
        # A backslash at the end may belong to the next slice.
        backslashes = len(piece) - len(piece.rstrip(b"\\"))
        rest = b"\\" if backslashes % 2 else b""
        plain = np.frombuffer(piece.removesuffix(rest).replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        texts = np.logical_xor.accumulate(np.concatenate(([inside], plain == _QUOTE)))
        inside = bool(texts[-1])
        yield plain[~texts[1:]]


def _outside_texts(content: bytes) -> bytes:
    return b"".join(part.tobytes() for part in structure(content))


def _may_have_changed_number(content: bytes) -> bool:
    """Returns whether the body may contain a number that the parser changes. Strings can cause false alarms.

    A fast test takes some milliseconds for 16 MiB. It avoids the pattern, which would hold the interpreter
    lock for 500 ms.
    """
    if not any(part in content for part in (b"e-", b"E-", b"0.0000")):
        # Any 19 digits in a row include one of these bytes.
        every = np.frombuffer(content, np.uint8)[:: _LONGEST - 1]
        if not np.any((every >= ord("0")) & (every <= ord("9"))):
            return False
    return _SUSPECT.search(content) is not None


def _has_changed_number(content: bytes) -> bool:
    if not _may_have_changed_number(content):
        return False
    outside = _outside_texts(content)
    return any(not _fits(found[0]) for found in _LONG.finditer(outside)) or any(
        becomes_zero(found[0].decode()) for found in _TINY.finditer(outside)
    )


def _has_equal_names(content: bytes, value: Any) -> bool:
    """Returns whether the parser dropped a member because another member has the same name.

    Each member has one colon, so the function compares the number of colons in the body with that in the
    parsed value.
    """
    try:
        parsed = orjson.dumps(value)
    except orjson.JSONEncodeError:  # The routes reject JSON that is nested so deeply.
        return False
    if b"\\u003" not in content:  # No string contains an escaped colon.
        return content.count(b":") != parsed.count(b":")
    return _outside_texts(content).count(b":") != _outside_texts(parsed).count(b":")


def _fits(digits: bytes | str) -> bool:
    return len(digits) <= _LONGEST and MIN_INTEGER <= int(digits) <= MAX_INTEGER


def becomes_zero(number: str) -> bool:
    """Returns whether `number` is not 0, but becomes 0 as a 64-bit float."""
    try:
        return float(number) == 0 and _NOT_ZERO.search(re.split("[eE]", number)[0]) is not None
    except ValueError:
        return False


def _find(content: bytes) -> str | None:
    """Returns a sentence about the first value that the parser would change or not accept, or None."""
    try:
        value = json.loads(
            content.decode(),
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=lambda name: _Refused(
                f"is {name}, which JSON does not have. Send null or a text."
            ),
        )
    except (ValueError, RecursionError):
        return None
    left: list[Iterator[tuple[_Place, Any]]] = [iter([(None, value)])]
    while left:
        place, value = next(left[-1], (None, _END))
        if value is _END:
            left.pop()
        elif isinstance(value, _Refused):
            return f"{_path(place)} {value.reason}"
        elif isinstance(value, str):
            if half := _SURROGATE.search(value):
                return f"{_path(place)} has half of a surrogate pair (U+{ord(half[0]):04X}). Leave it out."
        elif isinstance(value, dict) and any(map(_SURROGATE.search, value)):
            return f"{_path(place)} has a name with half of a surrogate pair. Leave it out."
        else:
            left.append(_members(place, value))
    return None


def _members(place: _Place, value: Any) -> Iterator[tuple[_Place, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    return (((place, step), each) for step, each in pairs if isinstance(each, _LOOKED_AT))


def _path(place: _Place) -> str:
    """Formats the path of a value for a message.

    Shows at most `_SHOWN_NAMES` names, because paths may be long.
    """
    steps: list[str] = []
    while place is not None and len(steps) < _SHOWN_NAMES:
        place, step = place
        steps.append(f"[{step}]" if isinstance(step, int) else f".{step[:MAX_CHARACTERS]}")
    path = "".join(reversed(steps))
    return f"…{path}" if place is not None else path.removeprefix(".") or "The body"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        twice = name in found
        found[name] = _Refused("comes twice in one object. Send each name once.") if twice else value
    return found


def _integer(digits: str) -> object:
    if _fits(digits):
        return int(digits)
    return _Refused(
        f"is {digits[:MAX_CHARACTERS]}. Whole numbers are stored from {MIN_INTEGER} to {MAX_INTEGER}. "
        "Send it as a text."
    )


def _float(number: str) -> object:
    value, shown = float(number), number[:MAX_CHARACTERS]
    if value in (float("inf"), float("-inf")):
        return _Refused(f"is {shown}, which is too large for a 64-bit float. Send it as a text.")
    if becomes_zero(number):
        return _Refused(f"is {shown}, which a 64-bit float rounds to 0. Send 0, or a text.")
    return value
