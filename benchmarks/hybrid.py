"""Measure hybrid search, and compare its hits: `python -m benchmarks.hybrid --data FOLDER --queries FILE`.

    a stored corpus ─▶ searches of one client in each mode, without and with the second stage
                    ─▶ the same hybrid searches with FTS5's own bm25 of all documents, and fused one by one

FOLDER is the data directory of a service with SQLite that has stopped; the models are in SIMILE_MODELS_DIR.
With `--database`, FOLDER belongs to a service on that database, and nothing is compared.
Each line of FILE is a text whose first words are a query. Each fifth query gets a typo, so that corrected
terms with weights are searched for. Hits and scores must be equal, apart from rounding to float32.
"""

import os
import random
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import chain, islice, takewhile
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray
from starlette.testclient import TestClient

from benchmarks.command import (
    BenchError,
    Verdict,
    build_parser,
    format_table,
    progress,
    report,
    scratch_folder,
)
from benchmarks.machine import process_seconds
from benchmarks.million import IDLE, LOOK_SECONDS, QUERY_WORDS, SETTLE_SECONDS
from benchmarks.processes import POLL_SECONDS, READY_SECONDS, Server, call, request_ms
from benchmarks.rounds import p50_p99
from models.search.fusion import Scores, get_floor
from models.search.terms import NO_TERMS, NO_WEIGHTS, Weights, expression, expressions
from models.store import models_dir
from service.app import create_app
from service.corpus import search
from service.settings import Settings
from service.store.sql.bm25 import select_best
from service.store.sqlite.documents import get_number
from service.store.sqlite.postings import table
from service.store.sqlite.reader import Snapshot
from service.store.values import Ranking

K = 100  # Hits to compare.
ROUNDING = 2e-6  # Relative. float32 rounds by 6e-8, and fusion subtracts scores.
MAX_P50, MAX_P99 = 20.0, 80.0  # ms


def main() -> None:
    parser = build_parser("hybrid", __doc__)
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--database", metavar="URL", help="PostgreSQL")
    parser.add_argument("--queries", type=Path, required=True, metavar="FILE")
    parser.add_argument("--timed", type=int, default=2000, metavar="N", help="searches in each mode")
    parser.add_argument("--compared", type=int, default=10_000, metavar="N", help="searches to compare")
    options = parser.parse_args()
    options.compared = 0 if options.database else options.compared
    with options.queries.open(encoding="utf-8") as lines:
        texts = list(islice(lines, max(options.timed, options.compared)))
    queries = [_edit(at, " ".join(text.split()[:QUERY_WORDS])) for at, text in enumerate(texts)]
    with scratch_folder():
        rows = [
            [
                mode,
                "yes" if ranking else "no",
                *_measure(options, queries[: options.timed], mode, ranking),
            ]
            for mode, ranking in (("dense", 0), ("lexical", 0), ("hybrid", 0), ("hybrid", 1))
            if options.timed
        ]
        differing = _compare(options.data, queries[: options.compared]) if options.compared else []
    text = [
        format_table(["mode", "second stage", "p50 ms", "p99 ms"], rows),
        "\n".join(f"Other hits: {query}" for query in differing[:20]),
    ]
    verdicts = []
    if options.compared:
        name = f"queries of {options.compared:,} with other hits or scores"
        verdicts.append(Verdict(name, len(differing), 0))
    for mode, stage, p50, p99 in rows:
        if (mode, stage) == ("hybrid", "no") and not options.database:
            verdicts += [Verdict("p50 ms", float(p50), MAX_P50), Verdict("p99 ms", float(p99), MAX_P99)]
    report("hybrid", {"rows": rows, "differing": differing}, text, verdicts)


def _edit(at: int, query: str) -> str:
    """Swap two letters of the longest word of each fifth query."""
    if at % 5:
        return query
    word = max(query.split(), key=len)
    place = random.Random(at).randrange(max(1, len(word) - 1))
    return query.replace(word, word[:place] + word[place : place + 2][::-1] + word[place + 2 :])


def _path(query: str, mode: str, k: int) -> str:
    return f"/search?k={k}&mode={mode}&q={quote(query)}"


def _measure(options: Namespace, queries: Sequence[str], mode: str, ranking: int) -> tuple[float, float]:
    progress(f"searching, {mode}")
    settings = {"SIMILE_RANKING": str(ranking), "SIMILE_MODELS_DIR": _models()}
    if options.database:
        settings["SIMILE_DATABASE"] = options.database
    with Server(options.data, settings=settings) as server:
        if not call(server.port, "GET", "/documents/count")["count"]:
            raise BenchError("the store has no documents; see --data and --database")
        _wait_until_idle(server.pid)
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        times = [request_ms(connection, _path(query, mode, 10)) for query in queries]
        connection.close()
    return p50_p99(np.array(times))


