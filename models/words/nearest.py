"""Suggestions for misspelled names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MAX_CHARACTERS = 80  # Limit of names and values that error messages repeat.
_ALIKE = 0.7  # difflib's ratio. With its default of 0.6, PROVIDER would resemble PORT.


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns a suggestion such as ` Did you mean inputs?`, or an empty text if no known name is similar."""
    close = nearest(name, known)
    return "" if close is None else f" Did you mean {close}?"


def nearest(name: str, known: Iterable[str]) -> str | None:
    by_small = {each.lower(): each for each in known}
    close = get_close_matches(name[:MAX_CHARACTERS].lower(), by_small, n=1, cutoff=_ALIKE)
    return by_small[close[0]] if close else None


def no_field(name: str, known: Iterable[str], noun: str = "field", within: str = "") -> str:
    """Returns the message for an unknown field, with a suggestion or all known fields.

    Args:
        within: The object without this field; empty for the whole body or the URL.
    """
    known = list(known)
    hint = did_you_mean(name, known)
    place = f"in {within}" if within else "here"
    there_are = f"; there {_are(known)}"
    return f"There is no {noun} {name[:MAX_CHARACTERS]!r} {place}{'' if hint else there_are}.{hint}"


def _are(known: list[str]) -> str:
    if len(known) < 2:
        return f"is only {known[0]}" if known else "is none"
    return f"are {', '.join(known)}"
