"""Sixteen clients that embed, search and write in a loop and check every answer."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import quote

from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle

STATIC = {f"static-{at}": TEXTS[at] for at in range(100)}  # documents that no client changes
WRITERS, SEARCHERS, EMBEDDERS = 6, 6, 3  # One more client reads all documents.
IDS_PER_WRITER = 10


@dataclass
class Load:
    """The clients and their results."""

    service: Service
    oracle: Oracle
    pause_seconds: float = 0.0  # between two requests of a client
    stop: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list)
    done: list[tuple[str, float, float]] = field(default_factory=list)  # kind, begin, end
    written: dict[str, str] = field(default_factory=dict)  # text by id after the last answered write
    versions_seen: set[str] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> int:
        """Starts the clients and returns their number. `STATIC` must be stored."""
        acts = [self.write] * WRITERS + [self.search] * SEARCHERS + [self.embed] * EMBEDDERS
        acts += [self.look_at_everything]
        self._threads = [threading.Thread(target=self.run, args=(act, at)) for at, act in enumerate(acts)]
        for thread in self._threads:
            thread.start()
        return len(self._threads)

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()

    def run(self, act: Callable[[Client, random.Random, int], str], number: int) -> None:
        rng = random.Random(number)
        client = Client(self.service.port)
        while not self.stop.is_set() and not self.failures:
            begin = time.monotonic()
            try:
                kind = act(client, rng, number)
            except Exception as error:  # noqa: BLE001  the test reports it
                self.failures.append(f"{act.__name__}: {error!r}"[:2000])
            else:
                self.done.append((kind, begin, time.monotonic()))
            time.sleep(self.pause_seconds)
        client.close()

    def embed(self, client: Client, rng: random.Random, number: int) -> str:
        texts = rng.sample(TEXTS, 3)
        vectors, version = client.send("POST", "/embed", {"inputs": texts})
        self.versions_seen.add(version)
        for text, vector in zip(texts, vectors, strict=True):
            self.oracle.check_vector(version, text, vector)
        return "embed"

    def search(self, client: Client, rng: random.Random, number: int) -> str:
        answer, version = client.send("GET", f"/search?mode=dense&k=10&q={quote(rng.choice(QUERIES))}")
        assert answer["model"] == version
        assert len(answer["hits"]) == 10
        self.oracle.check_search(answer)
        return "search"

    def look_at_everything(self, client: Client, rng: random.Random, number: int) -> str:
        time.sleep(0.1)
        answer, _ = client.send("GET", f"/search?mode=dense&k=1000&q={quote(rng.choice(QUERIES))}")
        self.oracle.check_search(answer)
        missing = set(STATIC) - {hit["id"] for hit in answer["hits"]}
        assert not missing, f"{len(missing)} documents that nobody touched are not found"
        return "look"

    def write(self, client: Client, rng: random.Random, number: int) -> str:
        id, text = f"{number}-{rng.randrange(IDS_PER_WRITER)}", rng.choice(TEXTS)
        if rng.random() < 0.25:
            client.send("DELETE", f"/documents/{id}")
            self.written.pop(id, None)
        else:
            document = {"id": id, "text": text, "metadata": {"by": number}}
            client.send("POST", "/documents", {"documents": [document]})
            self.written[id] = text
        return "write"

    def overlapping(self, begin: float, end: float) -> dict[str, int]:
        """Counts requests that began and ended between `begin` and `end`, by kind."""
        inside = [kind for kind, began, ended in self.done if begin <= began and ended <= end]
        return {kind: inside.count(kind) for kind in ("search", "write", "embed")}

    def waits(self, moments: Sequence[float]) -> tuple[list[float], list[float]]:
        """Returns the seconds above the median of requests during a swap, and of other requests."""
        usual = median(end - begin for _, begin, end in self.done)
        at_a_swap: list[float] = []
        elsewhere: list[float] = []
        for kind, begin, end in self.done:
            met = any(begin < moment and end > moment - 0.1 for moment in moments)
            if kind != "look":
                (at_a_swap if met else elsewhere).append(end - begin - usual)
        return at_a_swap, elsewhere
