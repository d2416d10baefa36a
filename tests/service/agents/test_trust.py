"""What agents open and cite counts as the clicks of one visitor, and never decides alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from service.auth.keys import Role
from service.cli.keys import add
from tests.service.agents.calling import call, over_http
from tests.service.keyed import bearer
from tests.service.process import Service
from tests.waiting import LIMIT
from training.retraining.clicks import Use, used_at

QUERY = "red river stone"
DOCUMENTS = {
    f"d{at}": f"the {word} of the red river stone" for at, word in enumerate(["cat", "dog", "bridge"])
}


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "keys"
    roles = {"admin": Role.ADMIN, "agent": Role.WRITE, "second-agent": Role.WRITE, "page": Role.WRITE}
    return {name: add(file, name, role) for name, role in roles.items()}


@pytest.fixture
def service(keys: dict[str, str], tmp_path: Path, tiny_models_dir: Path) -> Iterator[Service]:
    with Service(
        tmp_path,
        tiny_models_dir,
        SIMILE_API_KEYS_FILE=str(tmp_path / "keys"),
        SIMILE_HANG_SECONDS=f"{LIMIT:g}",
    ) as service:
        service.client.headers.update(bearer(keys["admin"]))
        assert service.put(DOCUMENTS).status_code == 200
        yield service


def test_agents_never_change_a_ranking_alone_and_count_as_one_visitor_beside_people(
    service: Service, keys: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMILE_SERVICE_KEY", keys["admin"])

    def learn() -> Use:
        return used_at(str(service.client.base_url), ["default"], 1.0, least=2, visitors=2)

    def rank() -> list[tuple[str, float]]:
        hits = service.client.get("/search", params={"q": QUERY}).json()["hits"]
        return [(hit["id"], hit["score"]) for hit in hits]

    before = rank()
    last = before[-1][0]

    async def use(client: Client) -> None:
        for _ in range(3):
            found = await call(client, "search", query=QUERY)
            read = await call(client, "read_document", id=last, search_id=found["search_id"])
            assert read["event_stored"]
            for id, _score in before:
                await call(
                    client,
                    "give_feedback",
                    query=QUERY,
                    id=id,
                    relevant=id == last,
                    search_id=found["search_id"],
                )

    for agent in ("agent", "second-agent"):
        over_http(service, use, keys[agent])
    assert rank() == before
    alone = learn()
    assert alone.judgements == []
    assert alone.clicked == {}
    assert alone.dropped["single visitor"] >= 1

    headers = bearer(keys["page"])
    answer = service.client.get("/search", params={"q": QUERY, "user": "visitor-1"}, headers=headers).json()
    event: dict[str, Any] = {"search_id": answer["search_id"], "id": last, "type": "click"}
    assert service.client.post("/events", json=event, headers=headers).status_code == 200
    together = learn()
    relevant = [each for each in together.judgements if each.relevant]
    assert {each.id for each in relevant} == {last}
    assert len({each.user for each in relevant}) == 2, "the agents are one visitor, the person another"
    assert {each.key for each in relevant} <= {"agent", "second-agent", "page"}
