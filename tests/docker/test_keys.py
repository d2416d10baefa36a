"""docker/keys.yml: the README's steps, refusals without a key, and a trainer with its own key."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.stack import Stack, docker
from tests.waiting import until


@pytest.fixture(scope="module")
def keyed(
    trainer_image: str, wheels: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A running stack with keys. Only the folder protects the trainer's key file from other users."""
    folder = tmp_path_factory.mktemp("secrets")
    folder.chmod(0o700)
    file = folder / "trainer.key"
    with Stack("keys", "docker/keys.yml", SIMILE_TRAINER_KEY=str(file), **wheels) as stack:
        file.write_text(stack.compose("run", "--rm", "-T", "keys", "add", "trainer", "--role", "read"))
        file.chmod(0o644)
        stack.up()
        yield stack


def add(stack: Stack, name: str, role: str) -> dict[str, str]:
    key = stack.compose("run", "--rm", "-T", "keys", "add", name, "--role", role).strip()
    assert key.startswith("sk-simile-")
    return {"Authorization": f"Bearer {key}"}


def test_nobody_gets_in_without_a_key(keyed: Stack) -> None:
    assert keyed.client.get("/health").status_code == 200
    assert keyed.client.get("/documents").status_code == 401
    environment = json.loads(docker("inspect", keyed.container()))[0]["Config"]["Env"]
    assert "SIMILE_INSECURE=0" in environment


def test_a_key_added_beside_the_running_service_counts_within_seconds(keyed: Stack) -> None:
    header = add(keyed, "writer", "write")
    document = {"documents": [{"id": "one", "text": "A first text."}]}
    for _ in range(50):  # The service checks the file once a second.
        answer = keyed.client.post("/documents", json=document, headers=header)
        if answer.status_code != 401:
            break
        keyed.compose("exec", "-T", "service", "sleep", "0.2")
    assert answer.status_code == 200, answer.text
    keyed.compose("restart", "service")
    keyed.wait_until_ready()
    assert keyed.client.get("/documents/one", headers=header).status_code == 200, "the key was lost"


def test_the_trainer_reads_with_its_own_key_and_no_log_has_it(keyed: Stack) -> None:
    header = add(keyed, "filler", "write")
    keyed.compose("restart", "service")
    keyed.wait_until_ready()
    # A tenth is held out, and training requires at least 100.
    documents = [{"id": f"note-{at}", "text": f"Note {at} tells of machine {at}."} for at in range(240)]
    assert keyed.client.post("/documents", json={"documents": documents}, headers=header).status_code == 200
    retrain = ["retrain", "--from-service", "http://service:8000", "--recipe", "simcse-unsup"]
    retrain += ["--gate", "off", "--steps", "2"]
    said = keyed.compose("run", "--rm", "-T", "trainer", *retrain, seconds=600, both=True)
    assert "is published and requested" in said
    [mount] = [mount for mount in keyed.inspect("trainer")["Mounts"] if "trainer_key" in mount["Destination"]]
    # The service swaps within seconds. After that, its logs are complete.
    until(lambda: " is active" in keyed.compose("logs", "service", both=True), pause=0.5)
    said += keyed.compose("logs", both=True)
    assert Path(mount["Source"]).read_text().strip() not in said
    assert header["Authorization"].split()[1] not in said


def test_before_the_image_is_built_no_key_is_made_and_nothing_else_is_in_its_file(engine: None) -> None:
    add = ("run", "--rm", "-T", "keys", "add", "trainer", "--role", "read")
    with Stack("unbuilt", "docker/keys.yml", SIMILE_TRAINER_KEY="/dev/null", SIMILE_TAG="unbuilt") as stack:
        assert stack.compose(*add, status=1) == ""
        assert "No such image: simile-service:unbuilt" in stack.compose(*add, status=1, both=True)


def test_the_hashes_are_in_a_volume_that_the_service_only_reads(keyed: Stack) -> None:
    said = keyed.compose("exec", "-T", "service", "sh", "-c", "touch /keys/x 2>&1 || true")
    assert "Read-only file system" in said
    assert "trainer" in keyed.compose("run", "--rm", "-T", "keys", "list")
