"""Memory and disk of a service by number of documents: `python -m benchmarks.sizing --corpus FILE`.

    N documents stored ─▶ a start on them ─▶ a second version is wanted: all embedded anew ─▶ both kept

Memory is the process's own (RSS), disk what lies in the data directory without the models. The first
version's vectors are random, which take the same room as true ones; the second version's are embedded. It
reads /proc, so Linux only.
"""

import argparse
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.machine import memory_mb
from benchmarks.places import arguments, say, scratch
from benchmarks.server import Server, swap
from benchmarks.tables import conclude, table
from benchmarks.variants import drawn, prepared
from training.errors import TrainingError

DOCUMENTS = (1_000, 10_000, 50_000, 100_000)
SETTLE_SECONDS = 3.0  # freed memory is given back about a second after a swap
LONGEST_SECONDS = 3 * 3600.0
MB = 1e6
COLUMNS = (
    "documents",
    "characters",
    "start s",
    "RSS MiB",
    "most",
    "disk MB",
    "swap s",
    "RSS MiB, two versions",
    "most, two",
    "disk MB, two",
)


def main() -> None:
    options = _options()
    with scratch(TrainingError) as folder:
        texts = drawn(options.corpus, max(options.documents))
        rows = [measure(count, texts, folder / str(count) / "data") for count in options.documents]
    conclude("sizing", {"rows": rows}, [table(COLUMNS, [list(row.values()) for row in rows])], [])


def _options() -> argparse.Namespace:
    parser = arguments("sizing", __doc__, corpus=True)
    parser.add_argument("--documents", type=int, nargs="+", default=DOCUMENTS, metavar="N")
    return parser.parse_args()


def measure(count: int, texts: list[str], data_dir: Path) -> dict[str, Any]:
    """A row of the table: megabytes and seconds of a store of `count` documents."""
    second = prepared(data_dir, texts, count)
    with Server(data_dir) as server:
        time.sleep(SETTLE_SECONDS)
        one = memory_mb(server.pid)
        row = {
            "documents": count,
            "characters": sum(len(text) for text in islice(cycle(texts), count)) / count,
            "start": server.ready_seconds,
            "rss": one["now"],
            "most": one["peak"],
            "disk": _disk_mb(data_dir),
        }
        say("embedding them anew")
        seconds = swap(server.port, data_dir / "models", second, LONGEST_SECONDS)
        time.sleep(SETTLE_SECONDS)
        two = memory_mb(server.pid)
        row |= {
            "swap": seconds,
            "rss_two": two["now"],
            "most_two": two["peak"],
            "disk_two": _disk_mb(data_dir),
        }
    say(f"{row}")  # the next count may take an hour
    return row


def _disk_mb(data_dir: Path) -> float:
    models = data_dir / "models"
    files = (path for path in data_dir.rglob("*") if path.is_file() and models not in path.parents)
    return sum(file.stat().st_size for file in files) / MB


if __name__ == "__main__":
    main()
