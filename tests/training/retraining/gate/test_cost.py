"""The gate: the cost of a candidate, and its drift from the anchor."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.encoder import Encoder
from models.manifest import ONNX
from models.publishing.publish import publish
from models.store import ModelStore
from tests.service.swapping import published_pair
from tests.training.conftest import WORDS
from tests.training.jobs import noised
from training.retraining.gate.cost import costs
from training.retraining.gate.drift import NEAREST, compute_drift, draw_sample, drift

TEXTS = [f"the cat sees {number} red birds" for number in range(64)]


@pytest.fixture
def store(tmp_path: Path, tiny_source: Path) -> ModelStore:
    store = ModelStore(tmp_path / "models")
    publish(store, tiny_source)
    return store


@pytest.mark.long
def test_a_pass_that_has_to_wait_for_the_processor_is_not_slower(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
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


def test_more_work_is_fewer_texts_per_second(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
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
    store = ModelStore(tmp_path / "models")
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


def unit(vectors: np.ndarray) -> np.ndarray:
    found: np.ndarray = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return found


def test_equal_turned_and_widened_spaces_have_not_drifted() -> None:
    rng = np.random.default_rng(1)
    vectors = unit(rng.normal(size=(100, 8)))
    turn = np.linalg.qr(rng.normal(size=(8, 8)))[0].astype(np.float32)
    assert drift(vectors, vectors) == 0
    assert drift(vectors, vectors @ turn) == pytest.approx(0, abs=0.002)
    assert drift(vectors, np.pad(vectors, ((0, 0), (0, 4)))) == 0


def test_it_is_the_share_of_the_ten_nearest_that_are_others() -> None:
    """There are two clusters of 11 texts, so the ten nearest texts are the rest of a text's cluster."""
    angles = np.concatenate([np.linspace(0, 0.1, 11), np.linspace(2, 2.1, 11)])
    before = unit(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    after = before.copy()
    after[[0, 11]] = before[[11, 0]]  # one of each changes places with the other
    # The 20 that stayed lose one of ten; the two that moved lose all ten.
    assert drift(before, after) == pytest.approx((20 * 1 + 2 * NEAREST) / (22 * NEAREST))


def test_unrelated_spaces_have_drifted_almost_wholly() -> None:
    rng = np.random.default_rng(2)
    first, second = (unit(rng.normal(size=(500, 16))) for _ in range(2))
    assert drift(first, second) == pytest.approx(1 - NEAREST / 499, abs=0.01)
    assert drift(first[:1], second[:1]) == 0


def test_a_noised_model_has_drifted_from_the_one_it_was_made_of(tmp_path: Path, tiny_source: Path) -> None:
    store = ModelStore(tmp_path / "models")
    texts = [f"the {first} {second}" for first in WORDS[:12] for second in WORDS[:12]]
    anchor, near, far = (
        (store, publish(store, folder).version)
        for folder in (
            tiny_source,
            noised(tmp_path / "near", tiny_source, 0.001),
            noised(tmp_path / "far", tiny_source, 0.5),
        )
    )
    assert compute_drift(anchor, anchor, texts) == {"neighbours": 0.0}
    found = [compute_drift(anchor, each, texts)["neighbours"] for each in (near, far)]
    assert found[0] < 0.1
    assert found[1] > 0.3
    unread = [f"가나 {first} 다라 {second}" for first in "마바사아자" for second in "차카타파하"]
    assert compute_drift(anchor, far, unread) == {}, "the anchor's vectors of them mean nothing"
    mixed = [*unread, *texts[:40]]
    assert compute_drift(anchor, far, mixed) == compute_drift(anchor, far, texts[:40])


def test_the_sample_stays_when_the_corpus_grows() -> None:
    texts = [f"text {n}" for n in range(1000)]
    first, grown = draw_sample(texts), draw_sample([*texts, *texts, *(f"more {n}" for n in range(100))])
    assert (len(first), len(set(first)), len(grown)) == (500, 500, 500)
    assert len({*first} & {*grown}) > 430
