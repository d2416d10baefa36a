"""Which model serves, from one start to the next."""

import json
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from models import cpus
from models.store import Store
from service.app import create_app
from service.errors import StartupError
from service.settings import Settings
from tests.service.conftest import HOST, new_settings, serving, wait_until_ready
from tests.tiny import tiny_source
from tests.waiting import until


def version_served(settings: Settings) -> str:
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        until((settings.models_dir / "state.json").exists)  # written at the first look
        return str(client.get("/info").json()["model_version"])


def test_the_first_start_publishes_wants_and_serves_the_folder_it_is_given(tmp_path: Path) -> None:
    source = tiny_source(tmp_path / "my-encoder", seed=3)
    settings = Settings(data_dir=tmp_path / "data", model=str(source), allowed_hosts=HOST)
    version = version_served(settings)
    assert "my-encoder" in version
    store = Store(tmp_path / "data/models")
    assert store.wanted() == version
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


def test_a_refused_start_leaves_the_data_directory_free(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir, model=str(tmp_path / "nowhere"))
    with pytest.raises(StartupError, match="nowhere"):
        create_app(settings).state.runtime.open()
    assert version_served(settings.model_copy(update={"model": "default"}))


def test_a_number_of_workers_that_an_earlier_version_measured_is_ignored(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    settings.data_dir.mkdir()
    (settings.data_dir / "tuning.json").write_text('{"workers": 1, "threads": 64, "reason": "measured"}')
    with serving(settings) as client:
        workers = client.get("/info").json()["workers"]
    assert workers == {"workers": cpus.available(), "threads": 1, "reason": "one for each processor"}
