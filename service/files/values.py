"""What the reader takes and returns: options, rows, and reasons why a row or a file is no document."""

import csv
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

Format: TypeAlias = Literal["jsonl", "csv", "tsv", "text", "file"]
MARK = "\udc80"  # replaces bytes that the encoding cannot decode; no decoded text has it

# How an option is written where the reader was called: `--text` of the command, `text=` of the route.
Spelling: TypeAlias = Callable[[str], str]


class BadRow(Exception):
    """A line that holds no document."""


class BadFile(Exception):
    """A file that cannot be read, or not from some line on.

    Args:
        reason: Begins in lower case and ends with a period.
        line: Where it stopped, None for the whole file.

    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Row(NamedTuple):
    """A document as it is sent, or the reason why the lines hold none. None: only the note counts."""

    file: str
    line: int
    content: dict[str, Any] | BadRow | None
    last_line: int = 0  # of a row that takes several lines
    note: str = ""  # for people, about a row that is stored all the same

    @property
    def lines(self) -> int:
        return max(self.last_line - self.line + 1, 1)


def split_names(text: str) -> tuple[str, ...]:
    """Names between commas; one that has a comma is in double quotes.

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
