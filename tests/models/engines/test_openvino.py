"""The shapes of the batches that reach OpenVINO, on any processor."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from models.encoder import Encoder
from models.engines import opening
from models.engines.opening import BF16
from models.engines.shapes import stepped
from models.manifest import FILE_NAME
from tests.tiny import MAX_LENGTH

openvino = pytest.importorskip("models.engines.openvino", reason="the extra `openvino` is not installed")


@pytest.fixture(autouse=True)
def whatever_it_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the check for bf16. A processor without bf16 computes in fp32, in the same shapes."""
    monkeypatch.setattr(opening, "require", lambda form, place: None)


def length_reaching(encoder: Encoder, rows: list[list[int]]) -> int:
    encoder.forward(rows)
    return int(encoder._engine._idle[0].get_tensor("input_ids").shape[1])  # type: ignore[attr-defined]


@pytest.mark.parametrize(("length", "padded"), [(1, 16), (16, 16), (17, 32), (MAX_LENGTH, MAX_LENGTH)])
def test_a_batch_reaches_openvino_at_one_of_few_lengths_and_has_its_vectors(
    tiny_models_dir: Path, length: int, padded: int
) -> None:
    folder = next(tiny_models_dir.glob("2*"))
    encoder = Encoder.open(folder, form=BF16)
    rows = [[2, *range(5, 4 + length)][:length], [2]]
    assert length_reaching(encoder, rows) == padded
    assert np.sum(encoder.forward(rows) * Encoder.open(folder).forward(rows), axis=1).min() >= 0.9999
    encoder.close()


@pytest.mark.parametrize(
    ("lengths", "padding"),
    [([9] * 8, [8]), ([MAX_LENGTH, *[7] * 9], [1]), ([1] * 33, [15]), ([16] * 8, []), ([9] * 7, [])],
)
def test_a_row_of_padding_completes_the_tokens_of_a_large_batch(
    tiny_models_dir: Path, lengths: list[int], padding: list[int]
) -> None:
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")), form=BF16)
    ids = [[2, *range(5, 4 + length)][:length] for length in lengths]
    vectors = encoder.forward(ids)
    reached = encoder._engine._idle[0].get_tensor("attention_mask").data  # type: ignore[attr-defined]
    assert reached.sum(axis=1).tolist() == lengths + padding
    alone = np.concatenate([encoder.forward([row]) for row in ids])
    assert vectors.shape == alone.shape
    assert np.sum(vectors * alone, axis=1).min() >= 0.9999
    encoder.close()


def test_where_padding_costs_all_of_a_text_there_is_none(tiny_models_dir: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(next(tiny_models_dir.glob("2*")), tmp_path / "copy")
    manifest = (folder / FILE_NAME).read_text()
    (folder / FILE_NAME).write_text(manifest.replace('"packed": true', '"packed": false'))
    assert length_reaching(Encoder.open(folder, form=BF16), [[2] * 17]) == 17


def test_a_length_is_rounded_up_but_never_beyond_what_the_model_reads() -> None:
    assert [stepped(length, 16, 60) for length in (1, 16, 17, 50, 60)] == [16, 16, 32, 60, 60]
    assert stepped(17, 1, 60) == 17
