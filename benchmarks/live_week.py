"""Live tests through a running service: simulated users search and click. Start at `simulate_week`.

    nights publish rankings ─▶ SIMILE_ACTIVATE=test ─▶ users search and click ─▶ the better ones become active

Clicks are those of `benchmarks.live_test`. The length of a document tells its grade
with some noise. The share of the query's terms in it tells nothing, and is as often high as low. So a ranking
that weighs the length more is better, and one that weighs the terms by the opposite number is as good.

`python -m benchmarks.live_week` is the service itself. Its live tests see the days that the file CLOCK names.
"""

import os
import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count
from math import expm1
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import BenchError, progress
from benchmarks.processes import POLL_SECONDS, READY_SECONDS, Server, call, wait_until_active
from models.manifest import FILE_NAME, Manifest, SearchDefaults, version_name
from models.search.ranking import FOLDER, Ranking
from models.store import ModelStore
from service.lifecycle import live_tests

CLOCK = "LIVE_WEEK_CLOCK"  # Environment variable with the path of a file: days that have passed.
DOCUMENTS, SHOWN = 48, 10
GRADES = (0.6, 0.2, 0.12, 0.08)  # Shares of the grades 0 to 3.
WORDS = ["river", "stone", "market", "letter", "engine", "garden", "bridge", "window"]
TERMS = 4  # Of a query.
NOISE = 0.1  # Of the clicks.
LOOKS = 20  # Searches between two looks at the state.
Weights = tuple[float, float]  # Of the length and of the terms.
FIRST: Weights = (0.5, 1.0)
EQUAL: Weights = (0.5, -1.0)  # As good as FIRST.
NIGHTS = {
    "worse": (0.0, 1.0),
    "better": (1.5, 1.0),
    "worse again": (0.4, 1.0),
    "much worse": (0.1, 1.0),
    "as good": (1.5, -1.0),
    "worse, and waits": (0.3, 1.0),
    "better, and waits": (9.0, 0.0),
}
Click = Callable[[np.random.Generator, NDArray[np.int64], float], int | None]


class World(NamedTuple):
    """Texts by id, and the grade of each for every query."""

    texts: dict[str, str]
    grades: dict[str, int]


class Ended(NamedTuple):
    """A night's candidate and the result of its test."""

    night: str
    version: str
    result: dict[str, Any]


