"""The whole service, real but for the size of its model: one per test module, or a test makes its own."""

import json
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
from tests.tiny import tiny_source
from tests.waiting import LIMIT, until

HOST = "testserver"  # the name that TestClient calls a service by


def new_settings(folder: Path, models_dir: Path, **others: object) -> Settings:
    """A new data directory in `folder`, beside a copy of the published tiny model, which is wanted.

    With `pytest --store postgres` the documents are in a new database. What a test holds back is no hang: the
    service would end this process, and every test in it.
    """
    shutil.copytree(models_dir, folder / "models")
    mine = {"cache_mb": 0, "allowed_hosts": HOST, "hang_seconds": LIMIT}
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
def client(running: TestClient) -> Iterator[TestClient]:
    """A client of the running service; whatever a test did, the next request is served."""
    yield running
    assert running.post("/embed", json={"inputs": "and now for something else"}).status_code == 200
    assert running.get("/health").status_code == 200


@contextmanager
def serving(settings: Settings) -> Iterator[TestClient]:
    """A service that is ready."""
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        yield client


def wait_until_active(client: httpx2.Client, version: str) -> None:
    until(lambda: client.get("/info").json()["model_version"] == version, lambda: client.get("/models").text)


@contextmanager
def serving_prompts(
    folder: Path, prompts: Mapping[str, str], default: str | None = None
) -> Iterator[tuple[TestClient, Encoder]]:
    """A service whose model publishes `prompts`, one of them its default, and that model."""
    source = tiny_source(folder / "source", seed=5, prompts=dict(prompts))
    said = {"prompts": prompts, "default_prompt_name": default}
    (source / "config_sentence_transformers.json").write_text(json.dumps(said))
    app = create_app(Settings(data_dir=folder / "data", model=str(source), allowed_hosts=HOST))
    with TestClient(app) as client:
        wait_until_ready(client)
        yield client, app.state.runtime.live.generation.encoder


def turned(client: TestClient, models_dir: Path) -> dict[str, object]:
    """What `form_cost` must say of a form that was looked at when it was opened: found by asking for the
    golden texts, each alone.
    """
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
    until(lambda: client.get("/ready").status_code == 200, lambda: client.get("/ready").text)
