"""Three replicas: sixteen clients embed, search and write during swaps and rollbacks."""

import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.service.load import STATIC, Load
from tests.service.replicas.cluster import Cluster, Replica, cluster
from tests.service.replicas.forked import Forge
from tests.service.swapping import QUERIES, Client

SWAPS, ROLLBACK_AFTER = 20, (5, 11, 17)
BUILD_RATE = 70  # Documents per second of a replica. A slow build overlaps with many requests.
PAUSE_SECONDS = 0.02  # of each client: twelve processes share a few processors


class OnAll(Load):
    """A load on all replicas: requests go to random ones, and all must find a write at once."""

    def __init__(self, made: Cluster) -> None:
        super().__init__(made.replicas[0], made.oracle, PAUSE_SECONDS)
        self.cluster = made

    def run(self, act: Callable[[Client, random.Random, int], str], number: int) -> None:
        rng = random.Random(number)
        clients = [Client(replica.port) for replica in self.cluster.replicas]
        while not self.stop.is_set() and not self.failures:
            begin = time.monotonic()
            try:
                if act == self.write:
                    kind = self.write_and_find(clients, rng, number)
                else:
                    kind = act(rng.choice(clients), rng, number)
            except Exception as error:  # noqa: BLE001  whatever it is, the test must say so
                self.failures.append(f"{act.__name__}: {error!r}"[:2000])
            else:
                self.done.append((kind, begin, time.monotonic()))
            for client in clients:  # A server closes idle connections, possibly during the next request.
                client.close()
            time.sleep(self.pause_seconds)

    def write_and_find(self, clients: list[Client], rng: random.Random, number: int) -> str:
        """Writes to a random replica. Then every replica must find exactly this client's documents."""
        kind = self.write(rng.choice(clients), rng, number)
        mine = {id: text for id, text in dict(self.written).items() if id.startswith(f"{number}-")}
        for client in clients:
            body = {"queries": [QUERIES[0]], "mode": "dense", "k": 100, "filter": {"by": number}}
            answer, _ = client.send("POST", "/search", body)
            [hits] = answer["results"]
            assert {hit["id"]: hit["text"] for hit in hits} == mine
            if hits:
                self.oracle.check_search({"model": answer["model"], "query": QUERIES[0], "hits": hits})
        return kind


@pytest.mark.long
def test_a_swap_and_a_rollback_go_through_on_all_replicas_under_writes(tmp_path: Path, forge: Forge) -> None:
    with cluster(tmp_path, forge) as made:
        assert made.replicas[0].put(STATIC).status_code == 200
        load = OnAll(made)
        load.start()
        try:
            first, second, _ = made.versions
            go_to(made.replicas[1], second, made, load)
            assert made.replicas[2].client.post("/models/rollback").json() == {"wanted": first}
            made.until(lambda: made.everywhere(first) or load.failures)
        finally:
            load.end()
        assert not load.failures, load.failures
        made.check_stored(STATIC | load.written)


def go_to(replica: Replica, version: str, made: Cluster, load: Load) -> None:
    assert replica.client.post(f"/models/{version}/activate").status_code == 202
    made.until(lambda: made.everywhere(version) or load.failures)
    assert not load.failures, load.failures


def on_all_or_failed(made: Cluster, load: Load, version: str) -> bool:
    return bool(load.failures) or made.everywhere(version)


@pytest.mark.long
@pytest.mark.soak
def test_twenty_swaps_and_three_rollbacks_fail_no_request_and_mix_no_models(tmp_path: Path) -> None:
    rng = random.Random(7)
    with cluster(tmp_path, None, SIMILE_BUILD_RATE=str(BUILD_RATE)) as made:
        assert made.replicas[0].put(STATIC).status_code == 200
        load = OnAll(made)
        assert load.start() == 16
        rollbacks = []
        try:
            active, target = made.versions[:2]
            for number in range(1, SWAPS + 1):
                begin = time.monotonic()
                go_to(rng.choice(made.replicas), target, made, load)
                counts = load.overlapping(begin, time.monotonic())
                assert min(counts["search"], counts["write"]) > 0, (number, counts)
                [third] = {*made.versions} - {active, target}
                if number in ROLLBACK_AFTER:
                    begin = time.monotonic()
                    requested = rng.choice(made.replicas).client.post("/models/rollback")
                    assert requested.json() == {"wanted": active}
                    made.until(partial(on_all_or_failed, made, load, active))
                    rollbacks.append(time.monotonic() - begin)
                else:
                    active, target = target, third
        finally:
            load.end()
        assert not load.failures, load.failures
        assert load.versions_seen == {*made.versions}
        made.check_stored(STATIC | load.written)
        print(f"{len(load.done)} requests; rollbacks took {[round(each, 2) for each in rollbacks]} s")
