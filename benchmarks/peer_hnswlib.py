"""hnswlib on the same vectors, in a process and a virtual environment of its own; see vectors.py.

It runs as a script with the peer's Python and imports nothing of this project: vectors.npy and queries.npy
come from the folder that it is given, and found.json goes there. One thread, as our index builds and answers.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import hnswlib
import numpy as np

K = 10
LINKS, BUILD_DEPTH = 16, 200  # its own defaults
DEPTHS = (50, 100, 200, 400)
LOAD_ROWS = 10_000


def main() -> None:
    folder = Path(sys.argv[1])
    vectors, queries = np.load(folder / "vectors.npy"), np.load(folder / "queries.npy")
    before = _resident_mb()
    index = hnswlib.Index(space="ip", dim=vectors.shape[1])
    started = time.perf_counter()
    index.init_index(max_elements=len(vectors), ef_construction=BUILD_DEPTH, M=LINKS)
    for start in range(0, len(vectors), LOAD_ROWS):
        end = min(start + LOAD_ROWS, len(vectors))
        index.add_items(vectors[start:end], np.arange(start, end), num_threads=1)
    built = time.perf_counter() - started
    about = {"version": version("hnswlib"), "build_seconds": built, "memory_mb": _resident_mb() - before}
    ways = [_asked(index, queries, depth) for depth in DEPTHS]
    (folder / "found.json").write_text(json.dumps(about | {"ways": ways}), encoding="utf-8")


def _asked(index: Any, queries: Any, depth: int) -> dict[str, Any]:
    """The answers and seconds of queries asked one at a time."""
    index.set_ef(depth)
    index.knn_query(queries[:20], k=K, num_threads=1)
    found, seconds = [], []
    for query in queries:
        started = time.perf_counter()
        labels, _ = index.knn_query(query, k=K, num_threads=1)
        seconds.append(time.perf_counter() - started)
        found.append(labels[0].tolist())
    return {"depth": depth, "seconds": seconds, "found": found}


def _resident_mb() -> float:
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) / 1024


if __name__ == "__main__":
    main()
