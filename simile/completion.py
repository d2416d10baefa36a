"""`simile completion SHELL`: prints a completion script for bash, zsh or tcsh.

The script holds all commands and options, so that a shell completes them without starting Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import shtab  # here and not in __main__, so that no other command imports it

from models.messages import Parser
from simile.commands import ABOUT_COMPLETION, COMMANDS, COMPLETION


def main(arguments: Sequence[str], prog: str) -> int:
    shell: str = _own_parser(prog).parse_args(arguments).shell
    print(shtab.complete(build_parser(prog), shell), flush=True)
    return 0


def _own_parser(prog: str) -> argparse.ArgumentParser:
    described = Parser(
        prog=f"{prog} {COMPLETION}",
        description=f'Print a completion script. In bash: eval "$({prog} {COMPLETION} bash)"',
    )
    described.add_argument("shell", choices=shtab.SUPPORTED_SHELLS)
    return described


def build_parser(prog: str) -> argparse.ArgumentParser:
    """Builds one parser of all commands. Programs whose packages are missing are left out."""
    programs = {name: parser for name in ("service", "models", "training") if (parser := _load(name))}
    described: argparse.ArgumentParser = Parser(prog=prog)
    commands = described.add_subparsers()
    for name, command in COMMANDS.items():
        if (parser := programs.get(command.program)) is not None:
            source = parser if command.is_group else _subparsers(parser)[name]
            commands.add_parser(name, help=command.about, parents=[source], add_help=False)
    commands.add_parser(COMPLETION, help=ABOUT_COMPLETION, parents=[_own_parser(prog)], add_help=False)
    return described


def _load(program: str) -> argparse.ArgumentParser | None:
    try:
        parser: argparse.ArgumentParser = import_module(f"{program}.__main__").parser()
    except SystemExit:  # Its packages are missing. Nothing is printed, because shells run this at each start.
        return None
    return parser


def _subparsers(parser: argparse.ArgumentParser) -> dict[str, Any]:
    return next(dict(action.choices) for action in parser._actions if isinstance(action.choices, dict))  # noqa: SLF001
