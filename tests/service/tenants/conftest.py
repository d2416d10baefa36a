"""A service with tenants of one shared collection, on each store."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response
from starlette.testclient import TestClient

from service.app import create_app
from tests import postgres
from tests.service.conftest import new_settings, wait_until_ready
from tests.service.keyed import bearer, keys_file, line

SCOPES: dict[str, dict[str, Any]] = {
    "acme": {"collections": ["shared", "acme-*"], "filter": {"tenant": "acme"}},
    "rival": {"collections": ["shared", "rival-*"], "filter": {"tenant": "rival"}},
    "solo": {"collections": ["solo", "solo-*"]},
    "small": {"collections": ["shared"], "filter": {"tenant": "small"}, "max_documents": 4, "max_bytes": 900},
    "few": {"collections": ["few-*"], "max_collections": 2},
    "many": {"collections": ["many"], "max_documents": 300},
}
# Words that only documents, queries and names of the rival have.
SECRETS = ("zebrafish", "quasar", "rival")


class Caller:
    """A client that sends one key, and whose default path is a collection."""

    def __init__(self, client: TestClient, key: str, at: str) -> None:
        self._client, self._key, self.at = client, key, at

    def send(self, method: str, path: str, **more: Any) -> Response:
        """Sends a request. A path that begins with @ is below the collection."""
        path = path.replace("@", self.at, 1) if path.startswith("@") else path
        headers = bearer(self._key) | more.pop("headers", {})
        return self._client.request(method, path, headers=headers, **more)

    def get(self, path: str, **params: Any) -> Any:
        answer = self.send("GET", path, params=params)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def post(self, path: str, body: Any) -> Any:
        answer = self.send("POST", path, json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def put(self, *documents: dict[str, Any]) -> Any:
        return self.post("@/documents", {"documents": [*documents]})

    def ids(self, **params: Any) -> list[str]:
        return [document["id"] for document in self.get("@/documents", **params)["documents"]]


class World:
    """The callers of one service."""

    def __init__(self, client: TestClient) -> None:
        self.client = client
        shared = "/collections/shared"
        self.acme, self.acme2, self.rival, self.small = (
            Caller(client, f"sk-{name}", shared) for name in ("acme", "acme2", "rival", "small")
        )
        self.solo, self.many = (
            Caller(client, f"sk-{name}", f"/collections/{name}") for name in ("solo", "many")
        )
        self.few = Caller(client, "sk-few", "/collections/few-0")
        self.boss = Caller(client, "sk-change-me", shared)


@pytest.fixture(scope="module", params=["sqlite", "sqlite indexed", "postgres"])
def world(request: Any, tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("tenants")
    lines = [
        line(name, "write", f"sk-{name}", "", "", "", json.dumps(scope)) for name, scope in SCOPES.items()
    ]
    lines.append(line("acme2", "read", "sk-acme2", "", "", "", json.dumps(SCOPES["acme"])))
    place: dict[str, Any] = {"database": postgres.new_database() if request.param == "postgres" else None}
    if request.param.endswith("indexed"):  # The filter is a lookup.
        place["indexed_fields"] = "tenant,no"
    settings = new_settings(folder, tiny_models_dir, api_keys_file=keys_file(folder, *lines), **place)
    with TestClient(create_app(settings)) as client:
        wait_until_ready(client)
        world = World(client)
        _fill(world)
        yield world


def _fill(world: World) -> None:
    """Stores documents of acme, of its rival and of nobody, and what the rival judged and clicked."""
    words = ("window glass", "steel door", "roof tile")
    world.acme.put(
        *(
            {
                "id": f"a{at}",
                "title": f"Acme {text}",
                "text": f"The {text} of number {at}",
                "metadata": {"no": at},
            }
            for at, text in enumerate(words)
        )
    )
    world.rival.put(
        *(
            {
                "id": f"rival-{at}",
                "title": f"Zebrafish {at}",
                "text": f"A zebrafish near the quasar, window and door, number {at}",
                "metadata": {"no": at, "quasar": f"quasar {at}"},
            }
            for at in range(6)
        )
    )
    world.boss.put({"id": "plain", "text": "A quasar without a tenant"})
    world.rival.send(
        "POST", "/collections/rival-own/documents", json={"documents": [{"id": "r", "text": "quasar"}]}
    )
    world.solo.put({"id": "s1", "text": "A garden chair"}, {"id": "s2", "text": "A garden table"})
    for query in ("zebrafish quasar", "window"):
        world.rival.post("@/feedback", {"query": query, "id": "rival-0", "relevant": True})
        found = world.rival.get("@/search", q=query)
        for user in ("u1", "u2", "u3", "u4"):
            event = {"search_id": found["search_id"], "id": "rival-0", "type": "click", "user": user}
            world.rival.post("@/events", event | {"event_id": f"{query}{user}"})
