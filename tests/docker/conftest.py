"""Tests of images and compose files on a Docker engine: `make test-docker`. `make test` skips them.

The images are built once, with the tag `test`. Each stack is a separate Compose project on free ports.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.stack import ROOT, TAG, Stack, docker, image_environment

HERE = Path(__file__).parent
REQUESTED_FOR = "TEST_DOCKER"
NO_ENGINE = "No Docker engine; `make test-docker DOCKER_ENGINE=SCRIPT` sources a script that starts one"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get(REQUESTED_FOR) == "1":
        return
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason="containers are tested by `make test-docker`"))


@pytest.fixture(scope="session")
def engine() -> None:
    """Requires a Docker engine with Compose and BuildKit. Without one, the tests fail and are not skipped."""
    for command in (["docker", "info"], ["docker", "compose", "version"], ["docker", "buildx", "version"]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            pytest.fail(f"{NO_ENGINE}: {error}")
        if done.returncode:
            pytest.fail(f"{NO_ENGINE}: {' '.join(command)}: {done.stderr.strip()[-200:]}")


@pytest.fixture(scope="session")
def service_image(engine: None) -> str:
    """The name of the service's image, built from this tree. A failed build is a failure, not a skip."""
    faulthandler.cancel_dump_traceback_later()  # A build has its own, longer limit.
    docker("compose", "build", "service", environment=image_environment(), seconds=1200)
    return f"simile-service:{TAG}"


@pytest.fixture(scope="session")
def wheels() -> dict[str, str]:
    """Build variables that say where torch comes from: those of the caller, or a folder that pip fills."""
    named = {name: os.environ[name] for name in ("TORCH_WHEELS", "TORCH_INDEX_URL") if os.environ.get(name)}
    if named:
        return named
    folder = ROOT / ".venv-docker" / "wheels"
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    [torch] = [pin for pin in pins if pin.startswith("torch==")]
    if not list(folder.glob("torch-*.whl")):
        fetch = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(folder), torch]
        subprocess.run(fetch, check=True)
    return {"TORCH_WHEELS": str(folder)}


@pytest.fixture(scope="session")
def trainer_image(service_image: str, wheels: dict[str, str]) -> str:
    faulthandler.cancel_dump_traceback_later()
    docker("compose", "build", "trainer", environment=image_environment() | wheels, seconds=1800)
    return f"simile-trainer:{TAG}"


@pytest.fixture(scope="module")
def stack(service_image: str, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """A stack for the test module, without running containers. All of it is removed afterwards."""
    with Stack(request.module.__name__.rpartition(".")[2].replace("_", "-")) as stack:
        yield stack
