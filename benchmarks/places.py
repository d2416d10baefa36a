"""The folders of benchmarks, their arguments, their progress and their failures."""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.workloads import PROJECT

SCRATCH = PROJECT / ".benchmarks"  # on the checkout's own disk
RESULTS = PROJECT / "benchmarks" / "results" / "latest.json"

_Row = TypeVar("_Row")
_Key = TypeVar("_Key")


class BenchError(Exception):
    """The measurement is worth nothing, the server or a program being wrong; the message says how."""


def say(progress: str) -> None:
    print(f"bench: {progress} …", file=sys.stderr, flush=True)


@contextmanager
def ending(*failures: type[Exception]) -> Iterator[None]:
    """A BenchError, or one of `failures`, ends the program with its message."""
    expected: tuple[type[Exception], ...] = (BenchError, *failures)
    try:
        yield
    except expected as error:
        sys.exit(f"The bench failed: {error}")


@contextmanager
def scratch(*failures: type[Exception]) -> Iterator[Path]:
    """A temporary folder, for a program that ends as `ending` says."""
    SCRATCH.mkdir(exist_ok=True)
    with ending(*failures), tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        yield Path(folder)


def rows(file: Path) -> list[dict[str, Any]]:
    """The rows that `add_row` has written; none without the file."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def row_of(lines: Iterable[dict[str, Any]], asked: dict[str, Any]) -> dict[str, Any] | None:
    """The first of the rows that answers what was asked: it has all of its keys, with these values."""
    return next((line for line in lines if asked.items() <= line.items()), None)


def grouped(lines: Iterable[_Row], key: Callable[[_Row], _Key]) -> dict[_Key, list[_Row]]:
    """The rows of each key, both in the order of their first row."""
    found: dict[_Key, list[_Row]] = {}
    for line in lines:
        found.setdefault(key(line), []).append(line)
    return found


def add_row(file: Path, row: dict[str, Any]) -> None:
    """Write it behind the others, as a line of JSON."""
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


def arguments(name: str, doc: str, *, corpus: bool = False, quick: bool = False) -> argparse.ArgumentParser:
    """The parser of `python -m benchmarks.NAME`, with the options that several have."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=doc.split("\n", 1)[0])
    if corpus:
        parser.add_argument(
            "--corpus", type=Path, required=True, help="as `python -m training train` takes it"
        )
    if quick:
        parser.add_argument("--quick", action="store_true", help="small and short: a look, not a figure")
    return parser
