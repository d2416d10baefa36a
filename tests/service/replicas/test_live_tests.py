"""Two replicas share one live test: clicks on both decide it, and one of them activates the candidate."""

from functools import partial
from pathlib import Path

import pytest

from benchmarks.live_week import add_version
from models.publishing.publish import publish
from models.store import ModelStore
from tests import postgres
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
from tests.tiny import tiny_source
from tests.waiting import until


def is_active(replica: Replica, version: str) -> bool:
    return replica.active == version


@pytest.mark.long
def test_two_replicas_share_a_test_through_a_kill(tmp_path: Path, forge: Forge) -> None:
    store = ModelStore(tmp_path / "models")
    plain = publish(store, tiny_source(tmp_path / "source")).version
    short, long = (add_version(store, plain, ranking=ranking) for ranking in (SHORT, LONG))
    store.request(short)
    url = postgres.new_database()
    first, second = (Replica(tmp_path / name, store.root, url, SIMILE_LIVE_TEST="1") for name in "ab")
    try:
        for replica in (first, second):
            replica.launch(forge)
        for replica in (first, second):
            replica.wait_until_ready()
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
