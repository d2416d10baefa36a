"""Sixteen clients embed, search and write while twenty swaps and three rollbacks go through under them."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import quote

import pytest

from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle, published

SWAPS = 20
ROLLBACK_AFTER = (5, 11, 17)
STATIC_DOCUMENTS = 100
WRITERS, SEARCHERS, EMBEDDERS = 6, 6, 3  # and one that looks at everything
IDS_PER_WRITER = 10
BUILD_RATE = 70  # documents per second: slow, so that much happens during a build
AT_LEAST = 50
LONGEST_PAUSE_SECONDS = 0.25


@dataclass
class Load:
    """The clients, what they saw, and what they were told."""

    service: Service
    oracle: Oracle
    stop: threading.Event = field(default_factory=threading.Event)
    failures: list[str] = field(default_factory=list)
    done: list[tuple[str, float, float]] = field(default_factory=list)  # kind, begin, end
    written: dict[str, str] = field(default_factory=dict)  # what an answered write left behind
    versions_seen: set[str] = field(default_factory=set)

    def run(self, act: Callable[[Client, random.Random, int], str], number: int) -> None:
        rng = random.Random(number)
        client = Client(self.service.port)
        while not self.stop.is_set() and not self.failures:
            begin = time.monotonic()
            try:
                kind = act(client, rng, number)
            except Exception as error:  # noqa: BLE001  whatever it is, the test must say so
                self.failures.append(f"{act.__name__}: {error!r}"[:2000])
            else:
                self.done.append((kind, begin, time.monotonic()))
        client.close()

    def embed(self, client: Client, rng: random.Random, number: int) -> str:
        texts = rng.sample(TEXTS, 3)
        vectors, version = client.send("POST", "/embed", {"inputs": texts})
        self.versions_seen.add(version)
        for text, vector in zip(texts, vectors, strict=True):
            self.oracle.check_vector(version, text, vector)
        return "embed"

    def search(self, client: Client, rng: random.Random, number: int) -> str:
        answer, version = client.send("GET", f"/search?k=10&q={quote(rng.choice(QUERIES))}")
        assert answer["model"] == version
        assert len(answer["hits"]) == 10
        self.oracle.check_search(answer)
        return "search"

    def look_at_everything(self, client: Client, rng: random.Random, number: int) -> str:
        time.sleep(0.1)
        answer, _ = client.send("GET", f"/search?k=1000&q={quote(rng.choice(QUERIES))}")
        self.oracle.check_search(answer)
        missing = {f"static-{at}" for at in range(STATIC_DOCUMENTS)} - {hit["id"] for hit in answer["hits"]}
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
        """Requests that were wholly inside this time, by kind."""
        inside = [kind for kind, began, ended in self.done if begin <= began and ended <= end]
        return {kind: inside.count(kind) for kind in ("search", "write", "embed")}

    def waits(self, moments: Sequence[float]) -> tuple[list[float], list[float]]:
        """Seconds beyond the median that requests took: those that met a swap, and the others."""
        usual = median(end - begin for _, begin, end in self.done)
        at_a_swap: list[float] = []
        elsewhere: list[float] = []
        for kind, begin, end in self.done:
            met = any(begin < moment and end > moment - 0.1 for moment in moments)
            if kind != "look":
                (at_a_swap if met else elsewhere).append(end - begin - usual)
        return at_a_swap, elsewhere


def wait_until_active(service: Service, version: str) -> None:
    deadline = time.monotonic() + 60
    while service.client.get("/info").json()["model_version"] != version:
        assert time.monotonic() < deadline, service.client.get("/models").text
        time.sleep(0.005)


@pytest.fixture
def load(tmp_path: Path) -> Load:
    versions = published(tmp_path / "models", 3)
    oracle = Oracle(tmp_path / "models", versions)
    assert oracle.differ()
    return Load(Service(tmp_path, SIMILE_BUILD_RATE=str(BUILD_RATE)), oracle)


def test_no_request_fails_or_mixes_two_models_while_versions_come_and_go(load: Load) -> None:
    service = load.service
    with service:
        versions = [model["version"] for model in service.client.get("/models").json()["models"]]
        static = {f"static-{at}": TEXTS[at] for at in range(STATIC_DOCUMENTS)}
        assert service.put(static).status_code == 200
        acts = [load.write] * WRITERS + [load.search] * SEARCHERS + [load.embed] * EMBEDDERS
        acts += [load.look_at_everything]
        threads = [threading.Thread(target=load.run, args=(act, at)) for at, act in enumerate(acts)]
        assert len(threads) == 16
        for thread in threads:
            thread.start()
        moments: list[float] = []
        try:
            active, target = versions[:2]
            for number in range(1, SWAPS + 1):
                begin = time.monotonic()
                assert service.client.post(f"/models/{target}/activate").status_code == 202
                wait_until_active(service, target)
                moments.append(time.monotonic())
                counts = load.overlapping(begin, time.monotonic())
                assert not load.failures, load.failures
                assert counts["search"] >= AT_LEAST, (number, counts)
                assert counts["write"] >= AT_LEAST, (number, counts)
                [third] = set(versions) - {active, target}
                if number in ROLLBACK_AFTER:
                    assert service.client.post("/models/rollback").json() == {"wanted": active}
                    wait_until_active(service, active)
                    moments.append(time.monotonic())
                else:  # the one before is kept warm, and would come back at once: the third must be built
                    active, target = target, third
        finally:
            load.stop.set()
            for thread in threads:
                thread.join()
        assert not load.failures, load.failures
        assert len(moments) == SWAPS + len(ROLLBACK_AFTER)
        assert load.versions_seen == set(versions)
        expected = static | load.written
        assert service.stored() == expected
        everything = service.client.get("/search", params={"q": QUERIES[0], "k": 1000}).json()
        assert {hit["id"]: hit["text"] for hit in everything["hits"]} == expected
        check_metrics(service.client.get("/metrics").text)
    waits, elsewhere = load.waits(moments)
    assert len(waits) > SWAPS
    # What requests that met no swap had to wait for is the machine's doing: on a quiet one, next to nothing.
    assert max(waits) < LONGEST_PAUSE_SECONDS + max(elsewhere), "somebody waited too long for a swap"
    print(f"{len(load.done)} requests; of those at a swap the longest took {max(waits):.3f} s")


def check_metrics(text: str) -> None:
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(series['simile_swaps_total{outcome="done"}']) == SWAPS
    assert float(series['simile_swaps_total{outcome="rollback"}']) == 3
    assert float(series['simile_swaps_total{outcome="failed"}']) == 0
    pauses = [
        float(value) for name, value in series.items() if name.startswith("simile_swap_pause_seconds_bucket")
    ]
    within = float(series[f'simile_swap_pause_seconds_bucket{{le="{LONGEST_PAUSE_SECONDS}"}}'])
    assert within == max(pauses) == SWAPS + 3, "somebody waited too long for a swap"
