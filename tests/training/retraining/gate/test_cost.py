"""What a version costs to serve: its own work, not what the machine is busy with beside it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from models.encoder import ONNX, Encoder
from models.publishing.publish import publish
from models.store import Store
from tests.service.swapping import published_pair
from training.retraining.gate.cost import costs

TEXTS = [f"the cat sees {number} red birds" for number in range(64)]


@pytest.fixture
def store(tmp_path: Path, tiny_source: Path) -> Store:
    store = Store(tmp_path / "models")
    publish(store, tiny_source)
    return store


@pytest.mark.long
def test_a_pass_that_has_to_wait_for_the_processor_is_not_slower(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, turns = Encoder.encode, iter(range(1000))

    def kept_waiting(self: Encoder, *arguments: Any, **options: Any) -> Any:
        time.sleep(0.1 * (next(turns) % 2))  # each second turn: the candidate's
        return encode(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode", kept_waiting)
    version = store.versions()[0].version
    active, candidate = costs((store, version), (store, version), TEXTS)
    assert candidate["texts_per_second"] > 64 / 0.1, "what it waited for is not its own"
    assert candidate["texts_per_second"] == pytest.approx(active["texts_per_second"], rel=0.9)


def test_more_work_is_fewer_texts_per_second(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    encode, turns = Encoder.encode, iter(range(1000))

    def ten_times(self: Encoder, *arguments: Any, **options: Any) -> Any:
        for _ in range(9 * (next(turns) % 2)):
            encode(self, *arguments, **options)
        return encode(self, *arguments, **options)

    monkeypatch.setattr(Encoder, "encode", ten_times)
    version = store.versions()[0].version
    active, candidate = costs((store, version), (store, version), TEXTS)
    assert candidate["texts_per_second"] < active["texts_per_second"] / 3
    file = store.folder(version) / ONNX
    assert active["megabytes"] == candidate["megabytes"] == round(file.stat().st_size / 1e6, 1)


def test_of_a_pair_queries_are_the_students_and_both_graphs_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, student, pair = published_pair(tmp_path / "models")
    store = Store(tmp_path / "models")
    encode, busy = Encoder.encode, {teacher: 3, pair: 3, student: 0}
    queries: set[str] = set()

    def slow_teacher(self: Encoder, texts: list[str], **options: Any) -> Any:
        for _ in range(10 * busy[self.manifest.version]):
            encode(self, texts, **options)
        if len(texts) == 1:
            queries.update(texts)
        return encode(self, texts, **options)

    monkeypatch.setattr(Encoder, "encode", slow_teacher)
    alone, both = costs((store, teacher), (store, pair), [f"{text} and on and on it goes" for text in TEXTS])
    assert both["texts_per_second"] < 3 * alone["texts_per_second"]
    assert both["queries_per_second"] > 3 * alone["queries_per_second"]
    graphs = [store.folder(version) / ONNX for version in (teacher, student)]
    assert both["megabytes"] == round(sum(graph.stat().st_size for graph in graphs) / 1e6, 1)
    assert {len(query.split()) for query in queries} == {8}
