"""Publishes an untrusted folder in a child process with limited time and memory. Start at `publish_limited`.

An untrusted graph or tokenizer may run forever, or take all memory. Both run in C code, which a Python
exception cannot interrupt. So a child process (import_process.py) does the work, and this process kills the
child when it reaches a limit.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import models
from models.errors import ModelError, ModelUnavailable, ProofFailed, Unsupported
from models.manifest import Manifest, read_manifest
from models.progress import Say, silent
from models.publishing.default import locate, publish_named
from models.sources.folder import NO_OVERRIDES, Overrides
from models.store import ModelStore

MAX_SECONDS = 1800  # Six times the time of the largest measured model on four busy cores.
MIN_MB = 6144  # torch takes 1 GB, and the proof of a long context several.
MEMORY_FACTOR = 6  # torch's export copies the weights several times.
LOOK_SECONDS = 0.1
STARTED_SECONDS = 60  # Processor time for the imports of the child.
CHILD = "models.publishing.import_process"
_MB = 1 << 20
_KINDS = (ModelUnavailable, Unsupported, ProofFailed)


class Limits(NamedTuple):
    """Limits of one import. 0 stands for the default limit.

    Args:
        seconds: Maximum time, not counting downloads.
        memory_mb: Maximum anonymous memory of the child process, in MiB.
    """

    seconds: int = 0
    memory_mb: int = 0


def publish_limited(
    store: ModelStore,
    source: str,
    origin: str = "",
    say: Say = silent,
    *,
    overrides: Overrides = NO_OVERRIDES,
    torch: bool = True,
    int8: bool = False,
    limits: Limits = Limits(),  # noqa: B008  it cannot be changed
) -> Manifest:
    """Publishes a source like `publish_named`. A child process publishes folders and hub ids.

    Args:
        source: `default`, a folder or a hub id.
        origin: Model name in the version's name.
        overrides: Settings that complete or replace those of the folder.
        torch: Whether torch may export the graph.
        int8: Whether to add an int8 graph.
        limits: Time and memory of the child process.

    Raises:
        ModelError: The source cannot be published, or the child reached a limit. Nothing was published.
        OSError: The store cannot be written.
    """
    if source == "default":  # Its files have known digests, so it needs no limits.
        return publish_named(store, source, origin, say, int8=int8)
    located = locate(source, origin, say)  # The limits depend on the folder's size.
    limits = Limits(limits.seconds or MAX_SECONDS, limits.memory_mb or _memory_for(located.folder))
    request = {
        "store": str(store.root),
        "folder": str(located.folder),
        "origin": located.origin,
        "lineage": located.lineage,
        "asked": [overrides.pooling, overrides.max_length, dict(overrides.prompts)],
        "torch": torch,
        "int8": int8,
        "cpu_seconds": _cpu_seconds(limits),
        "memory_mb": limits.memory_mb,
    }
    try:
        with tempfile.TemporaryDirectory(prefix="simile-import-") as scratch:
            answer = _answer(request, scratch, say, limits, source)
    finally:
        if store.root.is_dir():
            with contextlib.suppress(OSError):
                store.sweep()  # Removes files of a killed child.
    if answer is not None and "version" in answer:
        return read_manifest(store.folder(answer["version"]))
    if answer is None:
        raise ModelError(
            f"Importing {source} failed: its process crashed or was killed. Nothing was published. "
            "Copy the folder again from its source; free memory if this happens again."
        )
    if answer["kind"] == "OSError":
        raise OSError(answer["errno"], answer["error"], answer["file"])
    kind = next((each for each in _KINDS if each.__name__ == answer["kind"]), ModelError)
    raise kind(answer["error"])


def _memory_for(folder: Path) -> int:
    """Returns the default memory limit for a folder, in MiB. Sparse files count with their disk usage."""
    size = 0
    if folder.is_dir():
        size = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())
    return MIN_MB + MEMORY_FACTOR * size // _MB


def _cpu_seconds(limits: Limits) -> int:
    """Returns a limit of processor time that the child cannot reach before its limit of elapsed time."""
    return limits.seconds * (os.cpu_count() or 1) + STARTED_SECONDS


def _answer(
    request: Mapping[str, Any], scratch: str, say: Say, limits: Limits, source: str
) -> dict[str, Any] | None:
    """Runs the child and returns its answer, or None if the child crashed.

    Args:
        request: The request for the child.
        scratch: A folder for temporary files.

    Raises:
        Unsupported: The child reached a limit.
    """
    package = str(Path(models.__file__).parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH", "")]))
    child = subprocess.Popen(  # noqa: S603  this program
        [sys.executable, "-m", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "TMPDIR": scratch},
        text=True,
        encoding="utf-8",
    )
    assert child.stdin is not None  # noqa: S101  it is a pipe
    assert child.stdout is not None  # noqa: S101
    watch = _Watch(child, limits)
    answer: dict[str, Any] | None = None
    try:
        # stdin stays open, so that the child exits when this process dies.
        child.stdin.write(json.dumps(request) + "\n")
        child.stdin.flush()
        for line in child.stdout:
            told = json.loads(line)
            if "say" in told:
                watch.begin()
                say(told["say"])
            else:
                answer = told
        child.wait()
    except (BrokenPipeError, ValueError):
        answer = None
    finally:
        watch.stop()
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()
    if answer is not None and "version" in answer:
        return answer
    if watch.reason is not None:
        reached = watch.reason
    elif answer is not None and answer.get("kind") == "MemoryError":
        reached = _too_much_memory(limits)
        if _is_lower(limits.memory_mb * _MB, resource.RLIMIT_DATA, resource.RLIMIT_AS):
            reached = "took more memory than the limit of its process (ulimit -d, ulimit -v)."
    elif answer is None and child.returncode == -signal.SIGXCPU:
        reached = _too_slow(limits)
        if _is_lower(_cpu_seconds(limits), resource.RLIMIT_CPU):
            reached = "took more processor time than the limit of its process (ulimit -t)."
    else:
        return answer
    raise Unsupported(
        f"Importing {source} {reached} Nothing was published. The cause may be a graph or a tokenizer that "
        "never ends. If you trust the folder, run `simile models import` with a higher limit."
    )


def _is_lower(most: int, *which: int) -> bool:
    """Returns True if the child inherits a resource limit below `most`."""
    inherited = [resource.getrlimit(each)[0] for each in which]
    return any(each != resource.RLIM_INFINITY and each < most for each in inherited)


def _too_slow(limits: Limits) -> str:
    return f"took longer than {limits.seconds} s (--max-seconds)."


def _too_much_memory(limits: Limits) -> str:
    return f"took more than {limits.memory_mb} MiB of memory (--max-memory)."


class _Watch:
    """Kills the child when it reaches a limit, and sets `reason`."""

    def __init__(self, child: subprocess.Popen[str], limits: Limits) -> None:
        self.reason: str | None = None
        self._child, self._limits = child, limits
        self._began: float | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="import limits", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Starts the clock, unless the clock runs already."""
        self._began = self._began or time.monotonic()

    def stop(self) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.wait(LOOK_SECONDS):
            if self._began is not None and time.monotonic() - self._began > self._limits.seconds:
                self.reason = _too_slow(self._limits)
            elif _own_bytes(self._child.pid) > self._limits.memory_mb * _MB:
                self.reason = _too_much_memory(self._limits)
            if self.reason is not None:
                self._child.kill()
                return


def _own_bytes(pid: int) -> int:
    """Returns the anonymous memory of a process in bytes, or 0 if it is unknown.

    Mapped files do not count.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return sum(int(fields.get(name, "0 kB").split()[0]) for name in ("RssAnon", "RssShmem")) << 10
