"""Canary queries: their texts, the measured overlap, and versions that wait because it is too small."""

import hashlib
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.store import ModelStore
from service.cli.check import require_usable
from service.corpus.corpus import Corpus
from service.errors import Backend, Overloaded, StartupError
from service.lifecycle.canary import beginning
from service.settings import read
from service.store.sql.generations import canaries, remember_canary
from service.store.sqlite.schema import connect, migrate
from tests.parts.places import DOCUMENTS, Place
from tests.service.observability.test_metrics import samples
from tests.service.swapping import QUERIES, TEXTS


def overlap(root: Path, versions: list[str], queries: list[str], documents: dict[str, str]) -> float:
    """Returns the mean share of the first ten hits that two versions have in common. Uses only numpy."""
    ids = sorted(documents)
    first_ten: list[list[set[str]]] = []
    for version in versions:
        encoder = ModelStore(root).open(version)
        rows = encoder.encode([documents[id] for id in ids]).vectors
        scores = np.round((encoder.encode(queries).vectors @ rows.T).astype(np.float64), 6)
        encoder.close()
        best = np.argsort(-scores, axis=1, kind="stable")[:, :10]  # equal scores: by id
        first_ten.append([{ids[at] for at in row} for row in best])
    return float(np.mean([len(a & b) / 10 for a, b in zip(*first_ten, strict=True)]))


def expected_queries(documents: dict[str, str], count: int) -> list[str]:
    """Returns the first `count` texts in order of hashed ids. Such short texts are whole queries."""
    hashed = sorted((hashlib.blake2b(id.encode(), digest_size=8).digest(), id) for id in documents)
    return [documents[id] for _, id in hashed[:count]]


async def fails(self: Corpus, generation: Any, queries: list[str]) -> Any:
    raise Backend("injected")


def write_queries(folder: Path, queries: list[str]) -> Path:
    file = folder / "queries.txt"
    file.write_text("\n\n".join(queries) + "\n", encoding="utf-8")
    return file


def test_the_share_of_common_hits_is_shown_and_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.store.sql.records.SAMPLE_IDS", 7)  # sixty documents are nine pages
    by_hand = overlap(place.store.root, [place.a, place.b], expected_queries(DOCUMENTS, 20), DOCUMENTS)
    assert 0.05 < by_hand < 0.95, "these two models cannot tell a right answer from a wrong one"
    figures = {"queries": 20, "overlap_at_10": pytest.approx(by_hand, abs=0.0051)}
    expected = {**figures, "collections": [{"collection": "default", **figures}]}
    with place.serving() as client:
        place.fill()
        assert math.isnan(samples(client)["simile_canary_overlap"])
        assert place.state(place.b)["canary"] is None
        place.activate(place.b)
        assert place.state(place.b)["canary"] == expected
        assert samples(client)["simile_canary_overlap"] == pytest.approx(by_hand, abs=0.0051)
        place.until(lambda: place.store.read_state()["live"] == place.b)
        assert place.store.read_state()["versions"][place.b]["canary"] == expected
    with place.serving():
        assert place.state(place.b)["canary"] == expected


TICKETS = {f"t{at}": text for at, text in enumerate(TEXTS[200:240])}


@pytest.mark.parametrize("from_file", [False, True])
def test_each_collection_is_asked_and_has_an_overlap_of_its_own(
    place: Place, tmp_path: Path, from_file: bool
) -> None:
    pair = [place.a, place.b]
    requested: dict[str, list[str]] = {}
    by_hand: dict[str, float] = {}
    for name, documents in {"default": DOCUMENTS, "tickets": TICKETS}.items():
        requested[name] = QUERIES if from_file else expected_queries(documents, 20)
        by_hand[name] = overlap(place.store.root, pair, requested[name], documents)
    assert abs(by_hand["default"] - by_hand["tickets"]) > 0.02, "the two cannot be told apart"
    file: dict[str, Any] = {"canary_file": write_queries(tmp_path, QUERIES), "canary_queries": 2}
    options = file if from_file else {}  # All queries of a file count, not only 2.
    with place.serving(**options):
        place.fill()
        place.put(TICKETS, "/collections/tickets").raise_for_status()
        place.activate(place.b)
        found = place.state(place.b)["canary"]
    assert [one["collection"] for one in found["collections"]] == sorted(by_hand, key=lambda n: by_hand[n])
    for one in found["collections"]:
        assert one["queries"] == len(requested[one["collection"]])
        assert one["overlap_at_10"] == pytest.approx(by_hand[one["collection"]], abs=0.026)
    assert found["queries"] == sum(map(len, requested.values()))
    mean = sum(one["overlap_at_10"] * one["queries"] for one in found["collections"]) / found["queries"]
    assert found["overlap_at_10"] == pytest.approx(mean, abs=1e-4)


