"""`/events` with several keys: owners of events, and who may delete them."""

from pathlib import Path
from typing import Any

from starlette.testclient import TestClient

from tests.service.api.test_http_errors import refused
from tests.service.conftest import new_settings, serving
from tests.service.keyed import KEYS, bearer, keys_file, line

OTHER = "sk-another-writer"
ALL = KEYS | {"other": OTHER}
EVENT = {"search_id": "s", "query": "q", "id": "d1", "type": "click"}


def test_an_event_is_of_its_key(tmp_path: Path, tiny_models_dir: Path) -> None:
    keys = keys_file(tmp_path, line("other", "write", OTHER))
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=keys, events_per_key=2)) as client:
        documents = [{"id": f"d{at}", "text": f"river {at}"} for at in range(4)]
        client.post("/documents", json={"documents": documents}, headers=bearer(KEYS["writer"]))
        refused(send(client, "reader"), 403, "Forbidden", "")
        for name in ("writer", "other", "boss"):
            assert send(client, name).json() == {"stored": 1, "refused": []}
        assert of_keys(client) == ["writer", "other", "boss"]
        assert of_keys(client, key="other") == ["other"]

        assert send(client, "other", id="d2").json() == {"stored": 1, "refused": []}
        refused(send(client, "other", id="d3"), 409, "Conflict", "the key 'other'")
        assert send(client, "writer", id="d3").json() == {"stored": 1, "refused": []}, "it has its own room"

        refused(forget(client, "reader", key="other"), 403, "Forbidden", "")
        refused(forget(client, "other", id="d1"), 403, "Forbidden", "Some of these events are not of")
        assert forget(client, "other", key="other").json() == {"deleted": 2}
        assert forget(client, "boss", id="d1").json() == {"deleted": 2}
        assert of_keys(client) == ["writer"]


def send(client: TestClient, name: str, **changed: object) -> Any:
    return client.post("/events", json=EVENT | changed, headers=bearer(ALL[name]))


def forget(client: TestClient, name: str, **asked: str) -> Any:
    return client.delete("/events", params=asked, headers=bearer(ALL[name]))


def of_keys(client: TestClient, **asked: str) -> list[str]:
    answer = client.get("/events", params=asked, headers=bearer(KEYS["reader"]))
    return [row["key"] for row in answer.json()["events"]]
