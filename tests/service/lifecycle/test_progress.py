"""The expected time of a build, compared with values worked out by hand and shown during a build."""

import asyncio
import logging
import math
import time
from typing import Any

import pytest

from service.active import Generation
from service.corpus.corpus import Corpus
from service.errors import Overloaded
from service.lifecycle.builder import Progress
from tests.parts.places import Place
from tests.service.observability.test_metrics import samples


class Clock:
    """A clock that only advances while a build sleeps."""

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


@pytest.mark.parametrize(
    ("steps", "rate", "rel"),
    [
        ([(5, 64, 0.2)], 320, 1e-6),
        ([(2, 64, 0.2)], None, 0),  # too few steps
        ([(3, 64, 0.2)], 320, 1e-6),
        ([(100, 64, 0.2), (5, 64, 32.0)], 2, 0.1),  # a machine that became slow and stays slow
        ([(60, 10, 1.0), (60, 40, 1.0)], 40, 0.03),  # only the last minute counts
    ],
)
def test_the_rest_is_divided_by_the_rate_of_recent_steps(
    steps: list[tuple[int, int, float]], rate: float | None, rel: float
) -> None:
    progress = Progress("v")
    for count, documents, seconds in steps:
        for _ in range(count):
            progress.worked(documents, seconds)
    progress.tell(100, 420)
    if rate is None:
        assert progress.rate is progress.eta_seconds is None
    else:
        assert progress.rate == pytest.approx(rate, rel=rel)
        assert progress.eta_seconds == pytest.approx(320 / rate, rel=rel)


def test_a_build_shows_how_long_it_will_take_and_says_so_in_the_log(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        place.until_active(place.b)
        place.until(lambda: math.isnan(samples(client)["simile_build_eta_seconds"]))
        assert place.state(place.b)["eta_seconds"] is None
    said = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Building")]
    assert 2 <= len(said) <= 8
    assert f"Building {place.b}: " in said[0]
    assert " of 60 documents (" in said[0]
    assert " s to go" in said[0]


def test_documents_written_meanwhile_are_counted_among_those_to_do(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.builder.RECOUNT_SECONDS", 0.1)
    with place.serving(build_rate=20) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: (place.state(place.b)["done"] or 0) > 10)
        place.put({f"late-{at}": f"red river {at}" for at in range(40)})
        place.until(lambda: place.state(place.b)["total"] == 100)
        assert place.state(place.b)["done"] < 90, "they were counted only when they were done"
        client.delete("/documents", params={"filter": '{"none": {"$exists": false}}'})
        place.until_active(place.b)


def test_while_a_build_waits_it_is_not_known_how_long_it_will_take(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.1)
    embed = Corpus.embed
    full = False

    async def full_at_times(self: Corpus, generation: Generation, *args: Any) -> Any:
        if full and generation.version == place.b:
            clock.now += 1  # a second that must not count
            raise Overloaded("injected")
        return await embed(self, generation, *args)

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
        place.until(lambda: place.state(place.b)["eta_seconds"] is None)
        place.until(lambda: math.isnan(samples(client)["simile_build_eta_seconds"]))
        time.sleep(1)
        release = place.hold(monkeypatch, place.b, 10)
        full = False
        place.until(lambda: place.state(place.b)["done"] == 32)
        assert place.state(place.b)["eta_seconds"] == pytest.approx((60 - 32) / 20, rel=0.06)
        release.set()
