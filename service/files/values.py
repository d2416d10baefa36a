"""Types of the reader: formats, rows, and the reasons why a row or a file is rejected."""

import csv
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

Format: TypeAlias = Literal["jsonl", "csv", "tsv", "text", "file"]
MARK = "\udc80"  # Replaces bytes that cannot be decoded. No decoded text contains it.

# Returns the caller's spelling of an option: `--text` of the command, `text=` of the route.
Spelling: TypeAlias = Callable[[str], str]


class BadRow(Exception):
    """A line does not contain a valid document."""


class BadFile(Exception):
    """A file cannot be read, or not after some line.

    Args:
        reason: Begins in lower case and ends with a period.
        line: The line where reading stopped. None means the whole file.

    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Row(NamedTuple):
    """A document, or the reason why its lines are invalid. `content` is None for a note alone."""

    file: str
    line: int
    content: dict[str, Any] | BadRow | None
    last_line: int = 0  # last line of a row with several lines
    note: str = ""  # a warning about a row that is stored

    @property
    def lines(self) -> int:
        return max(self.last_line - self.line + 1, 1)


def split_names(text: str) -> tuple[str, ...]:
    """Splits a list of names at commas. Names that contain a comma are in double quotes.

    Raises:
        BadFile: A quote is never closed.

    """
    try:
        return tuple(name for name in next(csv.reader([text], strict=True), ()) if name)
    except csv.Error as error:
        raise BadFile(f"the list of columns {text[:80]!r} has a stray double quote.") from error


def command_option(name: str) -> str:
    return f"--{name}"


def query_parameter(name: str) -> str:
    return f"{name}="
