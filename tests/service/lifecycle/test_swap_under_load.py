"""Swaps under load, and swaps that kill -9 interrupts at random points. KILLS=200 sets their number."""

import os
import random
import time
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.service.conftest import wait_until_active
from tests.service.load import STATIC, Load
from tests.service.process import Service
from tests.service.swapping import QUERIES, TEXTS, Client, Oracle, published, published_pair

pytestmark = pytest.mark.long

SWAPS = 12
ROLLBACK_AFTER = (3, 7, 11)
BUILD_RATE = 70  # Documents per second. A slow build overlaps with many requests.
MIN_COUNT = 50
LONGEST_PAUSE_SECONDS = 1.0  # A request that waited for a build would take over 1.4 s.


@pytest.fixture
def load(tmp_path: Path) -> Load:
    versions = published(tmp_path / "models", 3)
    oracle = Oracle(tmp_path / "models", versions)
    assert oracle.differ()
    return Load(Service(tmp_path, SIMILE_BUILD_RATE=str(BUILD_RATE)), oracle)


def test_no_request_fails_or_mixes_two_models_while_versions_come_and_go(load: Load) -> None:
    service = load.service
    with service:
        versions = [model["version"] for model in service.client.get("/models").json()["models"]]
        assert service.put(STATIC).status_code == 200
        assert load.start() == 16
        moments: list[float] = []
        try:
            active, target = versions[:2]
            for number in range(1, SWAPS + 1):
                begin = time.monotonic()
                assert service.client.post(f"/models/{target}/activate").status_code == 202
                wait_until_active(service.client, target)
                moments.append(time.monotonic())
                counts = load.overlapping(begin, time.monotonic())
                assert not load.failures, load.failures
                assert counts["search"] >= MIN_COUNT, (number, counts)
                assert counts["write"] >= MIN_COUNT, (number, counts)
                [third] = set(versions) - {active, target}
                if number in ROLLBACK_AFTER:
                    assert service.client.post("/models/rollback").json() == {"wanted": active}
                    wait_until_active(service.client, active)
                    moments.append(time.monotonic())
                else:  # The previous version is in memory. The third must be built.
                    active, target = target, third
        finally:
            load.end()
        assert not load.failures, load.failures
        assert len(moments) == SWAPS + len(ROLLBACK_AFTER)
        assert load.versions_seen == set(versions)
        expected = STATIC | load.written
        assert service.stored() == expected
        everything = service.client.get(
            "/search", params={"q": QUERIES[0], "mode": "dense", "k": 1000}
        ).json()
        assert {hit["id"]: hit["text"] for hit in everything["hits"]} == expected
        check_metrics(service.client.get("/metrics").text)
    waits, elsewhere = load.waits(moments)
    assert len(waits) > SWAPS
    # Requests without a swap show the delays of the machine.
    assert max(waits) < LONGEST_PAUSE_SECONDS + max(elsewhere), "somebody waited too long for a swap"
    print(f"{len(load.done)} requests; of those at a swap the longest took {max(waits):.3f} s")


@pytest.mark.soak
def test_a_student_and_a_pair_come_and_go_under_load(tmp_path: Path) -> None:
    """Each search uses the query encoder of the version that answers, and no request waits or fails."""
    teacher, student, pair = published_pair(tmp_path / "models")
    oracle = Oracle(tmp_path / "models", [teacher, student, pair])
    service = Service(tmp_path)
    load = Load(service, oracle)
    with service:
        assert service.put(STATIC).status_code == 200
        load.start()
        moments: list[float] = []
        try:
            for target in (pair, None, student, None, pair, student, pair, teacher):
                path = "rollback" if target is None else f"{target}/activate"
                begin = time.monotonic()
                requested = service.client.post(f"/models/{path}").json()["wanted"]
                wait_until_active(service.client, requested)
                moments.append(time.monotonic())
                while load.overlapping(begin, time.monotonic())["search"] < MIN_COUNT:
                    assert not load.failures, load.failures
                    time.sleep(0.02)
        finally:
            load.end()
        assert not load.failures, load.failures
        assert load.versions_seen == {teacher, student, pair}
        assert service.stored() == STATIC | load.written
        metrics = service.client.get("/metrics").text
    assert 'simile_swaps_total{outcome="rollback"} 2.0' in metrics
    assert 'simile_swaps_total{outcome="done"} 6.0' in metrics
    assert 'simile_swaps_total{outcome="failed"} 0.0' in metrics
    waits, elsewhere = load.waits(moments)
    assert max(waits) < LONGEST_PAUSE_SECONDS + max(elsewhere), "somebody waited too long for a swap"


def check_metrics(text: str) -> None:
    series = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(series['simile_swaps_total{outcome="done"}']) == SWAPS
    assert float(series['simile_swaps_total{outcome="rollback"}']) == 3
    assert float(series['simile_swaps_total{outcome="failed"}']) == 0
    pauses = [
        float(value) for name, value in series.items() if name.startswith("simile_swap_pause_seconds_bucket")
    ]
    within = float(series[f'simile_swap_pause_seconds_bucket{{le="{LONGEST_PAUSE_SECONDS}"}}'])
    assert within == max(pauses) == SWAPS + 3, "somebody waited too long for a swap"


KILLS = int(os.environ.get("KILLS", "20"))
KILL_DOCUMENTS = 150
KILL_BUILD_RATE = 300  # The KILL_DOCUMENTS take half a second.


def check_whole(service: Service, oracle: Oracle, expected: dict[str, str]) -> str:
    """Searches: all documents must be found, with scores of the answer's version. Returns that version."""
    client = Client(service.port)
    answer, version = client.send("GET", f"/search?mode=dense&k=1000&q={quote(QUERIES[0])}")
    client.close()
    assert answer["model"] == version
    assert {hit["id"]: hit["text"] for hit in answer["hits"]} == expected
    oracle.check_search(answer)
    return version


def wait_for(service: Service, version: str, documents: int) -> None:
    """Waits until `documents` texts are embedded. A number above `KILL_DOCUMENTS` ends after the swap."""
    while documents:
        answer = service.client.get("/models").json()
        [found] = [model for model in answer["models"] if model["version"] == version]
        if answer["active"] == version:
            time.sleep(max(0, documents - KILL_DOCUMENTS) / KILL_BUILD_RATE)
            return
        if documents < KILL_DOCUMENTS and (found["done"] or 0) >= documents:
            return
        time.sleep(0.005)


def test_a_kill_at_any_point_of_a_swap_leaves_one_whole_generation_and_the_swap_is_finished(
    tmp_path: Path,
) -> None:
    versions = published(tmp_path / "models", 3)
    oracle = Oracle(tmp_path / "models", versions)
    rng = random.Random(5)
    expected = {f"d{at}": TEXTS[at] for at in range(KILL_DOCUMENTS)}
    service = Service(tmp_path, SIMILE_BUILD_RATE=str(KILL_BUILD_RATE))
    found: list[bool] = []
    with service:
        service.put(expected)
        active = versions[0]
        for kill in range(KILLS):
            target = versions[(versions.index(active) + 1) % 3]
            assert service.client.post(f"/models/{target}/activate").status_code == 202
            wait_for(service, target, rng.randint(0, int(1.4 * KILL_DOCUMENTS)))
            changed = f"d{rng.randrange(KILL_DOCUMENTS)}"
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
