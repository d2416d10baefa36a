"""From wanted to live, and back: what is served, what is refused, what a client is told."""

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from models.encoder import Encoder
from models.manifest import REPORT, Gate, Manifest
from models.publishing.publish import publish
from models.store import Store
from service.app import create_app
from service.settings import Settings
from tests import postgres
from tests.service.conftest import HOST, wait_until_ready
from tests.service.held_builds import hold_builds
from tests.service.swapping import QUERIES, TEXTS, Oracle, published
from tests.tiny import tiny_source
from tests.waiting import until

DOCUMENTS = {f"d{at}": TEXTS[at] for at in range(60)}


class Place:
    """Three published versions, unless others are named, and a service that can be started again."""

    def __init__(self, folder: Path, versions: Sequence[str] | None = None) -> None:
        self.folder = folder
        self.store = Store(folder / "models")
        names = versions or [manifest.version for manifest in self.store.versions()]
        if versions is None:
            self.a, self.b, self.c = names
        self.oracle = Oracle(folder / "models", [*names])
        self.where = postgres.place()
        self.app: FastAPI
        self.client: TestClient

    @contextmanager
    def serving(self, *, wait: bool = True, **others: Any) -> Iterator[TestClient]:
        settings = Settings(
            **self.where,
            data_dir=self.folder / "data",
            models_dir=self.folder / "models",
            allowed_hosts=HOST,
            **{"cache_mb": 0, **others},
        )
        self.app = create_app(settings)
        with TestClient(self.app) as self.client:
            if wait:
                wait_until_ready(self.client)
            yield self.client

    def fill(self) -> None:
        body = {"documents": [{"id": id, "text": text} for id, text in DOCUMENTS.items()]}
        assert self.client.post("/documents", json=body).status_code == 200

    def active(self) -> str:
        return str(self.client.get("/info").json()["model_version"])

    def state(self, version: str) -> dict[str, Any]:
        models = self.client.get("/models").json()["models"]
        [found] = [model for model in models if model["version"] == version]
        return dict(found)

    def hold(self, monkeypatch: pytest.MonkeyPatch, version: str, documents: int) -> threading.Event:
        """Builds of `version` stop behind so many documents, until the event is set."""
        return hold_builds(monkeypatch, version, documents)

    def until(self, true: Callable[[], bool]) -> None:
        until(true, lambda: self.client.get("/models").text)

    def until_followed(self) -> None:
        """Until the versions that follow have every document; no write waits for that."""
        live = self.app.state.runtime.live
        documents = live.generation.indexes.documents
        self.until(lambda: all(other.indexes.documents == documents for other in live.followers))

    def activate(self, version: str) -> None:
        assert self.client.post(f"/models/{version}/activate").status_code == 202
        self.until(lambda: self.active() == version)

    def everything(self) -> dict[str, str]:
        """All that a search finds, its scores checked against the version that it names."""
        answer = self.client.get("/search", params={"q": QUERIES[0], "k": 1000}).json()
        self.oracle.check_search(answer)
        return {hit["id"]: hit["text"] for hit in answer["hits"]}


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("three") / "models"
    published(root, 3)
    return root


@pytest.fixture
def place(tmp_path: Path, three: Path) -> Place:
    shutil.copytree(three, tmp_path / "models")
    return Place(tmp_path)


def test_whoever_writes_wanted_moves_the_service_with_all_its_documents(place: Place) -> None:
    with place.serving() as client:
        place.fill()
        (place.store.root / "wanted").write_text(place.b)  # nothing but the name, as any program may
        place.until(lambda: place.active() == place.b)
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
        assert client.post("/models/rollback").json() == {"wanted": place.b}
        place.until(lambda: place.active() == place.b)
        assert "rolled back from" in place.state(place.c)["reason"]
        assert place.state(place.c)["state"] == "retired"
        assert client.post("/models/rollback").json() == {"wanted": place.a}
        place.until(lambda: place.active() == place.a)
        assert place.everything() == DOCUMENTS
        assert client.post("/models/rollback").status_code == 409
        place.store.want(place.c)  # as a retraining that comes to the same model would
        time.sleep(1.2)
        assert place.active() == place.a
        place.activate(place.c)  # somebody's express decision
        assert client.post("/models/rollback").json() == {"wanted": place.a}
    with place.serving() as client:
        place.until(lambda: place.active() == place.a)
        assert client.post("/models/rollback").status_code == 409


def test_a_rollback_after_the_grace_catches_up_with_what_was_written_since(place: Place) -> None:
    with place.serving():
        place.fill()
        place.activate(place.b)
    with place.serving() as client:  # the version before is not in memory any more
        client.post("/documents", json={"documents": [{"id": "new", "text": TEXTS[100]}]})
        client.post("/documents", json={"documents": [{"id": "d1", "text": TEXTS[101]}]})
        client.delete("/documents/d2")
        client.post("/models/rollback")
        place.until(lambda: place.active() == place.a)
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
        place.until(lambda: place.state(place.b)["state"] == "building")
        assert place.state(place.b)["total"] in {0, 60}
        assert client.post(f"/models/{place.c}/activate").json() == {"wanted": place.c}
        place.until(lambda: place.active() == place.c)
        assert place.state(place.b)["state"] == "candidate"
        assert 'simile_swaps_total{outcome="dropped"} 1.0' in client.get("/metrics").text
        assert place.everything() == DOCUMENTS


