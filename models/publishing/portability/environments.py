"""A tool's own Python: made once by venv and pip under the cache folder, made again when its pins change.

    CACHE/
    └── fastembed/
        ├── venv/           the environment
        ├── made.txt        what it was made of, written last; another text or none: it is made again
        ├── install.log     what pip said        probe.log   what the tool said, of the last time

pip runs with its own configuration and variables, so an index, a mirror or PIP_CONSTRAINT are its user's.
Only wheels are installed: no package's own build code is run.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from models.errors import ModelError
from models.files.fsync import replace_text
from models.files.lock import lock
from models.publishing.portability.tools import Tool
from models.words.progress import Say

_INSTALL_SECONDS = 3600  # torch alone is 200 MB, or gigabytes where its CUDA build is taken
_LONGEST_LINE = 400  # characters of somebody else's message


class Failed(ModelError):
    """A command that did not end well; the message is its last line."""


def python_of(tool: Tool, cache: Path, *, offline: bool, say: Say) -> Path:
    """The interpreter that has `tool`. Raise Failed when there is none, with the reason."""
    at = cache / tool.name
    at.mkdir(parents=True, exist_ok=True)
    python = at / "venv" / "bin" / "python"
    recipe = "\n".join([f"python=={sys.version.split()[0]}", *tool.requirements]) + "\n"
    if _is_made(at, recipe):
        return python
    if offline:
        raise Failed("it is not installed in these versions, and --offline installs nothing")
    held = lock(at)
    if held is None:
        raise Failed("another process is installing it; try again when that has ended")
    try:
        if not _is_made(at, recipe):
            _make(at, tool, say)
            replace_text(at / "made.txt", recipe)
    finally:
        os.close(held)
    return python


def run(command: Sequence[object], log: Path, seconds: float, environ: Mapping[str, str]) -> None:
    """Run it with its output in `log`. Raise Failed when it does not end well; nothing of it runs on then."""
    with log.open("wb") as out:
        process = subprocess.Popen(  # noqa: S603  pip, venv and our own probe
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,  # so that its children end with it
        )
        try:
            status = process.wait(seconds)
        except BaseException as stopped:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(stopped, subprocess.TimeoutExpired):
                last = _last_line(log)
                raise Failed(
                    f"it was stopped after {seconds:g} seconds; its last line: {last or 'none'} ({log})"
                ) from None
            raise
    if status:
        how = f"signal {-status}" if status < 0 else f"exit status {status}"
        raise Failed(f"{_last_line(log) or 'it ended without a word'} ({how}; {log})")


def _is_made(at: Path, recipe: str) -> bool:
    """True if it is there, and its interpreter too, which a new Python may have taken away."""
    try:
        return (at / "made.txt").read_text(encoding="utf-8") == recipe and (at / "venv/bin/python").exists()
    except FileNotFoundError:
        return False


def _make(at: Path, tool: Tool, say: Say) -> None:
    (at / "made.txt").unlink(missing_ok=True)
    python, log = at / "venv" / "bin" / "python", at / "install.log"
    say(f"{tool.name}: making an environment for it in {at}")
    run([sys.executable, "-m", "venv", "--clear", at / "venv"], log, _INSTALL_SECONDS, os.environ)
    if tool.requirements:
        say(f"{tool.name}: installing {', '.join(tool.requirements)}; up to some minutes, {log} says how far")
        options = ("--quiet", "--disable-pip-version-check", "--no-input", "--only-binary", ":all:")
        command = [python, "-m", "pip", "install", *options, *tool.requirements]
        run(command, log, _INSTALL_SECONDS, os.environ)


def _last_line(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line for raw in text.splitlines() if (line := re.sub(r"\x1b\[[0-9;]*m", "", raw).strip())]
    return lines[-1][:_LONGEST_LINE] if lines else ""
