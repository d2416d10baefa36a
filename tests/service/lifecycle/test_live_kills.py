"""Live tests of other encoders through kill -9, swaps and rollbacks, while clients search and write."""

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import numpy as np
import pytest

from tests import postgres
from tests.service.conftest import wait_until_active
from tests.service.lifecycle.test_live_encoders import check_drafted, click_until_over, rank
from tests.service.lifecycle.test_live_tests import start, state
from tests.service.process import Service
from tests.service.swapping import TEXTS, TOLERANCE, Client, Oracle, published
from tests.waiting import until

pytestmark = pytest.mark.long

STATIC = {f"d{at}": TEXTS[at] for at in range(100)}
SHELF = "/collections/static"  # No client changes its documents.
TESTS, SEARCHERS = 20, 4
BUILD_RATE = 150  # Documents per second, so that kills meet builds.


class Clients:
    """Clients that search and write in a loop, and check every answer. They pause while no service runs."""

    def __init__(self, service: Service, oracle: Oracle, versions: list[str]) -> None:
        self._service, self._oracle, self._versions = service, oracle, versions
        self._busy, self._up, self._stopped = threading.Condition(), threading.Event(), threading.Event()
        self._inside = 0
        self.failures: list[str] = []
        self.tested = self.plain = self.written = 0
        self.queries = [query for query in TEXTS[100:] if self._is_clear(query)]
        self._up.set()
        acts: Sequence[Callable[[Client, random.Random], None]] = [self.search] * SEARCHERS + [self.write]
        self._threads = [
            threading.Thread(target=self._run, args=(act, at), daemon=True) for at, act in enumerate(acts)
        ]

    def _is_clear(self, query: str) -> bool:
        """Returns whether rounding cannot change the first hits of any version."""
        for version in self._versions:
            scores = self.score(version, query)
            if np.diff(scores[:30]).max() > -1e-5:
                return False
        return True

    def score(self, version: str, query: str) -> np.ndarray[Any, Any]:
        vectors = self._oracle.of(version)
        return -np.sort([-vectors[text] @ vectors[query] for text in STATIC.values()])

    def _run(self, act: Callable[[Client, random.Random], None], number: int) -> None:
        rng, client = random.Random(number), Client(self._service.port)
        while not self._stopped.is_set() and not self.failures:
            with self._busy:
                if not self._up.is_set():
                    client.close()
                    client = Client(self._service.port)
                    self._busy.wait(0.05)
                    continue
                self._inside += 1
            try:
                act(client, rng)
            except Exception as error:  # noqa: BLE001  the test reports it
                self.failures.append(f"{act.__name__}: {error!r}"[:2000])
            finally:
                with self._busy:
                    self._inside -= 1
                    self._busy.notify_all()
            time.sleep(0.02)
        client.close()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Lets no request be in progress, because a killed service answers none."""
        with self._busy:
            self._up.clear()
            assert self._busy.wait_for(lambda: not self._inside, 60)
        yield
        self._up.set()

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            for thread in self._threads:
                thread.join()

    def search(self, client: Client, rng: random.Random) -> None:
        query, visitor = rng.choice(self.queries), rng.randrange(1000)
        path = f"{SHELF}/search?mode=dense&k=10&user={visitor}&q={quote(query)}"
        answer, version = client.send("GET", path)
        assert answer["model"] == version
        hits = [hit["id"] for hit in answer["hits"]]
        assert all(STATIC[hit["id"]] == hit["text"] for hit in answer["hits"])
        difference = np.abs([hit["score"] for hit in answer["hits"]] - self.score(version, query)[:10]).max()
        assert difference < TOLERANCE, f"the scores are not {version}'s"
        own = rank(self._oracle, version, query, STATIC)
        if hits == own[:10]:
            self.plain += 1
            return
        others = [rank(self._oracle, each, query, STATIC) for each in self._versions if each != version]
        assert any(is_drafted(hits, [own, other]) for other in others), (version, query, hits)
        self.tested += 1

    def write(self, client: Client, rng: random.Random) -> None:
        document = {"id": f"w{rng.randrange(20)}", "text": rng.choice(TEXTS)}
        client.send("POST", "/documents", {"documents": [document]})
        self.written += 1


def is_drafted(hits: list[str], rankings: list[list[str]]) -> bool:
    try:
        check_drafted(hits, rankings)
    except AssertionError:
        return False
    return True


def list_generations(service: Service, database: str) -> list[str]:
    """Reads the states of the stored generations from the database of a running service."""
    sql = "SELECT state FROM generations ORDER BY number"
    if database:
        import psycopg

        with psycopg.connect(database) as connection:
            return [row[0] for row in connection.execute(sql)]
    import sqlite3

    with closing(sqlite3.connect(service.folder / "data" / "simile.db")) as connection:
        return [row[0] for row in connection.execute(sql)]


class World:
    """A service with three versions, and what the tests do to it."""

    def __init__(self, folder: Path) -> None:
        self.versions = published(folder / "models", 3)
        self.oracle = Oracle(folder / "models", self.versions)
        self.database = postgres.place().get("database", "")
        variables = {"SIMILE_DATABASE": self.database} if self.database else {}
        self.service = Service(folder, SIMILE_LIVE_TEST="1", SIMILE_BUILD_RATE=str(BUILD_RATE), **variables)
        self.clients = Clients(self.service, self.oracle, self.versions)

    @property
    def client(self) -> httpx2.Client:
        return self.service.client

    @property
    def active(self) -> str:
        return str(self.client.get("/info").json()["model_version"])

    def fill(self) -> None:
        assert self.service.put(STATIC, SHELF).status_code == 200
        assert self.service.put({"w0": TEXTS[0]}).status_code == 200

    def kill(self) -> None:
        with self.clients.paused():
            self.service.kill()
            self.service.start()

    def until(self, true: Callable[[], bool]) -> None:
        def look() -> bool:
            assert not self.clients.failures, self.clients.failures
            return true()

        until(look, lambda: self.client.get("/models").text)

    def until_test(self, candidate: str, *states: str) -> None:
        self.until(lambda: state(self.client, candidate)["state"] in states)

    def until_built(self, candidate: str) -> None:
        """Waits until the build of a candidate has begun."""
        self.until(lambda: "is being built: " in state(self.client, candidate)["says"])

    def until_tested(self) -> None:
        """Waits until the clients see interleaved hits."""
        before = self.clients.tested
        self.until(lambda: self.clients.tested > before)

    def until_dropped(self, candidate: str) -> None:
        def is_dropped() -> bool:
            [shown] = [
                one for one in self.client.get("/models").json()["models"] if one["version"] == candidate
            ]
            return not shown["loaded"] and "building" not in list_generations(self.service, self.database)

        self.until(is_dropped)

    def click_until_over(self, candidate: str, liked: str, first: int = 0) -> str:
        queries = self.clients.queries
        told = click_until_over(self.client, self.oracle, candidate, liked, first, queries, SHELF)
        return str(told["state"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with world.service:
        world.fill()
        yield world


def test_a_killed_test_goes_on_or_leaves_nothing(world: World) -> None:
    """Kills while a candidate is built, while it is tested, after a stop, and after a verdict."""
    _, candidate, other = world.versions
    with world.clients.running():
        start(world.client, candidate)
        world.until_built(candidate)
        world.kill()
        assert state(world.client, candidate)["state"] == "preparing"
        world.until_test(candidate, "running")
        world.until_tested()
        world.kill()
        assert state(world.client, candidate)["state"] == "running"
        world.until_tested()
        world.client.delete(f"/models/{candidate}/test")
        world.kill()
        world.until_dropped(candidate)
        start(world.client, other)
        world.until_test(other, "running")
        world.until_tested()
        assert world.click_until_over(other, other) == "accepted"
        world.kill()
        wait_until_active(world.client, other)
        world.until(lambda: "active" in list_generations(world.service, world.database))
        before = world.clients.plain
        world.until(lambda: world.clients.plain > before)
    assert not world.clients.failures, world.clients.failures
    assert world.clients.written > 0


@pytest.mark.soak
def test_no_search_fails_or_is_mixed_through_twenty_tests(world: World) -> None:
    """Each test ends in another way: a stop, a verdict, an activation, a rollback, at various moments."""
    rng, clicks = random.Random(5), 0
    ways = ["stop", "activate", "rollback", "accept", "reject"]
    with world.clients.running():
        for number in range(TESTS):
            active = world.active
            candidate, third = rng.sample([each for each in world.versions if each != active], 2)
            way = ways[number % len(ways)]
            start(world.client, candidate)
            if number % 3 == 0:
                world.until_built(candidate)
                time.sleep(rng.uniform(0, 0.5))
                world.kill()
            if way in {"accept", "reject"} or number % 2:
                world.until_test(candidate, "running")
                world.until_tested()
            if number % 4 == 1:
                world.kill()
                world.until_tested()
            if way == "stop":
                world.client.delete(f"/models/{candidate}/test")
            elif way == "activate":
                world.client.post(f"/models/{third}/activate")
                wait_until_active(world.client, third)
            elif way == "rollback":
                wanted = world.client.post("/models/rollback").json()["wanted"]
                wait_until_active(world.client, wanted)
            else:
                liked = candidate if way == "accept" else active
                assert world.click_until_over(candidate, liked, clicks) == f"{way}ed"
                clicks += 1000
                wait_until_active(world.client, liked)
            world.until_test(candidate, "stopped", "accepted", "rejected")
            world.until(lambda: "building" not in list_generations(world.service, world.database))
    assert not world.clients.failures, world.clients.failures
    assert min(world.clients.tested, world.clients.plain, world.clients.written) > TESTS
    print(f"{world.clients.tested} interleaved searches, {world.clients.plain} others")
