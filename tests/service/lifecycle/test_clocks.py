"""A request for a version counts from the moment in which the store hears of it, whatever clocks say."""

import os
import time
from pathlib import Path

import pytest

from tests import postgres
from tests.service.lifecycle.test_swap import Place
from tests.service.swapping import published

HOUR = 3600.0


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)


def want(place: Place, version: str, ahead: float) -> None:
    """Request a version by the command, on a machine whose clock is so many seconds ahead."""
    place.store.want(version, "activate")
    stamp(place, ahead)


def stamp(place: Place, ahead: float) -> None:
    at = time.time() + ahead
    os.utime(place.store.root / "wanted", (at, at))


def until_active(place: Place, version: str) -> None:
    place.until(lambda: place.active() == version)


def test_requests_count_whatever_the_clocks_say(place: Place) -> None:
    with place.serving():
        want(place, place.b, 24 * HOUR)  # as a retraining does on another machine
        until_active(place, place.b)
        place.activate(place.c)  # by the route, and this machine's clock
        assert place.client.post("/models/rollback").json() == {"wanted": place.b}
        until_active(place, place.b)
        want(place, place.a, -24 * HOUR)  # the clock was set back
        until_active(place, place.a)
        (place.store.root / "wanted").write_text(place.b + "\n")  # by hand, without asked.json
        stamp(place, -48 * HOUR)
        until_active(place, place.b)
    want(place, place.a, -72 * HOUR)  # while no service runs
    with place.serving():
        until_active(place, place.a)
        place.activate(place.b)


def test_activating_the_active_version_stops_a_build_that_another_folder_requested(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the replica that is asked names the active version all the while."""
    with place.serving() as client:
        place.fill()
        go_on = place.hold(monkeypatch, place.b, 1)
        asked = place.store.new_request(place.b, "activate")
        if not postgres.chosen:
            place.store.write_request(asked)
        else:
            client.portal.call(place.app.state.runtime.corpus.store.request, asked)  # type: ignore[union-attr]
        place.until(lambda: place.state(place.b)["state"] == "building")
        assert client.post(f"/models/{place.a}/activate").status_code == 200
        place.until(lambda: place.state(place.b)["state"] != "building")
        go_on.set()
        assert place.active() == place.a
