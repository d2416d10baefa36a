"""Converts cells to numbers, dates and plain text. Start reading at `convert` and `plain_text`.

This module has its own scanner for HTML tags. In the supported versions of Python, html.parser needs minutes
for 50 KiB of unclosed tags.
"""

import contextlib
import html
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from typing import Any

from models.files.exact_json import MAX_INTEGER, MIN_INTEGER, becomes_zero
from models.messages import did_you_mean
from service.files.values import BadFile, BadRow, Spelling

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_COMMA_NUMBER = re.compile(r"[+-]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?", re.ASCII)
_NAMED_DAY = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})(?:[ T]+(.+))?", re.ASCII)
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,](\d{1,9}))?)?\s*(Z|z|[+-]\d{2}:?\d{2})?", re.ASCII)
_MAX_DIGITS = 400


def number(text: str) -> int | float:
    """Parses a number with a decimal point.

    Raises:
        ValueError: The text is not such a number, or a 64-bit number cannot store it.

    """
    if not _NUMBER.fullmatch(text) or len(text) > _MAX_DIGITS:
        raise ValueError("not a number with a decimal point (decimal_comma reads a comma)")
    return _finite(text)


def decimal_comma(text: str) -> int | float:
    """Parses a number with a decimal comma. Points may separate thousands.

    Raises:
        ValueError: The text is not such a number, or a 64-bit number cannot store it.

    """
    if not _COMMA_NUMBER.fullmatch(text) or len(text) > _MAX_DIGITS:
        raise ValueError("not a number with a decimal comma")
    return _finite(text.replace(".", "").replace(",", "."))


def _finite(text: str) -> int | float:
    if text.lstrip("+-").isdigit():
        whole = int(text)
        if MIN_INTEGER <= whole <= MAX_INTEGER:
            return whole
        raise ValueError("a whole number of more than 64 bits; leave it as a text")
    found = float(text)
    if not math.isfinite(found):
        raise ValueError("larger than a number can be")
    if becomes_zero(text):
        raise ValueError("so small that it would be stored as 0; leave it as a text")
    return found


def _dates(order: str) -> Callable[[str], str]:
    def convert(text: str) -> str:
        """Converts a date, or a date and time, to ISO 8601. A time without a time zone is UTC.

        Raises:
            ValueError: The text is not a date, or the order of day and month is not clear.

        """
        found = _NAMED_DAY.fullmatch(text)
        if found is None:
            raise ValueError("not a date such as 2026-01-31 or 31.01.2026 14:30")
        first, mark, second, third, rest = found.groups()
        day = _day(first, second, third, mark, order)
        return day.isoformat() if rest is None else _moment(day, rest)

    return convert


def _day(first: str, second: str, third: str, mark: str, order: str) -> date:
    if len(first) == 4:
        return date(int(first), int(second), int(third))
    if len(third) != 4:
        raise ValueError("a date whose year does not have four digits")
    if order == "" and mark != ".":
        raise ValueError("a date with the day or the month first; use date_dmy or date_mdy")
    day, month = (second, first) if order == "mdy" else (first, second)
    return date(int(third), int(month), int(day))


def _moment(day: date, rest: str) -> str:
    found = _TIME.fullmatch(rest.strip())
    if found is None:
        raise ValueError("a date followed by something that is not a time")
    hour, minute, second, part, zone = found.groups()
    moment = datetime.combine(day, time(int(hour), int(minute), int(second or 0)))
    local = f"{moment.isoformat()}{f'.{part}' if part else ''}"
    if zone is None or zone in "Zz":
        return f"{local}Z"
    zone = zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    datetime.fromisoformat(f"{moment.isoformat()}{zone}").astimezone(UTC)  # Rejects an invalid zone.
    return f"{local}{zone}"


TYPES: Mapping[str, Callable[[str], Any]] = {
    "number": number,
    "decimal_comma": decimal_comma,
    "date": _dates(""),
    "date_dmy": _dates("dmy"),
    "date_mdy": _dates("mdy"),
}


def parse_types(pairs: Iterable[str], spell: Spelling) -> dict[str, str]:
    """Parses the types of columns from pairs such as `price=number`.

    Args:
        pairs: The pairs.
        spell: Returns the caller's spelling of an option, for messages.

    Raises:
        BadFile: A pair is malformed, or a type is unknown.

    """
    found = {}
    for pair in pairs:
        name, _, kind = pair.rpartition("=")
        if not name:
            raise BadFile(f"{spell('types')} has {pair[:80]!r}; write COLUMN=TYPE, such as price=number.")
        if kind not in TYPES:
            hint = did_you_mean(kind, TYPES) or f" The types are {', '.join(TYPES)}."
            raise BadFile(f"unknown type {kind[:40]!r} ({spell('types')}).{hint}")
        found[name] = kind
    return found


def convert(metadata: dict[str, Any], types: Mapping[str, str]) -> None:
    """Converts texts in the metadata to numbers or dates, in place. Empty texts are removed.

    Args:
        metadata: The metadata of a document.
        types: The types, by the name of the field.

    Raises:
        BadRow: A text cannot be converted.

    """
    for name, kind in types.items():
        value = metadata.get(name)
        if not isinstance(value, str):
            continue
        text = value.strip()
        if not text:
            del metadata[name]
            continue
        try:
            metadata[name] = TYPES[kind](text)
        except (ValueError, OverflowError) as error:
            raise BadRow(f"{name!r} is {text[:40]!r}: {error}") from error


