"""What it costs to add one document to a store that is already large, beyond embedding its text.

The large store is written by the service's own store layer (service/revisions.py), with random unit vectors
in the place of embedded ones: an exact index takes the same time over any. Then, on the running service,
`POST /embed` and `POST /documents` of the same new text take turns, one client, one at a time; first alone,
then while another client searches without a pause. A pair's difference is what storing adds.
"""

import http.client
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks import load
from benchmarks.load import Load, LoadError
from benchmarks.machine import Window, between, snapshot
from benchmarks.server import Server
from service.documents import Document
from service.revisions import Embedding, upsert
from service.runtime import DATABASE
from service.schema import connect
from service.writer import Transaction

DOCUMENTS = 50_000
COMMIT_DOCUMENTS = 2000
SEARCH_SECONDS = 15.0
SEARCH_WARM = 10
FLUSH_PAIRS = 5  # the first pairs open connections and fill caches


@dataclass(frozen=True, slots=True)
class Pairs:
    """`embed_ms[i]` and `add_ms[i]` are of the same text."""

    embed_ms: list[float]
    add_ms: list[float]
    window: Window
    search_ms: list[float]  # of the client that searched meanwhile


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
        documents = [Document(f"stored-{row}", texts[row % len(texts)], {"row": row}) for row in rows]
        embedded = {at: Embedding(vector, truncated=False) for at, vector in enumerate(vectors)}
        connection.execute("BEGIN IMMEDIATE")
        upsert(Transaction(connection), documents, {generation: embedded}, [generation])
        connection.execute("COMMIT")
    connection.close()
    return time.perf_counter() - started


def measure(server: Server, texts: Sequence[str], pairs: int, *, searching: bool) -> Pairs:
    """Up to `pairs` pairs; fewer when the searches end before.

    Raises:
        LoadError: a response was not 200.

    """
    searches = load.start(_searches(server, texts)) if searching else None
    client = _Client(server.port)
    kind = "searched" if searching else "alone"
    embed_ms: list[float] = []
    add_ms: list[float] = []
    begin = None
    pids = {"server": server.pid, "bench": _self_pid()}
    for number, text in _until(searches, enumerate(texts[: pairs + FLUSH_PAIRS])):
        if number == FLUSH_PAIRS:
            begin, embed_ms, add_ms = snapshot(pids), [], []
        body = {"documents": [{"id": f"{kind}-{number}", "text": text}]}
        if number % 2:  # whoever goes second finds the caches warm
            add_ms.append(client.post_ms("/documents", body))
            embed_ms.append(client.post_ms("/embed", {"inputs": text}))
        else:
            embed_ms.append(client.post_ms("/embed", {"inputs": text}))
            add_ms.append(client.post_ms("/documents", body))
    if begin is None:
        raise LoadError("too few documents were added in the time of the searches")
    window = between(begin, snapshot(pids))
    client.close()
    found = load.finish(searches) if searches else None
    return Pairs(embed_ms, add_ms, window, [latency for _, latency in found.milliseconds] if found else [])
