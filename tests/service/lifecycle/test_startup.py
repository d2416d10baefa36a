"""The model that is active after each start."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models.store import ModelStore
from service.app import create_app
from service.errors import StartupError
from service.settings import Settings
from tests.service.conftest import HOST, new_settings, serving, wait_until_ready
from tests.tiny import tiny_source
from tests.waiting import until


def version_served(settings: Settings) -> str:
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        until((settings.models_dir / "state.json").exists)  # written at the first poll
        return str(client.get("/info").json()["model_version"])


def test_the_first_start_publishes_wants_and_serves_the_folder_it_is_given(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "my-encoder", seed=3)
    settings = Settings(data_dir=tmp_path / "data", model=str(source), allowed_hosts=HOST)
    version = version_served(settings)
    assert "my-encoder" in version
    store = ModelStore(tmp_path / "data/models")
    assert store.requested() == version
    state = json.loads((tmp_path / "data/models/state.json").read_bytes())
    assert state["live"] == version
    assert state["previous"] is None
    assert state["versions"][version]["state"] == "active"


def test_a_later_start_serves_what_was_live_whatever_is_named(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    first = version_served(settings)
    other = tiny_source(tmp_path / "other", seed=9)
    assert version_served(settings.model_copy(update={"model": str(other)})) == first


def test_a_changed_model_is_refused_at_start_and_named(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    version = version_served(settings)
    weights = settings.models_dir / version / "onnx/model.onnx"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    with pytest.raises(StartupError, match=version):
        create_app(settings).state.runtime.open()


def test_each_start_renews_the_id_of_the_models_folder_and_services_on_one_folder_agree(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    """A copied folder therefore gets an id of its own as soon as a service uses it."""
    settings = new_settings(tmp_path, tiny_models_dir)
    store, ids = ModelStore(settings.models_dir), set()
    assert store.id() is None
    for _ in range(2):
        with serving(settings) as client:
            ids.add(client.get("/info").json()["models_id"])
    assert None not in ids
    assert len(ids) == 2
    place = new_settings(tmp_path / "second", tiny_models_dir).model_copy(
        update={"models_dir": tmp_path / "second" / ".." / "models"}
    )
    with serving(settings) as first, serving(place) as second:
        told = [client.get("/info").json() for client in (first, second)]
        assert {each["models_id"] for each in told} == {store.id()}
        assert [Path(each["models_dir"]).is_absolute() for each in told] == [True, True]
        assert all(Path(each["models_dir"]).samefile(settings.models_dir) for each in told)


def test_an_id_that_cannot_be_read_is_none_and_one_that_cannot_be_written_stops_nothing(
    tmp_path: Path, tiny_models_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    file, store = settings.models_dir / "id", ModelStore(settings.models_dir)
    for content in ("ab" * 15, "ab" * 500, f"{'ab' * 16}\n" * 2, "ä" * 32):
        file.write_text(content)
        assert store.id() is None
        store.renew_id()
        assert store.id() is not None
    file.unlink()
    file.mkdir()  # It cannot be replaced, as in a read-only folder.
    assert store.id() is None
    with serving(settings) as client:
        assert client.get("/info").json()["models_id"] is None
    assert "gets no id, because it cannot be written" in caplog.text


def test_a_refused_start_leaves_the_data_directory_free(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, model=str(tmp_path / "nowhere"))
    with pytest.raises(StartupError, match="nowhere"):
        create_app(settings).state.runtime.open()
    assert version_served(settings.model_copy(update={"model": "default"}))
