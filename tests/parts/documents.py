"""A service of its own for each test, with helpers to store and search documents."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.publishing.publish import publish
from models.store import ModelStore
from service.settings import Settings
from tests.service.conftest import new_settings, serving, wait_until_active
from tests.tiny import tiny_source

__all__ = ["activate_another", "client", "encoder_of", "hits", "place", "put", "put_texts"]


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Settings:
    return new_settings(tmp_path, tiny_models_dir)


@pytest.fixture
def client(place: Settings) -> Iterator[TestClient]:
    with serving(place) as client:
        yield client


def put(client: TestClient, *documents: dict[str, Any], path: str = "/documents") -> dict[str, Any]:
    """Stores documents and returns the answer."""
    answer = client.post(path, json={"documents": documents})
    assert answer.status_code == 200, answer.text
    stored: dict[str, Any] = answer.json()
    return stored


def put_texts(client: TestClient, texts: Mapping[str, str]) -> dict[str, Any]:
    return put(client, *({"id": id, "text": text} for id, text in texts.items()))


def hits(client: TestClient, q: str, **options: Any) -> list[dict[str, Any]]:
    """Returns the hits of a search. It is dense unless `options` names a mode."""
    answer = client.get("/search", params={"q": q, "mode": "dense", **options})
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["hits"]
    return found


def activate_another(client: TestClient, models_dir: Path) -> None:
    """Publishes another model, and waits until it is active."""
    version = publish(ModelStore(models_dir), tiny_source(models_dir.parent / "source", seed=9)).version
    client.post(f"/models/{version}/activate")
    wait_until_active(client, version)


def encoder_of(client: TestClient) -> Encoder:
    """Returns the encoder of the active version."""
    encoder: Encoder = client.app.state.runtime.active.generation.encoder  # type: ignore[attr-defined]
    return encoder
