"""The cost of one more document in a store that is already large, beyond embedding its text.

The large store is written by the service's own store (service/store/sqlite/writes.py), with random unit
vectors instead of embedded ones: an exact index takes the same time over any. Then, on the running service,
`POST /embed` and `POST /documents` of the same new text take turns, one client, one request at a time; first
alone, then while another client searches without a pause. A pair's difference is what storing adds.
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.closedloop import ClosedLoop, Load
from benchmarks.contestant import CONTENDED
from benchmarks.machine import Watch, Window
from benchmarks.places import BenchError
from benchmarks.results import p50_p99
from benchmarks.server import Server, served
from benchmarks.wire import get
from service.store.sqlite.schema import DATABASE, connect
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import upsert
from service.store.values import Document, Embedding, json_of

DOCUMENTS = 50_000
COMMIT_DOCUMENTS = 2000
WARM_PAIRS = 5  # they open connections and fill caches
SEARCH_WARM = 10
SEARCH_SECONDS_PER_PAIR = 0.1


def fill(data_dir: Path, texts: Sequence[str], count: int) -> float:
    """Store `count` documents in a data directory that no service has open. Returns the seconds it took."""
    started = time.perf_counter()
    connection = connect(data_dir / DATABASE)
    generation, dimension = connection.execute(
        "SELECT number, dimension FROM generations WHERE state = 'active'"
    ).fetchone()
    chance = np.random.default_rng(0)
    for begin in range(0, count, COMMIT_DOCUMENTS):
        rows = range(begin, min(count, begin + COMMIT_DOCUMENTS))
        vectors = chance.standard_normal((len(rows), dimension), dtype=np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        documents = [
            Document(f"stored-{row}", texts[row % len(texts)], json_of({"row": row})) for row in rows
        ]
        embedded = {at: Embedding(vector, truncated=False) for at, vector in enumerate(vectors)}
        connection.execute("BEGIN IMMEDIATE")
        upsert(Transaction(connection), documents, {generation: embedded})
        connection.execute("COMMIT")
    connection.close()
    return time.perf_counter() - started


def alone(server: Server, texts: Sequence[str]) -> dict[str, Any]:
    """A pair for each text, with nothing else going on.

    Raises:
        BenchError: a response was not 200.

    """
    watch = Watch({"server": server.pid, "bench": os.getpid()})
    embed, add = _take_turns(server.port, texts, "alone")
    return _added(embed, add, [], watch.window())


def while_searching(server: Server, texts: Sequence[str]) -> dict[str, Any]:
    """A pair for each text, as many as there is time for while another client searches.

    Raises:
        BenchError: a response was not 200.

    """
    searches = ClosedLoop(
        Load(
            port=server.port,
            requests=[get(f"/search?q={quote(text)}&k=10") for text in reversed(texts)],
            clients=1,
            warm=SEARCH_WARM,
            seconds=SEARCH_SECONDS_PER_PAIR * len(texts),
            pids={"server": server.pid, "bench": os.getpid()},
        )
    )
    embed, add = _take_turns(server.port, texts, "searched", lambda: not searches.ended)
    found = searches.finish()
    return _added(embed, add, [milliseconds for _, milliseconds in found.milliseconds], found.window)


def _added(embed: list[float], add: list[float], search: list[float], window: Window) -> dict[str, Any]:
    """The cost of one more document, in milliseconds: `embed[i]` and `add[i]` are of the same text."""
    difference = [more - less for less, more in zip(embed, add, strict=True)]
    figures = {"embed": embed, "add": add, "difference": difference, "search": search}
    quantiles = {f"{name}_ms": p50_p99(each) for name, each in figures.items() if each}
    found = {"pairs": len(embed), "foreign": window.foreign, "contended": window.foreign > CONTENDED}
    return found | {name: {"p50": p50, "p99": p99} for name, (p50, p99) in quantiles.items()}


def _take_turns(
    port: int, texts: Sequence[str], name: str, go_on: Callable[[], bool] = lambda: True
) -> tuple[list[float], list[float]]:
    """Milliseconds to embed and to add each text, one connection, whoever comes first changing."""
    embed: list[float] = []
    add: list[float] = []
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for number, text in enumerate(texts):
            if not go_on():
                break
            documents = {"documents": [{"id": f"{name}-{number}", "text": text}]}
            if number % 2:
                add.append(served(connection, "POST", "/documents", documents)[1])
            embed.append(served(connection, "POST", "/embed", {"inputs": text})[1])
            if not number % 2:
                add.append(served(connection, "POST", "/documents", documents)[1])
    if len(embed) <= WARM_PAIRS:
        raise BenchError("too few documents could be added to say anything")
    return embed[WARM_PAIRS:], add[WARM_PAIRS:]
