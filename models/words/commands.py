"""Command lines: argparse, with the command or option that was probably meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from importlib.metadata import version
from typing import NoReturn

from models.words.nearest import did_you_mean

_CHOICE = re.compile(r"invalid choice: '([^']*)' \(choose from (.*)\)")
_UNKNOWN = re.compile(r"unrecognized arguments: (-[^\s=]+)")
_KINDS = {"int": "whole number", "float": "number"}
_NUMBER = re.compile(r"invalid (int|float) value: ('[^']*')")


class Parser(argparse.ArgumentParser):
    """A mistake is told in one line; its subparsers are of this class too."""

    def hint(self, message: str) -> str:
        """A sentence behind `message` that says what was probably meant; empty where nothing is near."""
        if choice := _CHOICE.search(message):
            return did_you_mean(choice[1], [name.strip("' ") for name in choice[2].split(",")])
        unknown = _UNKNOWN.search(message)
        return "" if unknown is None else did_you_mean(unknown[1], set(_options(self)))

    def error(self, message: str) -> NoReturn:
        message = _NUMBER.sub(lambda found: f"{found[2]} is not a {_KINDS[found[1]]}", message)
        self.exit(
            2, f"{self.prog}: {message}.{self.hint(message)} `{self.prog} --help` lists what there is.\n"
        )


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add `--version`, which the installed package's metadata knows."""
    parser.add_argument("--version", action="version", version=f"Simile {version('simile')}")


def _options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """The options of a parser and of all its commands."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other list of them
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for command in action.choices.values():
                yield from _options(command)
