"""A reranker in the engines for other precisions and devices."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from models.engines import opening
from models.engines.gpu_graph import joined, to_half
from models.engines.opening import BF16
from models.graph.backbone import Backbone
from models.graph.file import LOGITS, SCORES
from models.manifest import ONNX
from models.publishing.default import publish_named
from models.publishing.scores import PROOF_PAIRS, check_golden_scores
from models.reranker import Reranker
from models.store import ModelStore
from models.tokens.tokenizer import build_feed
from tests.tiny import tiny_cross_encoder

LABELS = [(), ("no", "yes", "unknown")]


@pytest.fixture(params=LABELS, ids=["score", "labels"])
def reranker(tmp_path: Path, request: pytest.FixtureRequest) -> Reranker:
    store = ModelStore(tmp_path / "models")
    source = tiny_cross_encoder(tmp_path / "source", labels=request.param)
    return store.open_reranker(publish_named(store, str(source)).version)


@pytest.mark.parametrize("half", [False, True])
def test_the_graph_for_a_gpu_gives_the_same_scores(reranker: Reranker, half: bool) -> None:
    backbone = Backbone.from_config(json.loads((reranker.folder / "config.json").read_bytes()))
    model = joined(onnx.load(reranker.folder / ONNX), backbone)
    if half:
        to_half(model)
    assert [output.name for output in model.graph.output] == [SCORES, LOGITS]
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    rows = [row.ids for row in reranker.tokenize(PROOF_PAIRS)]
    feed = build_feed(rows, [given.name for given in session.get_inputs()])
    scores, logits = session.run([SCORES, LOGITS], feed)
    allowed = 0.05 if half else 1e-5
    np.testing.assert_allclose(logits, reranker.score(PROOF_PAIRS, normalize=False), atol=allowed, rtol=0)
    np.testing.assert_allclose(scores, reranker.score(PROOF_PAIRS), atol=allowed, rtol=0)


def test_openvino_gives_nearly_the_same_scores(reranker: Reranker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor without bf16 computes in fp32."""
    pytest.importorskip("models.engines.openvino", reason="the extra `openvino` is not installed")
    monkeypatch.setattr(opening, "require", lambda form, place: None)
    other = Reranker.open(reranker.folder, form=BF16)
    expected, found = (each.score(PROOF_PAIRS) for each in (reranker, other))
    np.testing.assert_allclose(found, expected, atol=0.05, rtol=0.05)
    assert check_golden_scores(other, reranker.folder) < 0.001
    assert other.turned is not None
    other.close()
