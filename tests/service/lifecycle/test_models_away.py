"""While the models folder cannot be read, the service waits, reports it, and marks no version as failed."""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models import manifest as seal
from models.errors import Unreadable
from models.store import ModelStore
from service.lifecycle.model_loader import ModelLoader
from tests.parts.places import DOCUMENTS, Place
from tests.service.swapping import published
from tests.waiting import LIMIT

FAILED = 'simile_swaps_total{outcome="failed"}'


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr("service.lifecycle.model_loader.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("service.lifecycle.model_loader.MAX_SECONDS", 0.05)
    published(tmp_path / "models", 3)
    return Place(tmp_path)


@contextmanager
def away(place: Place) -> Iterator[None]:
    root, elsewhere = place.store.root, place.store.root.with_name("unmounted")
    root.rename(elsewhere)
    try:
        yield
    finally:
        assert not root.exists(), "it was made anew where the mount should be"
        elsewhere.rename(root)


def no_failure(place: Place) -> None:
    assert f"{FAILED} 0.0" in place.client.get("/metrics").text
    place.until(
        lambda: all(model["state"] != "failed" for model in place.client.get("/models").json()["models"])
    )


def test_a_folder_that_is_away_while_a_version_is_opened_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, tries = threading.Event(), threading.Event(), []
    opened = ModelLoader.open_verified

    def at_a_bad_moment(self: ModelLoader, version: str) -> Any:
        tries.append(version)
        begun.set()
        go_on.wait(LIMIT)
        return opened(self, version)

    monkeypatch.setattr(ModelLoader, "open_verified", at_a_bad_moment)
    with place.serving() as client:
        place.fill()
        place.store.request(place.b)
        assert begun.wait(LIMIT)
        with away(place):
            go_on.set()
            place.until(lambda: len(tries) > 8)  # more often than any number of attempts
            shown = {model["version"]: model for model in client.get("/models").json()["models"]}
            assert shown[place.b]["state"] == "building"
            assert "tried again" in shown[place.b]["reason"]
            assert shown[place.a]["state"] == "active"
            assert "simile_swap_waiting 1.0" in client.get("/metrics").text
            assert place.everything() == DOCUMENTS
        place.until_active(place.b)
        assert place.everything() == DOCUMENTS
        no_failure(place)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE])
def test_a_file_that_cannot_be_read_now_is_no_damage(
    place: Place, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    checksum, tries = seal.checksum, 0

    def fails(file: Path) -> str:
        nonlocal tries
        if place.b in file.parts and file.name == "model.onnx" and tries < 7:
            tries += 1
            raise OSError(code, "injected", str(file))
        return checksum(file)

    with place.serving() as client:
        place.fill()
        monkeypatch.setattr(seal, "checksum", fails)
        assert client.post(f"/models/{place.b}/activate").status_code == 202
        place.until_active(place.b)
        assert tries == 7
        no_failure(place)


def test_what_is_wanted_and_cannot_be_read_is_said(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        with monkeypatch.context() as patch:

            def forbidden(store: ModelStore) -> str:
                raise PermissionError(errno.EACCES, "Permission denied", str(store.root / "wanted"))

            patch.setattr(ModelStore, "_pointer", forbidden)
            answer = client.get("/models")
            assert answer.status_code == 200
            assert answer.json()["active"] == place.b
            [active] = [model for model in answer.json()["models"] if model["version"] == place.b]
            assert (active["state"], "Permission denied" in active["reason"]) == ("active", True)
        place.activate(place.c)
        no_failure(place)


def test_a_service_whose_folder_is_away_keeps_the_way_back_warm(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.controller.LINGER_SECONDS", 0.1)
    monkeypatch.setattr("service.lifecycle.controller.POLL_SECONDS", 0.02)
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        controller = place.app.state.runtime.controller
        place.until(
            lambda: (
                controller.swap is None
                and all(f.is_rollback_target for f in controller._corpus.active.followers)
            )
        )
        with away(place):
            place.until(lambda: controller.trouble is not None)
            looks, look = [], controller._expire

            async def counted() -> None:
                await look()
                looks.append(1)

            monkeypatch.setattr(controller, "_expire", counted)
            place.until(lambda: len(looks) > 20)  # far longer than LINGER_SECONDS
            assert [follower.version for follower in controller._corpus.active.followers] == [place.a]
            assert "not there" in str(client.get("/models").json()["models"])
        place.until(lambda: controller.trouble is None)
        place.rollback(place.a)
        no_failure(place)


def test_a_version_in_a_folder_that_is_away_is_unreadable_and_not_damaged(place: Place) -> None:
    folder = place.store.folder(place.a)
    with away(place), pytest.raises(Unreadable):
        seal.check(folder)
