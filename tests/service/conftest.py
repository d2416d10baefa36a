"""A service with a tiny model, one per test module. A test may start its own."""

import json
import logging
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from models.encoder import Encoder
from service.app import create_app
from service.runtime.runtime import Runtime
from service.settings import Settings
from tests import postgres
from tests.service.process import Service
from tests.service.raw import ending_well
from tests.tiny import tiny_source
from tests.waiting import LIMIT, until

HOST = "testserver"  # host name of TestClient
MAX_FAILURES = 3  # A part of the service with so many failures is not expected to recover.


def new_settings(folder: Path, models_dir: Path, **others: object) -> Settings:
    """Returns settings with a new data directory and a copy of the published tiny model in `folder`.

    With `pytest --store postgres` the documents are in a new database. `hang_seconds` is long, because the
    watchdog would end the process of all tests, and `rank_seconds`, because a busy machine may need them.
    """
    shutil.copytree(models_dir, folder / "models")
    mine = {"cache_mb": 0, "allowed_hosts": HOST, "hang_seconds": LIMIT, "rank_seconds": 30}
    chosen: dict[str, Any] = {**mine, **postgres.place(), **others}
    return Settings(data_dir=folder / "data", models_dir=folder / "models", **chosen)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Settings:
    return new_settings(tmp_path_factory.mktemp("service"), tiny_models_dir)


@pytest.fixture(scope="module")
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture(scope="module")
def runtime(app: FastAPI) -> Runtime:
    runtime: Runtime = app.state.runtime
    return runtime


@pytest.fixture(scope="module")
def running(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app) as client:
        wait_until_ready(client)
        yield client


@pytest.fixture
def encoder(runtime: Runtime, running: TestClient) -> Encoder:
    return runtime.active.generation.encoder


@pytest.fixture
def client(running: TestClient) -> Iterator[TestClient]:
    """A client of the service that all tests of a module share. After each test, it must still answer."""
    yield running
    assert running.post("/embed", json={"inputs": "and now for something else"}).status_code == 200
    assert running.get("/health").status_code == 200


@pytest.fixture(scope="module")
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path
) -> Iterator[Service]:
    """A service in a process of its own, with the variables `VARIABLES` of the test module."""
    variables = getattr(request.module, "VARIABLES", {})
    with ending_well(tmp_path_factory.mktemp("service"), tiny_models_dir, **variables) as service:
        yield service


@pytest.fixture
def _emptied(service: Service) -> None:
    """Deletes all documents in the default collection of the module's service."""
    everything = {"filter": '{"nothing": {"$exists": false}}'}
    service.client.delete("/documents", params=everything).raise_for_status()


@pytest.fixture
def _fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns off the second stage of hybrid search, so hits have fused scores."""
    monkeypatch.setattr("service.corpus.search.Search.is_ranked", False)


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """Starts a service, and yields a client when it is ready."""
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        yield client


def wait_until_active(client: httpx2.Client, version: str) -> None:
    until(lambda: client.get("/info").json()["model_version"] == version, lambda: client.get("/models").text)


@contextmanager
def serving_prompts(
    folder: Path, prompts: Mapping[str, str], default: str | None = None
) -> Iterator[tuple[TestClient, Encoder]]:
    """Starts a service whose model publishes `prompts`. Yields a client and the model."""
    source = tiny_source(folder / "source", seed=5, prompts=dict(prompts))
    said = {"prompts": prompts, "default_prompt_name": default}
    (source / "config_sentence_transformers.json").write_text(json.dumps(said))
    app = create_app(Settings(data_dir=folder / "data", model=str(source), allowed_hosts=HOST))
    with TestClient(app) as client:
        wait_until_ready(client)
        yield client, app.state.runtime.active.generation.encoder


def turned(client: TestClient, models_dir: Path) -> dict[str, object]:
    """Returns the expected `form_cost` of the model's form, measured with its golden texts over HTTP."""
    golden = json.loads(next(models_dir.glob("2*/golden.json")).read_bytes())
    found = np.array([client.post("/embed", json={"inputs": text}).json()[0] for text in golden["texts"]])
    cosines = np.sum(found * np.array(golden["vectors"]), axis=1)
    return {
        "texts": len(golden["texts"]),
        "cosine_mean": pytest.approx(cosines.mean(), abs=1e-5),
        "cosine_least": pytest.approx(cosines.min(), abs=1e-5),
        "same_neighbours": None,
    }


def wait_until_ready(client: TestClient) -> None:
    """Waits until `/ready` answers 200. Fails early, with the exception, if a part keeps failing."""
    with _counted_failures() as failures:

        def is_ready() -> bool:
            failed = [text for count, text in failures.values() if count >= MAX_FAILURES]
            assert not failed, f"{client.get('/ready').text}\n{failed[0]}"
            return client.get("/ready").status_code == 200

        until(is_ready, lambda: client.get("/ready").text)


@contextmanager
def _counted_failures() -> Iterator[dict[str, tuple[int, str]]]:
    """Yields {message: (count, last text)} of logged exceptions, updated while the service runs.

    Parts of the service retry after a failure, so a bug in one of them would only be seen as a long wait.
    """
    failures: dict[str, tuple[int, str]] = {}

    class Counter(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info:
                count, _ = failures.get(record.msg, (0, ""))
                failures[record.msg] = (count + 1, self.format(record))

    handler = Counter(logging.ERROR)
    logger = logging.getLogger("service")
    logger.addHandler(handler)
    try:
        yield failures
    finally:
        logger.removeHandler(handler)
