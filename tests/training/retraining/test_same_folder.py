"""A retraining that reads a service publishes into this service's models folder, or does not begin."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from models.store import Store
from tests.service.process import Service
from training.__main__ import main
from training.retraining.same_folder import OtherFolder, require_same_folder


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("served"), tiny_models_dir) as service:
        service.put({"a": "red river", "b": "blue stone"}).raise_for_status()
        yield service


def address(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


@pytest.fixture
def other(tmp_path: Path, tiny_models_dir: Path) -> Path:
    """The models folder of another service."""
    models = tmp_path / "other"
    shutil.copytree(tiny_models_dir, models)
    Store(models).renew_id()
    return models


def test_the_folder_of_the_service_is_taken_by_whatever_path(service: Service, tmp_path: Path) -> None:
    models = service.folder / "models"
    (tmp_path / "link").symlink_to(models)
    for path in (models, tmp_path / "link", models.parent / "." / "models", models / ".." / "models"):
        require_same_folder(address(service), path)


@pytest.mark.parametrize(
    "how", ["another service's", "no id", "a copy that is served", "an old backup", "damaged", "missing"]
)
def test_another_folder_is_refused_and_both_are_named(
    service: Service, other: Path, tmp_path: Path, how: str
) -> None:
    served = service.folder / "models"
    if how == "no id":
        (other / "id").unlink()
    elif how == "damaged":
        (other / "id").write_text("not an id\n")
    elif how == "missing":
        other = tmp_path / "nowhere"
    elif how != "another service's":
        shutil.copy(served / "id", other / "id")
        if how == "an old backup":  # made before the service started again
            Store(served).renew_id()
        else:
            Store(other).renew_id()
    with pytest.raises(OtherFolder) as refused:
        require_same_folder(address(service), other)
    said = str(refused.value)
    ours = Store(other).id()
    assert f"{address(service)} uses the models folder {served} (id {Store(served).id()})" in said
    assert f"{other} ({f'id {ours}' if ours else 'without an id'})" in said
    assert f"--models-dir {served}" in said
    assert "folders.models in retrain.toml" in said


@pytest.mark.parametrize(
    "command", ["retrain", "retrain --config", "advise", "advise --config", "schedule --config"]
)
def test_every_command_that_would_use_another_folder_ends_before_it_trains(
    service: Service,
    other: Path,
    tmp_path: Path,
    command: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder is the one that the environment names, as in the shell of another service."""
    monkeypatch.setenv("SIMILE_MODELS_DIR", str(other))
    before = sorted(path.name for path in other.iterdir())
    name, *config = command.split()
    if config:
        (tmp_path / "retrain.toml").write_text(f'[corpus]\nservice = "{address(service)}"\n')
        given = [name, "--config", str(tmp_path / "retrain.toml")]
    else:
        given = [name, "--from-service", address(service)]
    assert main(given) == 1
    said = capsys.readouterr().err
    assert f"uses the models folder {service.folder / 'models'} (id " in said
    assert "loading torch" not in said
    assert sorted(path.name for path in other.iterdir()) == before


@pytest.fixture
def old(tiny_models_dir: Path) -> Iterator[str]:
    """A service of an earlier release, with the version that the tiny folder wants."""

    class Old(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"model_version": Store(tiny_models_dir).wanted()}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Old) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_of_a_service_without_an_id_the_active_version_tells(
    old: str, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(OtherFolder) as refused:  # a newer service used it, and may use it still
        require_same_folder(old, other)
    said = str(refused.value)
    assert f"The models folder {other} has an id, and the service at {old} is of an earlier release" in said
    assert f"Delete {other / 'id'} if the folder is this service's." in said
    assert "another service" not in said
    (other / "id").unlink()
    require_same_folder(old, other)
    assert f"! The service at {old} does not report the id" in capsys.readouterr().err
    Store(other).write_state({"live": "20200102T030405-another-1a2b3c4d"})
    with pytest.raises(OtherFolder, match="is 20200102T030405-another-1a2b3c4d: it is the folder of another"):
        require_same_folder(old, other)
