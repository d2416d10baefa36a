"""Faults in the real service, over HTTP: each ends as documented, and other clients are served.

Each fault replaces a method of the encoder, the tokenizer, the writer or the clock.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parts.faults import before_passes
from tests.service.fakes import sqlite_of
from tests.service.placed import Ids, Place, occupied, serving
from tests.service.swapping import TEXTS
from tests.waiting import LIMIT, until

POISON = "stone stone stone"
Forward = Callable[..., NDArray[np.float32]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Place]:
    with serving(tmp_path_factory.mktemp("faults"), tiny_models_dir, workers=2) as place:
        yield place


@pytest.fixture
def place(shared: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The shared service. After each test, its fault is removed and the service is checked."""
    yield shared
    monkeypatch.undo()
    shared.check()


def poisoned(place: Place, fault: Callable[[NDArray[np.float32], int], None]) -> Forward:
    """Returns a forward pass that calls `fault(vectors, row)` for each row of the poisoned text."""
    forward = place.encoder.forward
    [poison] = [tokens.ids for tokens in place.encoder.tokenize([POISON])]

    def faulty(ids: Ids, *, normalize: bool = True) -> NDArray[np.float32]:
        vectors = forward(ids, normalize=normalize).copy()
        for at, row in enumerate(ids):
            if list(row) == list(poison):
                fault(vectors, at)
        return vectors

    return faulty


def broken(vectors: NDArray[np.float32], row: int) -> None:
    raise RuntimeError("injected")


def not_finite(vectors: NDArray[np.float32], row: int) -> None:
    vectors[row, 30] = np.nan


@pytest.mark.parametrize("fault", [pytest.param(broken, marks=pytest.mark.long), not_finite])
def test_a_poisoned_text_fails_alone_among_forty(
    place: Place, monkeypatch: pytest.MonkeyPatch, fault: Callable[[NDArray[np.float32], int], None]
) -> None:
    monkeypatch.setattr(place.encoder, "forward", poisoned(place, fault))
    texts = [*TEXTS[:20], POISON, *TEXTS[20:40]]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = dict(zip(texts, pool.map(place.embed, texts), strict=True))
    refused = answers.pop(POISON)
    assert (refused.status_code, refused.json()["error_type"]) == (424, "Backend")
    for text, answer in answers.items():
        place.check_vector(answer, text)


