"""Computes the fingerprint, a hash that identifies a vector space.

    fingerprint = SHA-256 of the space: everything that determines a vector, as canonical JSON
        tensors     hash over the sorted hashes of the graph's tensors (with names; floats as float32)
        backbone    sizes and functions: heads, activation, epsilon …; empty if static
        tokenizer   tokenizer.json without padding and truncation
        pooling, head, post, search_prompt, document_prompt, max_length, dimension
        left_out    prompts that are not pooled, if any
        activation, typed    of a cross-encoder: from logits to scores; whether tokens have types

The ONNX file stores the space and the fingerprint, so a wrong manifest is detected. For families
that Simile builds from weights, a new export of the same model has the same fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from models.graph.backbone import Tensors
from models.graph.families import AnyBackbone
from models.graph.head import SCOPE, Dense, Layer, Unit, layer_tensors
from models.sources.folder import Source

Space = dict[str, Any]


def build_space(source: Source, tensors: str, backbone: AnyBackbone | None, dimension: int) -> Space:
    """Builds the space of a source: everything that determines its vectors.

    Args:
        tensors: Hash of the tensors, by `hash_tensors` or `hash_initializers`.
        backbone: Sizes of the encoder; None if they are unknown.
    """
    left_out = {"left_out": source.head.left_out} if source.head.left_out else {}
    scoring = source.scoring
    scores = {"activation": source.head.activation, "typed": scoring.typed, "post": []} if scoring else {}
    tokenizer = {key: part for key, part in source.tokenizer.items() if key not in ("padding", "truncation")}
    return (
        left_out
        | {
            "tensors": tensors,
            "backbone": backbone.said if backbone and source.head.tokens != "static" else {},
            "tokenizer": hashlib.sha256(canonical(tokenizer)).hexdigest(),
            "pooling": "+".join(source.head.names),
            "head": [hash_layer(layer) for layer in source.head.layers],
            "post": ["normalize"],
            "search_prompt": source.search_prompt,
            "document_prompt": source.document_prompt,
            "max_length": source.max_length,
            "dimension": dimension,
        }
        | scores
    )


def compute_fingerprint(space: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(space)).hexdigest()


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def hash_tensors(tensors: Tensors) -> str:
    return _combine(_hash_tensor(name, tensor) for name, tensor in tensors.items())


def hash_initializers(graph: onnx.GraphProto) -> str:
    """Hashes the tensors of an ONNX graph, for a folder without other weights.

    Values that head.py appended are left out.
    """
    return _combine(
        _hash_tensor(name, array) for name, array in _constants(graph) if not name.startswith(SCOPE)
    )


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, NDArray[Any]]]:
    for initializer in graph.initializer:
        yield initializer.name, numpy_helper.to_array(initializer)
    for node in graph.node:  # Some exporters store weights in Constant nodes.
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], numpy_helper.to_array(attribute.t)


def hash_layer(layer: Layer) -> list[str]:
    if isinstance(layer, Unit):
        return ["", "normalize"]
    kind = layer.activation if isinstance(layer, Dense) else f"norm {layer.epsilon}"
    return [hash_tensors(layer_tensors(layer)), kind]


def _hash_tensor(name: str, tensor: NDArray[Any]) -> str:
    whole = np.issubdtype(tensor.dtype, np.floating)
    values = np.ascontiguousarray(tensor, dtype=np.float32 if whole else None)
    digest = hashlib.sha256(f"{name} {values.dtype} {list(tensor.shape)}\n".encode())
    digest.update(values.data)
    return digest.hexdigest()


def _combine(hashes: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()
