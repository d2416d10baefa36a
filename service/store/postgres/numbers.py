"""Numbers of metadata in jsonb, which keeps them as decimals: integers and floats come back as such.

jsonb writes 1e+17 as 100000000000000000, an integer; but it keeps the zeros of a fraction. The one float that
it cannot keep is -0.0, which comes back as 0.0.
"""

import re
from decimal import Decimal

import orjson

# A string, or a float as orjson writes it from 1e16 on.
_STRING_OR_LARGE = re.compile(r'"(?:[^"\\]|\\.)*"|-?\d(?:\.\d+)?e\+\d+')
_LARGE = re.compile(r"\de\+\d")
# Digits that orjson writes with an exponent, or that are more than 64 bits have; in strings, too.
_LONG = re.compile(r"\d{17}|0\.00000")


def as_decimals(metadata_json: str) -> str:
    """Metadata, as `json_of` writes it, in which each large float has a fraction."""
    if _LARGE.search(metadata_json) is None:
        return metadata_json
    return _STRING_OR_LARGE.sub(_with_fraction, metadata_json)


def _with_fraction(found: re.Match[str]) -> str:
    value = found[0]
    return value if value[0] == '"' else f"{Decimal(value):f}.0"


def as_sent(metadata: str) -> bytes:
    """The text of a jsonb, with numbers as `json_of` writes them."""
    return metadata.encode() if _LONG.search(metadata) is None else orjson.dumps(orjson.loads(metadata))