def test_health_is_red_with_the_reason_at_once_and_green_by_itself(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Event()
    poison = poisoned(place, broken)

    def held(ids: Ids, *, normalize: bool = True) -> NDArray[np.float32]:
        vectors = poison(ids, normalize=normalize)
        looked.wait(LIMIT)  # The trial pass ends only after the metric was read.
        return vectors

    with monkeypatch.context() as patch:
        patch.setattr(place.encoder, "forward", held)
        assert place.embed(POISON).status_code == 424
        assert place.metric("simile_healthy") == 0
        looked.set()
        until(lambda: place.metric("simile_healthy") == 1)
        patch.setattr(place.encoder, "forward", lambda ids, **options: 1 / 0)
        assert place.embed("a").status_code == 424
        time.sleep(0.7)  # The probe fails as well, so /health still fails.
        red = place.client.get("/health")
        assert red.status_code == 503
        assert "ZeroDivisionError" in red.json()["error"]
        assert place.client.get("/ready").status_code == 200, "the index can be searched by vector"
        release = threading.Event()
        patch.setattr(place.encoder, "forward", lambda ids, **options: release.wait(LIMIT))
        began = time.monotonic()
        assert place.client.get("/health").status_code == 503, "it waits for no forward pass"
        assert time.monotonic() - began < 10
        release.set()


def test_a_vector_that_is_not_finite_leaves_by_no_door(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place.client.post("/documents", json={"documents": [{"id": "kept", "text": POISON}]}).is_success
    monkeypatch.setattr(place.encoder, "forward", poisoned(place, not_finite))
    document = {"documents": [{"id": "new", "text": "red"}, {"id": "kept", "text": POISON + " stone"}]}
    changed = {"documents": [{"id": "kept", "text": "red"}, {"id": "x", "text": POISON}]}
    attempts: list[tuple[str, str, Any]] = [
        ("POST", "/embed", {"inputs": POISON}),
        ("POST", "/embed", {"inputs": ["red", POISON], "dimensions": 8}),  # The NaN is cut off.
        ("POST", "/embed", {"inputs": POISON, "normalize": False}),
        ("POST", "/similarity", {"pairs": [["red", POISON]]}),
        ("POST", "/search", {"queries": ["red", POISON]}),
        ("GET", f"/search?q={POISON.replace(' ', '+')}", None),
        ("POST", "/documents", changed),
    ]
    for method, path, body in attempts:
        answer = place.client.request(method, path, json=body)
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend"), path
    assert place.client.get("/documents/x").status_code == 404
    assert place.client.get("/documents/kept").json()["text"] == POISON, "all of a write or nothing"
    assert place.client.post("/documents", json=document).is_success
    place.client.request("DELETE", "/documents/new")
    place.client.request("DELETE", "/documents/kept")


@pytest.mark.long
def test_a_tokenizer_that_raises_fails_its_texts_and_a_dead_one_turns_health_red(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = place.encoder.tokenize

    def faulty(texts: Sequence[str], **options: Any) -> Any:
        if POISON in texts:
            raise RuntimeError("injected")
        return tokenize(texts, **options)

    with monkeypatch.context() as patch:
        patch.setattr(place.encoder, "tokenize", faulty)
        texts = [TEXTS[0], POISON, TEXTS[1]]
        with ThreadPoolExecutor(3) as pool:
            first, refused, last = pool.map(place.embed, texts)
        assert (refused.status_code, refused.json()["error_type"]) == (422, "Tokenizer")
        place.check_vector(first, TEXTS[0])
        place.check_vector(last, TEXTS[1])
        until(lambda: place.metric("simile_healthy") == 1)
        patch.setattr(place.encoder, "tokenize", lambda texts, **options: 1 / 0)
        assert place.embed("red").status_code == 422
        time.sleep(0.7)
        red = place.client.get("/health")
        assert (red.status_code, "tokenizer" in red.json()["error"]) == (503, True)


def test_a_poisoned_batch_is_split_for_who_still_waits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    release, computed = threading.Event(), list[int]()
    poison = poisoned(place, broken)

    def slow(ids: Ids, *, normalize: bool = True) -> NDArray[np.float32]:
        computed.append(len(ids))
        release.wait(LIMIT)
        return poison(ids, normalize=normalize)

    monkeypatch.setattr(place.encoder, "forward", slow)
    with ThreadPoolExecutor(5) as pool:
        busy = occupied(place, pool, computed)
        bad = pool.submit(place.embed, POISON)
        good = pool.submit(place.embed, TEXTS[2])
        until(lambda: place.metric('simile_queue_texts{lane="interactive"}') == 2)
        late = pool.submit(place.embed, TEXTS[3], **{"x-timeout-ms": "200"})
        assert late.result().status_code == 504
        release.set()
        assert bad.result().status_code == 424
        for at, answer in enumerate([*busy, good]):
            place.check_vector(answer.result(), TEXTS[at])
    until(lambda: place.metric('simile_queue_tokens{lane="interactive"}') == 0)


@pytest.mark.long
def test_a_clock_that_jumps_changes_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, jumps = time.time, itertools.cycle([0, 10_800, -10_800, 86_400 * 400])
    monkeypatch.setattr(time, "time", lambda: clock() + next(jumps))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(place.embed, TEXTS[:60]))
    for text, answer in zip(TEXTS, answers, strict=False):
        place.check_vector(answer, text)
    assert place.client.post("/documents", json={"documents": [{"id": "c", "text": "red"}]}).is_success
    [hit] = place.client.get("/search", params={"q": "red"}).json()["hits"]
    assert hit["id"] == "c"
    place.client.request("DELETE", "/documents/c")


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records why the watchdog would have ended the process. The process continues."""
    reasons: list[str] = []
    monkeypatch.setattr("service.runtime.watchdog.end", reasons.append)
    return reasons


@pytest.mark.long
def test_a_model_that_hangs_turns_health_red_and_every_request_is_answered(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, ends: list[str]
) -> None:
    with serving(tmp_path, tiny_models_dir, workers=2, hang_seconds=3.0) as place:
        release, held = threading.Event(), list[int]()

        def hanging(_: object, ids: Ids) -> None:
            held.append(len(ids))
            release.wait(LIMIT)

        before_passes(monkeypatch, hanging)
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
