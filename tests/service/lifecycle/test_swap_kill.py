"""kill -9 at twenty random points of a swap: one whole generation again, and the swap is finished."""

import random
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.service.conftest import wait_until_active
from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle, published

pytestmark = pytest.mark.long

KILLS = 20
DOCUMENTS = 150
BUILD_RATE = 300  # half a second for all of them


def check_whole(service: Service, oracle: Oracle, expected: dict[str, str]) -> str:
    """Every document is found, and each score is that of the version in the answer."""
    client = Client(service.port)
    answer, version = client.send("GET", f"/search?k=1000&q={quote(QUERIES[0])}")
    client.close()
    assert answer["model"] == version
    assert {hit["id"]: hit["text"] for hit in answer["hits"]} == expected
    oracle.check_search(answer)
    return version


def wait_for(service: Service, version: str, documents: int) -> None:
    """Waits until so many documents are embedded for `version`. Larger numbers wait after the swap."""
    while documents:
        answer = service.client.get("/models").json()
        [found] = [model for model in answer["models"] if model["version"] == version]
        if answer["active"] == version:
            time.sleep(max(0, documents - DOCUMENTS) / BUILD_RATE)
            return
        if documents < DOCUMENTS and (found["done"] or 0) >= documents:
            return
        time.sleep(0.005)


def test_a_kill_at_any_point_of_a_swap_leaves_one_whole_generation_and_the_swap_is_finished(
    tmp_path: Path,
) -> None:
    versions = published(tmp_path / "models", 3)
    oracle = Oracle(tmp_path / "models", versions)
    rng = random.Random(5)
    expected = {f"d{at}": TEXTS[at] for at in range(DOCUMENTS)}
    service = Service(tmp_path, SIMILE_BUILD_RATE=str(BUILD_RATE))
    found: list[bool] = []
    with service:
        service.put(expected)
        active = versions[0]
        for kill in range(KILLS):
            target = versions[(versions.index(active) + 1) % 3]
            assert service.client.post(f"/models/{target}/activate").status_code == 202
            wait_for(service, target, rng.randint(0, int(1.4 * DOCUMENTS)))
            changed = f"d{rng.randrange(DOCUMENTS)}"
            expected[changed] = rng.choice(TEXTS)
            assert service.put({changed: expected[changed]}).status_code == 200
            service.kill()
            service.start()
            version = check_whole(service, oracle, expected)
            assert version in {active, target}, f"kill {kill}"
            found.append(version == target)
            wait_until_active(service.client, target)
            assert check_whole(service, oracle, expected) == target
            active = target
        assert service.stop() == 0
    assert 3 <= sum(found) <= KILLS - 3, "the kills came all before, or all behind, the swap"
