"""What hangs or dies inside the real service, over real HTTP: everybody is answered, and /health says why."""

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.service.fakes import sqlite_of
from tests.service.placed import Ids, Place, occupied, serving
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT, until


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why the process would have ended."""
    reasons: list[str] = []
    monkeypatch.setattr("service.runtime.watchdog.end", reasons.append)
    return reasons


@pytest.mark.long
def test_a_model_that_hangs_turns_health_red_and_every_request_is_answered(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    with serving(tmp_path, tiny_models_dir, workers=2, hang_seconds=3.0) as place:
        release, held = threading.Event(), list[int]()
        forward = place.encoder.forward

        def hanging(ids: Ids, *, normalize: bool = True) -> NDArray[np.float32]:
            held.append(len(ids))
            release.wait(LIMIT)
            return forward(ids, normalize=normalize)

        monkeypatch.setattr(place.encoder, "forward", hanging)
        with ThreadPoolExecutor(8) as pool:
            try:
                hung = occupied(place, pool, held)
                behind = [pool.submit(place.embed, text) for text in TEXTS[2:6]]
                assert place.client.get("/health").status_code == 200, "no verdict yet"
                assert [answer.result().status_code for answer in hung] == [424, 424]
                until(lambda: place.client.get("/health").status_code == 503)
                assert [answer.result().status_code for answer in behind] == [503] * 4
                assert "2 of 2 workers hang" in place.client.get("/health").json()["error"]
                assert "2 of 2 workers hang" in place.client.get("/ready").json()["error"]
                refused = place.embed("one more")
                assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
                assert len(held) == 2, "nothing more was given to a worker"
                assert place.metric("simile_batch_timeouts_total") == 2
                until(lambda: bool(ends))
                assert "2 of 2 workers hang" in ends[0]
            finally:
                release.set()


def test_a_hang_that_passes_heals(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    with serving(tmp_path, tiny_models_dir, workers=1, hang_seconds=2.0) as place:
        release, forward = threading.Event(), place.encoder.forward

        def slow(ids: Ids, *, normalize: bool = True) -> NDArray[np.float32]:
            release.wait(LIMIT)
            return forward(ids, normalize=normalize)

        with monkeypatch.context() as patch:
            patch.setattr(place.encoder, "forward", slow)
            assert place.embed("red").status_code == 424
        release.set()
        until(lambda: place.client.get("/health").status_code == 200)
        place.check()
        assert place.client.get("/ready").status_code == 200
        assert not ends


@pytest.mark.sqlite("its one writing thread")
def test_a_writer_that_dies_leaves_no_write_waiting(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    def put(place: Place, id: str) -> httpx2.Response:
        return place.client.post("/documents", json={"documents": [{"id": id, "text": "red"}]})

    with serving(tmp_path, tiny_models_dir, hang_seconds=1.0) as place:
        assert put(place, "a").is_success
        writer = sqlite_of(place.runtime.corpus).writer
        inside, release = threading.Event(), threading.Event()

        def dying(jobs: object) -> None:
            inside.set()
            release.wait(LIMIT)
            raise SystemExit("the thread is told to end in the middle of a commit")

        monkeypatch.setattr(writer, "_commit", dying)
        with ThreadPoolExecutor(2) as pool:
            first: Future[httpx2.Response] = pool.submit(put, place, "b")
            assert inside.wait(LIMIT)
            behind = pool.submit(put, place, "c")
            time.sleep(0.2)
            release.set()
            assert [first.result(LIMIT).status_code, behind.result(LIMIT).status_code] == [503, 503]
        assert put(place, "d").status_code == 503
        for path in ("/health", "/ready"):
            until(lambda path=path: place.client.get(path).status_code == 503)  # type: ignore[misc]
            assert "the thread that writes has died" in place.client.get(path).json()["error"]
        place.check_vector(place.embed("red"), "red")
        until(lambda: bool(ends))
