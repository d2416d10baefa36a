"""Runs pods of the manifests as processes, with their variables, keys and read-only folders."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.lifecycle.controller import POLL_SECONDS
from tests import postgres
from tests.deploy.manifests import one, pod
from tests.service.process import Service, run_and_fail
from tests.waiting import until

KEY = "sk-simile-of-this-test"
BEARER = {"Authorization": f"Bearer {KEY}"}


def variables(name: str, folder: Path) -> dict[str, str]:
    """Returns the variables of the pod `name`, with its paths below `folder`.

    It leaves out the variables of the data and models folders, because `Service` sets them.
    """
    told = pod(name).variables | {"SIMILE_STOP_DELAY_SECONDS": "0"}
    assert (told.pop("SIMILE_DATA_DIR"), told.pop("SIMILE_MODELS_DIR")) == ("/data", "/models")
    return {key: f"{folder}{value}" if value.startswith("/") else value for key, value in told.items()}


def keys(folder: Path, role: str) -> Path:
    file = folder / "run/secrets/simile/keys"
    file.parent.mkdir(parents=True)
    file.write_text(f"web:{role}:{hashlib.sha256(KEY.encode()).hexdigest()}\n", encoding="utf-8")
    return file


def can_mount() -> bool:
    """Returns True if this user may mount folders in a separate mount namespace."""
    if shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("owner")
    shutil.copytree(tiny_models_dir, folder / "models")
    keys(folder, "write")
    with Service(folder, None, **variables("simile", folder)) as service:
        service.client.headers.update(BEARER)
        yield service


def test_the_owner_starts_as_the_statefulset_says(owner: Service) -> None:
    assert owner.client.get("/ready", headers={"Authorization": ""}).status_code == 200
    assert owner.put({"a": "A first sentence."}).status_code == 200
    assert owner.client.get("/documents/count").json()["count"] == 1
    assert json.loads(owner.log.read_text().splitlines()[0])["level"], "SIMILE_LOG_FORMAT of the ConfigMap"


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="needs to mount a folder read only, so root or a user namespace")
def test_a_replica_serves_the_owners_model_from_a_folder_that_it_cannot_write(
    owner: Service, tmp_path: Path
) -> None:
    shared = owner.folder / "models"
    (tmp_path / "models").mkdir()
    keys(tmp_path, "read")
    mount = f'mount --bind "{shared}" "$0" && mount -o remount,bind,ro "$0" && exec "$@"'
    replica = Service(tmp_path, None, **variables("simile-embed", tmp_path))
    until((shared / "state.json").exists)  # The owner writes it soon after the start.
    state = (shared / "state.json").read_bytes()
    with replica.client:
        try:
            replica.start(("unshare", "-m", "sh", "-c", mount, str(tmp_path / "models")))
            replica.client.headers.update(BEARER)
            requested = {"inputs": "A first sentence."}
            ours = replica.client.post("/embed", json=requested)
            theirs = owner.client.post("/embed", json=requested)
            assert ours.status_code == 200
            assert ours.json() == theirs.json()
            assert ours.headers["x-model-version"] == theirs.headers["x-model-version"]
            assert replica.put({"b": "Lost with the pod."}).status_code == 403
            assert len(complaints(replica)) == 1
        finally:
            replica.kill()
    assert (shared / "state.json").read_bytes() == state, "the owner alone says what is live"


def complaints(replica: Service) -> list[str]:
    """Waits for a log line about state.json and two more polls of the file. Returns all such lines."""
    until(lambda: "state.json" in replica.log.read_text(), replica.log.read_text)
    time.sleep(2 * POLL_SECONDS)
    return [line for line in replica.log.read_text().splitlines() if "state.json" in line]


@pytest.mark.long
def test_replicas_start_as_the_deployment_says_and_share_what_is_written(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    shared = {"SIMILE_DATABASE": postgres.new_database()}
    shutil.copytree(tiny_models_dir, tmp_path / "models")
    with ExitStack() as ends:
        up: list[Service] = []
        for name in ("one", "two"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "models").symlink_to(tmp_path / "models")
            keys(tmp_path / name, "write")
            told = variables("simile-replicas", tmp_path / name)
            up.append(ends.enter_context(Service(tmp_path / name, None, **(told | shared))))
            up[-1].client.headers.update(BEARER)
        one, two = up
        assert one.put({"a": "A first sentence."}).status_code == 200
        assert two.stored() == {"a": "A first sentence."}
        assert one.stop() == 0
        assert two.put({"b": "A second one."}).status_code == 200
        assert [*(tmp_path / "one/data").glob("*")] == [], "a pod keeps nothing"


@pytest.mark.long
def test_the_example_of_the_keys_lets_no_pod_start(tmp_path: Path) -> None:
    for name in ("simile-keys", "simile-embed-keys"):
        file = tmp_path / name
        file.write_text(one("Secret", name)["stringData"]["keys"], encoding="utf-8")
        assert "SIMILE_API_KEYS_FILE" in run_and_fail(tmp_path, SIMILE_API_KEYS_FILE=str(file))


@pytest.mark.long
@pytest.mark.parametrize(
    ("variable", "value"),
    [("SIMILE_PORT", "tcp://10.96.0.7:8000"), ("SIMILE_EMBED_SERVICE_HOST", "10.96.0.8")],
)
def test_variables_that_kubernetes_makes_for_our_services_end_the_start(
    variable: str, value: str, tmp_path: Path
) -> None:
    """This is why every pod has `enableServiceLinks: false`."""
    assert variable in run_and_fail(tmp_path, **{variable: value})
