"""How long a build will take: worked out by hand, and shown while one runs."""

import asyncio
import logging
import math
import time
from pathlib import Path
from typing import Any

import pytest

from models.search.content import Content
from service.corpus.corpus import Corpus
from service.errors import Overloaded
from service.lifecycle.builder import Progress
from service.live import Generation
from tests.service.lifecycle.test_swap import Place
from tests.service.observability.test_metrics import samples
from tests.service.swapping import published


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)


class Clock:
    """Seconds in which a build works; its machine is never slow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("service.lifecycle.builder.time", self)
        monkeypatch.setattr("service.lifecycle.builder.asyncio", self)

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(seconds / 5)


def steps(progress: Progress, count: int, documents: int, seconds: float) -> None:
    for _ in range(count):
        progress.worked(documents, seconds)


def test_the_rest_is_divided_by_the_rate() -> None:
    progress = Progress("v")
    steps(progress, 5, 64, 0.2)
    progress.tell(100, 420)
    assert progress.rate == pytest.approx(320)
    assert progress.eta_seconds == pytest.approx(1.0)


def test_nothing_is_said_before_a_few_steps_are_done() -> None:
    progress = Progress("v")
    steps(progress, 2, 64, 0.2)
    progress.tell(128, 1000)
    assert progress.eta_seconds is None
    steps(progress, 1, 64, 0.2)
    assert progress.eta_seconds == pytest.approx(872 / 320)


def test_one_long_stall_counts_as_ten_usual_steps() -> None:
    progress = Progress("v")
    steps(progress, 5, 64, 0.2)
    progress.worked(64, 3600)
    assert progress.rate == pytest.approx(6 * 64 / (5 * 0.2 + 10 * 0.2))


def test_a_machine_that_became_slow_for_good_is_believed_after_some_steps() -> None:
    progress = Progress("v")
    steps(progress, 100, 64, 0.2)  # 320 a second
    steps(progress, 5, 64, 32.0)  # 2 a second
    assert progress.rate == pytest.approx(2, rel=0.1)


def test_the_rate_is_that_of_the_last_minute_of_work() -> None:
    progress = Progress("v")
    steps(progress, 60, 10, 1.0)
    steps(progress, 60, 40, 1.0)
    assert progress.rate == pytest.approx(40, rel=0.03)


def test_a_build_shows_how_long_it_will_take_and_says_so_in_the_log(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("service.lifecycle.builder.SAY_SECONDS", 0.4)
    caplog.set_level(logging.INFO)
    Clock(monkeypatch)
    release = place.hold(monkeypatch, place.b, 22)
    with place.serving(build_rate=20) as client:  # three seconds for sixty documents
        place.fill()
        assert math.isnan(samples(client)["simile_build_eta_seconds"])
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 22)
        left = (60 - 22) / 20
        assert place.state(place.b)["eta_seconds"] == pytest.approx(left, rel=0.03)
        assert samples(client)["simile_build_eta_seconds"] == pytest.approx(left, rel=0.03)
        release.set()
        place.until(lambda: place.active() == place.b)
        place.until(lambda: math.isnan(samples(client)["simile_build_eta_seconds"]))
        assert place.state(place.b)["eta_seconds"] is None
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Building")]
    assert 2 <= len(said) <= 8
    assert f"Building {place.b}: " in said[0]
    assert " of 60 documents (" in said[0]
    assert " s to go" in said[0]


def test_documents_written_meanwhile_are_counted_among_those_to_do(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.lifecycle.builder.RECOUNT_SECONDS", 0.1)
    with place.serving(build_rate=20) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: (place.state(place.b)["done"] or 0) > 10)
        more = [{"id": f"late-{at}", "text": f"red river {at}"} for at in range(40)]
        client.post("/documents", json={"documents": more})
        place.until(lambda: place.state(place.b)["total"] == 100)
        assert place.state(place.b)["done"] < 90, "they were counted only when they were done"
        client.delete("/documents", params={"filter": '{"none": {"$exists": false}}'})
        place.until(lambda: place.active() == place.b)


def test_while_a_build_waits_it_is_not_known_how_long_it_will_take(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.1)
    embed = Corpus.embed
    full = False

    async def full_at_times(
        self: Corpus, generation: Generation, contents: list[Content], collections: list[str]
    ) -> Any:
        if full and generation.version == place.b:
            clock.now += 1  # a second that must not count
            raise Overloaded("injected")
        return await embed(self, generation, contents, collections)

    clock = Clock(monkeypatch)
    with place.serving(build_rate=20) as client:
        place.fill()
        monkeypatch.setattr(Corpus, "embed", full_at_times)
        release = place.hold(monkeypatch, place.b, 22)
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 22)
        full = True
        release.set()
        place.until(lambda: place.state(place.b)["reason"] == "injected")
        assert place.state(place.b)["eta_seconds"] is None
        assert math.isnan(samples(client)["simile_build_eta_seconds"])
        time.sleep(1)
        release = place.hold(monkeypatch, place.b, 10)
        full = False
        place.until(lambda: place.state(place.b)["done"] == 32)
        assert place.state(place.b)["eta_seconds"] == pytest.approx((60 - 32) / 20, rel=0.06)
        release.set()
