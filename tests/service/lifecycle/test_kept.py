"""A version that is kept is asked beside the live one, and goes live only when it is wanted."""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.service.lifecycle.test_swap import Place
from tests.service.swapping import QUERIES, published


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)


def states(client: Any) -> dict[str, tuple[str, bool]]:
    listed = client.get("/models").json()["models"]
    return {one["version"]: (one["state"], one["loaded"]) for one in listed}


def asked(client: Any, version: str) -> Any:
    return client.get("/search", params={"q": QUERIES[0]}, headers={"x-model-version": version})


def test_a_kept_version_is_asked_follows_writes_and_is_let_go(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        assert asked(client, place.b).status_code == 409
        answer = client.post(f"/models/{place.b}/keep?seconds=600")
        assert (answer.status_code, answer.json()["loaded"]) == (202, False)
        place.until(lambda: states(client)[place.b] == ("ready", True))
        assert asked(client, place.b).headers["x-model-version"] == place.b
        assert asked(client, place.b).json()["model"] == place.b
        assert place.active() == place.a
        assert place.store.wanted() == place.a
        again = client.post(f"/models/{place.b}/keep")
        assert (again.status_code, again.json()) == (
            200,
            {"version": place.b, "seconds": 3600, "loaded": True},
        )
        assert not place.app.state.runtime.controller.waits, "nobody is asked for a decision"
        client.post("/documents", json={"documents": [{"id": "new", "text": QUERIES[0]}]})
        place.until(lambda: "new" in [hit["id"] for hit in asked(client, place.b).json().get("hits", [])])
        client.post(f"/models/{place.b}/keep?seconds=0")
        place.until(lambda: states(client)[place.b] == ("candidate", False))
        assert asked(client, place.b).status_code == 409


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
        kept = next(one for one in place.app.state.runtime.live.followers if one.version == place.b)
        place.activate(place.b)
        assert place.app.state.runtime.live.generation is kept


def test_what_cannot_be_kept_is_refused_in_a_sentence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving(activate="manual") as client:
        place.fill()
        assert client.post(f"/models/{place.a}/keep").json()["loaded"] is True
        assert client.post("/models/nowhere/keep").status_code == 404
        assert client.post(f"/models/{place.b}/keep?seconds=-1").status_code == 422
        assert client.post(f"/models/{place.b}/keep?seconds=86401").status_code == 422
        assert client.post(f"/models/{place.b}/keep?second=5").status_code == 422
        place.store.want(place.b)
        place.until(lambda: states(client)[place.b][0] == "ready")
        answer = client.post(f"/models/{place.c}/keep")
        assert answer.status_code == 409
        assert f"{place.b} is on its way to live" in answer.json()["error"]
        (place.store.root / place.c / "manifest.json").write_text("{", encoding="utf-8")
        assert client.post(f"/models/{place.b}/keep").json()["loaded"] is True
        assert client.post(f"/models/{place.c}/keep").status_code == 409
