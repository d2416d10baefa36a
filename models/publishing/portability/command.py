"""`python -m models verify-portability VERSION`: a verdict for each tool, as a table and as JSON.

Exit status 0: every tool that was tried gives the same vectors, or is known to be unable, and why. 1: one
differs, one failed in a way that is not known, or none could be tried. A pair has a table of its query
encoder, too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from models import cpus
from models.errors import ModelError, NotPortable
from models.files.fsync import replace_text
from models.manifest import QUERIES
from models.publishing.portability.check import REQUIRED, TEXTS, Expected, Row, check
from models.publishing.portability.environments import Failed, python_of
from models.publishing.portability.tools import TOOLS, Tool
from models.store import Store
from models.words.progress import Say, step_to_stderr


def run(store: Store, options: argparse.Namespace, tools: Sequence[Tool] = TOOLS) -> None:
    """Refuse what can be refused before the model is opened. Raise NotPortable for exit status 1."""
    chosen = _chosen(tools, options.tool)
    given = _given(tools, options.python)
    cache, file = _expanded(options.cache), options.json and _expanded(options.json)
    if file and (not file.parent.is_dir() or (file.exists() and not file.is_file())):
        raise ModelError(f"{file} cannot be written: name a file in a folder that is there.")
    step_to_stderr("checking every file, and computing Simile's own vectors")
    encoder = store.open(options.version, threads=cpus.available())
    folder = store.folder(options.version)
    parts = {options.version: Expected.of(folder, encoder)}
    if encoder.queries is not None:
        parts[f"{options.version}/{QUERIES}"] = Expected.of(folder / QUERIES, encoder.queries)
    encoder.close()
    rows: list[Row] = []
    reports = []
    for name, expected in parts.items():
        found = []
        for tool in chosen:
            found.append(verdict(tool, given, expected, cache, offline=options.offline, say=step_to_stderr))
            sys.stderr.write(f"{tool.name}: {found[-1].verdict}\n")
        sys.stdout.write(table(name, expected, found))
        reports.append(report(name, found))
        rows += found
    if file:
        said = reports[0] | dict(zip([QUERIES], reports[1:], strict=False))
        replace_text(file, json.dumps(said, indent=2, allow_nan=False) + "\n")
    failed = [row for row in rows if row.verdict == "differs" or not row.foreseen]
    if failed:
        reasons = "; ".join(f"{row.tool} {row.verdict}: {row.reason}" for row in failed)
        raise NotPortable(f"{options.version} is not portable to every tool: {reasons}")
    if all(row.verdict == "not tried" for row in rows):
        raise NotPortable("No tool could be tried, so nothing is known; the reasons are in the table.")


def verdict(
    tool: Tool, given: Mapping[str, Path], expected: Expected, cache: Path, *, offline: bool, say: Say
) -> Row:
    limits = tool.limits(expected.source)
    if limits.cannot:
        return Row(tool.name, "cannot", limits.cannot)  # and nothing need be installed to know it
    try:
        python = given.get(tool.name) or python_of(tool, cache, offline=offline, say=say)
    except Failed as failed:
        return Row(tool.name, "not tried", str(failed))
    say(f"{tool.name}: opening the version, and computing {len(expected.texts)} texts")
    at = cache / tool.name
    at.mkdir(parents=True, exist_ok=True)
    return check(tool, python, expected, at)


def table(version: str, expected: Expected, rows: Sequence[Row]) -> str:
    lines = [
        f"{version}: cosine with Simile's own vectors, {len(TEXTS)} texts"
        + (
            f" and {len(expected.texts) - len(TEXTS)} with a prompt"
            if len(expected.texts) > len(TEXTS)
            else ""
        )
        + f"; same from {REQUIRED} on",
        "",
        f"{'tool':28}{'verdict':11}{'lowest':11}versions",
    ]
    for row in rows:
        lowest = "-" if row.lowest is None else f"{row.lowest:.7f}"
        versions = ", ".join(f"{name} {number}" for name, number in row.versions.items())
        lines.append(f"{row.tool:28}{row.verdict:11}{lowest:11}{versions}".rstrip())
    notes = [
        f"{row.tool}: {note}" for row in rows for note in ((row.reason,) if row.reason else ()) + row.remarks
    ]
    return "\n".join([*lines, *([""] if notes else []), *notes, ""])


def report(version: str, rows: Sequence[Row]) -> dict[str, object]:
    return {"version": version, "required": REQUIRED, "tools": [vars(row) for row in rows]}


def _chosen(tools: Sequence[Tool], names: Sequence[str]) -> list[Tool]:
    for name in names:
        _known(tools, name)
    return [tool for tool in tools if not names or tool.name in names]


def _given(tools: Sequence[Tool], pairs: Sequence[str]) -> dict[str, Path]:
    """TOOL=PATH of --python."""
    given = {}
    for pair in pairs:
        name, _, path = pair.partition("=")
        _known(tools, name)
        # A link is not followed: an environment's interpreter is one, and knows its packages by where it is.
        python = _expanded(Path(path))
        if not (python.is_file() and os.access(python, os.X_OK)):
            raise ModelError(f"--python {pair}: there is no program {path!r} that could be run.")
        given[name] = python
    return given


def _known(tools: Sequence[Tool], name: str) -> None:
    names = [tool.name for tool in tools]
    if name not in names:
        raise ModelError(f"There is no tool {name!r} here; there are {', '.join(names)}.")


def _expanded(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError:
        raise ModelError(
            f"There is no home folder for {path}: name another with --cache or --json."
        ) from None
