"""Who is measured on a GPU (gpu.py): the engine alone, the service, sentence-transformers."""

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.load import Load, finish, start
from benchmarks.server import Server, call
from benchmarks.wire import post
from models.encoder import ONNX, Encoder
from models.engines.cuda import CudaEngine
from models.engines.form import Precision
from models.engines.nvidia import Provider

Vectors = NDArray[np.float32]
BUDGETS = (4096, 16_384, 65_536)  # padded tokens of one raw batch


class Workload(NamedTuple):
    name: str
    texts: list[str]
    ids: list[list[int]]


class Contestant(Protocol):
    name: str

    def measure(self, workload: Workload) -> float:
        """Texts per second."""

    def vectors(self, texts: Sequence[str]) -> Vectors: ...


class Raw:
    """Two threads on one engine, so that the copy of one batch overlaps the computing of another."""

    def __init__(self, folder: Path, encoder: Encoder, precision: Precision, provider: Provider) -> None:
        self.name = f"raw {precision}"
        self._encoder = encoder
        self._engine = CudaEngine(folder / ONNX, precision, provider, encoder.max_length)
        self._batches: dict[str, list[dict[str, Vectors]]] = {}

    def measure(self, workload: Workload) -> float:
        if workload.name not in self._batches:
            tried = [list(_batches(workload.ids, budget)) for budget in BUDGETS]
            for batches in tried:
                self._run(batches)  # shapes that are new cost more
            self._batches[workload.name] = min(tried, key=self._run)
        return len(workload.ids) / self._run(self._batches[workload.name])

    def vectors(self, texts: Sequence[str]) -> Vectors:
        ids = [list(row.ids) for row in self._encoder.tokenize(texts)]
        found = [self._engine.run(_feed([row]), "sentence_embedding") for row in ids]
        return np.concatenate(found)

    def _run(self, batches: Sequence[dict[str, Any]]) -> float:
        waiting = deque(batches)

        def work() -> None:
            while True:
                try:
                    feed = waiting.popleft()
                except IndexError:
                    return
                self._engine.run(feed, "sentence_embedding")

        return _seconds([work, work])


class Served:
    """`servers` behind one load: `clients` in all, each request of `texts` texts."""

    def __init__(
        self, name: str, servers: Sequence[Server], clients: int, texts: int, seconds: float
    ) -> None:
        self.name = f"{name}, {clients} x {texts}"
        self._servers = servers
        self._clients = clients
        self._texts = texts
        self._seconds = seconds

    def measure(self, workload: Workload) -> float:
        order = list(range(len(workload.texts)))
        random.Random(workload.name).shuffle(order)
        texts = [workload.texts[at] for at in order]
        parts = [texts[at : at + self._texts] for at in range(0, len(texts), self._texts)]
        requests = [post("/embed", {"inputs": part}) for part in parts]
        clients = self._clients // len(self._servers)
        runs = [
            start(
                Load(
                    port=server.port,
                    requests=requests,
                    clients=clients,
                    warm=4 * clients,
                    count=10_000_000,
                    seconds=self._seconds,
                    pids={"server": server.pid},
                )
            )
            for server in self._servers
        ]
        found = [finish(run) for run in runs]
        return self._texts * sum(len(one.milliseconds) / one.window.seconds for one in found)

    def vectors(self, texts: Sequence[str]) -> Vectors:
        found = [call(self._servers[0].port, "POST", "/embed", {"inputs": [text]})[0] for text in texts]
        return np.array(found, dtype=np.float32)


class Library:
    """sentence-transformers in fp16, with the batch size that is best of three."""

    def __init__(self, folder: Path, device: str) -> None:
        from sentence_transformers import (  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415
            SentenceTransformer,
        )

        self.name = "sentence-transformers fp16"
        self._model = SentenceTransformer(str(folder), device=device).half()
        self._best: dict[str, int] = {}

    def measure(self, workload: Workload) -> float:
        if workload.name not in self._best:
            self._run(workload, 32)
            self._best[workload.name] = min((32, 256, 1024), key=lambda size: self._run(workload, size))
        return len(workload.texts) / self._run(workload, self._best[workload.name])

    def vectors(self, texts: Sequence[str]) -> Vectors:
        found: Vectors = self._model.encode(list(texts), normalize_embeddings=True).astype(np.float32)
        return found

    def _run(self, workload: Workload, size: int) -> float:
        return _seconds([lambda: self._model.encode(workload.texts, batch_size=size)])


def _batches(ids: Sequence[Sequence[int]], budget: int) -> Iterator[dict[str, Any]]:
    rows: list[Sequence[int]] = []
    for row in sorted(ids, key=len):
        if rows and (len(rows) + 1) * len(row) > budget:
            yield _feed(rows)
            rows = []
        rows.append(row)
    yield _feed(rows)


def _feed(ids: Sequence[Sequence[int]]) -> dict[str, Any]:
    shape = (len(ids), max(map(len, ids)))
    feed = {name: np.zeros(shape, np.int64) for name in ("input_ids", "attention_mask", "token_type_ids")}
    for at, row in enumerate(ids):
        feed["input_ids"][at, : len(row)] = row
        feed["attention_mask"][at, : len(row)] = 1
    return feed


def _seconds(works: Sequence[Callable[[], object]]) -> float:
    threads = [threading.Thread(target=work) for work in works]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started
