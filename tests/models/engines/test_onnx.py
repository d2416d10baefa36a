"""The ONNX Runtime engine: a close during a pass, and equal vectors of its two sessions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models.encoder import Encoder
from models.engines import malloc, opening
from models.engines.form import FP32, Form
from models.engines.onnx import OnnxEngine
from tests.models.forms import counted

ROWS, WIDTH = 30_522, 384  # As in the default model. Memory of this size is unmapped when it is freed.
LOOKS = 60  # Reads per pass, so that a pass reads the whole table.

CLOSING = """
import sys, threading, time
from pathlib import Path
import numpy as np
from models.engines.form import FP32
from models.engines.onnx import OnnxEngine

file = Path(sys.argv[1])
feed = {"input_ids": np.arange(128 * 16).reshape(128, 16)}

def opened():
    engine = OnnxEngine(file, FP32, 1)
    return engine, engine.again(2) if sys.argv[2] == "beside" else engine

first, computing = opened()
started = time.perf_counter()
want = computing.run(feed, "sentence_embedding")
seconds = time.perf_counter() - started
assert np.abs(want).min() > 0.1
refused = 0
for turn in range(6):
    first, computing = opened()
    found = []
    begun = threading.Event()

    def work():
        begun.set()
        found.append(computing.run(feed, "sentence_embedding"))

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait()
    time.sleep(seconds * (0.1 + turn % 4 * 0.2))
    first.close()
    others = [np.full((30_522, 384), 7, np.float32)]  # takes the freed block, if there is one
    thread.join()
    np.testing.assert_array_equal(found, [want])
    try:
        first.run(feed, "sentence_embedding")
    except AttributeError:
        refused += 1
print(refused)
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A graph that reads `LOOKS` times from a table as large as the default model's."""
    table = np.random.default_rng(0).normal(1, 0.01, (ROWS, WIDTH)).astype(np.float32)
    tensors = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(np.array([1]), "axis")]
    nodes, terms = [], []
    for look in range(LOOKS):
        tensors.append(numpy_helper.from_array(np.array(look * 400), f"shift{look}"))
        nodes += [
            helper.make_node("Add", ["input_ids", f"shift{look}"], [f"ids{look}"]),
            helper.make_node("Gather", ["table", f"ids{look}"], [f"rows{look}"]),
            helper.make_node("ReduceMean", [f"rows{look}", "axis"], [f"mean{look}"], keepdims=0),
        ]
        terms.append(f"mean{look}")
    nodes.append(helper.make_node("Sum", terms, ["sentence_embedding"]))
    graph = helper.make_graph(
        nodes,
        "looks",
        [helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["rows", "length"])],
        [helper.make_tensor_value_info("sentence_embedding", TensorProto.FLOAT, ["rows", WIDTH])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    file: Path = tmp_path_factory.mktemp("looks") / "model.onnx"
    onnx.save(model, str(file))
    return file


@pytest.mark.parametrize(
    ("form", "stay", "callers", "longest", "arena"),
    [
        (opening.INT8, False, 1, 512, True),
        (opening.INT8, False, 2, 512, False),
        (opening.INT8, False, 2, 8192, True),
        (FP32, False, 2, 512, True),
        (FP32, True, 1, 512, True),
        (FP32, True, 2, 512, False),
        (FP32, True, 2, 8192, True),
    ],
)
def test_concurrent_calls_of_short_texts_share_no_arena(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    form: Form,
    stay: bool,
    callers: int,
    longest: int,
    arena: bool,
) -> None:
    monkeypatch.setattr(malloc, "buffers_stay", stay)
    monkeypatch.setattr(opening, "INT8_NAME", file.name)
    monkeypatch.setattr(opening, "require", lambda *_: None)  # This machine may lack the instructions.
    engine = opening.open_engine(file, form, 1, callers, longest=longest)
    assert isinstance(engine, OnnxEngine)
    assert engine._session.get_session_options().enable_cpu_mem_arena == arena
    assert engine.again(2)._session.get_session_options().enable_cpu_mem_arena, "one call at a time"


@pytest.mark.long
@pytest.mark.parametrize("which", ["itself", "beside"])
def test_a_pass_that_runs_while_the_engine_is_closed_ends_with_its_vectors(file: Path, which: str) -> None:
    """Runs in its own process, which would crash if the close freed the table."""
    command = [sys.executable, "-c", CLOSING, str(file), which]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.split()) == (0, ["6"]), found.stderr


@pytest.mark.long
def test_the_default_model_gives_a_text_one_vector_by_one_thread_by_two_and_in_a_padded_batch(
    default_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.open(next(default_models_dir.glob("2*")))
    encoder.open_single_text(2)
    computed = counted(encoder._single_text, monkeypatch)
    chance = np.random.default_rng(1)
    lengths = [3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65, 100, 128, 129, 200, 255, 256]
    rows = [[101, *chance.integers(1996, 30_522, length - 2).tolist(), 102] for length in lengths]
    usual = np.concatenate([encoder.forward([row]) for row in rows])
    alone = np.concatenate([encoder.forward([row], single_text=True) for row in rows])
    assert computed == [(1, length) for length in lengths]
    np.testing.assert_allclose(alone, usual, atol=1e-6, rtol=0)
    np.testing.assert_allclose(encoder.forward(rows), alone, atol=1e-6, rtol=0)
    for at in range(0, len(rows), 2):  # in a batch with a longer row
        padded = encoder.forward([rows[at], rows[-1], rows[0]])
        np.testing.assert_allclose(padded[0], alone[at], atol=1e-6, rtol=0)
    encoder.close()
