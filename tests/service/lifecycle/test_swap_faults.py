"""Swaps during faults: a swap outlasts transient errors, reports other errors, and loses no document."""

import asyncio
import gc
import json
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import models.__main__ as command
import models.store as store_module
from models.encoder import Encoder
from models.files.fsync import replace_text
from models.search.content import Content
from models.search.passages import split
from models.store import REQUESTED, ModelStore, RequestedVersion
from service.active import Generation
from service.batching.workers import Worker
from service.corpus.corpus import Corpus
from service.errors import Overloaded
from service.lifecycle.swap import Swap
from service.store.sql.generations import insert, make_active, previous
from service.store.sqlite.schema import connect, migrate
from tests import postgres
from tests.parts.faults import before_passes
from tests.parts.places import DOCUMENTS, Place, break_model
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT, until


def failing_on(monkeypatch: pytest.MonkeyPatch, version: str, texts: list[str], root: Path) -> None:
    """Makes the model `version` fail on each of `texts`, and on no other text."""
    encoder = ModelStore(root).open(version)
    poisons = {tuple(tokens.ids) for tokens in encoder.tokenize(texts)}
    encoder.close()
    break_model(monkeypatch, version, poisons)


def test_a_full_queue_in_a_build_loses_no_document_and_no_count(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of a full queue do not end a build, and are not counted as documents on which a model fails."""
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.05)
    embed, calls = Corpus.embed, 0

    async def full_at_times(self: Corpus, generation: Generation, *args: Any) -> Any:
        nonlocal calls
        if generation.version != place.a:
            calls += 1
            if calls % 7 == 0:
                raise Overloaded("injected")
        return await embed(self, generation, *args)

    with place.serving(build_rate=60) as client:
        place.fill()
        monkeypatch.setattr(Corpus, "embed", full_at_times)
        place.activate(place.c)
        assert place.everything() == DOCUMENTS
        assert calls > 5
        failing_on(monkeypatch, place.b, list(DOCUMENTS.values())[::4], place.store.root)
        client.post(f"/models/{place.b}/activate")
        place.until_state(place.b, "failed")
        assert "fails on 15 of the documents" in place.state(place.b)["reason"]


def test_a_wish_that_comes_while_a_swap_just_ends_does_not_call_it_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Swap._build

    async def ends_late(self: Swap, generation: Generation) -> None:
        await build(self, generation)
        await asyncio.sleep(60)

    monkeypatch.setattr(Swap, "_build", ends_late)
    with place.serving():
        place.fill()
        place.activate(place.b)
        place.activate(place.c)
        place.until(lambda: place.swaps("done", 2))
        assert place.swaps("dropped", 0)
        assert place.everything() == DOCUMENTS
        place.rollback(place.b)
        place.until(lambda: place.swaps("rollback", 1))


def test_a_text_that_the_new_tokenizer_refuses_is_left_out_and_fails_no_write(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Encoder.tokenize

    def refuses(self: Encoder, texts: Any, **options: Any) -> Any:
        if self.manifest.version == place.b and any("untokenizable" in text for text in texts):
            raise RuntimeError("injected")
        return tokenize(self, texts, **options)

    with place.serving() as client:
        place.put({f"m{at}": TEXTS[at] for at in range(150)})
        place.put({"odd": "an untokenizable text"})
        monkeypatch.setattr(Encoder, "tokenize", refuses)
        place.activate(place.b)
        assert len(place.everything()) == 150
        assert "simile_index_missing_documents 1.0" in client.get("/metrics").text


def test_a_text_of_which_the_new_tokenizer_leaves_nothing_hangs_nobody(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = Encoder.tokenize

    def empties(self: Encoder, texts: Any, **options: Any) -> Any:
        rows = tokenize(self, texts, **options)
        return [
            row._replace(ids=[]) if self.manifest.version == place.b and "vanishing" in text else row
            for row, text in zip(rows, texts, strict=True)
        ]

    with place.serving(build_rate=60) as client:
        place.fill()
        place.put({f"m{at}": TEXTS[at] for at in range(100)})
        monkeypatch.setattr(Encoder, "tokenize", empties)
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: (place.state(place.b)["done"] or 0) > 5)
        odd = {"odd": "a vanishing text"}
        assert place.put(odd, headers={"x-timeout-ms": "15000"}).status_code == 200
        place.until_active(place.b)
        refused = client.post("/embed", json={"inputs": ["a", "a vanishing text"]})
        assert refused.status_code == 422
        assert "Input 1" in refused.json()["error"]
        place.until(lambda: 'simile_queue_tokens{lane="interactive"} 0.0' in client.get("/metrics").text)


def test_memory_of_a_generation_goes_when_it_does(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.lifecycle.controller.LINGER_SECONDS", 0.1)
    with place.serving(grace_seconds=0.1):
        place.fill()
        first = weakref.ref(place.app.state.runtime.active.generation.indexes)
        place.activate(place.b)
        place.until(lambda: place.app.state.runtime.active.followers == ())

        def gone() -> bool:
            gc.collect()
            return first() is None

        until(gone, lambda: gc.get_referrers(first()), pause=0.05)


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_state_that_cannot_be_written_keeps_nothing_else_from_being_done(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def unwritable(self: ModelStore, state: object) -> None:
        raise OSError("injected")

    with place.serving():
        place.fill()
        monkeypatch.setattr(ModelStore, "write_state", unwritable)
        place.activate(place.b)
        place.activate(place.c)

        def only_two_left() -> bool:
            connection = sqlite3.connect(place.folder / "data/simile.db")
            [count] = connection.execute("SELECT count(DISTINCT generation) FROM vectors").fetchone()
            connection.close()
            return bool(count == 2)

        place.until(only_two_left)
        time.sleep(1.2)
        complaints = [record for record in caplog.records if "tate.json failed" in record.getMessage()]
        assert len(complaints) == 1, "it complains at every look"


def test_of_decisions_made_at_once_one_is_carried_out_as_the_decision_it_is(place: Place) -> None:
    versions = [place.a, place.b, place.c]
    for _ in range(20):
        threads = [threading.Thread(target=place.store.request, args=(v, "activate")) for v in versions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        requested = place.store.read_request()
        assert requested is not None
        assert requested.kind == "activate"


@pytest.mark.parametrize("by", ["this service", "another process"])
def test_a_look_between_the_two_files_of_a_request_does_not_undo_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """Between the two writes, the service reads the new asked.json and the old `wanted`."""
    replace, looks = replace_text, 5
    found: list[RequestedVersion | None] = []

    def slowly(path: Path, text: str) -> None:
        if path.name == "wanted":
            look = place.app.state.runtime.controller.requested
            found.extend(place.client.portal.call(look) for _ in range(looks))  # type: ignore[union-attr]
        replace(path, text)

    with place.serving() as client:
        place.fill()
        place.until(lambda: place.store.read_state().get(REQUESTED) is not None)
        with monkeypatch.context() as patching:
            patching.setattr(store_module, "replace_text", slowly)
            if by == "this service":
                assert client.post(f"/models/{place.b}/activate").status_code == 202
            else:
                place.store.request(place.b, "activate")
        assert len(found) == looks
        if by == "this service" and postgres.chosen:
            assert {in_folder and in_folder.version for in_folder in found} == {place.b}, "it counts already"
        place.until_active(place.b)
        (place.store.root / "wanted").write_text(place.c)  # A change of only this file still counts.
        place.until_active(place.c)


def test_activating_the_active_version_overrules_a_file_that_was_not_looked_at_yet(place: Place) -> None:
    with place.serving() as client:
        (place.store.root / "wanted").write_text(place.b)
        assert client.post(f"/models/{place.a}/activate").status_code in {200, 202}
        in_folder = place.store.read_request()
        assert in_folder is not None
        assert (in_folder.version, in_folder.kind) == (place.a, "activate")


@pytest.mark.parametrize(
    "in_folder", ['{"version": 7}', "[]", "", '{"version": "X", "kind": "activate", "id": null}']
)
def test_an_asked_file_that_makes_no_sense_leaves_a_mere_wish(place: Place, in_folder: str) -> None:
    place.store.request(place.b)
    (place.store.root / "asked.json").write_text(in_folder.replace("X", place.b))
    requested = place.store.read_request()
    assert requested is not None
    assert (requested.version, requested.kind, requested.id) == (place.b, "want", "")


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_build_that_nobody_wants_any_more_after_a_start_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: (place.state(place.b)["done"] or 0) > 5)
    place.store.request(place.a)
    with place.serving():
        connection = sqlite3.connect(place.folder / "data/simile.db")
        place.until(lambda: connection.execute("SELECT count(*) FROM generations").fetchone() == (1,))
        place.until(lambda: connection.execute("SELECT count(*) FROM vectors").fetchone() == (60,))
        connection.close()


def test_losing_sight_of_wanted_drops_no_build(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    release = place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: (place.state(place.b)["done"] or 0) > 5)
        (place.store.root / "wanted").write_text("")
        time.sleep(1.2)  # at least two polls
        release.set()
        place.until_active(place.b)
        assert place.swaps("dropped", 0)


@pytest.mark.sqlite("it looks into SQLite's file")
def test_a_rollback_brings_back_a_service_whose_live_model_fails_from_the_start(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.runtime.index_keeper.RETRY_SECONDS", 0.1)
    with place.serving():
        place.fill()
        place.activate(place.b)
    connection = sqlite3.connect(place.folder / "data/simile.db")
    with connection:
        connection.execute(
            "DELETE FROM vectors WHERE revision = 5 AND generation = "
            "(SELECT number FROM generations WHERE state = 'active')"
        )
    connection.close()
    break_model(monkeypatch, place.b)
    with place.serving(wait=False) as client:
        place.until(lambda: "injected" in client.get("/ready").text)
        assert client.post("/models/rollback").status_code == 202
        place.until(lambda: client.get("/ready").status_code == 200)
        assert place.active() == place.a
        assert place.everything() == DOCUMENTS


class Rows:
    """Changes the table `generations` of a database directly, without a service."""

    def __init__(self, folder: Path) -> None:
        migrate(folder / "simile.db")
        self.connection = connect(folder / "simile.db")

    def generation(self, version: str, state: str) -> int:
        manifest: Any = SimpleNamespace(version=version, fingerprint="f", dimension=3)
        return insert(self.connection, manifest, "form", state)

    def swap(self, version: str, *, rollback: bool = False, requested: str = "id") -> None:
        row = self.connection.execute(
            "SELECT number FROM generations WHERE version = ? AND state = 'standby'", (version,)
        ).fetchone()
        number = row[0] if row else self.generation(version, "building")
        make_active(self.connection, number, requested, rollback=rollback)


def test_a_hundred_rollbacks_do_not_push_the_version_before_out_of_the_history(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.generation("a", "active")
    rows.swap("b")
    for _ in range(150):
        rows.swap("c")
        assert previous(rows.connection) == "b"
        rows.swap("b", rollback=True)
        assert previous(rows.connection) == "a"
    rows.connection.close()


def test_a_wish_without_an_id_does_not_make_an_old_decision_new_again(tmp_path: Path) -> None:
    rows = Rows(tmp_path)
    rows.generation("a", "active")
    rows.swap("b", requested="decided")
    rows.swap("c", requested="")
    [value] = rows.connection.execute("SELECT value FROM facts WHERE name = 'handled wish'").fetchone()
    assert value == "decided"
    rows.connection.close()


def test_nothing_is_pruned_while_it_is_not_known_what_is_live(place: Place) -> None:
    (place.store.root / "state.json").write_text("{ half")
    assert command.main(["--models-dir", str(place.store.root), "prune", place.c]) == 1
    assert place.c in place.store.names()
    (place.store.root / "state.json").write_text(json.dumps({"live": place.a}))
    assert command.main(["--models-dir", str(place.store.root), "prune", place.c]) == 0


PATIENT = {"x-timeout-ms": "60000"}  # The blocked work takes far longer.
LONG = " ".join(TEXTS[:100])  # several passages


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, version: str) -> Iterator[SimpleNamespace]:
    """Blocks forward passes of a version until the event `open` is set. Loading skips the golden texts."""
    gate = SimpleNamespace(open=threading.Event(), waiting=0)

    def waits(encoder: Encoder, _: object) -> None:
        if encoder.manifest.version == version and not gate.open.is_set():
            gate.waiting += 1
            gate.open.wait(LIMIT)

    before_passes(monkeypatch, waits)
    monkeypatch.setattr("service.lifecycle.model_loader.check_golden", lambda encoder, folder: None)
    try:
        yield gate
    finally:
        gate.open.set()


def write(place: Place, id: str, text: str) -> int:
    return place.put({id: text}, headers=PATIENT).status_code


@pytest.mark.parametrize("workers", [1, 2])
def test_no_write_waits_for_a_candidate_that_computes_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """The candidate holds every worker, but writes, searches and /embed are still answered."""
    with place.serving(workers=workers) as client, held(monkeypatch, place.b) as gate:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: gate.waiting > 0)
        written = {f"new{at}": TEXTS[100 + at] for at in range(10)}
        assert [write(place, id, text) for id, text in written.items()] == [200] * 10
        expected = DOCUMENTS | written
        assert place.everything() == expected
        assert client.post("/embed", json={"inputs": "one text"}, headers=PATIENT).status_code == 200
        assert place.active() == place.a
        gate.open.set()
        place.until_active(place.b)
        assert place.everything() == expected


def test_no_write_waits_for_the_version_before_while_it_is_kept(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.serving(workers=2) as client:
        place.fill()
        place.activate(place.b)
        with held(monkeypatch, place.a):
            written = {f"new{at}": TEXTS[100 + at] for at in range(6)}
            assert [write(place, id, text) for id, text in written.items()] == [200] * 6
            assert client.delete("/documents/d3").status_code == 200
            expected = DOCUMENTS | written
            del expected["d3"]
            assert place.everything() == expected
        [warm] = place.app.state.runtime.active.followers
        place.until(lambda: bool(warm.indexes.documents == len(expected)))
        pinned = client.get(
            "/search",
            params={"q": "red river", "mode": "dense", "k": 100},
            headers={"x-model-version": place.a},
        )
        assert pinned.status_code == 200
        assert len(pinned.json()["hits"]) == len(expected)
        place.rollback(place.a)
        assert place.everything() == expected


def test_a_candidate_that_hangs_fails_and_the_service_stays_well(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check of the watchdog counts an hour for the candidate's batch, so only that is overdue."""
    ends: list[str] = []
    spend = Worker.spend

    def hastened(worker: Worker, seconds: float) -> bool:
        return spend(worker, 3600 if worker.aside else seconds)

    monkeypatch.setattr("service.runtime.watchdog.end", ends.append)
    monkeypatch.setattr(Worker, "spend", hastened)
    with place.serving(workers=2) as client, held(monkeypatch, place.b) as gate:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: gate.waiting > 0)
        place.until_state(place.b, "failed")
        assert "SIMILE_HANG_SECONDS" in place.state(place.b)["reason"]
        assert [write(place, f"new{at}", TEXTS[at]) for at in range(6)] == [200] * 6
        assert client.get("/health").status_code == 200
        assert client.get("/ready").status_code == 200
        assert place.everything() == DOCUMENTS | {f"new{at}": TEXTS[at] for at in range(6)}
    assert not ends, "a candidate's hang ended the service"


BUGS: list[Callable[..., Any]] = [RuntimeError, MemoryError, KeyError]


@pytest.mark.parametrize("bug", BUGS)
def test_no_write_fails_with_a_candidate_that_breaks_while_it_splits_a_text(
    place: Place, monkeypatch: pytest.MonkeyPatch, bug: Callable[..., Exception]
) -> None:
    """The error is of an unexpected type. Only long texts cause it, because only they are split."""

    def breaks(content: Content, encoder: Encoder, *args: Any) -> Any:
        if encoder.manifest.version == place.b:
            raise bug("injected")
        return split(content, encoder, *args)

    with place.serving(workers=2, activate="manual") as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until_active(place.b)
        place.activate(place.a)
        monkeypatch.setattr("service.corpus.embedder.split", breaks)
        assert [write(place, f"long{at}", f"{at} {LONG}") for at in range(3)] == [200] * 3
        assert place.active() == place.a
        found = client.get("/search", params={"q": "red river", "mode": "dense", "k": 100}).json()["hits"]
        assert {hit["id"] for hit in found} == {*DOCUMENTS, "long0", "long1", "long2"}
