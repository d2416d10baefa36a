"""Tiny rerankers with random weights, published without torch.

logit = sum over the tokens of the text of weight[token], plus 0.1 · the sum over the tokens of the query
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.graph.file import FINGERPRINT, LOGITS, SCORES, SPACE
from models.manifest import Manifest
from models.reranker import Reranker
from models.store import ModelStore
from tests.tiny import tiny_tokenizer

MAX_LENGTH = 32
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_ACTIVATIONS = {"sigmoid": "Sigmoid", "softmax": "Softmax", "identity": "Identity"}


def publish_reranker(root: Path, seed: int = 0, labels: tuple[str, ...] = ()) -> str:
    """Publishes a reranker in a models folder, and returns its version. With `labels`, it is a classifier."""
    outputs = len(labels) or 1
    activation = "softmax" if labels else "sigmoid"

    def build(folder: Path) -> Manifest:
        tokenizer = tiny_tokenizer()
        tokenizer.save(str(folder / "tokenizer.json"))
        words = tokenizer.get_vocab_size()
        _write(folder / "config.json", {"vocab_size": words, "pad_token_id": 0, "hidden_size": outputs})
        _write(folder / "tokenizer_config.json", {"model_input_names": [*INPUTS]})
        facts = {
            "seed": seed,
            "pooling": "cls",
            "search_prompt": "",
            "document_prompt": "",
            "max_length": MAX_LENGTH,
            "dimension": outputs,
            "activation": activation,
        }
        space = json.dumps(facts)
        fingerprint = hashlib.sha256(space.encode()).hexdigest()
        graph = _graph(words, outputs, seed, activation)
        helper.set_model_props(graph, {SPACE: space, FINGERPRINT: fingerprint})
        (folder / "onnx").mkdir()
        onnx.save(graph, folder / "onnx" / "model.onnx")
        _write(folder / "golden.json", {"pairs": [], "scores": []})
        now = datetime.now(UTC)
        return Manifest.model_validate(
            {
                "kind": "reranker",
                "version": f"{now:%Y%m%dT%H%M%S}-reranker-{seed}-{fingerprint[:8]}",
                "fingerprint": fingerprint,
                "created": now.isoformat(),
                "origin": f"reranker-{seed}",
                "dimension": outputs,
                "labels": [*labels],
                "activation": activation,
                "max_length": MAX_LENGTH,
                "pooling": "cls",
                "normalize": False,
            }
        )

    return ModelStore(root).publish(build).version


def _graph(words: int, outputs: int, seed: int, activation: str) -> onnx.ModelProto:
    weights = np.random.default_rng(seed).normal(0, 1, (words, outputs)).astype(np.float32)
    names = [helper.make_tensor_value_info(name, TensorProto.INT64, ["n", "length"]) for name in INPUTS]
    results = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", outputs]) for name in (LOGITS, SCORES)
    ]
    constants: dict[str, NDArray[Any]] = {
        "weights": weights,
        "tenth": np.array(0.1, np.float32),
        "rest": np.array(0.9, np.float32),
        "last": np.array([2], np.int64),
        "middle": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["each"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["types", "rest"], ["more"]),
        helper.make_node("Add", ["more", "tenth"], ["share"]),
        helper.make_node("Mul", ["share", "mask"], ["counted"]),
        helper.make_node("Unsqueeze", ["counted", "last"], ["column"]),
        helper.make_node("Mul", ["each", "column"], ["parts"]),
        helper.make_node("ReduceSum", ["parts", "middle"], [LOGITS], keepdims=0),
        helper.make_node(_ACTIVATIONS[activation], [LOGITS], [SCORES]),
    ]
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "reranker", names, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


# Faults of `Reranker.forward`.


def nan(self: Reranker, ids: Any, **_: object) -> Any:
    return np.full((len(ids), 1), np.nan, np.float32)


def no_memory(self: Reranker, ids: Any, **_: object) -> Any:
    raise MemoryError("no room")


def broken(self: Reranker, ids: Any, **_: object) -> Any:
    raise RuntimeError("the graph broke")
