"""The vector stage alone: build time, memory, latency and recall of an index, with and without a filter.

    python -m benchmarks.vectors                                  a million of a mixture: minutes, and 7 GB
    python -m benchmarks.vectors --corpus wiki --rows 100000      sentences embedded by the default model
    python -m benchmarks.vectors --peer-python VENV/bin/python    and hnswlib in the same run, on fewer rows
    python -m benchmarks.vectors --quick                          a look

One query at a time, against an exact search. A filter here is a list of revisions, as SQL would hand it over;
that SQL is not measured.
"""

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import machine, vectordata
from benchmarks.places import SCRATCH, say
from benchmarks.tables import conclude, table
from benchmarks.vectordata import Vectors
from benchmarks.verdict import Verdict
from benchmarks.workloads import PROJECT
from service.index.index import Index
from service.store.ids import PASSAGE_BITS, revisions_of

K = 10
PASSING = (1.0, 0.5, 0.01, 0.0001)
WARMING = 20
LOAD_ROWS = 4096
CHUNK_ROWS = 20_000
LEAST_RECALL, UNFILTERED_MS, FILTERED_MS = 0.98, 15.0, 50.0
PEER_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class Way:
    """A way of asking; percentiles as (median, least, most) of the repeats."""

    passing: float
    recall: float
    p50_ms: list[float]
    p99_ms: list[float]


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
    begin = machine.snapshot({"us": os.getpid()})
    whole = measure(vectors, queries, PASSING, options.repeats)
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
    peers = []
    if options.peer_python is None:
        text.append("hnswlib was not measured: --peer-python names a Python that has it.")
    else:
        some = vectors[: options.peer_rows]
        ours = measure(some, queries, PASSING[:1], options.repeats)
        say("hnswlib")
        peers = [_line("Simile", ours), *_peer(options.peer_python, some, queries)]
        text.append(f"In the same run, {len(some):,} rows, no filter, one thread each:")
        text.append(table(["", "build s", "memory MiB", "recall@10", "p50 ms", "p99 ms"], peers))
    foreign = machine.between(begin, machine.snapshot({"us": os.getpid()})).foreign
    text.append(f"Others, the peer among them, used {foreign:.0%} of the machine.")
    result = {"corpus": options.corpus, "foreign": foreign, "peers": peers} | asdict(whole)
    conclude(f"vectors-{options.corpus}", result, text, _verdicts(whole.ways))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.vectors", description=__doc__.split("\n", 1)[0]
    )
    parser.add_argument("--rows", type=int)
    parser.add_argument("--dimension", type=int, default=384, help="of the mixture")
    parser.add_argument("--corpus", choices=("mixture", "wiki"), default="mixture")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="60,000 rows: a look, not a figure")
    parser.add_argument("--peer-python", type=Path, help="a Python that has hnswlib and numpy")
    parser.add_argument("--peer-rows", type=int, default=200_000)
    options = parser.parse_args()
    options.rows = options.rows or (60_000 if options.quick else 1_000_000)
    return options


def measure(vectors: Vectors, queries: Vectors, passing: tuple[float, ...], repeats: int) -> Made:
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
    for share in passing:
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
        percentiles.append(np.percentile(np.array(seconds) * 1000, [50, 99]))
    p50, p99 = np.array(percentiles).T
    truth = exact(vectors if allowed is None else vectors[allowed], queries)
    best = truth if allowed is None else allowed[truth]
    return Way(share, _recall(best, found), _spread(p50), _spread(p99))


def exact(vectors: Vectors, queries: Vectors) -> NDArray[np.int64]:
    """The `K` nearest rows of each query (q, K), or as many as there are, by numpy, in no order."""
    scores = np.empty((len(queries), 0), np.float32)
    rows = np.empty((len(queries), 0), np.int64)
    for start in range(0, len(vectors), CHUNK_ROWS):
        chunk = vectors[start : start + CHUNK_ROWS]
        at = np.broadcast_to(np.arange(start, start + len(chunk)), (len(queries), len(chunk)))
        scores, rows = np.hstack([scores, queries @ chunk.T]), np.hstack([rows, at])
        best = np.argpartition(-scores, min(K, scores.shape[1]) - 1, axis=1)[:, :K]
        scores, rows = np.take_along_axis(scores, best, 1), np.take_along_axis(rows, best, 1)
    return rows


def _recall(truth: NDArray[np.int64], found: list[list[int]]) -> float:
    return float(np.mean([np.isin(best, rows).mean() for best, rows in zip(truth, found, strict=True)]))


def _spread(values: NDArray[np.float64]) -> list[float]:
    return [float(np.median(values)), float(values.min()), float(values.max())]


def _row(way: Way) -> list[str]:
    return [f"{100 * way.passing:g} %", f"{way.recall:.4f}", _in_words(way.p50_ms), _in_words(way.p99_ms)]


def _line(name: str, made: Made) -> list[str]:
    build = f"{made.load_seconds + made.base_seconds:.1f}"
    return [name, build, f"{made.index_mb:.0f}", *_row(made.ways[0])[1:]]


def _in_words(values: list[float]) -> str:
    return "{:.2f} ({:.2f} to {:.2f})".format(*values)


def _peer(python: Path, vectors: Vectors, queries: Vectors) -> list[list[str]]:
    """Hnswlib's lines; the run ends when it fails."""
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        folder = Path(name)
        np.save(folder / "vectors.npy", vectors)
        np.save(folder / "queries.npy", queries)
        script = PROJECT / "benchmarks" / "peer_hnswlib.py"
        try:
            # -P: else its imports would find the modules beside the script
            subprocess.run([python, "-P", script, folder], check=True, timeout=PEER_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            sys.exit(f"The peer failed: {error}")
        told: dict[str, Any] = json.loads((folder / "found.json").read_text())
    truth = exact(vectors, queries)
    lines = []
    for way in told["ways"]:
        p50, p99 = np.percentile(np.array(way["seconds"]) * 1000, [50, 99])
        recall = f"{_recall(truth, way['found']):.4f}"
        size = f"{told['memory_mb']:.0f}"
        title = f"hnswlib {told['version']}, ef {way['depth']}"
        lines.append([title, f"{told['build_seconds']:.1f}", size, recall, f"{p50:.2f}", f"{p99:.2f}"])
    return lines


def _verdicts(ways: list[Way]) -> list[Verdict]:
    found = []
    for way in ways:
        what, most = f"{100 * way.passing:g} % passing", UNFILTERED_MS if way.passing == 1 else FILTERED_MS
        found.append(Verdict(f"recall@10, {what}", way.recall, LEAST_RECALL, True, contended=False))
        found.append(Verdict(f"p99 ms, {what}", way.p99_ms[0], most, False, contended=False))
    return found


if __name__ == "__main__":
    main()
