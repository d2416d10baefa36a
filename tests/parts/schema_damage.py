"""Answers of /ready and of requests while a part of the schema is missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from starlette.testclient import TestClient

from tests.waiting import until

# SQL that removes a part, SQL that restores it, text of /ready without it, and a request that needs it.
Damage = tuple[str, str, str, tuple[str, str, Any] | None]
JUDGMENT = {"query": "a", "id": "a", "relevant": True}
EVENT = {"search_id": "s", "id": "a", "type": "click", "query": "a", "shown": ["a"]}
DOCUMENT = {"documents": [{"id": "b", "text": "b"}]}


def ready(client: TestClient) -> str:
    """Returns the error of /ready, or an empty string."""
    answer = client.get("/ready")
    return "" if answer.status_code == 200 else str(answer.json()["error"])


def check_damages(
    client: TestClient,
    damages: Sequence[Damage],
    run: Callable[[str], object],
    names: Callable[[str], Mapping[str, object]],
) -> None:
    """Checks that damage is reported until it is repaired. `names` gives values for braces in the SQL."""
    for remove, repair, named, request in damages:
        until(lambda: not ready(client), lambda: ready(client))
        if request is not None and request[0] == "GET":
            assert client.request(*request[:2]).status_code == 200
        known = names(remove)
        run(remove.format(**known))
        said = until(lambda: ready(client))
        assert named in said, remove
        if request is not None:
            method, path, body = request
            answer = client.request(method, path, json=body)
            assert (answer.status_code, answer.json()["error_type"]) == (503, "Unhealthy"), answer.text
            assert "GET /ready says what it lacks" in answer.json()["error"]
        run(repair.format(**known))
        until(lambda: not ready(client), lambda: ready(client))
        if request is not None:
            answer = client.request(method, path, json=body)
            assert answer.status_code == 200, (remove, answer.text)
