"""`simile COMMAND`, also `python -m simile COMMAND`: finds the program of a command and runs it.

Exit statuses are those of the programs; docs/OPERATIONS.md lists them.
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from importlib import import_module

from models.messages import Parser, add_version, discard_output
from simile.commands import ABOUT_COMPLETION, COMMANDS, COMPLETION

PROG = "simile"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit status."""
    line = [*(sys.argv[1:] if arguments is None else arguments)]
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for terminals that are not UTF-8
    try:
        return _run(line)
    except BrokenPipeError:  # For example with `| head`. The rest of the output is dropped.
        discard_output()
        return 1
    except KeyboardInterrupt:  # Importing takes up to seconds.
        return 130


def _run(line: Sequence[str]) -> int:
    name = line[0] if line else ""
    if name == COMPLETION:
        completion = import_module("simile.completion")
        return int(completion.main(line[1:], PROG))
    if name not in COMMANDS:
        parser().parse_args(line)
    command = COMMANDS[name]
    prog, rest = (f"{PROG} {name}", line[1:]) if command.is_group else (PROG, line)
    program = import_module(f"{command.program}.__main__")
    return int(program.main(rest, prog=prog) or 0)


def parser() -> argparse.ArgumentParser:
    """Builds a parser that knows the names of the commands, but not their arguments."""
    described = Parser(
        prog=PROG,
        description="Embeddings and search that learn. `simile COMMAND --help` describes a command.",
    )
    add_version(described)
    commands = described.add_subparsers(required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.about)
    commands.add_parser(COMPLETION, help=ABOUT_COMPLETION)
    return described


if __name__ == "__main__":
    sys.exit(main())
