"""Memory and disk of a service by number of documents: `python -m benchmarks.sizing --corpus FILE`.

    N documents stored ─▶ a start with them ─▶ a second version embeds all again ─▶ both versions are kept

Memory is the process's own (RSS). Disk is the data directory without the models. The first version has random
vectors, which take the same space as real ones. The second version's vectors are embedded. Needs Linux,
because it reads /proc.
"""

import argparse
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.command import build_parser, format_table, progress, report, scratch_folder
from benchmarks.documents import draw_texts, prepare
from benchmarks.machine import memory_mb
from benchmarks.processes import Server, swap
from training.errors import TrainingError

DOCUMENTS = (1_000, 10_000, 50_000, 100_000)
SETTLE_SECONDS = 3.0  # freed memory is returned about a second after a swap
MAX_SECONDS = 3 * 3600.0
MB = 1e6


def main() -> None:
    options = _parse_options()
    with scratch_folder(TrainingError) as folder:
        texts = draw_texts(options.corpus, max(options.documents))
        rows = [measure(count, texts, folder / str(count) / "data") for count in options.documents]
    report("sizing", {"rows": rows}, [format_table([*rows[0]], [list(row.values()) for row in rows])], [])


def _parse_options() -> argparse.Namespace:
    parser = build_parser("sizing", __doc__, corpus=True)
    parser.add_argument("--documents", type=int, nargs="+", default=DOCUMENTS, metavar="N")
    return parser.parse_args()


def measure(count: int, texts: list[str], data_dir: Path) -> dict[str, Any]:
    """Return a row of the table for a store of `count` documents."""
    second = prepare(data_dir, texts, count)
    with Server(data_dir) as server:
        time.sleep(SETTLE_SECONDS)
        one = memory_mb(server.pid)
        row = {
            "documents": count,
            "mean characters": sum(len(text) for text in islice(cycle(texts), count)) / count,
            "start s": server.ready_seconds,
            "RSS MiB": one["now"],
            "peak RSS MiB": one["peak"],
            "disk MB": _disk_mb(data_dir),
        }
        progress("embedding them again")
        seconds = swap(server.port, data_dir / "models", second, MAX_SECONDS)
        time.sleep(SETTLE_SECONDS)
        two = memory_mb(server.pid)
        row |= {
            "swap s": seconds,
            "RSS MiB, two versions": two["now"],
            "peak RSS MiB, two versions": two["peak"],
            "disk MB, two versions": _disk_mb(data_dir),
        }
    progress(f"{row}")  # the next count may take an hour
    return row


def _disk_mb(data_dir: Path) -> float:
    models = data_dir / "models"
    files = (path for path in data_dir.rglob("*") if path.is_file() and models not in path.parents)
    return sum(file.stat().st_size for file in files) / MB


if __name__ == "__main__":
    main()
