"""Batches as the benchmark of paddings plans and pads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.encoder import ONNX, Encoder
from models.engines.form import FP32
from models.engines.onnx import OnnxEngine
from service.batching.planner import Costs

padding = pytest.importorskip("benchmarks.padding", reason="the extra `openvino` is not installed")
ROWS = [[2, *range(5, 5 + length), 3] for length in (7, 1, 18, 3)]


@pytest.mark.parametrize(
    ("way", "shape", "tokens"),
    [((), (4, 20), 37), ((16,), (4, 32), 37), ((16, 16), (5, 32), 48), ((1, 64, 4), (8, 20), 64)],
)
def test_a_padded_batch_has_the_vectors_of_its_texts(
    tiny_models_dir: Path, way: tuple[int, ...], shape: tuple[int, int], tokens: int
) -> None:
    folder = next(tiny_models_dir.glob("2*"))
    engine = OnnxEngine(folder / ONNX, FP32, 1)
    feed = padding.Padding(*way).feed(ROWS, engine.inputs)
    assert feed["input_ids"].shape == shape
    assert feed["attention_mask"].sum() == tokens
    found = engine.run(feed, "sentence_embedding")[: len(ROWS)]
    np.testing.assert_allclose(found, Encoder.open(folder).forward(ROWS), atol=1e-6)


def test_every_text_that_waited_is_in_one_batch_and_batches_follow_each_other() -> None:
    rows = [[at] * (1 + at % 40) for at in range(500)]
    batches = list(padding.planned(rows, 32, Costs(packed=True)))
    seen = [row[0] for batch in batches for row in batch]
    assert len(seen) == len(set(seen)) > 460, "all but those that waited when no more came"
    assert 0 in {row[0] for row in batches[0]}, "the oldest goes first"
    assert max(len(batch) for batch in batches) < 32
