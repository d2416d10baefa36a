"""An opened version: batches, order, padding, threads, and refusals."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models.encoder import BadTokens, Encoder, TooLong
from models.engines.form import FP32
from models.engines.onnx import OnnxEngine
from models.graph.file import read_table
from models.manifest import Manifest
from models.tokens.texts import PROOF_TEXTS, long_text
from models.tokens.tokenizer import build_feed
from tests.models.forms import counted
from tests.tiny import MAX_LENGTH, ROUNDING, WIDTH
from tests.waiting import LIMIT

TEXTS = [*PROOF_TEXTS, *(long_text(n)[n:] for n in range(2, 60))]


@pytest.fixture(scope="module")
def alone(encoder: Encoder) -> np.ndarray:
    return np.concatenate([encoder.forward([row.ids]) for row in encoder.tokenize(TEXTS)])


def test_it_knows_what_it_serves(encoder: Encoder, tiny_models_dir: Path) -> None:
    manifest = Manifest.read(next(tiny_models_dir.glob("2*")))
    assert encoder.manifest == manifest
    assert (encoder.dimension, encoder.max_length) == (WIDTH, MAX_LENGTH)
    assert encoder.fingerprint == manifest.fingerprint
    assert encoder.providers == ["CPUExecutionProvider"]


@pytest.mark.parametrize("seed", range(5))
def test_a_vector_does_not_depend_on_its_neighbors(encoder: Encoder, alone: np.ndarray, seed: int) -> None:
    order = list(range(len(TEXTS)))
    random.Random(seed).shuffle(order)
    rows = encoder.tokenize([TEXTS[i] for i in order])
    size = (1, 2, 7, 33, 81)[seed]
    for start in range(0, len(order), size):
        batch = encoder.forward([row.ids for row in rows[start : start + size]])
        np.testing.assert_allclose(batch, alone[order[start : start + size]], atol=1e-6, rtol=0)


def test_encode_keeps_the_order_and_counts_tokens(encoder: Encoder, alone: np.ndarray) -> None:
    encoded = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoded.vectors, alone, atol=1e-6, rtol=0)
    np.testing.assert_allclose(np.linalg.norm(encoded.vectors, axis=1), 1, atol=1e-6)
    rows = encoder.tokenize(TEXTS)
    assert encoded.tokens == [len(row.ids) for row in rows]
    assert encoded.truncated == [row.truncated for row in rows]
    assert 0 < sum(encoded.truncated) < len(TEXTS)
    assert encoded.vectors.dtype == np.float32


def test_many_texts_are_encoded_in_groups_and_come_back_in_order(encoder: Encoder, alone: np.ndarray) -> None:
    encoded = encoder.encode(TEXTS * 20)  # more tokens than fit into one group
    np.testing.assert_allclose(encoded.vectors, np.tile(alone, (20, 1)), atol=1e-6, rtol=0)


def test_token_vectors_are_the_graphs_own_without_padding(encoder: Encoder) -> None:
    assert encoder.has_tokens
    texts = [TEXTS[0], TEXTS[40], TEXTS[3]]
    found = encoder.encode_tokens(texts)
    session = onnxruntime.InferenceSession(encoder.folder / "onnx" / "model.onnx")
    for text, vectors in zip(texts, found, strict=True):
        [row] = encoder.tokenize([text])
        [expected] = session.run(["last_hidden_state"], build_feed([row.ids], encoder._engine.inputs))
        expected = expected[0] / np.linalg.norm(expected[0], axis=1, keepdims=True)
        np.testing.assert_allclose(vectors, expected, atol=ROUNDING)
    assert encoder.encode_tokens([]) == []


def test_nothing_encoded_is_an_empty_matrix(encoder: Encoder) -> None:
    assert encoder.encode([]).vectors.shape == (0, WIDTH)


def test_without_normalization_the_vector_keeps_its_length(encoder: Encoder, alone: np.ndarray) -> None:
    raw = encoder.forward([row.ids for row in encoder.tokenize(TEXTS)], normalize=False)
    lengths = np.linalg.norm(raw, axis=1, keepdims=True)
    assert abs(lengths - 1).min() > 0.1
    np.testing.assert_allclose(raw / lengths, alone, atol=2e-6, rtol=0)


def test_threads_share_one_encoder(encoder: Encoder, alone: np.ndarray) -> None:
    start = threading.Barrier(8)

    def work(seed: int) -> float:
        start.wait()
        order = random.Random(seed).sample(range(len(TEXTS)), 40)
        vectors = encoder.encode([TEXTS[i] for i in order]).vectors
        return float(np.abs(vectors - alone[order]).max())

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(work, range(32), timeout=LIMIT)) <= 1e-6


def test_one_thread_computes_on_the_thread_that_calls(tiny_models_dir: Path) -> None:
    code = f"""
