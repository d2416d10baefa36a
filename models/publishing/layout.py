"""Writes a version's files other than ONNX, in the layout of sentence-transformers. Start at `write_layout`.

Only listed file names are copied from the source, never pickles.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from models.graph.head import POOLING_FLAGS, POOLINGS, STATIC_MEAN, Head
from models.graph.layers import ACTIVATIONS, Dense, Layer, LayerNorm, Unit
from models.sources.files import optional_json
from models.sources.folder import Source
from models.sources.template import has_template
from models.tokens.tokenizer import FILE_NAME as TOKENIZER

_TOKENIZER_CONFIG = "tokenizer_config.json"
_FROM_BACKBONE = ("config.json", "special_tokens_map.json", "vocab.txt")
_FROM_FOLDER = ("README.md", "LICENSE", "LICENSE.txt")
_KINDS: dict[type[Layer], str] = {Dense: "Dense", LayerNorm: "LayerNorm", Unit: "Normalize"}
_TYPES = "sentence_transformers.models."
_IN_EVERY_RELEASE = ("cls", "mean", "max", "mean_sqrt_len_tokens")  # poolings whose flags are always written


def write_layout(source: Source, folder: Path) -> None:
    """Writes everything except onnx/, golden.json and manifest.json."""
    for file in (
        *(source.backbone / name for name in _FROM_BACKBONE),
        *(source.folder / name for name in _FROM_FOLDER),
    ):
        if file.is_file() and file not in source.skipped:
            shutil.copyfile(file, folder / file.name)
    for weights in source.weights:
        shutil.copyfile(weights, folder / weights.name)
    if len(source.weights) > 1:
        shutil.copyfile(
            source.backbone / "model.safetensors.index.json", folder / "model.safetensors.index.json"
        )
    if source.config != optional_json(source.backbone / "config.json"):  # A word table, or fewer layers.
        _write(folder / "config.json", source.config)
    _write(folder / TOKENIZER, published_tokenizer(source.tokenizer, source.max_length))
    _write(folder / _TOKENIZER_CONFIG, _tokenizer_config(source))
    _write_modules(source, folder)


def write_backbone(source: Source, folder: Path) -> None:
    """Writes a Hugging Face folder without weights."""
    for name in (*_FROM_BACKBONE, _TOKENIZER_CONFIG):
        if (source.backbone / name).is_file():
            shutil.copyfile(source.backbone / name, folder / name)
    _write(folder / TOKENIZER, source.tokenizer)


def published_tokenizer(tokenizer: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Sets truncation to the model's maximum and removes padding, because other tools use both settings."""
    truncation = {"direction": "Right", "max_length": max_length, "strategy": "LongestFirst", "stride": 0}
    return tokenizer | {"padding": None, "truncation": truncation}


def _tokenizer_config(source: Source) -> dict[str, Any]:
    """Adds maximum length and padding token, which some tools read only from this file."""
    config = optional_json(source.backbone / _TOKENIZER_CONFIG) | {"model_max_length": source.max_length}
    for token in source.tokenizer.get("added_tokens") or []:
        if token["id"] == source.config.get("pad_token_id"):
            config["pad_token"] = token["content"]
    if has_template(source.tokenizer):
        # The tokenizer classes of families would replace the post-processor, and lose the template.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    return config


def _write_modules(source: Source, folder: Path) -> None:
    transformer = optional_json(source.backbone / "sentence_bert_config.json") | {
        "max_seq_length": source.max_length
    }
    _write(folder / "sentence_bert_config.json", {"do_lower_case": False} | transformer)
    settings = optional_json(source.folder / "config_sentence_transformers.json")
    _write(
        folder / "config_sentence_transformers.json",
        {"default_prompt_name": None} | settings | {"prompts": source.prompts},
    )
    modules = [("StaticEmbedding" if source.is_table else "Transformer", "")]
    if not source.is_table or source.head.names != STATIC_MEAN:  # StaticEmbedding includes the mean.
        modules.append(("Pooling", "1_Pooling"))
        _write(folder / "1_Pooling" / "config.json", _pooling_config(source.head, source.width))
    for layer in source.head.layers:
        kind = _KINDS[type(layer)]
        modules.append((kind, f"{len(modules)}_{kind}"))
        _write_layer(folder / modules[-1][1], layer)
    modules.append(("Normalize", f"{len(modules)}_Normalize"))
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES + kind}
        for i, (kind, path) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)


def _pooling_config(head: Head, width: int) -> dict[str, Any]:
    """Returns the flags that every release reads, or the newer key if the order of poolings requires it.

    The newer key also holds poolings that sentence-transformers does not support, so that every release
    rejects them: old releases reject the key, new releases the name.
    """
    pooling = head.names
    shared: dict[str, Any] = {"include_prompt": False} if head.left_out else {}
    if list(pooling) != [mode for mode in POOLINGS if mode in pooling]:
        return shared | {"embedding_dimension": width, "pooling_mode": list(pooling)}
    later = {str(POOLING_FLAGS[mode]): True for mode in pooling if mode not in _IN_EVERY_RELEASE}
    flags = {str(POOLING_FLAGS[mode]): mode in pooling for mode in _IN_EVERY_RELEASE}
    return shared | later | {"word_embedding_dimension": width} | flags


def _write_layer(folder: Path, layer: Layer) -> None:
    config: dict[str, Any] = {}
    tensors = {}
    if isinstance(layer, Dense):
        tensors = {"linear.weight": layer.weight} | (
            {} if layer.bias is None else {"linear.bias": layer.bias}
        )
        out_features, in_features = layer.weight.shape
        config = {
            "in_features": in_features,
            "out_features": out_features,
            "bias": layer.bias is not None,
            "activation_function": next(name for name, own in ACTIVATIONS.items() if own == layer.activation),
        }
    elif isinstance(layer, LayerNorm):
        tensors = {"norm.weight": layer.weight, "norm.bias": layer.bias}
        config = {"dimension": len(layer.weight)}
    _write(folder / "config.json", config)
    if tensors:
        plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        (folder / "model.safetensors").write_bytes(save(plain, metadata={"format": "pt"}))


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
