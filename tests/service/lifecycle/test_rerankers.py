"""The reranker is opened, replaced and rolled back beside the encoder. The service stays ready."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from models.__main__ import listed
from models.errors import Unsupported
from models.publishing import limited
from models.reranker import Pair, Reranker
from models.store import ModelStore
from service.app import create_app
from service.lifecycle import capacity
from service.lifecycle.model_loader import ModelLoader
from service.runtime.runtime import Runtime
from tests.parts.rerankers import broken, nan, no_memory, publish_reranker
from tests.service.conftest import new_settings, wait_until_ready
from tests.tiny import tiny_cross_encoder, tiny_source
from tests.waiting import until

BODY = {"query": "red river", "texts": ["the cat sleeps", "a stone", "green garden"]}


class Place:
    def __init__(self, client: TestClient, runtime: Runtime, versions: list[str]) -> None:
        self.client, self.runtime, self.versions = client, runtime, versions

    @property
    def shown(self) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get("/models").json()["reranker"]
        return found

    def state(self, version: str) -> dict[str, Any]:
        listed = self.client.get("/models").json()["models"]
        return next(each for each in listed if each["version"] == version)

    def request(self, version: str) -> None:
        assert self.client.post(f"/models/{version}/activate").status_code in {200, 202}

    def activate(self, version: str) -> None:
        self.request(version)
        until(lambda: self.shown["active"] == version)

    def check_ready(self) -> None:
        assert self.client.get("/ready").status_code == 200
        assert self.client.get("/health").status_code == 200
        assert self.client.get("/search", params={"q": "red"}).status_code == 200


@contextmanager
def serving(folder: Path, models_dir: Path, rerankers: int = 2, **others: object) -> Iterator[Place]:
    settings = new_settings(folder, models_dir, **others)
    versions = [publish_reranker(folder / "models", seed) for seed in range(rerankers)]
    app = create_app(settings)
    with TestClient(app) as client:
        wait_until_ready(client)
        yield Place(client, app.state.runtime, versions)


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Iterator[Place]:
    with serving(tmp_path, tiny_models_dir) as found:
        yield found


def scores_of(place: Place, version: str) -> list[float]:
    reranker = ModelStore(place.runtime.store.root).open_reranker(version)
    pairs = [Pair(BODY["query"], text) for text in BODY["texts"]]  # type: ignore[arg-type]
    return sorted(reranker.score(pairs)[:, 0].tolist(), reverse=True)


def test_swaps_and_rollbacks_under_load_fail_no_request_and_mix_no_versions(place: Place) -> None:
    place.activate(place.versions[0])
    expected = {version: scores_of(place, version) for version in place.versions}
    stop, answers, failures = threading.Event(), set[str](), list[str]()

    def ask() -> None:
        while not stop.is_set():
            answer = place.client.post("/rerank", json=BODY)
            if answer.status_code != 200:
                failures.append(answer.text)
                continue
            version = answer.headers["x-model-version"]
            answers.add(version)
            if not np.allclose([rank["score"] for rank in answer.json()], expected[version], atol=1e-5):
                failures.append(f"{version}: {answer.text}")

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    try:
        for _ in range(3):
            place.activate(place.versions[1])
            back = place.client.post("/models/rollback?kind=reranker")
            assert (back.status_code, back.json()) == (202, {"wanted": place.versions[0]})
            until(lambda: place.shown["active"] == place.versions[0])
    finally:
        stop.set()
        for client in clients:
            client.join()
    assert not failures, failures[0]
    assert answers == set(place.versions)


def test_the_reranker_of_the_last_run_is_opened_again(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(tmp_path, tiny_models_dir) as place:
        version = place.versions[1]
        place.activate(version)
    settings = place.runtime.settings
    with TestClient(create_app(settings)) as client:
        until(lambda: client.get("/models").json()["reranker"]["active"] == version)


def test_without_a_previous_reranker_a_rollback_is_refused(place: Place) -> None:
    answer = place.client.post("/models/rollback?kind=reranker")
    assert answer.status_code == 409
    assert "no reranker to go back to" in answer.json()["error"]


def test_a_deactivated_reranker_serves_no_request_until_a_rollback(place: Place) -> None:
    version = place.versions[0]
    refused = place.client.post("/models/deactivate")
    assert (refused.status_code, "No reranker is requested" in refused.json()["error"]) == (409, True)
    place.activate(version)
    answer = place.client.post("/models/deactivate")
    assert (answer.status_code, answer.json()) == (202, {"wanted": None, "previous": version})
    until(lambda: place.shown["active"] is None)
    assert place.shown == {"active": None, "wanted": None, "previous": version, "reason": None}
    assert place.client.post("/rerank", json=BODY).status_code == 409
    place.check_ready()
    assert place.client.post("/models/deactivate").status_code == 409
    assert place.client.post("/models/rollback?kind=reranker").json() == {"wanted": version}
    until(lambda: place.shown["active"] == version)


def test_a_damaged_request_is_no_reason_to_keep_the_reranker(place: Place) -> None:
    place.activate(place.versions[0])
    (place.runtime.store.root / "reranker.json").write_text("{")
    assert place.client.post("/models/deactivate").status_code == 202
    until(lambda: place.shown == dict.fromkeys(place.shown))


@pytest.mark.parametrize(
    "content", ["", '{"version": ', "[]", '{"version": 3, "previous": null}', "\0", "{}"]
)
def test_a_damaged_request_keeps_the_active_reranker(place: Place, content: str) -> None:
    version = place.versions[0]
    place.activate(version)
    file = place.runtime.store.root / "reranker.json"
    before = file.read_text()
    file.write_text(content)
    until(lambda: place.shown["reason"] is not None)
    assert "request for a reranker is damaged" in place.shown["reason"]
    assert place.shown["active"] == version
    assert place.client.post("/rerank", json=BODY).status_code == 200
    answer = place.client.post("/models/rollback?kind=reranker")
    assert (answer.status_code, "activate RERANKER" in answer.json()["error"]) == (409, True)
    place.check_ready()
    file.write_text(before)
    until(lambda: place.shown["reason"] is None)
    assert place.shown["active"] == version


def test_metrics_show_the_active_reranker(place: Place) -> None:
    place.activate(place.versions[0])
    place.client.post("/rerank", json=BODY)
    text = place.client.get("/metrics").text
    assert 'simile_reranker_info{fingerprint="' in text
    assert f'simile_tokens_total{{lane="rerank",version="{place.versions[0]}"}}' in text
    place.activate(place.versions[1])
    assert place.versions[0] not in place.client.get("/metrics").text


def fail_to_open(self: Reranker, *_: object, **__: object) -> None:
    raise Unsupported("its graph is of another time")


def bad_shape(self: Reranker, *_: object, **__: object) -> Any:
    raise ValueError("tokenizing broke")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("__init__", fail_to_open),
        ("forward", nan),
        ("forward", no_memory),
        ("forward", broken),
        ("__init__", bad_shape),
    ],
)
def test_a_broken_reranker_is_not_activated_and_the_previous_one_stays(
    place: Place, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any
) -> None:
    first, second = place.versions
    place.activate(first)
    original = getattr(Reranker, name)

    def faulty(self: Reranker, *arguments: Any, **options: Any) -> Any:
        manifest = arguments[1] if name == "__init__" else self.manifest
        work = fault if manifest.version == second else original
        return work(self, *arguments, **options)

    monkeypatch.setattr(Reranker, name, faulty)
    place.request(second)
    until(lambda: place.state(second)["state"] == "failed")
    assert place.state(second)["reason"]
    assert place.shown["active"] == first
    assert place.client.post("/rerank", json=BODY).headers["x-model-version"] == first
    place.check_ready()
    monkeypatch.undo()
    place.activate(second)  # A new request tries it again.


def test_a_rollback_goes_to_a_reranker_that_was_served(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tiny_models_dir, rerankers=3) as place:
        first, broken_one, third = place.versions
        place.activate(first)
        refuse(monkeypatch, broken_one)
        place.request(broken_one)
        until(lambda: place.state(broken_one)["state"] == "failed")
        assert place.shown["previous"] == first
        place.activate(third)
        assert place.shown["previous"] == first
        assert place.client.post("/models/rollback?kind=reranker").json() == {"wanted": first}
        until(lambda: place.shown["active"] == first)
        place.request(broken_one)
        until(lambda: place.state(broken_one)["state"] == "failed")
        assert place.client.post("/models/rollback?kind=reranker").json() == {"wanted": first}
        until(lambda: place.shown["wanted"] == first)
        assert place.shown["previous"] is None
        assert place.shown["active"] == first


def refuse(monkeypatch: pytest.MonkeyPatch, *versions: str) -> None:
    """Makes the scores of some rerankers invalid until `monkeypatch.undo`."""
    original = Reranker.forward

    def faulty(self: Reranker, ids: Any, **options: Any) -> Any:
        work = nan if self.manifest.version in versions else original
        return work(self, ids, **options)

    monkeypatch.setattr(Reranker, "forward", faulty)


def test_a_reason_ends_with_its_request(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = place.versions
    place.activate(first)
    refuse(monkeypatch, second)
    place.request(second)
    until(lambda: second in (place.shown["reason"] or ""))
    place.client.post("/models/rollback?kind=reranker")
    until(lambda: place.shown == {"active": first, "wanted": first, "previous": None, "reason": None})


@pytest.mark.parametrize("fault", ["memory", "scores", "graph", "deleted"])
def test_without_a_request_no_reason_stays(place: Place, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    version, store = place.versions[0], place.runtime.store
    if fault == "memory":
        monkeypatch.setattr(capacity, "free", lambda _: 1000)
    elif fault == "scores":
        refuse(monkeypatch, version)
    elif fault == "graph":
        (store.root / version / "onnx" / "model.onnx").write_bytes(b"x")
    store.request_reranker(version)
    if fault == "deleted":
        (store.root / version).rename(store.root / ".tmp-away")
    until(lambda: place.shown["reason"] is not None or place.shown["active"] == version)
    store.request_reranker(None)
    until(lambda: place.shown["wanted"] is None and place.shown["active"] is None)
    until(lambda: place.shown["reason"] is None)
    answer = place.client.post("/rerank", json=BODY)
    assert answer.status_code == 409
    assert version not in answer.json()["error"]


@pytest.mark.parametrize("between", [[], [1], [None], [1, None], [1, 1]])
def test_a_request_in_the_folder_tries_a_failed_reranker_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, between: list[int | None]
) -> None:
    """Requests of `python -m models`, with others between the first and the second one."""
    version, store = place.versions[0], place.runtime.store
    refuse(monkeypatch, version)
    store.request_reranker(version)
    until(lambda: place.state(version)["state"] == "failed")
    monkeypatch.undo()
    for other in between:
        wanted = None if other is None else place.versions[other]
        store.request_reranker(wanted)
        until(lambda wanted=wanted: place.shown["active"] == wanted)  # type: ignore[misc]
    store.request_reranker(version)
    until(lambda: place.shown["active"] == version)
    assert place.shown["reason"] is None


@pytest.mark.parametrize("before", [[], [None], [0, None], [1, None], [0, 1, None], [0, None, None]])
def test_after_an_accepted_request_clients_are_told_to_send_again(
    place: Place, monkeypatch: pytest.MonkeyPatch, before: list[int | None]
) -> None:
    store, gate = place.runtime.store, threading.Event()
    for each in before:
        wanted = None if each is None else place.versions[each]
        store.request_reranker(wanted)
        until(lambda wanted=wanted: place.shown["active"] == place.shown["wanted"] == wanted)  # type: ignore[misc]
    assert place.client.post("/rerank", json=BODY).status_code == 409
    names = store.names
    monkeypatch.setattr(store, "names", lambda: (gate.wait(), names())[1])  # a slow folder
    try:
        place.request(place.versions[0])
        answer = place.client.post("/rerank", json=BODY)
        assert answer.status_code == 503, answer.text
        assert f"{place.versions[0]} is being opened" in answer.json()["error"]
        assert int(answer.headers["retry-after"]) > 0
    finally:
        gate.set()
    codes = set[int]()
    until(lambda: codes.add(place.client.post("/rerank", json=BODY).status_code) or 200 in codes)  # type: ignore[func-returns-value]
    assert codes <= {200, 503}


def in_list(place: Place) -> list[str]:
    """Returns the states of the rerankers in `python -m models list`."""
    entries = {
        each["version"]: each["state"] for each in listed(place.runtime.store, datetime.now(UTC))["versions"]
    }
    return [entries[version] for version in place.versions]


def test_the_list_of_commands_shows_what_the_service_does(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, tiny_models_dir, rerankers=3) as place:
        store = place.runtime.store
        first, second, third = place.versions
        assert in_list(place) == ["candidate"] * 3
        store.request_reranker(first)
        until(lambda: in_list(place) == ["live", "candidate", "candidate"])
        store.request_reranker(second)
        until(lambda: in_list(place) == ["previous", "live", "candidate"])
        refuse(monkeypatch, third)
        store.request_reranker(third)
        until(lambda: in_list(place) == ["candidate", "live", "failed"])
        monkeypatch.undo()
        monkeypatch.setattr(capacity, "free", lambda _: 1000)
        store.request_reranker(third)
        until(lambda: in_list(place)[2] == "building")
        [found] = [each for each in listed(store, datetime.now(UTC))["versions"] if each["version"] == third]
        assert found["verdict"].startswith("waits: ")
        monkeypatch.undo()
        place.runtime.rerankers.retry(third)
        until(lambda: in_list(place)[1:] == ["previous", "live"])
        store.request_reranker(None)
        until(lambda: in_list(place)[2] == "previous" and store.read_state()["reranker"] is None)


def test_a_damaged_reranker_fails_and_the_service_stays_ready(place: Place) -> None:
    version = place.versions[0]
    graph = place.runtime.store.root / version / "onnx" / "model.onnx"
    graph.write_bytes(graph.read_bytes()[:-1] + b"x")
    place.request(version)
    until(lambda: place.state(version)["state"] == "failed")
    assert "model.onnx" in place.state(version)["reason"]
    answer = place.client.post("/rerank", json=BODY)
    assert answer.status_code == 409
    assert "model.onnx" in answer.json()["error"]
    place.check_ready()


def test_a_reranker_that_hangs_is_closed_and_search_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.activate(place.versions[0])
    gate, original = threading.Event(), Reranker.forward

    def hanging(self: Reranker, ids: Any, **options: Any) -> Any:
        gate.wait()
        return original(self, ids, **options)

    monkeypatch.setattr(Reranker, "forward", hanging)
    answers = list[int]()
    ask = threading.Thread(target=lambda: answers.append(place.client.post("/rerank", json=BODY).status_code))
    ask.start()
    try:
        workers = place.runtime.batcher._workers.all
        until(lambda: any(worker.aside and worker.computes for worker in workers))
        place.check_ready()
        current = place.runtime.active.reranker.current
        assert current is not None
        place.runtime.batcher.check(0.0)
        place.runtime.batcher.check(1e9)
        until(lambda: place.state(place.versions[0])["state"] == "failed")
        assert "SIMILE_HANG_SECONDS" in place.state(place.versions[0])["reason"]
        place.check_ready()
    finally:
        gate.set()
        ask.join()
    assert answers == [424]
    place.runtime.store.request_reranker(place.versions[0])
    until(lambda: place.shown["active"] == place.versions[0])


def test_a_reranker_waits_for_memory_and_keeps_the_previous_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.versions
    place.activate(first)
    monkeypatch.setattr(capacity, "free", lambda _: 1000)
    place.request(second)
    until(lambda: place.shown["reason"] is not None)
    assert "of memory" in place.shown["reason"]
    assert place.state(second)["state"] == "building"
    assert place.shown["active"] == first
    place.check_ready()
    monkeypatch.undo()
    place.runtime.rerankers.retry(None)
    until(lambda: place.shown["active"] == second)


def test_the_memory_of_a_reranker_is_noted_while_it_is_opened(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = place.versions
    place.activate(first)
    active, seen = place.runtime.active.reranker, list[int]()
    original = ModelLoader.open_reranker

    def opened(self: ModelLoader, version: str) -> Reranker:
        seen.append(active.opening_bytes)
        return original(self, version)

    monkeypatch.setattr(ModelLoader, "open_reranker", opened)
    place.activate(second)
    assert seen == [capacity.needed([], 0, place.runtime.store.root / second)]
    until(lambda: active.opening_bytes == 0)


@pytest.mark.parametrize(("building", "fits"), [(0, True), (50, True), (101, False), (10**6, False)])
def test_the_memory_of_a_version_that_is_being_built_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, building: int, fits: bool
) -> None:
    version = publish_reranker(tmp_path)
    folder = tmp_path / version
    need = capacity.needed([], 0, folder)
    monkeypatch.setattr(capacity, "free", lambda _: need + 100)
    reason = capacity.no_reranker(version, folder, building)
    assert (reason is None) is fits
    if reason is not None:
        assert "being built" in reason


@pytest.mark.parametrize("requested", [False, True])
def test_the_setting_names_the_first_reranker_alone(
    tmp_path: Path, tiny_models_dir: Path, requested: bool
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    first, second = (publish_reranker(tmp_path / "models", seed) for seed in range(2))
    if requested:
        ModelStore(tmp_path / "models").request_reranker(second)
    with TestClient(create_app(settings.model_copy(update={"reranker": first}))) as client:
        expected = second if requested else first
        until(lambda: client.get("/models").json()["reranker"]["active"] == expected)


@pytest.mark.parametrize("source", ["no/such/folder", "20260101T000000-none-00000000", "{encoder}"])
def test_a_setting_that_names_no_reranker_is_told_and_the_service_starts(
    tmp_path: Path, tiny_models_dir: Path, source: str
) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    encoder = ModelStore(tmp_path / "models").requested() or ""
    chosen = str(tmp_path / source) if "/" in source else source.format(encoder=encoder)
    with TestClient(create_app(settings.model_copy(update={"reranker": chosen}))) as client:
        wait_until_ready(client)
        until(lambda: client.get("/models").json()["reranker"]["reason"] is not None)
        answer = client.post("/rerank", json=BODY)
        assert answer.status_code == 409
        assert "SIMILE_RERANKER" in answer.json()["error"]


@contextmanager
def publishing(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Place, threading.Event]]:
    """A service that publishes a folder as its first reranker when the event is set."""
    gate, original = threading.Event(), limited.publish_limited

    def slow(*arguments: Any, **options: Any) -> Any:
        gate.wait()
        return original(*arguments, **options)

    monkeypatch.setattr(limited, "publish_limited", slow)
    source = tiny_cross_encoder(tmp_path / "source")
    with serving(tmp_path, tiny_models_dir, reranker=str(source)) as place:
        try:
            yield place, gate
        finally:
            gate.set()


def published_here(place: Place) -> list[str]:
    listed = place.client.get("/models").json()["models"]
    return [
        each["version"]
        for each in listed
        if each["kind"] == "reranker" and each["version"] not in place.versions
    ]


def test_the_setting_publishes_a_folder(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with publishing(tmp_path, tiny_models_dir, monkeypatch) as (place, gate):
        until(lambda: "is being opened" in place.client.post("/rerank", json=BODY).text)
        assert place.client.post("/rerank", json=BODY).status_code == 503
        place.check_ready()
        gate.set()
        until(lambda: [place.shown["active"]] == published_here(place))
        assert place.shown["reason"] is None


@pytest.mark.parametrize("requests", [[0], [0, 1], [0, None], [None], [1, 0, None]])
def test_a_request_counts_while_the_reranker_of_the_setting_is_published(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, requests: list[int | None]
) -> None:
    with publishing(tmp_path, tiny_models_dir, monkeypatch) as (place, gate):
        store = place.runtime.store
        for each in requests:
            wanted = None if each is None else place.versions[each]
            store.request_reranker(wanted)
            until(lambda wanted=wanted: place.shown["active"] == wanted)  # type: ignore[misc]
        before = store.requested_reranker()
        gate.set()
        until(lambda: published_here(place))
        until(lambda: place.runtime.rerankers._publishing is None)
        assert store.requested_reranker() == before
        assert place.shown["active"] == wanted
        assert place.shown["reason"] is None


@pytest.mark.parametrize("source", ["default", "encoder", "nothing", "absent", "large"])
def test_what_cannot_be_the_reranker_of_the_setting_is_not_published(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    if source == "encoder":
        tiny_source(tmp_path / source)
    elif source == "nothing":
        (tmp_path / source).mkdir()
    elif source == "large":
        tiny_cross_encoder(tmp_path / source)
        monkeypatch.setattr(capacity, "no_publishing", lambda *_: "Too large (SIMILE_RERANKER).")
    expected = {
        "default": "is an encoder",
        "encoder": "is an encoder",
        "nothing": "config.json",
        "absent": "is not a folder",
        "large": "Too large",
    }[source]
    chosen = source if source == "default" else str(tmp_path / source)
    with serving(tmp_path, tiny_models_dir, reranker=chosen) as place:
        before = place.runtime.store.names()
        until(lambda: place.shown["reason"] is not None)
        assert expected in place.shown["reason"]
        assert place.runtime.store.names() == before
        assert place.client.post("/rerank", json=BODY).status_code == 409
        place.activate(place.versions[0])
        assert place.shown["reason"] is None
