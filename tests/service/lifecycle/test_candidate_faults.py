"""A candidate that is slow, hangs or breaks: no write waits for it or fails with it, and nothing is lost."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models.encoder import Encoder
from models.search.content import Content
from models.search.passages import split
from service.batching.workers import Worker
from tests.service.lifecycle.test_swap import DOCUMENTS, Place
from tests.service.swapping import TEXTS, published
from tests.waiting import LIMIT

PATIENT = {"x-timeout-ms": "60000"}  # of a write; what it must not wait for takes far longer
LONG = " ".join(TEXTS[:100])  # several passages


@pytest.fixture
def place(tmp_path: Path) -> Place:
    published(tmp_path / "models", 3)
    return Place(tmp_path)


class Gate:
    """Every forward pass of one version waits here, while it is shut."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        self.open = threading.Event()
        self.waiting = 0
        forward = Encoder.forward

        def held(encoder: Encoder, ids: Any, **options: Any) -> Any:
            if encoder.manifest.version == version and not self.open.is_set():
                self.waiting += 1
                self.open.wait(LIMIT)
            return forward(encoder, ids, **options)

        monkeypatch.setattr(Encoder, "forward", held)
        # Opening a version computes its golden texts, which is not what is held here.
        monkeypatch.setattr("service.lifecycle.model_loader.check_golden", lambda encoder, folder: None)


@contextmanager
def held(monkeypatch: pytest.MonkeyPatch, version: str) -> Iterator[Gate]:
    gate = Gate(monkeypatch, version)
    try:
        yield gate
    finally:
        gate.open.set()


def write(place: Place, id: str, text: str) -> int:
    body = {"documents": [{"id": id, "text": text}]}
    return place.client.post("/documents", json=body, headers=PATIENT).status_code


@pytest.mark.parametrize("workers", [1, 2])
def test_no_write_waits_for_a_candidate_that_computes_for_ever(
    place: Place, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    """Every worker is in its hands, and still writes, searches and /embed are answered."""
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
        place.until(lambda: place.active() == place.b)
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
        [warm] = place.app.state.runtime.live.followers
        place.until(lambda: bool(warm.indexes.documents == len(expected)))  # what it lacked was filled in
        pinned = client.get(
            "/search", params={"q": "red river", "k": 100}, headers={"x-model-version": place.a}
        )
        assert pinned.status_code == 200
        assert len(pinned.json()["hits"]) == len(expected)
        assert client.post("/models/rollback").status_code == 202
        place.until(lambda: place.active() == place.a)
        assert place.everything() == expected


def test_a_candidate_that_hangs_fails_and_the_service_stays_well(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look of the supervisor counts for an hour of the candidate's: nothing else can be overdue."""
    ends: list[str] = []
    spend = Worker.spend

    def hastened(worker: Worker, seconds: float) -> bool:
        return spend(worker, 3600 if worker.on_candidate else seconds)

    monkeypatch.setattr("service.runtime.watchdog.end", ends.append)
    monkeypatch.setattr(Worker, "spend", hastened)
    with place.serving(workers=2) as client, held(monkeypatch, place.b) as gate:
        place.fill()
        client.post(f"/models/{place.b}/activate")
        place.until(lambda: gate.waiting > 0)
        place.until(lambda: place.state(place.b)["state"] == "failed")
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
    """An error that is no refusal of ours, on the way of long texts alone."""

    def breaks(content: Content, encoder: Encoder, *args: Any) -> Any:
        if encoder.manifest.version == place.b:
            raise bug("injected")
        return split(content, encoder, *args)

    with place.serving(workers=2, activate="manual") as client:
        place.fill()
        client.post(f"/models/{place.b}/activate")  # as a wish it would wait in `ready`
        place.until(lambda: place.active() == place.b)
        place.activate(place.a)
        monkeypatch.setattr("service.corpus.embedder.split", breaks)
        assert [write(place, f"long{at}", f"{at} {LONG}") for at in range(3)] == [200] * 3
        assert place.active() == place.a
        found = client.get("/search", params={"q": "red river", "k": 100}).json()["hits"]
        assert {hit["id"] for hit in found} == {*DOCUMENTS, "long0", "long1", "long2"}
