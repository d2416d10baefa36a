"""Two replicas share one live test: clicks on both decide it, and one of them activates the candidate."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from benchmarks.live_week import add_version
from models.publishing.publish import publish
from models.store import ModelStore
from tests import postgres
from tests.parts.places import DOCUMENTS
from tests.service.lifecycle.test_live_encoders import (
    UNLIKE,
    check_drafted,
    click_until_over,
    find,
    rank,
)
from tests.service.lifecycle.test_live_tests import (
    LONG,
    SHORT,
    TEXTS,
    choose,
    click,
    ids,
    prefers_long,
    report,
    start,
    state,
)
from tests.service.replicas.cluster import Replica
from tests.service.replicas.forked import Forge
from tests.service.swapping import Oracle, published
from tests.tiny import tiny_source
from tests.waiting import until


def is_active(replica: Replica, version: str) -> bool:
    return replica.active == version


def is_dropped(replica: Replica, version: str) -> bool:
    models = replica.client.get("/models").json()["models"]
    return not next(model["loaded"] for model in models if model["version"] == version)


def launch(replicas: Sequence[Replica], forge: Forge) -> None:
    for replica in replicas:
        replica.launch(forge)
    for replica in replicas:
        replica.wait_until_ready()


@pytest.mark.long
def test_two_replicas_share_a_test_through_a_kill(tmp_path: Path, forge: Forge) -> None:
    store = ModelStore(tmp_path / "models")
    plain = publish(store, tiny_source(tmp_path / "source")).version
    short, long = (add_version(store, plain, ranking=ranking) for ranking in (SHORT, LONG))
    store.request(short)
    url = postgres.new_database()
    first, second = (Replica(tmp_path / name, store.root, url, SIMILE_LIVE_TEST="1") for name in "ab")
    try:
        launch((first, second), forge)
        documents = [{"id": id, "text": text} for id, text in TEXTS.items()]
        first.client.post("/documents", json={"documents": documents}).raise_for_status()
        plainly = ids(first.client)
        start(first.client, long)
        tested = ids(first.client)
        assert tested != plainly
        until(lambda: ids(second.client) == tested)
        assert first.client.post(f"/models/{plain}/test").status_code == 409
        assert second.client.post(f"/models/{plain}/test").status_code == 409
        for at in range(40):  # Each event reaches the replica that did not search.
            event = choose((first, second)[at % 2].client, at, prefers_long)
            report((second, first)[at % 2].client, event)
        assert state(first.client, long)["decided"] == state(second.client, long)["decided"] > 30
        first.kill()
        at = 40
        while state(second.client, long)["state"] == "running":
            click(second.client, at, prefers_long)
            at += 1
        assert state(second.client, long)["state"] == "accepted"
        first.launch(forge)
        first.wait_until_ready()
        for replica in (first, second):
            until(partial(is_active, replica, long), replica.log.read_text)
    finally:
        first.end()
        second.end()


@pytest.mark.long
def test_two_replicas_build_and_test_another_encoder(tmp_path: Path, forge: Forge) -> None:
    root = tmp_path / "models"
    active, candidate, worse = published(root, 3)
    oracle, url = Oracle(root, [active, candidate, worse]), postgres.new_database()
    first, second = replicas = [Replica(tmp_path / name, root, url, SIMILE_LIVE_TEST="1") for name in "ab"]

    def is_tested(replica: Replica, version: str) -> bool:
        hits = [hit["id"] for hit in find(replica.client, UNLIKE[0])["hits"]]
        rankings = [rank(oracle, each, UNLIKE[0], DOCUMENTS) for each in (active, version)]
        if hits == rankings[0][:10]:
            return False
        check_drafted(hits, rankings)
        return True

    try:
        launch(replicas, forge)
        assert first.put(DOCUMENTS).status_code == 200
        start(first.client, worse)
        for replica in replicas:
            until(partial(is_tested, replica, worse), replica.log.read_text)
        second.client.delete(f"/models/{worse}/test").raise_for_status()
        for replica in replicas:
            until(partial(is_dropped, replica, worse), replica.log.read_text)
        start(second.client, candidate)
        for replica in replicas:
            until(partial(is_tested, replica, candidate), replica.log.read_text)
        first.kill()
        told = click_until_over(second.client, oracle, candidate, candidate)
        assert told["state"] == "accepted"
        first.launch(forge)
        first.wait_until_ready()
        for replica in replicas:
            until(partial(is_active, replica, candidate), replica.log.read_text)
    finally:
        for replica in replicas:
            replica.end()