def _wait_until_idle(pid: int) -> None:
    """Wait until the service has rebuilt an outgrown index."""
    deadline, busy = time.monotonic() + SETTLE_SECONDS, IDLE + 1
    while busy > IDLE:
        if time.monotonic() > deadline:
            raise BenchError(f"the service is still busy after {SETTLE_SECONDS:.0f} seconds")
        before = process_seconds(pid)
        time.sleep(LOOK_SECONDS)
        busy = (process_seconds(pid) - before) / LOOK_SECONDS


def _models() -> str:
    return str(models_dir(os.environ))


def _compare(data: Path, queries: Sequence[str]) -> list[str]:
    """Return the queries whose hits or scores differ from the exhaustive ones."""
    progress("comparing")
    settings = Settings(data_dir=data, models_dir=_models(), ranking=False, allowed_hosts="testserver")
    differing = []
    with TestClient(create_app(settings)) as client:
        deadline = time.monotonic() + READY_SECONDS
        while client.get("/ready").status_code != HTTPStatus.OK:
            if time.monotonic() > deadline:
                raise BenchError("the service is not ready")
            time.sleep(POLL_SECONDS)
        _wait_until_idle(os.getpid())  # A rebuilt index may find other vectors.
        for at, query in enumerate(queries):
            if at % 500 == 0:
                progress(f"comparing, {at:,} of {len(queries):,}")
            found = _search(client, query)
            with patch.object(Snapshot, "nearest_words", rank), patch.object(search, "Fusion", OneByOne):
                expected = _search(client, query)
            if not is_equal(found, expected):
                differing.append(query)
    return differing


def _search(client: TestClient, query: str) -> dict[str, float]:
    answer = client.get(_path(query, "hybrid", K))
    answer.raise_for_status()
    return {hit["id"]: hit["score"] for hit in answer.json()["hits"]}


def is_equal(found: Mapping[str, float], expected: Mapping[str, float]) -> bool:
    """Return whether two pages have the same documents and scores, apart from rounding.

    Documents that tie with the last hit may differ.
    """
    last = min(expected.values(), default=0.0) * (1 + ROUNDING)
    different = found.keys() ^ expected.keys()
    return (
        len(found) == len(expected)
        and all(
            abs(found[id] - expected[id]) <= ROUNDING * abs(expected[id]) for id in found.keys() & expected
        )
        and all(score <= last for id, score in (*found.items(), *expected.items()) if id in different)
    )


def rank(
    snapshot: Snapshot,
    query: str,
    depth: int,
    _allowed: None,
    collection: str,
    weights: Weights = NO_WEIGHTS,
) -> Ranking:
    """Rank all documents by FTS5's bm25, as `protocol.Snapshot.nearest_words` does."""
    matches = expressions(NO_TERMS.add(chain.from_iterable(weights)))
    parts = [(" AND ".join(matches[term] for term in group), weight) for group, weight in weights.items()]
    if plain := expression(query, weights):
        parts.append((plain, 1.0))
    number = get_number(snapshot, collection)
    if number is None or not parts:
        return np.empty(0, np.int64), np.empty(0, np.float32)
    name = table(number)
    part = f"SELECT rowid AS name, ? * -rank AS score FROM {name} WHERE {name} MATCH ?"
    ordered = snapshot.execute(
        f"SELECT name, sum(score) FROM ({' UNION ALL '.join([part] * len(parts))}) "
        "GROUP BY name ORDER BY 2 DESC",
        [value for match, weight in parts for value in (weight, match)],
    )
    rows = ordered.fetchmany(depth)
    last = np.float32(rows[-1][1]) if rows else None
    # Scores that are equal as float32 tie, and the lowest revisions among them come first.
    rows += takewhile(lambda row: np.float32(row[1]) == last, ordered)
    revisions, scores = zip(*rows, strict=True) if rows else ((), ())
    return select_best(np.array(revisions, np.int64), np.array(scores, np.float32), depth)


class OneByOne:
    """Fuses rankings as models/search/fusion.py says, document by document."""

    def __init__(self, dense: Scores, lexical: Scores, weight: float, unrelated: float, cover: float) -> None:
        near, worded = (dict(zip(*map(list, each), strict=True)) for each in (dense, lexical))
        floor = get_floor(dense.scores, unrelated)
        span = max(near.values(), default=floor) - floor
        scaled = {name: (score - floor) / span if span > 0 else 1.0 for name, score in near.items()}
        missing = min(scaled.values(), default=0.0)
        best = max(worded.values(), default=1.0)
        names = [*near, *(name for name in worded if name not in near)]
        share = (1 - weight) * cover ** (1 - missing)
        fused = [
            weight * scaled.get(name, missing) + share * (worded.get(name, 0.0) / best) for name in names
        ]
        places = {name: place for place, name in enumerate(worded)}
        self.revisions: NDArray[np.int64] = np.array(names, np.int64)
        self.scores: NDArray[np.float32] = np.array(fused, np.float32)
        self.in_lexical: NDArray[np.int64] = np.array([places.get(name, -1) for name in names], np.int64)


if __name__ == "__main__":
    main()
