"""The child process that publishes an untrusted folder with limits on itself. limited.py starts it.

It reads a request from stdin, and prints each step and the answer as a line of JSON. It exits when its parent
dies, because stdin then ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from models.errors import ModelError
from models.publishing.importing import open_asked
from models.publishing.publish import publish
from models.sources.folder import Asked
from models.store import Store


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
    opened = partial(open_asked, Asked(tuple(pooling), max_length, prompts)) if request["torch"] else None
    store = Store(Path(request["store"]))
    try:
        manifest = publish(
            store,
            Path(request["folder"]),
            origin=request["origin"],
            lineage=request["lineage"],
            opened=opened,
            say=lambda step: tell({"say": step}),
        )
    except MemoryError:
        tell({"kind": "MemoryError"})
    except ModelError as error:
        tell({"kind": type(error).__name__, "error": str(error)})
    except OSError as error:
        reason = error.strerror or str(error)
        tell(
            {
                "kind": "OSError",
                "errno": error.errno,
                "error": reason,
                "file": error.filename2 or error.filename,
            }
        )
    else:
        tell({"version": manifest.version})


def _end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def _limit(which: int, most: int) -> None:
    """Sets a limit of this process, unless a lower limit exists."""
    soft, hard = resource.getrlimit(which)
    if soft == resource.RLIM_INFINITY or most < soft:
        resource.setrlimit(which, (most, hard))


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # A normal exit would wait for the thread that reads stdin.
