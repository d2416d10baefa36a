"""Create documents and model versions for benchmarks, and measure the cost of adding a document.

`prepare` makes a data directory with many documents and a second model version. The service's own code stores
the documents with random unit vectors. The search time of an exact index does not depend on the vectors.

`measure_additions` sends `POST /embed` and `POST /documents` with the same new text to a running service, one
request at a time. The difference between the two latencies is the cost of storing the document.
"""

import json
import os
import random
import time
from collections.abc import Sequence
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from benchmarks.command import progress
from benchmarks.load import Generator, Load, get_request
from benchmarks.machine import Watch, Window
from benchmarks.processes import Server, request_ms
from benchmarks.rounds import CONTENDED, p50_p99
from models.publishing.default import default_source
from models.publishing.publish import publish
from models.sources.folder import read_source
from models.store import ModelStore
from service.store.sqlite.schema import DATABASE, connect
from service.store.sqlite.writer import Transaction
from service.store.sqlite.writes import upsert
from service.store.values import Document, Embedding, encode_json
from training.text.corpus import read_corpus

DOCUMENTS = 50_000
COMMIT_DOCUMENTS = 2000
WARM_PAIRS = 5  # they open connections and fill caches
SEARCH_WARM = 10
SEARCH_SECONDS = 3600.0  # more than the additions can take
LENGTH_FILE = "sentence_bert_config.json"


def draw_texts(file: Path, count: int) -> list[str]:
    """Return at most `count` distinct texts of a training corpus, in random order."""
    found = read_corpus(file).texts
    return random.Random(0).sample(found, min(count, len(found)))


def prepare(data_dir: Path, texts: list[str], count: int) -> str:
    """Create a data directory with the default model and `count` documents.

    Returns:
        The name of a second version, which is published but not active.

    """
    progress(f"storing {count} documents and publishing a second version")
    with Server(data_dir):
        pass  # publishes the default model and creates the store
    fill(data_dir, texts, count)
    return publish_variants(data_dir / "models", 1)[0]


def publish_variants(models_dir: Path, count: int) -> list[str]:
    """Publish `count` versions with the same weights as the default model, and return their names.

    The versions differ in the maximum length of a text, by one token each. The maximum length is part of the
    fingerprint of a vector space, so the service embeds all documents again for each version.
    """
    with default_source() as folder:
        max_length = read_source(folder).max_length
        file = folder / LENGTH_FILE
        original = json.loads(file.read_bytes())
        published = []
        for less in range(1, count + 1):
            file.write_text(json.dumps(original | {"max_seq_length": max_length - less}))
            published.append(publish(ModelStore(models_dir), folder, origin=f"variant-{less}").version)
    return published


def fill(data_dir: Path, texts: Sequence[str], count: int) -> float:
    """Store `count` documents in a data directory that no service has open; return the seconds it took."""
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
            Document(f"stored-{row}", texts[row % len(texts)], encode_json({"row": row})) for row in rows
        ]
        embedded = {at: Embedding(vector, truncated=False) for at, vector in enumerate(vectors)}
        connection.execute("BEGIN IMMEDIATE")
        upsert(Transaction(connection), documents, {generation: embedded})
        connection.execute("COMMIT")
    connection.close()
    return time.perf_counter() - started


def measure_additions(server: Server, texts: Sequence[str]) -> dict[str, Any]:
    """Measure the latency of embedding and of adding each text on an otherwise idle service.

    Raises:
        BenchError: The status of a response was not 200.

    """
    watch = Watch({"server": server.pid, "bench": os.getpid()})
    embed, add = _alternate(server.port, texts, "idle")
    return _summary(embed, add, [], watch.window())


def measure_additions_while_searching(server: Server, texts: Sequence[str]) -> dict[str, Any]:
    """Measure the same latencies as `measure_additions` while another client searches without pause.

    Raises:
        BenchError: The status of a response was not 200.

    """
    requests = [get_request(f"/search?q={quote(text)}&k=10") for text in reversed(texts)]
    pids = {"server": server.pid, "bench": os.getpid()}
    searches = Generator(Load(server.port, requests, 1, SEARCH_SECONDS, warm=SEARCH_WARM, pids=pids))
    embed, add = _alternate(server.port, texts, "searched")
    searches.end_orders()
    found = searches.finish()
    return _summary(embed, add, found.milliseconds.tolist(), found.window)


def _summary(embed: list[float], add: list[float], search: list[float], window: Window) -> dict[str, Any]:
    """Return quantiles of latencies in milliseconds. `embed[i]` and `add[i]` belong to the same text."""
    difference = [more - less for less, more in zip(embed, add, strict=True)]
    figures = {"embed": embed, "add": add, "difference": difference, "search": search}
    quantiles = {f"{name}_ms": p50_p99(each) for name, each in figures.items() if each}
    found = {"pairs": len(embed), "foreign": window.foreign, "contended": window.foreign > CONTENDED}
    return found | {name: {"p50": p50, "p99": p99} for name, (p50, p99) in quantiles.items()}


def _alternate(port: int, texts: Sequence[str], name: str) -> tuple[list[float], list[float]]:
    """Return the milliseconds to embed and to add each text. Every second text is added first."""
    embed: list[float] = []
    add: list[float] = []
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        for number, text in enumerate(texts):
            documents = {"documents": [{"id": f"{name}-{number}", "text": text}]}
            pair = [(embed, "/embed", {"inputs": text}), (add, "/documents", documents)]
            for times, path, body in reversed(pair) if number % 2 else pair:
                times.append(request_ms(connection, "POST", path, body))
    return embed[WARM_PAIRS:], add[WARM_PAIRS:]
