"""Third-party client libraries with the running service: `make test-clients`, in a separate environment.

The project's own environment lacks these clients. There, the test modules are skipped without an import.
"""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from simile_client import AsyncClient, Client
from tests.clients.running import Running
from tests.parts.skipped import skipped_unless

INSTALLED = find_spec("openai") is not None

if INSTALLED:
    # Clients read these at their import. Offline mode blocks loopback, too. The keys would override ours.
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_TOKEN", "HUGGINGFACE_API_KEY"):
        os.environ.pop(name, None)
    os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"


pytest_pycollect_makemodule = skipped_unless(
    INSTALLED, "existing clients have an environment of their own: `make test-clients` runs these"
)


@pytest.fixture(scope="session")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without keys."""
    with Running(tmp_path_factory.mktemp("open")) as service:
        yield service


@pytest.fixture(scope="session")
def keyed_service(tmp_path_factory: pytest.TempPathFactory, open_service: Running) -> Iterator[Running]:
    """A service with a keys file. Its model is a copy, which is faster than publishing."""
    folder = tmp_path_factory.mktemp("keyed")
    shutil.copytree(open_service.folder / "models", folder / "models")
    with Running(folder, keys=True) as service:
        yield service


@pytest.fixture(params=["open", "keyed"])
def service(request: pytest.FixtureRequest) -> Running:
    """Runs a test twice: with a service without keys, and with one whose client sends a reading key."""
    found: Running = request.getfixturevalue(f"{request.param}_service")
    return found


@pytest.fixture
def clients(open_service: Running) -> Iterator[tuple[Client, AsyncClient]]:
    """Simile's own clients. The second one ends with the event loop that the test has."""
    with Client(open_service.url) as client:
        yield client, AsyncClient(open_service.url)


@pytest.fixture
def collection() -> str:
    """The name of a collection that does not exist."""
    return uuid.uuid4().hex


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs each test in an empty folder, because snippets write files. Clears Chroma's cache of databases."""
    monkeypatch.chdir(tmp_path)
    yield
    if "chromadb" in sys.modules:
        sys.modules["chromadb"].api.client.SharedSystemClient.clear_system_cache()
