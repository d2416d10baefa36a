"""Requests for a version: which request counts, and versions that are only kept loaded."""

import os
import time
from typing import Any

import pytest

from models.store import Kind, RequestedVersion
from service.lifecycle.controller import choose_requested
from tests import postgres
from tests.parts.places import Place
from tests.service.swapping import QUERIES


@pytest.mark.parametrize(
    ("what", "kind", "handled", "judged", "refused", "chosen"),
    [
        ("a mere wish", "want", None, False, False, True),
        ("a mere wish for a version that failed or was rolled back from", "want", None, True, False, False),
        ("a mere wish for a version that its gate refused", "want", None, False, True, False),
        ("a decision for a version that failed", "activate", "another", True, False, True),
        ("a decision for a version that its gate refused", "activate", None, False, True, True),
        ("a decision that was carried out before and failed", "activate", "this", True, False, False),
        ("a rollback", "rollback", None, False, False, True),
        ("a rollback that failed", "rollback", "this", True, False, False),
        ("a decision that was carried out before", "activate", "this", False, False, True),
    ],
)  # fmt: skip
def test_a_version_in_disgrace_needs_a_decision_and_each_decision_counts_once(
    what: str, kind: Kind, handled: str | None, judged: bool, refused: bool, chosen: bool
) -> None:
    requested = RequestedVersion("v2", kind, "this")
    judged_versions = {"v2"} if judged else set()
    found = choose_requested(requested, active="v1", handled=handled, judged=judged_versions, refused=refused)
    assert (found is not None and found.version == "v2") is chosen, what


def test_a_decision_counts_once_and_the_live_version_is_no_target() -> None:
    found = choose_requested(
        RequestedVersion("v2", "rollback", "this"), active="v3", handled="this", judged=(), refused=False
    )
    assert found == RequestedVersion("v2", "want", "this"), "it must not judge the version that came after"
    for requested in (None, RequestedVersion("v1", "activate", "x")):
        assert choose_requested(requested, active="v1", handled=None, judged=(), refused=False) is None


HOUR = 3600.0


def request(place: Place, version: str, ahead: float) -> None:
    """Writes a request for a version to the models folder, with a time `ahead` seconds from now."""
    place.store.request(version, "activate")
    stamp(place, ahead)


def stamp(place: Place, ahead: float) -> None:
    at = time.time() + ahead
    os.utime(place.store.root / "wanted", (at, at))


def test_requests_count_whatever_the_clocks_say(place: Place) -> None:
    with place.serving():
        request(place, place.b, 24 * HOUR)  # as a retraining does on another machine
        place.until_active(place.b)
        place.activate(place.c)  # by the route, with the time of this machine
        assert place.client.post("/models/rollback").json() == {"wanted": place.b}
        place.until_active(place.b)
        request(place, place.a, -24 * HOUR)  # the clock was set back
        place.until_active(place.a)
        (place.store.root / "wanted").write_text(place.b + "\n")  # by hand, without asked.json
        stamp(place, -48 * HOUR)
        place.until_active(place.b)
    request(place, place.a, -72 * HOUR)  # while no service runs
    with place.serving():
        place.until_active(place.a)
        place.activate(place.b)


def test_activating_the_active_version_stops_a_build_that_another_folder_requested(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PostgreSQL, only the database has the request. This replica's folder names the active version."""
    with place.serving() as client:
        place.fill()
        go_on = place.hold(monkeypatch, place.b, 1)
        in_folder = place.store.new_request(place.b, "activate")
        if not postgres.chosen:
            place.store.write_request(in_folder)
        else:
            client.portal.call(place.app.state.runtime.corpus.store.request, in_folder)  # type: ignore[union-attr]
        place.until_state(place.b, "building")
        assert client.post(f"/models/{place.a}/activate").status_code == 200
        place.until(lambda: place.state(place.b)["state"] != "building")
        go_on.set()
        assert place.active() == place.a


def states(client: Any) -> dict[str, tuple[str, bool]]:
    listed = client.get("/models").json()["models"]
    return {one["version"]: (one["state"], one["loaded"]) for one in listed}


def in_folder(client: Any, version: str) -> Any:
    return client.get("/search", params={"q": QUERIES[0]}, headers={"x-model-version": version})


def test_a_kept_version_is_asked_follows_writes_and_is_let_go(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        assert in_folder(client, place.b).status_code == 409
        answer = client.post(f"/models/{place.b}/keep?seconds=600")
        assert (answer.status_code, answer.json()["loaded"]) == (202, False)
        place.until(lambda: states(client)[place.b] == ("ready", True))
        assert in_folder(client, place.b).headers["x-model-version"] == place.b
        assert in_folder(client, place.b).json()["model"] == place.b
        assert place.active() == place.a
        assert place.store.requested() == place.a
        again = client.post(f"/models/{place.b}/keep")
        kept = {"version": place.b, "seconds": 3600, "loaded": True}
        assert (again.status_code, again.json()) == (200, kept)
        assert not place.app.state.runtime.controller.waits, "nobody is asked for a decision"
        client.post("/documents", json={"documents": [{"id": "new", "text": QUERIES[0]}]})
        place.until(lambda: "new" in [hit["id"] for hit in in_folder(client, place.b).json().get("hits", [])])
        client.post(f"/models/{place.b}/keep?seconds=0")
        place.until(lambda: states(client)[place.b] == ("candidate", False))
        assert in_folder(client, place.b).status_code == 409


def test_its_time_ends_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving() as client:
        place.fill()
        client.post(f"/models/{place.b}/keep?seconds=5000")
        place.until(lambda: states(client)[place.b] == ("ready", True))
        now = time.monotonic
        monkeypatch.setattr("service.lifecycle.controller.time.monotonic", lambda: now() + 6000)
        place.until(lambda: states(client)[place.b] == ("candidate", False))


def test_the_last_one_asked_for_is_kept_and_what_is_wanted_takes_its_place(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        for version, other in ((place.b, place.c), (place.c, place.b)):
            client.post(f"/models/{version}/keep")
            place.until(lambda: states(client)[version] == ("ready", True))  # noqa: B023  at once
            assert states(client)[other][1] is False
        place.activate(place.b)
        place.until(lambda: place.app.state.runtime.controller.swap is None)
        assert states(client)[place.c] == ("candidate", False)


def test_a_kept_version_goes_live_without_being_built_again(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        client.post(f"/models/{place.b}/keep")
        place.until(lambda: states(client)[place.b] == ("ready", True))
        kept = next(one for one in place.app.state.runtime.active.followers if one.version == place.b)
        place.activate(place.b)
        assert place.app.state.runtime.active.generation is kept


def test_what_cannot_be_kept_is_refused_in_a_sentence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving(activate="manual") as client:
        place.fill()
        assert client.post(f"/models/{place.a}/keep").json()["loaded"] is True
        assert client.post("/models/nowhere/keep").status_code == 404
        assert client.post(f"/models/{place.b}/keep?seconds=-1").status_code == 422
        assert client.post(f"/models/{place.b}/keep?seconds=86401").status_code == 422
        assert client.post(f"/models/{place.b}/keep?second=5").status_code == 422
        place.store.request(place.b)
        place.until(lambda: states(client)[place.b][0] == "ready")
        answer = client.post(f"/models/{place.c}/keep")
        assert answer.status_code == 409
        assert f"{place.b} is being activated" in answer.json()["error"]
        (place.store.root / place.c / "manifest.json").write_text("{", encoding="utf-8")
        assert client.post(f"/models/{place.b}/keep").json()["loaded"] is True
        assert client.post(f"/models/{place.c}/keep").status_code == 409
