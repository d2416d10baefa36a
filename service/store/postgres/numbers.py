"""Metadata that was stored as jsonb alone, before the store kept its text (the column `sent`).

jsonb keeps numbers as decimals, so integers and floats come back as such. It changes the order of names, and
-0.0 to 0.0.
"""

import re

import orjson

# Digits that orjson writes with an exponent, or that are more than 64 bits have; in strings, too.
_LONG = re.compile(r"\d{17}|0\.00000")


def as_sent(metadata: str) -> bytes:
    """The text of a jsonb, with numbers as `json_of` writes them."""
    return metadata.encode() if _LONG.search(metadata) is None else orjson.dumps(orjson.loads(metadata))
