"""Reads JSON, TOML and other small files. Rejects files that would take too much time or memory."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

MAX_BYTES = 16 << 20
MAX_DEPTH = 100  # Levels of tables and lists. Simile's own files have up to six.
# Strings and comments. Possessive quantifiers keep the time linear.
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
_TOML_ENDS = re.compile(r"[=,{}\n]")  # Characters around a key.
_TOO_DEEP = f"it is nested too deeply; the limit is {MAX_DEPTH} levels"


def read_bytes(file: Path, most: int = MAX_BYTES) -> bytes:
    """Reads a regular file of at most `most` bytes.

    Raises:
        OSError: The file is missing or cannot be read.
        ValueError: The file is too large, or is a pipe, a folder or a device.
    """
    descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a regular file")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            content = stream.read(most + 1)
    finally:
        os.close(descriptor)
    if len(content) > most:
        raise ValueError(f"it is larger than {most >> 10} KiB")
    return content


def read_json(file: Path, most: int = MAX_BYTES) -> Any:
    """Reads JSON from a file, with the errors of `read_bytes` and `parse_json`."""
    return parse_json(read_bytes(file, most))


def parse_json(content: bytes | str, **how: Any) -> Any:
    """Parses JSON with the options of `json.loads`.

    Raises:
        ValueError: The text is not JSON, or is nested too deeply.
    """
    try:
        return _checked(json.loads(content, **how))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Parses TOML.

    Raises:
        ValueError: The text is not TOML, or is nested too deeply, by brackets or by dots in a key.
    """
    # tomllib takes quadratic time for the dots in a key: minutes for 50,000. Dots in strings and comments do
    # not count.
    parts = _TOML_ENDS.split(_TOML_TEXTS.sub("", text))
    if any(part.count(".") > MAX_DEPTH for part in parts):
        raise ValueError(_TOO_DEEP)
    try:
        found: dict[str, Any] = _checked(tomllib.loads(text))
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return found


def _checked(value: Any) -> Any:
    """Returns `value`. Raises ValueError if it is nested so deeply that functions such as `repr` overflow."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        members = (each.values() if isinstance(each, dict) else each for each in level)
        level = [member for each in members for member in each if isinstance(member, dict | list)]
        if not level:
            return value
    raise ValueError(_TOO_DEEP)
