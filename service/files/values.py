"""Types that the file reader uses: formats, rows, and the errors for rejected rows and files."""

import csv
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeAlias

from models.files.lines import BadRow as BadRow  # noqa: PLC0414  for the other modules of this package
from models.messages import amount

Format: TypeAlias = Literal["jsonl", "csv", "tsv", "text", "file"]

# Returns the caller's spelling of an option: `--text` of the command, `text=` of the route.
Spelling: TypeAlias = Callable[[str], str]


class BadFile(Exception):
    """Raised if a file cannot be read, or cannot be read beyond some line.

    Args:
        reason: The reason. It begins in lower case and ends with a period.
        line: The line where reading stopped. None means that the whole file cannot be read.

    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class Row(NamedTuple):
    """Result for one row of a file: a document to store, the error of an invalid row, or only a note.

    Attributes:
        content: The document, or the error. None if the row is only a note about the file.

    """

    file: str
    line: int
    content: dict[str, Any] | BadRow | None
    last_line: int = 0  # last line of a row with several lines
    note: str = ""  # a warning about a row that is stored

    @property
    def lines(self) -> int:
        return max(self.last_line - self.line + 1, 1)


def failed_in_words(rows: int, lines: int) -> str:
    """Returns a phrase about rows that were not stored, such as `1 row (3 lines) failed`."""
    if rows == lines:
        return f"{amount(lines, 'line')} failed"
    return f"{amount(rows, 'row')} ({lines:,} lines) failed"


def split_names(text: str) -> tuple[str, ...]:
    """Splits a list of names at commas. A name that contains a comma must be in double quotes.

    Raises:
        BadFile: A double quote is not closed.

    """
    try:
        return tuple(name for name in next(csv.reader([text], strict=True), ()) if name)
    except csv.Error as error:
        raise BadFile(f"the list of columns {text[:80]!r} has a stray double quote.") from error


def command_option(name: str) -> str:
    return f"--{name}"


def query_parameter(name: str) -> str:
    return f"{name}="
