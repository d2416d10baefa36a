"""Runs in a child process that publishes an untrusted folder. limited.py starts the process.

The process first limits the time and memory that it may use. It reads a request from stdin, and writes each
step and the answer to stdout, one line of JSON each. When the parent process ends, stdin is closed, and the
child exits. `open_with_overrides` prepares the folder, with torch if necessary:

    folder ─▶ Simile's graph, from the weights         BERT and its relatives, word tables
           ─▶ torch.onnx.export, verified by torch     every other family that transformers supports
           ─▶ the ONNX file of the folder              without torch, or without weights

The service never imports this module.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from models.errors import ModelError, Unsupported, install_command
from models.manifest import FILE_NAME as MANIFEST
from models.progress import Say
from models.publishing.publish import Prepared, prepare, publish
from models.sources.folder import Overrides, Source, read_source
from models.store import ModelStore

_INSTALL = f"`make train` installs it, or {install_command('train')}"


def main() -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # Libraries may print to stdout.

    def tell(told: Mapping[str, object]) -> None:
        answers.write(json.dumps(told) + "\n")
        answers.flush()

    request = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    _limit(resource.RLIMIT_CPU, request["cpu_seconds"])
    _limit(resource.RLIMIT_DATA, request["memory_mb"] << 20)
    _limit(resource.RLIMIT_CORE, 0)
    pooling, max_length, prompts = request["asked"]
    overrides = Overrides(tuple(pooling), max_length, prompts)
    opened = partial(open_with_overrides, overrides) if request["torch"] else None
    store = ModelStore(Path(request["store"]))
    try:
        folder = Path(request["folder"])
        about = {name: request[name] for name in ("origin", "lineage", "int8")}
        manifest = publish(store, folder, **about, opened=opened, say=lambda step: tell({"say": step}))
    except MemoryError:
        tell({"kind": "MemoryError"})
    except ModelError as error:
        tell({"kind": type(error).__name__, "error": str(error)})
    except OSError as error:
        reason, file = error.strerror or str(error), error.filename2 or error.filename
        tell({"kind": "OSError", "errno": error.errno, "error": reason, "file": file})
    else:
        tell({"version": manifest.version})


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _limit(which: int, most: int) -> None:
    """Sets a resource limit of this process, unless a lower limit is already set."""
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(which, (most, hard))


def open_with_overrides(overrides: Overrides, folder: Path, say: Say) -> Prepared:
    """Reads a folder with the overrides of a request, and prepares the graph, with torch if necessary.

    Raises:
        Unsupported: The folder cannot be published.
    """
    if find_spec("torch") is None or find_spec("transformers") is None:
        source = read_source(folder, overrides)
        if _needs_torch(source) and source.onnx is None:
            family = source.config.get("model_type")
            raise Unsupported(
                f"{folder} is of the family {family!r}, which needs torch for the export, but the extra "
                f"`train` is not installed. {_INSTALL}"
            )
        return prepare(source)
    from models.publishing.from_torch.backbone import converted  # noqa: PLC0415  torch

    source = read_source(folder, overrides, converted)
    if not _needs_torch(source):
        return prepare(source)
    from models.publishing.from_torch.export import prepare_trained  # noqa: PLC0415

    return prepare_trained(source, say)


def _needs_torch(source: Source) -> bool:
    """Returns True if the source has weights, but Simile cannot build a graph from them.

    Returns False for published versions, whose ONNX file can be used.
    """
    published = source.onnx is not None and (source.folder / MANIFEST).is_file()
    return bool(source.weights) and not source.is_written_here and not published


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # A normal exit would wait for the thread that reads stdin.