def proposed(values: Iterable[str]) -> str | None:
    """Proposes a type for a column. Returns None if the column should stay text.

    Only types that fit every value without doubt are proposed.
    """
    texts = [text for value in values if (text := value.strip())]
    if not texts:
        return None
    # Values with leading zeros, such as 01069, are codes.
    codes = any(re.match(r"[+-]?0\d", text) or text.startswith("+") for text in texts)
    if not codes and all(_is(number, text) for text in texts):
        return "number"
    sure = any(
        ("," in text and len(text.rpartition(",")[2]) != 3) or ("." in text and "," in text) for text in texts
    )
    if not codes and sure and all(_is(decimal_comma, text) for text in texts):
        return "decimal_comma"
    fitting = [
        kind for kind in ("date", "date_dmy", "date_mdy") if all(_is(TYPES[kind], text) for text in texts)
    ]
    if "date" in fitting:
        return "date"
    return fitting[0] if len(fitting) == 1 else None


def _is(kind: Callable[[str], Any], text: str) -> bool:
    try:
        kind(text)
    except (ValueError, OverflowError):
        return False
    return True


_BLOCKS = (
    "address article aside blockquote br dd div dl dt fieldset figcaption figure footer form h1 h2 h3 h4 h5 "
    "h6 header hr li main nav ol p pre section table tbody tfoot thead tr ul"
)
_SPACES = {**dict.fromkeys(_BLOCKS.split(), "\n"), **dict.fromkeys(("td", "th", "option"), " ")}
_DROPPED = {name: re.compile(f"</{name}", re.IGNORECASE) for name in ("script", "style")}
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9:-]*+)")
_QUOTED = re.compile(r"""(?:[^>"']++|"[^"]*+"|'[^']*+')*+>""")
_LOOKS_LIKE = re.compile(
    r"</?(?:p|div|br|b|i|a|span|ul|ol|li|h[1-6]|em|table|td)\b[^<>]{0,500}>", re.IGNORECASE
)


def looks_like_html(values: Iterable[str]) -> bool:
    return any(_LOOKS_LIKE.search(value[:10_000]) for value in values)


def plain_text(markup: str) -> str:
    """Removes HTML tags, comments, scripts and styles, resolves entities, and collapses white space.

    Takes linear time. A text without `<` and `&` stays as it is.
    """
    if "<" not in markup and "&" not in markup:
        return markup
    parts: list[str] = []
    tags, at = _Tags(markup), 0
    while (begun := markup.find("<", at)) >= 0:
        parts.append(markup[at:begun])
        instead, at = tags.skip(begun)
        parts.append(instead)
    text = "".join((*parts, markup[at:]))
    with contextlib.suppress(ValueError):  # html.unescape fails on references of thousands of digits.
        text = html.unescape(text)
    lines = [" ".join(line.split()) for line in text.split("\n")]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


class _Tags:
    def __init__(self, markup: str) -> None:
        self._markup = markup
        # Characters that all searches for closing quotes may read, which keeps the time linear.
        self._budget = 4 * len(markup) + 1000

    def skip(self, at: int) -> tuple[str, int]:
        """Skips a tag that begins at position `at`, and the content of a script or style.

        Returns:
            The text that replaces the skipped part, and the position after it.

        """
        markup = self._markup
        tag = _TAG.match(markup, at)
        if tag is None:
            return self._declaration(at)
        close = self._close(tag.end())
        if close < 0:
            return markup[at:], len(markup)
        name = tag[1].lower()
        if name in _DROPPED and markup[at + 1] != "/":
            closing = _DROPPED[name].search(markup, close)
            return "", closing.start() if closing else len(markup)
        return _SPACES.get(name, ""), close + 1

    def _close(self, at: int) -> int:
        """Returns the position of the `>` that ends a tag, or -1. A `>` within quotes does not end a tag."""
        close = self._markup.find(">", at)
        inside = self._markup[at:close]
        if close >= 0 and self._budget > 0 and ('"' in inside or "'" in inside):
            whole = _QUOTED.match(self._markup, at, at + self._budget)
            self._budget -= (whole.end() if whole else len(self._markup)) - at
            return whole.end() - 1 if whole else close
        return close

    def _declaration(self, at: int) -> tuple[str, int]:
        """Skips a comment, `<!DOCTYPE …>` or `<?xml …?>` at position `at`. Any other `<` is text.

        Returns:
            The text that replaces the skipped part, and the position after it.

        """
        markup = self._markup
        if markup.startswith("<!--", at):
            mark = "-->"
        elif markup.startswith(("<!", "<?", "</"), at) and markup[at + 2 : at + 3].strip():
            mark = ">"
        else:
            return "<", at + 1
        end = markup.find(mark, at + 2)
        return ("", end + len(mark)) if end >= 0 else (markup[at:], len(markup))
