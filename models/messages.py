"""Builds messages for people about mistakes, and parses command lines.

Start at `did_you_mean`, which suggests a name for a misspelled one, and at `Parser`. validation.py has the
messages for pydantic's errors.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from models.version import VERSION

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
    """Returns the message for an unknown field, with a suggestion or the list of known fields.

    Args:
        name: The unknown field.
        known: The known fields.
        noun: Word for a field in the message.
        within: Name of the object that has the unknown field. Empty for the whole body or the URL.
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


def plural(number: int, one: str, many: str = "") -> str:
    """Returns `one` for the number 1, else `many`, which is `one` with an s by default.

    A verb can be part of both: `plural(n, "document is", "documents are")`.
    """
    return one if number == 1 else many or f"{one}s"


def amount(number: int, one: str, many: str = "") -> str:
    """Returns a number with its noun, such as `1 document` or `1,200 documents`. See `plural`."""
    return f"{number:,} {plural(number, one, many)}"


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats rows as text with aligned columns. The first row has the heads."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


_CHOICE = re.compile(r"argument (\S+): invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = re.compile(r"unrecognized arguments: (.+)")
_KINDS = {"int": "whole number", "float": "number"}
_NUMBER = re.compile(r"invalid (int|float) value: ('[^']*')")
_MISSING = re.compile(r"the following arguments are required: (.+)")
_ONE_OF = re.compile(r"one of the arguments (.+) is required")


# Names of commands in other programs.
_ELSEWHERE = {
    "create": ("add",),
    "delete": ("prune", "remove"),
    "load": ("import",),
    "ls": ("list",),
    "new": ("add",),
    "publish": ("import",),
    "remove": ("prune",),
    "rm": ("prune", "remove"),
    "run": ("serve",),
    "start": ("serve",),
    "use": ("activate",),
}


class Parser(argparse.ArgumentParser):
    """An argument parser that reports mistakes in one line. Subparsers are of the same class."""

    _given: Sequence[str] = ()

    def hint(self, message: str) -> str:
        """Returns a suggestion for a message of argparse, or an empty text."""
        if choice := _CHOICE.search(message):
            names = _choices(choice)
            ours = next((name for name in _ELSEWHERE.get(choice[2], ()) if name in names), choice[2])
            return did_you_mean(ours, names)
        if missing := _MISSING.search(message):
            return self._write_option(missing[1].split(", "))
        unknown = _UNKNOWN.search(message)
        return "" if unknown is None else did_you_mean(unknown[1].split()[0], self._option_string_actions)

    def _write_option(self, missing: Sequence[str]) -> str:
        """Returns how to write a missing option with one of its values, or an empty text."""
        for action in self._actions:
            option = next(iter(action.option_strings), "")
            if action.choices and option in missing:
                values = [*map(str, action.choices)]
                given = next((value for value in self._given if value in values), None)
                return f" Write {option} {given or ' or '.join(values)}."
        return ""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Rejects unknown arguments, with a message that names the subcommand."""
        self._given = sys.argv[1:] if args is None else args
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        problem = f"{_plain(message)}.{self.hint(message)}"
        self.exit(2, f"{self.prog}: {problem} See `{self.prog} --help`.\n")


def add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--version", action="version", version=f"Simile {VERSION}")


def discard_output() -> None:
    """Drops the rest of the output, for example after `| head` has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def positive(text: str) -> int:
    """Parses a whole number of at least 1. Used as the `type` of an argument."""
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return int(text)


def _plain(message: str) -> str:
    """Rewrites a message of argparse in plainer words."""
    if choice := _CHOICE.search(message):
        *most, last = _choices(choice)
        names = f"{', '.join(most)} or {last}" if most else last
        return f"{choice[1]} must be {names}, not {choice[2]!r}"
    message = _NUMBER.sub(lambda found: f"{found[2]} is not a {_KINDS[found[1]]}", message)
    message = _UNKNOWN.sub(r"there is no argument \1", message)
    message = _MISSING.sub(r"\1 is missing", message)
    message = _ONE_OF.sub(lambda found: f"give one of {', '.join(found[1].split())}", message)
    return message.replace("expected one argument", "a value must follow")


def _choices(choice: re.Match[str]) -> list[str]:
    return [name.strip("' ") for name in choice[3].split(",")]
