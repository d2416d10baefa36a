"""The vector stage alone: build time, memory, latency and recall of an index, with and without a filter.

    python -m benchmarks.vectors                                  a million of a mixture: minutes, and 7 GB
    python -m benchmarks.vectors --corpus wiki --rows 100000      sentences embedded by the default model
    python -m benchmarks.vectors --quick                          a look

One query at a time, against an exact search. A filter here is a list of revisions, as SQL would hand it over;
that SQL is not measured.
"""

import argparse
import gc
import os
import time
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine, vectordata
from benchmarks.places import SCRATCH, arguments, say
from benchmarks.results import Spread, p50_p99
from benchmarks.tables import Verdict, conclude, table
from benchmarks.vectordata import Vectors
from service.index.index import Index
from service.store.ids import PASSAGE_BITS, revisions_of

K = 10
PASSING = (1.0, 0.5, 0.01, 0.0001)
WARMING = 20
LOAD_ROWS = 4096
EXACT_QUERIES = 20  # at once: their scores are 80 MB of a million vectors
LEAST_RECALL, UNFILTERED_MS, FILTERED_MS = 0.98, 15.0, 50.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking, with the percentiles of the repeats."""

    passing: float
    recall: float
    p50_ms: Spread
    p99_ms: Spread


@dataclass(frozen=True, slots=True)
class Made:
    """The costs of an index, and its answers."""

    rows: int
    load_seconds: float
    base_seconds: float
    grown_mb: float  # resident memory of the process; what was freed before is used again unseen
    index_mb: float  # vectors, codes and names, as the index counts them
    ways: list[Way]


def main() -> None:
    options = _options()
    SCRATCH.mkdir(exist_ok=True)
    say("making the vectors")
    if options.corpus == "wiki":
        vectors, queries = vectordata.wiki(options.rows, options.queries)
    else:
        vectors, queries = vectordata.synthetic(options.rows, options.dimension, options.queries)
    watch = machine.Watch({"us": os.getpid()})
    whole = measure(vectors, queries, options.repeats)
    costs = (
        f"Loaded in {whole.load_seconds:.1f} s, the base made in {whole.base_seconds:.1f} s on one niced "
        f"thread; the index has {whole.index_mb:,.0f} MiB, the process grew by {whole.grown_mb:,.0f}. "
        f"{len(queries)} queries, one at a time, {options.repeats} times: median (least to most)."
    )
    text = [
        f"## The vector stage: {whole.rows:,} x {vectors.shape[1]}, {options.corpus}",
        costs,
        table(["passing", "recall@10", "p50 ms", "p99 ms"], [_row(way) for way in whole.ways]),
    ]
    foreign = watch.window().foreign
    text.append(f"Others used {foreign:.0%} of the machine.")
    result = {"corpus": options.corpus, "foreign": foreign} | asdict(whole)
    conclude(f"vectors-{options.corpus}", result, text, _verdicts(whole.ways))


def _options() -> argparse.Namespace:
    parser = arguments("vectors", __doc__, quick=True)
    parser.add_argument("--rows", type=int, help="(1000000; 60000 with --quick)")
    parser.add_argument("--dimension", type=int, default=384, help="of the mixture")
    parser.add_argument("--corpus", choices=("mixture", "wiki"), default="mixture")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    options.rows = options.rows or (60_000 if options.quick else 1_000_000)
    return options


def measure(vectors: Vectors, queries: Vectors, repeats: int) -> Made:
    """Load an index, wait for its base, and ask it."""
    say(f"loading {len(vectors)} vectors")
    gc.collect()
    before = machine.memory_mb(os.getpid())["now"]
    names = np.arange(len(vectors), dtype=np.int64) << PASSAGE_BITS
    started = time.perf_counter()
    starts = range(0, len(vectors), LOAD_ROWS)
    index = Index.load(
        vectors.shape[1], ((names[at : at + LOAD_ROWS], vectors[at : at + LOAD_ROWS]) for at in starts)
    )
    loaded = time.perf_counter()
    index._merger.wait()  # noqa: SLF001  nothing else tells when it has settled
    settled = time.perf_counter()
    gc.collect()
    grown = machine.memory_mb(os.getpid())["now"] - before
    counted = index.nbytes / 2**20
    ways = []
    for share in PASSING:
        say(f"asking with {share:.2%} of the rows passing")
        allowed = (
            None if share == 1 else np.flatnonzero(np.random.default_rng(1).random(len(vectors)) < share)
        )
        ways.append(_way(index, vectors, queries, share, allowed, repeats))
    index.close()
    return Made(len(vectors), loaded - started, settled - loaded, grown, counted, ways)


def _way(
    index: Index,
    vectors: Vectors,
    queries: Vectors,
    share: float,
    allowed: NDArray[np.int64] | None,
    repeats: int,
) -> Way:
    index.search(queries[:WARMING], K, allowed)
    percentiles = []
    for _ in range(repeats):
        found, seconds = [], []
        for query in queries:
            started = time.perf_counter()
            [(_, names)] = index.search(query[None], K, allowed)
            seconds.append(time.perf_counter() - started)
            found.append(revisions_of(names)[:K].tolist())
        percentiles.append(p50_p99(np.array(seconds) * 1000))
    p50, p99 = (Spread.of(values) for values in zip(*percentiles, strict=True))
    truth = exact(vectors if allowed is None else vectors[allowed], queries)
    best = truth if allowed is None else allowed[truth]
    return Way(share, _recall(best, found), p50, p99)


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.int64]:
    """The `K` nearest rows of each query (q, K), or as many as there are, by numpy, in no order."""
    count = min(K, len(vectors))
    groups = (queries[at : at + EXACT_QUERIES] for at in range(0, len(queries), EXACT_QUERIES))
    return np.vstack([np.argpartition(-(some @ vectors.T), count - 1)[:, :count] for some in groups])


def _recall(truth: NDArray[np.int64], found: list[list[int]]) -> float:
    return float(np.mean([np.isin(best, rows).mean() for best, rows in zip(truth, found, strict=True)]))


def _row(way: Way) -> list[str]:
    return [f"{100 * way.passing:g} %", f"{way.recall:.4f}", way.p50_ms.words(), way.p99_ms.words()]


def _verdicts(ways: list[Way]) -> list[Verdict]:
    found = []
    for way in ways:
        what, most = f"{100 * way.passing:g} % passing", UNFILTERED_MS if way.passing == 1 else FILTERED_MS
        found.append(Verdict(f"recall@10, {what}", way.recall, LEAST_RECALL, at_least=True))
        found.append(Verdict(f"p99 ms, {what}", way.p99_ms.median, most))
    return found


if __name__ == "__main__":
    main()