def test_activating_the_active_version_drops_what_is_in_the_making(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["state"] == "building")
        again = client.post(f"/models/{place.a}/activate")
        assert (again.status_code, again.json()) == (200, {"wanted": place.a})
        place.until(lambda: place.state(place.b)["state"] == "candidate")
        assert place.active() == place.a


def test_updates_and_deletes_during_a_build_are_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    release = place.hold(monkeypatch, place.b, 20)
    with place.serving(build_rate=100) as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["done"] == 20)
        for early_and_late in ("d5", "d55"):  # embedded already, and not yet
            changed = {"id": early_and_late, "text": TEXTS[99]}
            client.post("/documents", json={"documents": [changed]})
        client.post("/documents", json={"documents": [{"id": "new", "text": TEXTS[98]}]})
        again = {"id": "d6", "text": TEXTS[6], "metadata": {"x": 1}}
        client.post("/documents", json={"documents": [again]})
        for gone in ("d7", "d57"):
            assert client.delete(f"/documents/{gone}").json()["deleted"] == 1
        assert place.active() == place.a
        release.set()
        place.until(lambda: place.active() == place.b)
        expected = DOCUMENTS | {"d5": TEXTS[99], "d55": TEXTS[99], "new": TEXTS[98]}
        del expected["d7"], expected["d57"]
        assert place.everything() == expected


def test_manual_builds_and_waits_for_somebody_to_decide(place: Place) -> None:
    with place.serving(activate="manual") as client:
        place.fill()
        place.store.want(place.b)
        place.until(lambda: place.state(place.b)["state"] == "ready")
        assert place.state(place.b)["done"] == place.state(place.b)["total"] == 60
        time.sleep(0.7)
        assert place.active() == place.a
        client.post("/documents", json={"documents": [{"id": "late", "text": TEXTS[90]}]})
        place.activate(place.b)
        assert place.everything() == DOCUMENTS | {"late": TEXTS[90]}
        client.post("/models/rollback")  # a decision as well
        place.until(lambda: place.active() == place.a)


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
    forward = Encoder.forward
    with place.serving() as client:
        many = {f"m{at}": TEXTS[at % 300] for at in range(150)}
        body = {"documents": [{"id": id, "text": text} for id, text in many.items()]}
        client.post("/documents", json=body)
        poison = "a poisoned text"
        client.post("/documents", json={"documents": [{"id": "poison", "text": poison}]})
        [bad] = [tokens.ids for tokens in Store(place.store.root).open(place.b).tokenize([poison])]

        def fails(self: Encoder, ids: Any, *, normalize: bool = True) -> Any:
            if self.manifest.version == place.b and any(list(row) == list(bad) for row in ids):
                raise RuntimeError("injected")
            return forward(self, ids, normalize=normalize)

        monkeypatch.setattr(Encoder, "forward", fails)
        place.activate(place.b)
        assert place.everything() == many
        assert "simile_index_missing_documents 1.0" in client.get("/metrics").text
        assert client.get("/documents/poison").json()["text"] == poison
        place.activate(place.c)
        again = client.get("/search", params={"q": QUERIES[0], "k": 1000}).json()["hits"]
        assert {hit["id"] for hit in again} == {*many, "poison"}


def test_a_model_that_fails_on_everything_never_comes_to_live(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = Encoder.forward

    def broken(self: Encoder, ids: Any, *, normalize: bool = True) -> Any:
        if self.manifest.version == place.b:
            raise RuntimeError("injected")
        return forward(self, ids, normalize=normalize)

    with place.serving() as client:
        place.fill()
        monkeypatch.setattr(Encoder, "forward", broken)
        monkeypatch.setattr("service.lifecycle.model_loader.check_golden", lambda encoder, folder: 0.0)
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: place.state(place.b)["state"] == "failed")
        assert "injected" in place.state(place.b)["reason"]
        new = {"documents": [{"id": "new", "text": TEXTS[70]}]}
        assert client.post("/documents", json=new).status_code == 200
        assert place.active() == place.a
        assert place.everything() == DOCUMENTS | {"new": TEXTS[70]}
        assert "simile_healthy 1.0" in client.get("/metrics").text, "the served model is well"
        assert client.get("/health").status_code == 200
        time.sleep(0.7)
        assert 'simile_swaps_total{outcome="failed"} 1.0' in client.get("/metrics").text, "it was tried again"
        monkeypatch.undo()
        place.activate(place.b)  # whoever mended it says so


def judged(place: Place, gate: Gate) -> str:
    """A version that came through a promotion gate, with its report."""
    elsewhere = Store(place.folder / "elsewhere")
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
        place.store.want(refused)
        place.until(lambda: place.state(refused)["state"] == "refused")
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