def test_a_version_that_changes_another_collection_than_the_default_waits_too(place: Place) -> None:
    """With one document, the default collection has the same first ten hits for every version."""
    with place.serving(canary_min_overlap=0.95):
        place.put({"a": "red river"}).raise_for_status()
        place.put(TICKETS, "/collections/tickets").raise_for_status()
        place.store.request(place.b)
        state = place.until_state(place.b, "ready")
        assert "in the collection 'tickets'" in state["reason"]
        default = {"collection": "default", "queries": 1, "overlap_at_10": 1.0}
        assert state["canary"]["collections"][-1] == default
        assert place.active() == place.a


def test_many_collections_share_the_queries_and_the_largest_are_asked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.lifecycle.canary.MAX_QUERIES", 4)
    with place.serving():
        for size in range(2, 8):  # c7 is the largest
            documents = {str(at): TEXTS[at] for at in range(size)}
            place.put(documents, f"/collections/c{size}").raise_for_status()
        place.activate(place.b)
        found = place.state(place.b)["canary"]["collections"]
    assert sorted((one["collection"], one["queries"]) for one in found) == [
        (f"c{size}", 1) for size in (4, 5, 6, 7)
    ]


def test_they_are_background_work_without_a_way_back(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[str] = []
    embed = Corpus.embed_queries

    async def noted(self: Corpus, generation: Any, queries: list[str]) -> Any:
        requested.append(generation.version)
        return await embed(self, generation, queries)

    monkeypatch.setattr(Corpus, "embed_queries", noted)
    with place.serving() as client:
        place.fill()
        interactive = f'simile_inference_seconds_count{{lane="interactive",version="{place.a}"}}'
        texts = f'simile_batch_texts_sum{{lane="interactive",version="{place.a}"}}'
        place.until(lambda: samples(client)[texts] >= len(DOCUMENTS))
        before = samples(client)[interactive]
        place.activate(place.b)
        assert requested == [place.a, place.b]
        place.rollback(place.a)
        assert requested == [place.a, place.b]
        assert samples(client)[interactive] == before


def test_a_version_that_answers_too_differently_waits_for_a_decision(place: Place) -> None:
    for again in (False, True):
        with place.serving(canary_min_overlap=0.99) as client:
            if not again:
                place.fill()
                place.store.request(place.b)
            state = place.until_state(place.b, "ready")
            assert f"only {state['canary']['overlap_at_10']:g} is what" in state["reason"]
            assert "SIMILE_CANARY_MIN_OVERLAP=0.99" in state["reason"]
            assert f"POST /models/{place.b}/activate" in state["reason"]
            time.sleep(0.7)
            assert place.active() == place.a
            if again:
                place.activate(place.b)
                assert place.everything() == DOCUMENTS
            else:  # Giving up the candidate clears its overlap.
                assert samples(client)["simile_canary_overlap"] > 0
                assert client.post(f"/models/{place.a}/activate").status_code == 200
                place.until(lambda: math.isnan(samples(client)["simile_canary_overlap"]))
                place.store.request(place.b)


@pytest.mark.long
def test_a_version_that_answers_alike_enough_goes_through(place: Place) -> None:
    by_hand = overlap(place.store.root, [place.a, place.b], expected_queries(DOCUMENTS, 20), DOCUMENTS)
    with place.serving(canary_min_overlap=by_hand - 0.02):
        place.fill()
        place.store.request(place.b)
        place.until_active(place.b)


def test_what_keeps_them_from_being_asked_keeps_no_version_back(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_queries(tmp_path, QUERIES)
    with place.serving(canary_min_overlap=0.99, canary_file=file):
        place.fill()
        file.unlink()
        place.store.request(place.b)
        place.until_active(place.b)
        assert place.state(place.b)["canary"] is None
        assert f"could not be asked of {place.b}: Unusable: it cannot be read" in caplog.text
        write_queries(tmp_path, QUERIES)
        monkeypatch.setattr(Corpus, "embed_queries", fails)
        place.store.request(place.c)
        place.until_active(place.c)
        assert f"could not be asked of {place.c}: Backend" in caplog.text


def test_the_share_of_one_version_is_not_of_the_next(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlap that was not measured is NaN, so an alert never shows the overlap of an earlier version."""
    with place.serving() as client:
        place.fill()
        for requested in (place.b, place.a):
            place.activate(requested)
            assert samples(client)["simile_canary_overlap"] > 0
        place.rollback(place.b)
        assert math.isnan(samples(client)["simile_canary_overlap"]), "a way back is not compared"
        place.activate(place.a)
        assert samples(client)["simile_canary_overlap"] > 0
        monkeypatch.setattr(Corpus, "embed_queries", fails)
        place.activate(place.c)
        assert math.isnan(samples(client)["simile_canary_overlap"])


def test_a_full_queue_is_waited_for(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.05)
    embed, failures = Corpus.embed_queries, 0

    async def full_at_first(self: Corpus, generation: Any, queries: list[str]) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            raise Overloaded("injected")
        return await embed(self, generation, queries)

    monkeypatch.setattr(Corpus, "embed_queries", full_at_first)
    with place.serving():
        place.fill()
        place.activate(place.b)
        assert place.state(place.b)["canary"]["queries"] == 20


def test_none_are_asked_when_turned_off_or_when_nothing_is_stored(place: Place) -> None:
    with place.serving(canary_queries=0) as client:
        place.fill()
        place.activate(place.b)
        assert place.state(place.b)["canary"] is None
        client.delete("/documents", params={"filter": '{"none": {"$exists": false}}'})
    with place.serving() as client:
        place.activate(place.c)
        assert place.state(place.c)["canary"] is None
        assert math.isnan(samples(client)["simile_canary_overlap"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("  Reset a password\n\nFirst open the settings.", "Reset a password"),
        ("The printer is jammed. Open the tray.", "The printer is jammed."),
        ("Dr. Who is away. Call later.", "Dr. Who is away."),
        (" ".join(str(at) for at in range(40)), "0 1 2 3 4 5 6 7 8 9 10 11"),
        ("天" * 500, "天" * 100),
        (" \n\t", ""),
    ],
)
def test_a_query_is_the_title_or_the_first_sentence_of_a_text(text: str, expected: str) -> None:
    assert beginning(text) == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), (b"\xff\xfe\x00", "cannot be read"), (b" \n\n", "holds 0 queries")],
)
def test_a_file_that_cannot_be_used_is_refused_at_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, reason: str
) -> None:
    file = tmp_path / "queries.txt"
    if content is not None:
        file.write_bytes(content)
    monkeypatch.setenv("SIMILE_CANARY_FILE", str(file))
    with pytest.raises(StartupError, match=f"SIMILE_CANARY_FILE={file}: it {reason}"):
        require_usable(read())


def test_a_least_overlap_without_queries_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMILE_CANARY_MIN_OVERLAP", "0.5")
    monkeypatch.setenv("SIMILE_CANARY_QUERIES", "0")
    with pytest.raises(StartupError, match="SIMILE_CANARY_QUERIES=0 turns them off"):
        read()


def test_of_versions_long_ago_it_is_forgotten(tmp_path: Path) -> None:
    migrate(tmp_path / "simile.db")
    connection = connect(tmp_path / "simile.db")
    connection.execute("INSERT INTO facts (name, value) VALUES ('another fact', 'stays')")
    for at in range(120):
        remember_canary(connection, f"2026{at:04}", {"queries": at, "overlap_at_10": 0.5})
    found = canaries(connection)
    assert len(found) == 100
    assert found["20260119"] == json.loads('{"queries": 119, "overlap_at_10": 0.5}')
    assert "20260019" not in found
    assert connection.execute("SELECT count(*) FROM facts").fetchone() == (101,)
    connection.close()
