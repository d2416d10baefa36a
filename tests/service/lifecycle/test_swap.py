"""Swaps and rollbacks: the active version, rejected versions, and answers to clients."""

import hashlib
import json
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from models.manifest import FILE_NAME, REPORT, Gate, Manifest
from models.publishing.publish import publish
from models.store import ModelStore
from service.lifecycle.builder import HARMLESS
from service.store.sql import generations, methods
from service.store.sqlite import vectors
from service.store.sqlite.store import SqliteStore
from tests.parts.places import DOCUMENTS, Place, break_model, count_embedded
from tests.service.swapping import QUERIES, TEXTS, Oracle
from tests.tiny import tiny_source


def test_whoever_writes_wanted_moves_the_service_with_all_its_documents(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        (place.store.root / "wanted").write_text(place.b)  # Any program may write only the name.
        place.until_active(place.b)
        assert place.everything() == DOCUMENTS
        assert place.state(place.a)["state"] == "retired"
        assert place.state(place.b)["state"] == "active"
        assert place.state(place.c)["state"] == "candidate"
        place.until(lambda: f'version="{place.b}"}} 1.0' in client.get("/metrics").text)
        assert "simile_documents 60.0" in client.get("/metrics").text
        place.until(lambda: place.store.read_state()["live"] == place.b)
        assert place.store.read_state()["previous"] == place.a
    with place.serving():
        assert place.active() == place.b
        assert place.everything() == DOCUMENTS


def test_a_second_rollback_never_returns_to_a_version_rolled_back_from(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        assert client.post("/models/rollback").status_code == 409
        place.activate(place.b)
        place.activate(place.c)
        place.rollback(place.b)
        place.until(lambda: "rolled back from" in (place.state(place.c)["reason"] or ""))
        assert place.state(place.c)["state"] == "retired"
        place.rollback(place.a)
        assert place.everything() == DOCUMENTS
        assert client.post("/models/rollback").status_code == 409
        place.store.request(place.c)  # like a retraining whose result is the same model
        time.sleep(1.2)
        assert place.active() == place.a
        place.activate(place.c)  # an explicit request of an operator
        assert client.post("/models/rollback").json() == {"wanted": place.a}
    with place.serving() as client:
        place.until_active(place.a)
        assert client.post("/models/rollback").status_code == 409


def test_a_rollback_after_the_grace_catches_up_with_what_was_written_since(place: Place) -> None:
    with place.serving():
        place.fill()
        place.activate(place.b)
    with place.serving() as client:  # The previous version is no longer in memory.
        place.put({"new": TEXTS[100], "d1": TEXTS[101]})
        client.delete("/documents/d2")
        place.rollback(place.a)
        expected = DOCUMENTS | {"new": TEXTS[100], "d1": TEXTS[101]}
        del expected["d2"]
        assert place.everything() == expected


def test_the_newest_wanted_wins_and_the_build_in_hand_is_dropped(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        assert client.post(f"/models/{place.b}/activate").status_code == 202
        place.until_state(place.b, "building")
        assert place.state(place.b)["total"] in {0, 60}
        assert client.post(f"/models/{place.c}/activate").json() == {"wanted": place.c}
        place.until_active(place.c)
        assert place.state(place.b)["state"] == "candidate"
        assert place.swaps("dropped", 1)
        assert place.everything() == DOCUMENTS
        client.post(f"/models/{place.b}/activate")
        place.until_state(place.b, "building")
        again = client.post(f"/models/{place.c}/activate")  # Version c is active, so the build is dropped.
        assert (again.status_code, again.json()) == (200, {"wanted": place.c})
        place.until_state(place.b, "candidate")
        assert place.active() == place.c


def test_updates_and_deletes_during_a_build_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    release = place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 20)
        place.put({"d5": TEXTS[99], "d55": TEXTS[99], "new": TEXTS[98]})  # some are embedded, others are not
        again = {"id": "d6", "text": TEXTS[6], "metadata": {"x": 1}}
        client.post("/documents", json={"documents": [again]})
        for gone in ("d7", "d57"):
            assert client.delete(f"/documents/{gone}").json()["deleted"] == 1
        assert place.active() == place.a
        release.set()
        place.until_active(place.b)
        expected = DOCUMENTS | {"d5": TEXTS[99], "d55": TEXTS[99], "new": TEXTS[98]}
        del expected["d7"], expected["d57"]
        assert place.everything() == expected


def test_manual_builds_and_waits_for_somebody_to_decide(place: Place) -> None:
    with place.serving(activate="manual") as client:
        place.fill()
        place.store.request(place.b)
        place.until_state(place.b, "ready")
        assert place.state(place.b)["done"] == place.state(place.b)["total"] == 60
        time.sleep(0.7)
        assert place.active() == place.a
        place.put({"late": TEXTS[90]})
        place.activate(place.b)
        assert place.everything() == DOCUMENTS | {"late": TEXTS[90]}
        client.post("/models/rollback")  # A rollback is a decision as well.
        place.until_active(place.a)


def test_what_cannot_be_activated_says_so(place: Place) -> None:
    with place.serving() as client:
        unknown = client.post("/models/20260101T000000-nothing-00000000/activate")
        assert (unknown.status_code, unknown.json()["error_type"]) == (404, "NotFound")
        assert client.post("/models/..%2F..%2Fetc/activate").status_code == 404
        (place.store.root / place.b / "manifest.json").write_text("{")
        damaged = client.post(f"/models/{place.b}/activate")
        assert (damaged.status_code, damaged.json()["error_type"]) == (409, "Conflict")
        assert place.b in damaged.json()["error"]
        state = place.state(place.b)
        assert state["state"] == "failed"
        assert "malformed" in state["reason"]


def test_a_document_that_the_new_model_fails_on_fails_no_write_and_is_reported(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    with place.serving() as client:
        many = {f"m{at}": TEXTS[at % 300] for at in range(150)}
        poison = "a poisoned text"
        place.put(many | {"poison": poison})
        [bad] = [tokens.ids for tokens in ModelStore(place.store.root).open(place.b).tokenize([poison])]
        break_model(monkeypatch, place.b, {tuple(bad)})
        place.activate(place.b)
        assert place.everything() == many
        place.until(lambda: place.has("simile_index_missing_documents 1.0"))  # Read now and then.
        assert client.get("/documents/poison").json()["text"] == poison
        place.activate(place.c)
        again = client.get("/search", params={"q": QUERIES[0], "mode": "dense", "k": 1000}).json()["hits"]
        assert {hit["id"] for hit in again} == {*many, "poison"}


def test_a_model_that_fails_on_everything_is_not_live(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.serving() as client:
        place.fill()
        break_model(monkeypatch, place.b)
        monkeypatch.setattr("service.lifecycle.model_loader.check_golden", lambda encoder, folder: 0.0)
        client.post(f"/models/{place.b}/activate")
        place.until_state(place.b, "failed")
        assert "injected" in place.state(place.b)["reason"]
        assert place.put({"new": TEXTS[70]}).status_code == 200
        assert place.active() == place.a
        assert place.everything() == DOCUMENTS | {"new": TEXTS[70]}
        assert "simile_healthy 1.0" in client.get("/metrics").text, "the served model is well"
        assert client.get("/health").status_code == 200
        time.sleep(0.7)
        assert place.swaps("failed", 1), "it was tried again"
        monkeypatch.undo()
        place.activate(place.b)  # an explicit decision


def judged(place: Place, gate: Gate) -> str:
    """Publishes a version with the verdict `gate` and a report. Returns the version's name."""
    elsewhere = ModelStore(place.folder / "elsewhere")
    made = publish(elsewhere, tiny_source(place.folder / "source", seed=8), origin="trained")

    def copy(folder: Path) -> Manifest:
        source = elsewhere.folder(made.version)
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("manifest.json"))
        (folder / REPORT).write_text('{"accepted": false}')
        return made.model_copy(update={"gate": gate, "files": {}})

    return place.store.publish(copy).version


def test_a_version_that_its_gate_refused_says_why_and_is_served_only_by_decision(place: Place) -> None:
    refused = judged(place, Gate(mode="on", verdict="refused", reason="stsb fell"))
    with place.serving() as client:
        place.fill()
        place.store.request(refused)
        place.until_state(refused, "refused")
        time.sleep(0.8)
        assert place.active() == place.a
        state = place.state(refused)
        assert (state["state"], state["reason"], state["gate"]) == ("refused", "stsb fell", "on")
        assert client.get(f"/models/{refused}/report").json() == {"accepted": False}
        assert client.get(f"/models/{place.a}/report").status_code == 404
        assert client.get("/models/nothing/report").status_code == 404
        place.oracle = Oracle(place.folder / "models", [place.a, refused])
        place.activate(refused)
        assert place.everything() == DOCUMENTS


def test_a_version_published_with_the_gate_off_says_so(place: Place) -> None:
    version = judged(place, Gate(mode="off", verdict="not asked"))
    with place.serving():
        assert place.state(version)["gate"] == "off"
        assert place.state(version)["state"] == "candidate"
        assert place.state(place.a)["gate"] is None


@pytest.mark.long
def test_a_rollback_within_the_grace_embeds_no_document_and_takes_a_moment(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded = count_embedded(monkeypatch)
    taken, expected = [], dict(DOCUMENTS)
    with place.serving() as client:
        place.fill()
        for at in range(5):
            place.activate(place.b)
            place.until(lambda: place.app.state.runtime.controller.swap is None)
            expected[f"since-{at}"] = TEXTS[80 + at]
            place.put({f"since-{at}": TEXTS[80 + at]})
            place.until_followed()
            client.delete(f"/documents/d{at}")
            del expected[f"d{at}"]
            embedded.clear()
            begin = time.monotonic()
            assert client.post("/models/rollback").json() == {"wanted": place.a}
            while place.active() != place.a:
                time.sleep(0.001)
            taken.append(time.monotonic() - begin)
            assert embedded == [HARMLESS.text], "it follows every write, and needs one forward pass only"
            assert place.everything() == expected
    print(f"rollbacks within the grace: {', '.join(f'{1000 * seconds:.0f}' for seconds in taken)} ms")
    assert min(taken) < 0.4, "it waited for the watcher's next look"


@pytest.mark.long
def test_a_cold_version_is_caught_up_before_it_serves(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.lifecycle.controller.LINGER_SECONDS", 0.1)
    with place.serving(grace_seconds=0.1, build_rate=60) as client:
        place.fill()
        place.activate(place.b)
        place.until(lambda: place.app.state.runtime.active.followers == ())
        more = {f"since-{at}": TEXTS[100 + at] for at in range(20)}
        place.put(more | {"d1": TEXTS[150]})
        client.delete("/documents/d2")
        expected = DOCUMENTS | more | {"d1": TEXTS[150]}
        del expected["d2"]
        release = place.hold(monkeypatch, place.a, 12)  # of the 21 changed documents
        client.post("/models/rollback")
        place.until(lambda: bool(place.state(place.a)["done"]))
        assert place.active() == place.b
        seen = [place.state(place.a)["done"]]
        assert place.everything() == expected
        release.set()
        while place.active() != place.a:
            assert place.everything() == expected, "a search saw an index that is not whole"
            seen.append(place.state(place.a)["done"])
        assert place.everything() == expected
        assert min(done for done in seen if done) >= 58, "it did not begin with its stored vectors"


def test_a_version_that_gives_other_vectors_than_it_was_published_with_fails_and_stays_failed(
    place: Place,
) -> None:
    folder = place.store.root / place.b
    golden = json.loads((folder / "golden.json").read_bytes())
    golden["vectors"][0][0] += 0.01
    (folder / "golden.json").write_text(json.dumps(golden))
    manifest = json.loads((folder / FILE_NAME).read_bytes())
    manifest["files"]["golden.json"] = hashlib.sha256((folder / "golden.json").read_bytes()).hexdigest()
    (folder / FILE_NAME).write_text(json.dumps(manifest))
    reason = "differs from the published vector"
    with place.serving() as client:
        place.fill()
        place.store.request(place.b)
        place.until_state(place.b, "failed")
        assert reason in place.state(place.b)["reason"]
        time.sleep(1.2)
        assert place.swaps("failed", 1), "tried again"
        assert place.active() == place.a
    with place.serving() as client:
        place.until(lambda: reason in (place.state(place.b)["reason"] or ""))
        time.sleep(1.2)
        assert place.swaps("failed", 0), "tried again"
        client.post(f"/models/{place.b}/activate")  # An explicit request causes one more attempt.
        place.until(lambda: place.swaps("failed", 1))
        assert place.everything() == DOCUMENTS


@pytest.mark.parametrize("step", ["begin", "make_active"])
@pytest.mark.sqlite("a full disk is injected into its writer")
def test_a_disk_that_is_full_at_the_first_or_the_last_step_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr("service.lifecycle.swap.RETRY_SECONDS", 0.05)
    work: Any = {"begin": generations.begin, "make_active": vectors.swap}[step]
    failures = 0

    def full(*arguments: Any, **named: Any) -> Any:
        nonlocal failures
        if failures < 3:
            failures += 1
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise error
        return work(*arguments, **named)

    with place.serving():
        place.fill()
        monkeypatch.setattr(SqliteStore, step, methods.writing(full))
        place.activate(place.b)
        assert failures == 3
        assert place.everything() == DOCUMENTS
        assert place.swaps("failed", 0)
