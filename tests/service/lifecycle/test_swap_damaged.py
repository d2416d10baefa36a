"""Damaged versions are refused, with their names in the reason, and the active version stays active."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import models.__main__ as command
from tests.parts.places import Place
from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Oracle, published


def change_a_byte(folder: Path) -> None:
    weights = folder / "onnx/model.onnx"
    content = bytearray(weights.read_bytes())
    content[len(content) // 3] ^= 4
    weights.write_bytes(content)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("damaged")
    published(folder / "models", 3)
    place = Place(folder)
    with place.serving():
        place.fill()
        yield place


def test_a_damaged_version_is_refused_by_name_and_the_old_one_serves_on(place: Place, tmp_path: Path) -> None:
    folder = place.store.folder(place.b)
    shutil.copytree(folder, tmp_path / "whole")
    try:
        change_a_byte(folder)
        decided = place.client.post(f"/models/{place.b}/activate")
        assert decided.status_code in {202, 409}, decided.text
        place.until(lambda: "onnx/model.onnx was changed" in (place.state(place.b)["reason"] or ""))
        assert place.state(place.b)["state"] == "failed"
        assert place.b in place.state(place.b)["reason"]
        assert place.active() == place.a
        assert len(place.everything()) == 60
        assert place.client.get("/ready").status_code == 200
    finally:
        shutil.rmtree(folder)
        shutil.copytree(tmp_path / "whole", folder)


def test_a_mended_version_can_be_activated_after_all(place: Place, tmp_path: Path) -> None:
    folder = place.store.folder(place.c)
    shutil.copytree(folder, tmp_path / "whole")
    change_a_byte(folder)
    assert place.client.post(f"/models/{place.c}/activate").status_code == 202
    place.until_state(place.c, "failed")
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "whole", folder)
    place.activate(place.c)
    assert len(place.everything()) == 60
    place.activate(place.a)


@pytest.mark.long
def test_a_service_that_stopped_before_a_damaged_version_starts_with_the_old_one(tmp_path: Path) -> None:
    versions = published(tmp_path / "models", 2)
    oracle = Oracle(tmp_path / "models", versions)
    with Service(tmp_path) as service:
        service.put({"one": TEXTS[0], "two": TEXTS[1]})
        service.stop()
        (tmp_path / "models/wanted").write_text(versions[1])
        change_a_byte(tmp_path / "models" / versions[1])
        service.start()
        answer = service.client.get("/search", params={"q": QUERIES[0], "mode": "dense"}).json()
        assert answer["model"] == versions[0]
        assert len(answer["hits"]) == 2
        oracle.check_search(answer)


def test_prune_keeps_what_is_in_use_and_deletes_the_rest(tmp_path: Path) -> None:
    folder = tmp_path
    published(folder / "models", 3)
    place = Place(folder)
    arguments = ["--models-dir", str(folder / "models")]
    with place.serving() as client:
        place.fill()
        place.activate(place.b)
        place.until(lambda: place.store.read_state().get("previous") == place.a)
        for kept in (place.a, place.b):
            assert command.main([*arguments, "prune", kept]) == 1
        assert command.main([*arguments, "prune", "--keep", "0"]) == 0
        assert place.store.names() == {place.a, place.b}
        assert client.post(f"/models/{place.c}/activate").status_code == 404
        assert command.main([*arguments, "rollback"]) == 0
        place.until_active(place.a)
        place.until(lambda: place.store.read_state().get("previous") is None)
        assert command.main([*arguments, "rollback"]) == 1
        assert command.main([*arguments, "activate", place.b]) == 0
        place.until_active(place.b)
