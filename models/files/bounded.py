"""Small files, read whole: manifests, pointers, configurations; JSON and TOML of any source.

A file that is too large, nested too deeply, or no regular file (a pipe would be waited for) is refused
before it costs memory or time.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

MOST_BYTES = 16 << 20
MAX_DEPTH = 100  # levels of tables and lists; the deepest file of ours has six
# Possessive, and each may end with the text: no step is taken back, so the time is linear.
_TOML_TEXTS = re.compile(
    r"""
      "{3} (?: [^"\\]++ | \\. | "(?!"") )*+ (?: "{3,5} | \\?\Z )
    | '{3} (?: [^']++ | '(?!'') )*+ (?: '{3,5} | \Z )
    | " (?: [^"\\\n]++ | \\[^\n] )*+ "?
    | ' [^'\n]*+ '?
    | \# [^\n]*+
    """,
    re.DOTALL | re.VERBOSE,
)
_TOML_ENDS = re.compile(r"[=,{}\n]")  # of a key, on either side
_TOO_DEEP = f"it is nested too deeply; {MAX_DEPTH} levels are the most"


def read_bytes(file: Path, most: int = MOST_BYTES) -> bytes:
    """The content of a regular file of at most `most` bytes.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: the file is too large, or it is a pipe, a folder or a device.

    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 10} KiB")
    return content


def read_json(file: Path, most: int = MOST_BYTES) -> Any:
    """The JSON value in a file.

    Raises:
        OSError: the file is missing or cannot be read.
        ValueError: `read_bytes` refuses it, or it is no JSON, or nested too deeply.

    """
    return parse_json(read_bytes(file, most))


def parse_json(content: bytes | str, **how: Any) -> Any:
    """The value that JSON spells. `how`: as for `json.loads`.

    Raises:
        ValueError: it is no JSON, or nested too deeply.

    """
    try:
        return _checked(json.loads(content, **how))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The table that TOML spells.

    Raises:
        ValueError: it is no TOML, or nested too deeply, by brackets or by dots in a key.

    """
    # tomllib takes time by the square of the dots in a key: minutes for 50,000. Dots in strings and comments
    # are no dots of a key, and a string may be a part of a key.
    parts = _TOML_ENDS.split(_TOML_TEXTS.sub("", text))
    if any(part.count(".") > MAX_DEPTH for part in parts):
        raise ValueError(_TOO_DEEP)
    try:
        found: dict[str, Any] = _checked(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return found


def _checked(value: Any) -> Any:
    """`value`, if everything that walks through it, as `repr` does, has room on the stack."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [member for each in members for member in each if isinstance(member, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)
