"""nDCG@10 of searches through a running service: `python -m benchmarks.retrieval`.

    each set of the evaluation folder ─▶ POST /documents ─▶ POST /search in each mode ─▶ nDCG@10

The sets are in BEIR's layout (SIMILE_EVAL_DATA, else ../shared/data). Each is stored in a service of its own,
once as it comes and once with long texts split into passages. A document that has the id of a query is a
document like any other. Embedding a set takes minutes; the figures of one machine are those of another.
"""

import time
from itertools import islice

import numpy as np

from benchmarks.places import arguments, say, scratch
from benchmarks.server import Server, call
from benchmarks.workloads import evaluation_folder
from training.evaluation.rankings import judge
from training.evaluation.retrieval import Collection, load

MODES = ("dense", "lexical", "hybrid")
STEP = 100  # documents, or queries, of one request
K = 10


def main() -> None:
    parser = arguments("retrieval", __doc__)
    parser.add_argument("sets", nargs="*", default=["scifact", "cranfield", "mlqa_en"])
    parser.add_argument("--passages", choices=["0", "1"], nargs="*", default=["0", "1"])
    options = parser.parse_args()
    print("| set | passages | " + " | ".join(MODES) + " |\n|---|---|---|---|---|")
    for name in options.sets:
        collection = load(evaluation_folder() / name)
        for passages in options.passages:
            settings = {"SIMILE_PASSAGES": passages}
            with scratch() as folder, Server(folder / "data", settings=settings) as server:
                figures = measured(server.port, collection)
            shown = " | ".join(f"{figures[mode]:.3f}" for mode in MODES)
            print(f"| {name} | {'on' if passages == '1' else 'off'} | {shown} |", flush=True)


def measured(port: int, collection: Collection) -> dict[str, float]:
    """nDCG@10 of each mode, the mean over all queries."""
    store(port, collection)
    found: dict[str, float] = {}
    for mode in MODES:
        started = time.perf_counter()
        lists = searched(port, collection, mode)
        seconds = time.perf_counter() - started
        scores = [
            judge(ranked, collection.relevant[query]).ndcg10
            for query, ranked in zip(collection.queries, lists, strict=True)
        ]
        found[mode] = float(np.mean(scores))
        say(f"{mode}: {found[mode]:.4f}, {seconds / len(lists) * 1000:.1f} ms per query, {STEP} at once")
    return found


def store(port: int, collection: Collection) -> None:
    started = time.perf_counter()
    rest = iter(collection.documents.items())
    while documents := [{"id": id, "text": text} for id, text in islice(rest, STEP)]:
        call(port, "POST", "/documents", {"documents": documents})
    say(f"{len(collection.documents)} documents in {time.perf_counter() - started:.0f} s")


def searched(port: int, collection: Collection, mode: str) -> list[list[str]]:
    """Ids for each query, best first."""
    lists: list[list[str]] = []
    rest = iter(collection.queries.values())
    while queries := list(islice(rest, STEP)):
        body = {"queries": queries, "mode": mode, "k": K, "fields": []}
        results = call(port, "POST", "/search", body)["results"]
        lists += [[hit["id"] for hit in hits] for hits in results]
    return lists


if __name__ == "__main__":
    main()
