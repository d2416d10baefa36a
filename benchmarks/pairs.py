"""A lone query of a pair and of its teacher, by turns in one service: `python -m benchmarks.pairs PAIR`.

The pair is live and its teacher kept warm, so both answer from one process and one store. A client asks one
query at a time, each query of both, and whoever was first is second in the next round. Milliseconds are the
client's, by the clock, from the first byte sent to the last received.
"""

import http.client
import os
import shutil
import statistics
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from benchmarks.places import arguments, scratch
from benchmarks.results import Spread
from benchmarks.server import Server, call, served, swap
from benchmarks.tables import conclude, table
from models.manifest import Manifest
from models.store import Store, models_dir
from models.tokens.texts import example_texts

WORDS = 8  # of a text's beginning, as a query
READY_SECONDS = 120.0


def main() -> None:
    parser = arguments("pairs", __doc__)
    parser.add_argument("pair", metavar="PAIR", help="a version in SIMILE_MODELS_DIR, beside its teacher")
    parser.add_argument("--threads", type=int, default=1, help="that compute a lone query together")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    published = Store(models_dir(os.environ))
    with scratch(OSError) as folder:
        pair = published.verify(options.pair)
        for version in (str(pair.parent), pair.version):
            shutil.copytree(published.folder(version), folder / "models" / version)
        models = Store(folder / "models")
        models.want(str(pair.parent))
        settings = {
            "SIMILE_MODELS_DIR": str(models.root),
            "SIMILE_WORKERS": "1",
            "SIMILE_LONE_THREADS": str(options.threads),
            "SIMILE_MAP_DOCUMENTS": "0",
        }
        with Server(folder / "data", settings=settings) as server:
            found = _measured(server.port, models.root, pair, options.rounds)
    rows = [[name, Spread.of(times).words()] for name, times in found.items()]
    ratios = [teacher / own for teacher, own in zip(*found.values(), strict=True)]
    text = [
        f"## A lone query, {options.threads} threads, {options.rounds} rounds of {len(example_texts())}",
        table(["encoded by", "ms by the clock, median of a round"], rows),
        f"The pair is {Spread.of(ratios).words()} times as fast.",
    ]
    conclude("pairs", {"threads": options.threads, "milliseconds": found}, text, [])


def _measured(port: int, models: Path, pair: Manifest, rounds: int) -> dict[str, list[float]]:
    """Median milliseconds of each round, of the teacher and of the student."""
    texts = example_texts()
    documents = [{"id": str(at), "text": text} for at, text in enumerate(texts)]
    call(port, "POST", "/documents", {"documents": documents})
    swap(port, models, pair.version, READY_SECONDS)
    pins = {"the teacher": str(pair.parent), "the student": pair.version}
    medians: dict[str, list[float]] = {name: [] for name in pins}
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for round in range(rounds + 1):  # the first one warms up
            taken: dict[str, list[float]] = {name: [] for name in pins}
            for text in texts:
                path = f"/search?mode=dense&k=10&fields=title&q={quote(' '.join(text.split()[:WORDS]))}"
                for name in [*pins][:: -1 if round % 2 else 1]:
                    taken[name].append(
                        served(connection, "GET", path, headers={"x-model-version": pins[name]})[1]
                    )
            if round:
                for name, times in taken.items():
                    medians[name].append(statistics.median(times))
    return medians


if __name__ == "__main__":
    main()
