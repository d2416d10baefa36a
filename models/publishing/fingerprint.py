"""The fingerprint: one hash that names a vector space.

    fingerprint = SHA-256 of the space: what decides a vector, as canonical JSON
        tensors     hash over the sorted hashes of the tensors that the graph uses (backbone names, float32)
        backbone    the sizes and functions that are no tensor: heads, activation, epsilon …; none if static
        tokenizer   tokenizer.json without padding and truncation
        pooling, head, post, search_prompt, document_prompt, max_length, dimension

The space travels inside the ONNX file beside its hash, so a manifest that says something else about the
model is found out. The ONNX bytes are not hashed: the same model exported twice, or by another tool, keeps
its name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from models.graph.backbone import Backbone, Tensors
from models.graph.head import SCOPE
from models.sources.folder import Source

Space = dict[str, Any]


def space_of(source: Source, tensors: str, backbone: Backbone | None, dimension: int) -> Space:
    """tensors: as `hash_tensors` or `hash_initializers` gives it."""
    return {
        "tensors": tensors,
        "backbone": asdict(backbone) if backbone and source.head.tokens != "static" else {},
        "tokenizer": hash_tokenizer(source.tokenizer),
        "pooling": "+".join(source.head.names),
        "head": [_hash_dense(dense.weight, dense.bias, dense.activation) for dense in source.head.dense],
        "post": ["normalize"],
        "search_prompt": source.search_prompt,
        "document_prompt": source.document_prompt,
        "max_length": source.max_length,
        "dimension": dimension,
    }


def fingerprint_of(space: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical(space)).hexdigest()


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def hash_tensors(tensors: Tensors) -> str:
    return _combine(_hash_tensor(name, tensor) for name, tensor in tensors.items())


def hash_initializers(graph: onnx.GraphProto) -> str:
    """For a folder with ONNX only. What head.py appended is left out, so importing again changes nothing."""
    return _combine(
        _hash_tensor(name, array) for name, array in _constants(graph) if not name.startswith(SCOPE)
    )


def hash_tokenizer(tokenizer: Mapping[str, Any]) -> str:
    kept = {key: value for key, value in tokenizer.items() if key not in ("padding", "truncation")}
    return hashlib.sha256(canonical(kept)).hexdigest()


def _constants(graph: onnx.GraphProto) -> Iterator[tuple[str, NDArray[Any]]]:
    for initializer in graph.initializer:
        yield initializer.name, numpy_helper.to_array(initializer)
    for node in graph.node:  # some exporters keep weights in Constant nodes
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], numpy_helper.to_array(attribute.t)


def _hash_dense(weight: NDArray[np.float32], bias: NDArray[np.float32] | None, activation: str) -> list[str]:
    tensors = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    return [hash_tensors(tensors), activation]


def _hash_tensor(name: str, tensor: NDArray[Any]) -> str:
    whole = np.issubdtype(tensor.dtype, np.floating)
    values = np.ascontiguousarray(tensor, dtype=np.float32 if whole else None)
    digest = hashlib.sha256(f"{name} {values.dtype} {list(tensor.shape)}\n".encode())
    digest.update(values.data)
    return digest.hexdigest()


def _combine(hashes: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(sorted(hashes)).encode()).hexdigest()
