"""Adopts an ONNX file of another tool: checks the inputs and appends missing parts. Start at `adopt`.

    The file outputs:                    Simile appends:
    token embeddings only                pooling, dense layers and normalization
    sentence_embedding as well           normalization (normalizing twice changes nothing)
    everything that Simile publishes     nothing
    logits of a cross-encoder            its activation

proof.py verifies the result.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, version_converter
from onnx.external_data_helper import load_external_data_for_model

from models.errors import Unsupported
from models.graph.bert import INPUTS
from models.graph.file import HIDDEN, LOGITS, POOLED, SCORES, SENTENCE
from models.graph.head import SCOPE, Head, append_head, append_normalize, append_scores
from models.graph.nodes import OPSET, Nodes, rename

_LOOPS = {"Loop", "Scan", "SequenceMap"}
_DEEPEST = 16  # Levels of nested graphs.
_OLDEST = 13  # The first opset in which Unsqueeze and ReduceSum take axes as an input (head.py).


def load_onnx(file: Path) -> onnx.ModelProto:
    """Loads a model with its weights, in an opset that head.py supports. Raises Unsupported."""
    try:
        model = onnx.load(file, load_external_data=False)
        require_bounded(model)
        load_external_data_for_model(model, str(file.parent))
        opset = _opset(model)
        if opset < _OLDEST:
            model = version_converter.convert_version(model, OPSET)
    except Unsupported:
        raise
    except Exception as error:  # noqa: BLE001  protobuf, the checker and the converter raise their own kinds
        raise Unsupported(f"{file} cannot be read as ONNX: {error}") from None
    return model


def require_bounded(model: onnx.ModelProto) -> None:
    """Rejects a graph with loops, which may run forever, and a graph that is nested too deeply."""
    left: list[tuple[Any, int]] = [(model.graph, 0), *((function, 0) for function in model.functions)]
    while left:
        graph, depth = left.pop()
        if depth > _DEEPEST:
            raise Unsupported(f"The ONNX graph is nested more than {_DEEPEST} levels deep.")
        for node in graph.node:
            if node.op_type in _LOOPS:
                raise Unsupported(
                    f"The ONNX graph has a {node.op_type} ({node.name or 'unnamed'}), which may never end. "
                    "Export the model without loops, or put model.safetensors next to it."
                )
            for attribute in node.attribute:
                inner = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
                left += [(each, depth + 1) for each in inner]


def adopt(model: onnx.ModelProto, head: Head, width: int) -> int:
    """Makes `model` output sentence_embedding, pooled_embedding and, if it can, last_hidden_state.

    A cross-encoder outputs scores and logits.

    Args:
        width: Token dimension, if the file does not declare it.

    Returns:
        The dimension of the sentence embedding, or the number of scores.

    Raises:
        Unsupported: The inputs or outputs are not supported.
    """
    graph = model.graph
    _check_inputs(graph)
    outputs = _read_outputs(graph)
    tokens = next((output for output in graph.output if len(output.type.tensor_type.shape.dim) == 3), None)
    if {SENTENCE, POOLED} <= outputs.keys():
        return _last(outputs[SENTENCE], width)
    nodes = Nodes(graph, SCOPE, _opset(model))
    if head.activation and LOGITS in outputs:
        dimension = _last(outputs[LOGITS], head.dimension(width))
        if SCORES not in outputs:
            append_scores(nodes, LOGITS, head.activation, dimension)
        return dimension
    del graph.output[:]
    if tokens is not None:
        if tokens.name != HIDDEN:
            nodes("Identity", tokens.name, out=HIDDEN)
        hidden = onnx.ValueInfoProto()
        hidden.CopyFrom(tokens)
        hidden.name = HIDDEN
        graph.output.append(hidden)
    if SENTENCE in outputs:
        dimension = _last(outputs[SENTENCE], width)
        rename(graph.node, SENTENCE, SCOPE + SENTENCE)
        append_normalize(nodes, SCOPE + SENTENCE, dimension)
    elif tokens is not None:
        if head.tokens != "last":
            raise Unsupported(
                f"The pooling {'+'.join(head.names)} needs the weights of a BERT: "
                "put model.safetensors next to the ONNX file."
            )
        dimension = head.dimension(_last(tokens, width))
        append_head(graph, tokens.name, head, dimension, _opset(model))
    else:
        raise Unsupported(
            f"The ONNX file outputs {', '.join(outputs)}: neither token embeddings nor "
            f"{LOGITS if head.activation else SENTENCE}."
        )
    return dimension


def _read_outputs(graph: onnx.GraphProto) -> dict[str, onnx.ValueInfoProto]:
    for output in graph.output:
        if output.type.tensor_type.elem_type != TensorProto.FLOAT:
            raise Unsupported(f"The ONNX output {output.name} is not float32; publish the float32 export.")
    return {output.name: output for output in graph.output}


def _check_inputs(graph: onnx.GraphProto) -> None:
    weights = {initializer.name for initializer in graph.initializer}
    inputs = {given.name for given in graph.input} - weights
    if not {"input_ids", "attention_mask"} <= inputs <= set(INPUTS):
        raise Unsupported(
            f"The ONNX file has the inputs {', '.join(sorted(inputs))}. Supported are {', '.join(INPUTS)}."
        )


def _opset(model: onnx.ModelProto) -> int:
    return next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), 1)


def _last(value: onnx.ValueInfoProto, otherwise: int) -> int:
    dims = value.type.tensor_type.shape.dim
    return int(dims[-1].dim_value) if dims and dims[-1].dim_value else otherwise