def build_world(seed: int = 0) -> World:
    random = np.random.default_rng(seed)
    texts, grades = {}, {}
    for at in range(DOCUMENTS):
        grade = int(random.choice(len(GRADES), p=GRADES))
        terms = random.permutation(WORDS)[: len(WORDS) // 2].tolist()
        length = int(expm1(2.5 + 0.6 * grade + 0.5 * random.normal()))
        texts[f"d{at}"] = " ".join([*terms, *["so"] * max(0, length - len(terms))])
        grades[f"d{at}"] = grade
    return World(texts, grades)


def add_version(
    store: ModelStore,
    version: str,
    *,
    ranking: Ranking | None = None,
    search: dict[str, SearchDefaults] | None = None,
) -> str:
    """Publishes a copy of `version` with another ranking, other search settings, or both."""
    old = store.verify(version)
    name = version_name(datetime.now(UTC), f"{old.origin}-{len(store.versions())}", old.fingerprint)

    def build(folder: Path) -> Manifest:
        ignored = shutil.ignore_patterns(FILE_NAME)
        shutil.copytree(store.folder(version), folder, dirs_exist_ok=True, ignore=ignored)
        if ranking is not None:
            (folder / FOLDER).mkdir(exist_ok=True)
            (folder / FOLDER / "default.json").write_text(ranking.model_dump_json())
        return old.model_copy(update={"version": name, "search": search or {}, "files": {}})

    return store.publish(build).version


def rank_by(weights: Weights) -> Ranking:
    length, cover = weights
    return Ranking(weights={"length": length, "cover": cover})


class Users:
    """Visitors who each search once, and click on a hit or not."""

    def __init__(self, port: int, world: World, click: Click, seed: int = 0) -> None:
        self._port, self._world, self._click = port, world, click
        self._random = np.random.default_rng(seed)
        self._visitors = count()

    def search(self) -> None:
        query = " ".join(self._random.permutation(WORDS)[:TERMS])
        visitor = f"visitor-{next(self._visitors)}"
        asked = urlencode({"q": query, "user": visitor, "k": SHOWN, "fields": ""})
        answer = call(self._port, "GET", f"/search?{asked}")
        ids = [hit["id"] for hit in answer["hits"]]
        place = self._click(self._random, np.array([self._world.grades[id] for id in ids]), NOISE)
        if place is not None:
            event = {"search_id": answer["search_id"], "id": ids[place], "query": query, "user": visitor}
            call(self._port, "POST", "/events", event | {"type": "click"})

    def search_until_decided(self, searches: int) -> dict[str, Any]:
        """Searches while a test runs, at most `searches` times. Returns the state of the last test."""
        for at in range(searches):
            if at % LOOKS == 0 and (found := read_test(self._port))["state"] != "running":
                return found
            self.search()
        return read_test(self._port)


class Clock:
    """The days that live tests believe have passed."""

    def __init__(self, file: Path) -> None:
        self._file, self._days = file, 0.0
        self.advance(0)

    def advance(self, days: float) -> None:
        self._days += days
        new = self._file.with_suffix(".new")
        new.write_text(str(self._days))
        new.replace(self._file)  # The service reads it at any time.


def read_test(port: int) -> dict[str, Any]:
    """Returns the last live test, or one without a version if there was none."""
    models = call(port, "GET", "/models")["models"]
    return next((one["live_test"] for one in models if one["live_test"]), {"version": "", "state": "none"})


def wait_for(is_there: Callable[[], bool], what: str) -> None:
    """Raises BenchError if `is_there` stays false."""
    until = time.monotonic() + READY_SECONDS
    while not is_there():
        if time.monotonic() > until:
            raise BenchError(f"{what} did not happen.")
        time.sleep(POLL_SECONDS)


def open_service(folder: Path, store: ModelStore, version: str, **settings: str) -> Server:
    """Returns the service with the documents' rankings by FIRST as its active version, to be started."""
    store.request(version)
    fixed = {
        "SIMILE_LIVE_TEST": "1",
        "SIMILE_PASSAGES": "0",
        "SIMILE_WORKERS": "1",
        CLOCK: str(folder / "days"),
    }
    places = {"SIMILE_MODELS_DIR": str(store.root)}
    return Server(folder / "data", fixed | places | settings, "benchmarks.live_week")


def fill(port: int, world: World) -> None:
    documents = [{"id": id, "text": text} for id, text in world.texts.items()]
    call(port, "POST", "/documents", {"documents": documents})


def simulate_week(
    folder: Path, store: ModelStore, base: str, click: Click, searches: int = 500
) -> tuple[list[Ended], str]:
    """Runs an unattended week. Returns the results in their order, and the active version at the end.

    Args:
        folder: Receives the data.
        store: A models folder that has `base`.
        base: The version whose encoder all candidates have.
        click: Returns the place of the first click, as `benchmarks.live_test.click`.
        searches: Searches of a day at most.
    """
    world, clock, ended = build_world(), Clock(folder / "days"), list[Ended]()
    first = add_version(store, base, ranking=rank_by(FIRST))
    nights: dict[str, str] = {}

    def note(result: dict[str, Any]) -> None:
        if result["state"] != "running" and all(result["version"] != each.version for each in ended):
            ended.append(Ended(nights[result["version"]], result["version"], result))
            progress(f"{ended[-1].night}: {result['says']}")

    with open_service(folder, store, first, SIMILE_ACTIVATE="test") as server:
        port = server.port
        fill(port, world)
        users = Users(port, world, click)

        def wait_for_test(version: str) -> None:
            wait_for(lambda: bool(read_test(port)["version"] == version), f"A test of {version}")

        def live() -> None:
            result = users.search_until_decided(searches)
            note(result)
            if result["state"] == "accepted":
                wait_until_active(store.root, result["version"], READY_SECONDS)

        for night, weights in NIGHTS.items():
            version = add_version(store, base, ranking=rank_by(weights))
            nights[version] = night
            waits = read_test(port)["state"] == "running"
            store.request(version)
            if not waits:
                wait_for_test(version)
            live()
            clock.advance(1)
        if waits:  # The test of the one that is as good ends only now.
            clock.advance(live_tests.MAX_DAYS)
            wait_for(lambda: bool(read_test(port)["state"] != "running"), "An end of the longest test")
            note(read_test(port))
            wait_for_test(version)
            live()
        return ended, read_active(port)


def simulate_equal(
    folder: Path, store: ModelStore, base: str, click: Click, tests: int, searches: int
) -> list[dict[str, Any]]:
    """Tests versions that are as good as the active one. Returns the results."""
    Clock(folder / "days")
    first, equal = (add_version(store, base, ranking=rank_by(weights)) for weights in (FIRST, EQUAL))
    found = []
    with open_service(folder, store, first, SIMILE_ACTIVATE="manual") as server:
        fill(server.port, world := build_world())
        for at in range(tests):
            call(server.port, "POST", f"/models/{equal}/test")
            result = Users(server.port, world, click, at).search_until_decided(searches)
            if result["state"] == "running":
                call(server.port, "DELETE", f"/models/{equal}/test")
            elif result["state"] == "accepted":
                wait_until_active(store.root, equal, READY_SECONDS)
                first, equal = equal, first
            found.append(result)
            progress(f"equal versions: {result['says']}")
    return found


def read_active(port: int) -> str:
    return str(call(port, "GET", "/models")["active"])


def serve() -> None:
    from service.__main__ import main as run_service  # noqa: PLC0415  It limits the process to one thread.

    file = Path(os.environ[CLOCK])
    now = time.time
    vars(live_tests)["time"] = SimpleNamespace(time=lambda: now() + float(file.read_text()) * live_tests.DAY)
    run_service()


if __name__ == "__main__":
    serve()
