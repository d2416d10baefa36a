"""Clients that repeat requests until they are answered, while processes are killed.

Each writer has its own ids, and waits for each acknowledgment. A write without an answer is sent again
unchanged. So the stored documents are known exactly.
"""

import http.client
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import orjson

from tests.service.replicas.cluster import Cluster
from tests.service.swapping import QUERIES, TEXTS

WRITERS, SEARCHERS, IDS = 3, 2, 40
LATER = {503}  # statuses after which a client sends the request again
PAUSE_SECONDS = 0.05


class Traffic:
    """The clients and their results."""

    def __init__(self, made: Cluster) -> None:
        self.failures: list[str] = []
        self.written: dict[str, str] = {}
        self.answered = {"write": 0, "search": 0}
        self.refused = 0
        self._cluster = made
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(act, number))
            for number, act in enumerate([self._write] * WRITERS + [self._search] * SEARCHERS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, act: Callable[[random.Random, int], None], number: int) -> None:
        rng = random.Random(number)
        while not self._stop.is_set() and not self.failures:
            try:
                act(rng, number)
            except Exception as error:  # noqa: BLE001  whatever it is, the test must say so
                self.failures.append(f"{act.__name__}: {error!r}"[:2000])
            time.sleep(PAUSE_SECONDS)

    def _send(self, rng: random.Random, method: str, path: str, body: object = None) -> Any:
        """Sends the request to random replicas until one answers 200. Returns the JSON of this answer."""
        content = None if body is None else orjson.dumps(body)
        while True:
            replica = rng.choice(self._cluster.replicas)
            connection = http.client.HTTPConnection("127.0.0.1", replica.port, timeout=60)
            try:
                connection.request(method, path, content, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
            except (OSError, http.client.HTTPException):  # The replica was killed, or starts.
                answer = None
            finally:
                connection.close()
            if answer is not None and answer.status == 200:
                return orjson.loads(text)
            if answer is not None:
                self.refused += 1
                assert answer.status in LATER, f"{method} {path}: {answer.status} {text!r}"
                assert int(answer.headers["Retry-After"]) > 0
            time.sleep(PAUSE_SECONDS)

    def _write(self, rng: random.Random, number: int) -> None:
        id, text = f"{number}-{rng.randrange(IDS)}", rng.choice(TEXTS)
        if rng.random() < 0.2:
            self._send(rng, "DELETE", f"/documents/{id}")
            self.written.pop(id, None)
        else:
            document = {"id": id, "text": text, "metadata": {"by": number}}
            self._send(rng, "POST", "/documents", {"documents": [document]})
            self.written[id] = text
        self.answered["write"] += 1
        if rng.random() < 0.3:
            self._find(rng, number)

    def _find(self, rng: random.Random, number: int) -> None:
        """Checks that a random replica finds exactly the documents that this writer has written."""
        mine = {id: text for id, text in dict(self.written).items() if id.startswith(f"{number}-")}
        body = {"queries": [QUERIES[0]], "mode": "dense", "k": 100, "filter": {"by": number}}
        answer = self._send(rng, "POST", "/search", body)
        [hits] = answer["results"]
        assert {hit["id"]: hit["text"] for hit in hits} == mine
        if hits:
            self._cluster.oracle.check_search({"model": answer["model"], "query": QUERIES[0], "hits": hits})

    def _search(self, rng: random.Random, _number: int) -> None:
        answer = self._send(rng, "GET", f"/search?mode=dense&k=10&q={quote(rng.choice(QUERIES))}")
        if answer["hits"]:
            self._cluster.oracle.check_search(answer)
        self.answered["search"] += 1
