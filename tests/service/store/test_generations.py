"""Generations: which ones are kept for a rollback, how builds continue, and an index that misses a write."""

import sqlite3
from typing import Any

import numpy as np
import pytest

from service.active import apply
from service.index.index import Index
from service.lifecycle.builder import HARMLESS
from service.store.values import DEFAULT_COLLECTION, Changes, build_row_name
from tests.parts.places import DOCUMENTS, Place, count_embedded, place
from tests.service.brute_force import stored_vectors
from tests.service.swapping import QUERIES, TEXTS

__all__ = ["place"]


def vectors_by_version(place: Place) -> dict[str, int]:
    connection = sqlite3.connect(place.folder / "data/simile.db")
    rows = connection.execute(
        "SELECT version, count(revision) FROM generations LEFT JOIN vectors ON generation = number "
        "GROUP BY number"
    ).fetchall()
    connection.close()
    return dict(rows)


def test_vectors_that_no_rollback_can_need_are_deleted(place: Place) -> None:
    with place.serving():
        place.fill()
        place.activate(place.b)
        assert vectors_by_version(place) == {place.a: 60, place.b: 60}
        place.activate(place.c)
        place.until(lambda: vectors_by_version(place) == {place.b: 60, place.c: 60})
        assert place.client.post("/models/rollback").status_code == 202
        place.until(lambda: vectors_by_version(place) == {place.b: 60})


def test_a_row_that_is_loaded_and_written_in_one_commit_is_as_it_was_written_last(place: Place) -> None:
    with place.serving():
        place.fill()
        active = place.app.state.runtime.active.generation
        one, two = np.eye(2, active.encoder.dimension, dtype=np.float32)
        parse_place = (active.number, DEFAULT_COLLECTION)
        changes = Changes({parse_place: {build_row_name(900): one, build_row_name(901): one}})
        changes.merge(
            Changes({parse_place: {build_row_name(900): two}}, sequence=active.indexes.sequence + 1)
        )
        apply(active, changes)
        np.testing.assert_array_equal(
            stored_vectors(active.indexes.of(DEFAULT_COLLECTION), [build_row_name(900), build_row_name(901)]),
            [two, one],
        )


@pytest.mark.long
def test_a_build_whose_index_cannot_follow_a_write_is_loaded_again_and_finished(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 20)
        [building] = place.app.state.runtime.active.followers
        apply = Index.apply

        def broken(self: Index, *arguments: Any, **others: Any) -> None:
            if self is building.indexes.of(DEFAULT_COLLECTION):
                raise MemoryError("injected")
            apply(self, *arguments, **others)

        monkeypatch.setattr(Index, "apply", broken)
        assert place.put({"new": TEXTS[77]}).status_code == 200
        release.set()
        place.until(lambda: place.active() == place.b)
        assert place.everything() == DOCUMENTS | {"new": TEXTS[77]}


def test_a_stopped_build_goes_on_where_it_was(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    release = place.hold(monkeypatch, place.b, 30)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 30)
    assert vectors_by_version(place)[place.b] == 30
    release.set()
    embedded = count_embedded(monkeypatch)
    with place.serving() as client:
        place.until(lambda: place.active() == place.b)
        assert place.everything() == DOCUMENTS
        assert len([text for text in embedded if text != HARMLESS.text]) == 30, "it began anew"
        place.until(lambda: "simile_swap_pause_seconds_count 1.0" in client.get("/metrics").text)


def test_a_search_right_after_a_swap_finds_its_moment(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    with place.serving() as client:
        place.fill()
        for version in (place.b, place.c, place.a):
            place.activate(version)
            assert client.get("/search", params={"q": QUERIES[0]}).json()["hits"]
    assert "found no moment at which index and store agree" not in caplog.text