from pathlib import Path
from models.encoder import Encoder
def threads(): return len(list(Path("/proc/self/task").iterdir()))
before = threads()
for wanted in (1, 3):
    encoder = Encoder.open(Path({str(next(tiny_models_dir.glob("2*")))!r}), threads=wanted)
    encoder.encode(["a", "the market"])
    print(threads() - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["0", "2"]


def test_a_text_that_is_too_long_is_refused_when_it_may_not_be_cut(encoder: Encoder) -> None:
    with pytest.raises(TooLong) as caught:
        encoder.encode(["short", long_text(100)], truncate=False)
    assert (caught.value.index, caught.value.allowed) == (1, MAX_LENGTH)
    assert encoder.encode(["short"], truncate=False).truncated == [False]


def test_token_ids_give_the_vector_of_their_text(encoder: Encoder) -> None:
    text = "the red market"
    ids = encoder.check_ids(list(encoder.tokenize([text])[0].ids))
    np.testing.assert_array_equal(encoder.forward([ids.ids]), encoder.encode([text]).vectors)
    with pytest.raises(BadTokens):
        encoder.check_ids([2, 250, 3])  # 250 is the first id beyond the vocabulary.


def test_left_truncation_keeps_the_end(encoder: Encoder) -> None:
    text = long_text(300)
    end = " ".join(text.split()[-3:])
    kept = encoder.tokenize([text], left=True)[0]
    content = list(encoder.tokenize([end])[0].ids)[1:-1]
    assert list(kept.ids)[-1 - len(content) : -1] == content
    assert len(kept.ids) == MAX_LENGTH


def test_a_closed_encoder_frees_its_session(tiny_models_dir: Path) -> None:
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")))
    encoder.close()
    with pytest.raises(AttributeError):
        encoder.forward([[2, 5, 3]])
    encoder.open_single_text(2)
    assert encoder._single_text is None, "it is not opened once more"


def test_a_text_computed_by_two_threads_has_the_vector_of_one(
    tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")))
    rows = [row.ids for row in encoder.tokenize(TEXTS)]
    before = [encoder.forward([ids], single_text=True) for ids in rows]
    assert not encoder.has_single_text
    encoder.open_single_text(2)
    computed = counted(encoder._single_text, monkeypatch)
    for normalize in (True, False):
        for ids in rows:
            usual = encoder.forward([ids], normalize=normalize)
            found = encoder.forward([ids], normalize=normalize, single_text=True)
            np.testing.assert_allclose(found, usual, atol=1e-6)
    assert len(computed) == 2 * len(rows)
    assert encoder.drop_single_text()
    assert not encoder.has_single_text
    assert not encoder.drop_single_text()
    encoder.forward([rows[0]], single_text=True)
    assert len(computed) == 2 * len(rows)
    np.testing.assert_array_equal(np.concatenate(before), [encoder.forward([ids])[0] for ids in rows])
    encoder.close()


def test_a_deterministic_encoder_has_one_way_of_computing(tiny_models_dir: Path) -> None:
    encoder = Encoder.open(next(tiny_models_dir.glob("2*")), deterministic=True)
    encoder.open_single_text(2)
    assert not encoder.opens_single_text
    assert encoder._single_text is None


def test_both_sessions_use_one_table_of_the_vocabulary(tiny_models_dir: Path) -> None:
    file = next(tiny_models_dir.glob("2*/onnx/model.onnx"))
    held = {tensor.name: tensor for tensor in onnx.load(str(file)).graph.initializer}
    table = read_table(file)
    assert table is not None
    assert table.name == "embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(table.values, onnx.numpy_helper.to_array(held[table.name]))
    first = OnnxEngine(file, FP32, 1)
    second = first.again(2)
    shared = [engine._shared[table.name].data_ptr() for engine in (first, second)]
    assert shared[0] == shared[1]
    feed = {name: np.ones((1, 4), np.int64) for name in first.inputs}
    first._shared[table.name].update_inplace(np.zeros_like(table.values))
    changed = [engine.run(feed, "sentence_embedding") for engine in (first, second)]
    np.testing.assert_allclose(changed[0], changed[1], atol=1e-6)
    untouched = OnnxEngine(file, FP32, 1).run(feed, "sentence_embedding")
    assert np.abs(changed[0] - untouched).max() > 0.001
