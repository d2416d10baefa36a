"""Deterministic encoders compute the same bits in any batch. In fp32, other encoders agree within 1e-6."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.encoder import Encoder
from models.engines.form import FP32, Form
from models.engines.opening import BF16
from models.engines.shapes import Shapes
from models.tokens.texts import long_text
from tests.models.forms import needs_bf16
from tests.tiny import MAX_LENGTH

FORMS = [pytest.param(FP32, id="fp32"), pytest.param(BF16, id="bf16", marks=needs_bf16)]
IDS = st.integers(5, 249)
ROWS = st.lists(IDS, min_size=1, max_size=MAX_LENGTH - 2).map(lambda ids: (2, *ids, 3))
# Up to 256 rows, drawn from 1 to 24 different ones.
BATCHES = st.lists(ROWS, min_size=1, max_size=24).flatmap(
    lambda rows: st.lists(st.sampled_from(rows), min_size=1, max_size=256)
)


@cache
def opened(folder: Path, form: Form, deterministic: bool) -> Encoder:
    return Encoder.open(folder, form=form, deterministic=deterministic)


def alone(encoder: Encoder, row: Sequence[int]) -> NDArray[np.float32]:
    vector: NDArray[np.float32] = encoder.forward([row])[0]
    return vector


# The same examples in every run, so that a rare difference does not fail an unrelated change.
@pytest.mark.parametrize("form", FORMS)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(batch=BATCHES, padding=st.integers(0, 60))
@example(batch=[(2, 122, 9, 159, 3)], padding=10)
def test_any_batch_at_any_padding_has_the_bits_of_its_texts_alone(
    tiny_models_dir: Path, form: Form, batch: list[tuple[int, ...]], padding: int
) -> None:
    encoder = opened(next(tiny_models_dir.glob("2*")), form, deterministic=True)
    beside = (2, *([7] * padding), 3)
    found = encoder.forward([*batch, beside])
    for row in set(batch):
        expected = alone(encoder, row)
        for at, other in enumerate(batch):
            if other == row:
                np.testing.assert_array_equal(found[at], expected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=BATCHES, padding=st.integers(0, 60))
def test_in_fp32_any_batch_at_any_padding_is_within_1e_6_of_its_texts_alone(
    tiny_models_dir: Path, batch: list[tuple[int, ...]], padding: int
) -> None:
    encoder = opened(next(tiny_models_dir.glob("2*")), FP32, deterministic=False)
    found = encoder.forward([*batch, (2, *([7] * padding), 3)])
    expected = {row: alone(encoder, row) for row in batch}
    np.testing.assert_allclose(found[:-1], [expected[row] for row in batch], atol=1e-6, rtol=0)


@pytest.mark.parametrize("form", FORMS)
def test_the_default_model_keeps_its_bits(default_models_dir: Path, form: Form) -> None:
    encoder = Encoder.open(next(default_models_dir.glob("2*")), form=form, deterministic=True)
    texts = [long_text(words)[words:] for words in (1, 2, 5, 6, 9, 9, 12, 14, 25, 30, 49, 90, 200)]
    ids = [row.ids for row in encoder.tokenize(texts)]
    assert max(map(len, ids)) > 128
    expected = [alone(encoder, row) for row in ids]
    for times in (1, 3):
        found = encoder.forward(ids * times)
        np.testing.assert_array_equal(found, expected * times)
    raw = encoder.forward(ids, normalize=False)
    np.testing.assert_array_equal(
        raw, np.concatenate([encoder.forward([row], normalize=False) for row in ids])
    )


def test_deterministic_vectors_are_those_of_the_usual_mode_to_1e_6(tiny_models_dir: Path) -> None:
    folder = next(tiny_models_dir.glob("2*"))
    ids = [(2, *range(5, 5 + length), 3) for length in range(1, MAX_LENGTH - 1)]
    fixed = opened(folder, FP32, deterministic=True).forward(ids)
    np.testing.assert_allclose(
        fixed, opened(folder, FP32, deterministic=False).forward(ids), atol=1e-6, rtol=0
    )


class Engine:
    """A fake engine. Vectors are (sum of ids, length, rows). Rows: at most 2 unless `row_counts_matter`."""

    def __init__(self, *, row_counts_matter: bool) -> None:
        self.row_counts_matter = row_counts_matter
        self.shapes: list[tuple[int, int]] = []

    def run(self, ids: Sequence[Sequence[int]], length: int) -> NDArray[np.float32]:
        self.shapes.append((len(ids), length))
        count = len(ids) if self.row_counts_matter else min(len(ids), 2)
        return np.array([[sum(row), length, count] for row in ids], np.float32)


def test_row_counts_that_matter_are_found_out_and_every_text_is_then_computed_alone() -> None:
    shapes = Shapes.of(64, packed=False)
    assert shapes.tried(Engine(row_counts_matter=False).run, [5, 6, 7]) == shapes
    alone = shapes.tried(Engine(row_counts_matter=True).run, [5, 6, 7])
    engine = Engine(row_counts_matter=True)
    alone.run([[1] * 3, [1] * 3, [1] * 8], engine.run)
    assert engine.shapes == [(1, 3), (1, 3), (1, 8)]


@pytest.mark.parametrize(
    ("packed", "expected", "padded"),
    [
        (False, [(1, 65), (1, 65), (2, 16), (2, 64), (3, 8)], [8, 8, 16, 64, 65, 65, 8]),
        (True, [(1, 65), (1, 65), (2, 64), (4, 32)], [32, 32, 32, 64, 65, 65, 32]),
    ],
)
def test_short_texts_share_batches_of_one_length_and_long_ones_are_alone(
    packed: bool, expected: list[tuple[int, int]], padded: list[int]
) -> None:
    engine = Engine(row_counts_matter=False)
    lengths = (3, 8, 9, 64, 65, 65, 7)
    found = Shapes.of(512, packed=packed).run([[length] * length for length in lengths], engine.run)
    assert sorted(engine.shapes) == expected
    assert found[:, 0].tolist() == [length * length for length in lengths]
    assert found[:, 1].tolist() == padded


@pytest.mark.parametrize(
    ("packed", "lengths", "expected"),
    [
        (True, [5], (4, 32)),  # 20 tokens
        (True, [8, 8], (4, 32)),
        (True, [8, 9], (2, 32)),
        (True, [17], (2, 32)),
        (False, [5], (3, 8)),  # 24 tokens with padding
        (False, [5, 9], (2, 16)),
    ],
)
def test_a_batch_of_few_tokens_is_computed_beside_itself(
    packed: bool, lengths: list[int], expected: tuple[int, int]
) -> None:
    engine = Engine(row_counts_matter=False)
    found = Shapes.of(512, packed=packed).run([[length] * length for length in lengths], engine.run)
    assert expected in engine.shapes
    assert found[:, 0].tolist() == [length * length for length in lengths]


@needs_bf16
def test_in_bf16_few_tokens_have_the_bits_of_many(tiny_models_dir: Path) -> None:
    encoder = opened(next(tiny_models_dir.glob("2*")), BF16, deterministic=True)
    random = np.random.default_rng(0)
    rows = [(2, *random.integers(5, 250, length).tolist(), 3) for length in random.integers(1, 7, 800)]
    pairs = np.concatenate([encoder.forward(rows[at : at + 2]) for at in range(0, len(rows), 2)])
    np.testing.assert_array_equal(encoder.forward(rows), pairs)


def test_no_text_is_padded_beyond_what_the_model_reads() -> None:
    assert Shapes.of(50, packed=False) == (48, 8, False)
    assert Shapes.of(50, packed=True) == (32, 32, True)
    assert Shapes.of(20, packed=True) == (0, 32, True)
