"""Publish folders as if each were too large for one ONNX file: `large_process MODELS SOURCE …`

Prints for each source the peak growth of the process's own memory, divided by the weights' bytes.
"""

import ctypes
import gc
import sys
import threading
from pathlib import Path

from models.graph import backbone
from models.graph import nodes as aside
from models.publishing import publish as publishing
from models.store import ModelStore


def main() -> None:
    for module in (aside, backbone, publishing):
        module.LARGEST = 1000  # type: ignore[attr-defined]
    store = ModelStore(Path(sys.argv[1]))
    for source in map(Path, sys.argv[2:]):
        size = (source / "model.safetensors").stat().st_size
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        before, most, ended = _own(), [0], threading.Event()

        def look(most: list[int] = most, ended: threading.Event = ended) -> None:
            while not ended.wait(0.01):
                most[0] = max(most[0], _own())

        thread = threading.Thread(target=look)
        thread.start()
        publishing.publish(store, source)
        ended.set()
        thread.join()
        print((most[0] - before) / size, flush=True)


def _own() -> int:
    """Returns the bytes of anonymous memory, which no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
