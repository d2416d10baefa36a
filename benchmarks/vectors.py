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

from benchmarks import machine, vectordata
from benchmarks.filtered import Data, K, Way, measured
from benchmarks.places import SCRATCH, arguments, say
from benchmarks.tables import Verdict, conclude, table
from service.index.index import Index
from service.store.values import PASSAGE_BITS, revisions_of

LOAD_ROWS = 4096
LEAST_RECALL, UNFILTERED_MS, FILTERED_MS = 0.98, 15.0, 50.0


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
        made = vectordata.wiki(options.rows, options.queries)
    else:
        made = vectordata.synthetic(options.rows, options.dimension, options.queries)
    say("searching them exactly")
    data = Data.of(*made, options.repeats)
    watch = machine.Watch({"us": os.getpid()})
    whole = measure(data)
    costs = (
        f"Loaded in {whole.load_seconds:.1f} s, the base made in {whole.base_seconds:.1f} s on one niced "
        f"thread; the index has {whole.index_mb:,.0f} MiB, the process grew by {whole.grown_mb:,.0f}. "
        f"{options.queries} queries, one at a time, {options.repeats} times: median (least to most)."
    )
    text = [
        f"## The vector stage: {whole.rows:,} x {data.dimension}, {options.corpus}",
        costs,
        table(["passing", "recall@10", "p50 ms", "p99 ms"], [way.cells() for way in whole.ways]),
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


def measure(data: Data) -> Made:
    """Load an index, wait for its base, and ask it."""
    rows = len(data.vectors)
    say(f"loading {rows} vectors")
    gc.collect()
    before = machine.memory_mb(os.getpid())["now"]
    names = np.arange(rows, dtype=np.int64) << PASSAGE_BITS
    started = time.perf_counter()
    starts = range(0, rows, LOAD_ROWS)
    parts = ((names[at : at + LOAD_ROWS], data.vectors[at : at + LOAD_ROWS]) for at in starts)
    index = Index.load(data.dimension, parts)
    loaded = time.perf_counter()
    index._merger.wait()  # noqa: SLF001  nothing else tells when it has settled
    settled = time.perf_counter()
    gc.collect()
    grown = machine.memory_mb(os.getpid())["now"] - before
    counted = index.nbytes / 2**20

    def ask(at: int, passing: float) -> list[int]:
        [(_, found)] = index.search(data.queries[at][None], K, data.allowed[passing])
        revisions: list[int] = revisions_of(found)[:K].tolist()
        return revisions

    ways = measured(ask, data)
    index.close()
    return Made(rows, loaded - started, settled - loaded, grown, counted, ways)


def _verdicts(ways: list[Way]) -> list[Verdict]:
    found = []
    for way in ways:
        what, most = f"{100 * way.passing:g} % passing", UNFILTERED_MS if way.passing == 1 else FILTERED_MS
        found.append(Verdict(f"recall@10, {what}", way.recall, LEAST_RECALL, at_least=True))
        found.append(Verdict(f"p99 ms, {what}", way.p99_ms.median, most))
    return found


if __name__ == "__main__":
    main()
