"""Writes the files of a version that other tools read, except the ONNX files. Start at `write_layout`.

The files follow the layout of sentence-transformers. Only known file names are copied from the source, and
never pickles. `write_card` writes MODEL_CARD.md, which describes the version. README.md is the model card of
the source.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from models.graph.file import SCORES
from models.graph.head import (
    ACTIVATIONS,
    POOLING_FLAGS,
    POOLINGS,
    STATIC_MEAN,
    Dense,
    Head,
    Layer,
    LayerNorm,
    Unit,
    layer_tensors,
)
from models.manifest import ANCHOR, QUERIES, Manifest, QuantizedScores
from models.sources.files import optional_json
from models.sources.folder import Source
from models.sources.reranker import ACTIVATION_NAMES, CROSS_ENCODER
from models.sources.template import has_template
from models.tokens.pairs import INPUT_NAMES, TOKENIZER_CONFIG
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import TYPES

_FROM_BACKBONE = ("config.json", "special_tokens_map.json", "vocab.txt")
_FROM_FOLDER = ("README.md", "LICENSE", "LICENSE.txt")
_KINDS: dict[type[Layer], str] = {Dense: "Dense", LayerNorm: "LayerNorm", Unit: "Normalize"}
_TYPES = "sentence_transformers.models."
_IN_EVERY_RELEASE = ("cls", "mean", "max", "mean_sqrt_len_tokens")  # poolings whose flags are always written


def write_layout(source: Source, folder: Path) -> None:
    """Writes the files of a version except onnx/, golden.json, manifest.json and MODEL_CARD.md."""
    for file in (
        *(source.backbone / name for name in _FROM_BACKBONE),
        *(source.folder / name for name in _FROM_FOLDER),
    ):
        if file.is_file() and file not in source.skipped:
            shutil.copyfile(file, folder / file.name)
    for weights in source.weights:
        shutil.copyfile(weights, folder / weights.name)
    if len(source.weights) > 1:
        index = "model.safetensors.index.json"
        shutil.copyfile(source.backbone / index, folder / index)
    if source.config != optional_json(source.backbone / "config.json"):  # A word table, or fewer layers.
        _write(folder / "config.json", source.config)
    _write(folder / TOKENIZER, published_tokenizer(source.tokenizer, source.max_length))
    _write(folder / TOKENIZER_CONFIG, _tokenizer_config(source))
    _write_modules(source, folder)


def write_backbone(source: Source, folder: Path) -> None:
    """Writes the folder of the transformer in Hugging Face's layout, without weights."""
    for name in (*_FROM_BACKBONE, TOKENIZER_CONFIG):
        if (source.backbone / name).is_file():
            shutil.copyfile(source.backbone / name, folder / name)
    _write(folder / TOKENIZER, source.tokenizer)


def published_tokenizer(tokenizer: dict[str, Any], max_length: int) -> dict[str, Any]:
    """Returns a tokenizer.json that truncates to the model's maximum and does not pad.

    Simile ignores both settings, but other tools use them.
    """
    truncation = {"direction": "Right", "max_length": max_length, "strategy": "LongestFirst", "stride": 0}
    return tokenizer | {"padding": None, "truncation": truncation}


def _tokenizer_config(source: Source) -> dict[str, Any]:
    """Returns a tokenizer_config.json with the maximum length and the padding token.

    Some tools read these two settings only from this file.
    """
    config = optional_json(source.backbone / TOKENIZER_CONFIG) | {"model_max_length": source.max_length}
    for token in source.tokenizer.get("added_tokens") or []:
        if token["id"] == source.config.get("pad_token_id"):
            config["pad_token"] = token["content"]
    if has_template(source.tokenizer):
        # The tokenizer classes of families would replace the post-processor, and lose the template.
        config["tokenizer_class"] = "PreTrainedTokenizerFast"
    if source.scoring:
        types = [TYPES] if source.scoring.typed else []
        config[INPUT_NAMES] = ["input_ids", *types, "attention_mask"]
    return config


def _write_modules(source: Source, folder: Path) -> None:
    transformer = optional_json(source.backbone / "sentence_bert_config.json") | {
        "max_seq_length": source.max_length
    }
    scoring = source.scoring
    classifies = scoring is not None and scoring.classifies
    if classifies:
        transformer["transformer_task"] = "sequence-classification"
    _write(folder / "sentence_bert_config.json", {"do_lower_case": False} | transformer)
    name = "config_sentence_transformers.json"
    settings = optional_json(source.folder / name) | {"prompts": source.prompts}
    if scoring:
        settings |= {"model_type": CROSS_ENCODER, "activation_fn": ACTIVATION_NAMES[scoring.activation]}
    _write(folder / name, {"default_prompt_name": None} | settings)
    modules = [("StaticEmbedding" if source.is_table else "Transformer", "")]
    if not classifies:
        modules += _write_head(source, folder)
    write_modules(folder, modules)


def _write_head(source: Source, folder: Path) -> list[tuple[str, str]]:
    """Writes the modules after the transformer. Returns the kind and the folder of each."""
    modules = []
    if not source.is_table or source.head.names != STATIC_MEAN:  # StaticEmbedding includes the mean.
        modules.append(("Pooling", "1_Pooling"))
        _write(folder / "1_Pooling" / "config.json", _pooling_config(source.head, source.width))
    for layer in source.head.layers:
        kind = _KINDS[type(layer)]
        modules.append((kind, f"{1 + len(modules)}_{kind}"))
        scores = source.scoring is not None and layer is source.head.layers[-1]
        _write_layer(folder / modules[-1][1], layer, SCORES if scores else "")
    if source.scoring is None:
        modules.append(("Normalize", f"{1 + len(modules)}_Normalize"))
    return modules


def write_modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    """Writes modules.json, given the kind and the folder of each module."""
    listed = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES + kind}
        for i, (kind, path) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)


def _pooling_config(head: Head, width: int) -> dict[str, Any]:
    """Returns the configuration of the pooling module.

    The configuration has one flag per pooling, or the newer key `pooling_mode` if the order of the poolings
    matters. Poolings that sentence-transformers does not support are written to the newer key as well, so
    that every release rejects them: old releases reject the key, new releases reject the name.
    """
    pooling = head.names
    shared: dict[str, Any] = {"include_prompt": False} if head.left_out else {}
    if list(pooling) != [mode for mode in POOLINGS if mode in pooling]:
        return shared | {"embedding_dimension": width, "pooling_mode": list(pooling)}
    later = {str(POOLING_FLAGS[mode]): True for mode in pooling if mode not in _IN_EVERY_RELEASE}
    flags = {str(POOLING_FLAGS[mode]): mode in pooling for mode in _IN_EVERY_RELEASE}
    return shared | later | {"word_embedding_dimension": width} | flags


def _write_layer(folder: Path, layer: Layer, output: str = "") -> None:
    config: dict[str, Any] = {}
    tensors = layer_tensors(layer)
    if isinstance(layer, Dense):
        out_features, in_features = layer.weight.shape
        config = {
            "in_features": in_features,
            "out_features": out_features,
            "bias": layer.bias is not None,
            "activation_function": next(name for name, own in ACTIVATIONS.items() if own == layer.activation),
        }
        config |= {"module_output_name": output} if output else {}
    elif isinstance(layer, LayerNorm):
        config = {"dimension": len(layer.weight)}
    _write(folder / "config.json", config)
    if tensors:
        plain = {name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}
        (folder / "model.safetensors").write_bytes(save(plain, metadata={"format": "pt"}))


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")


CARD = "MODEL_CARD.md"
_NOT_MEASURED = (
    "The quality of this version was not measured when it was published. Its results were checked against "
    "those of the weights, as golden.json shows."
)
_ENCODER = (
    "A sentence encoder. It turns a text into a vector of {0} numbers and of length 1; texts of like meaning "
    "have a large inner product."
)
_RERANKER = (
    "A cross-encoder. It reads a query and a text together, and returns {0} {1} of the pair, no vectors."
)


def write_card(
    folder: Path, manifest: Manifest, measured: Iterable[str] = (_NOT_MEASURED,), limits: Iterable[str] = ()
) -> None:
    """Writes the model card into a folder that is not sealed yet.

    Args:
        measured: Paragraphs of Markdown about quality.
        limits: Additional limits of the model, one sentence each.
    """
    about = _RERANKER if manifest.kind == "reranker" else _ENCODER
    about = about.format(manifest.dimension, "scores" if manifest.dimension > 1 else "score")
    parts = [
        f"# {manifest.version}",
        about,
        "## Origin",
        _bullets(_origin(manifest)),
        "## Measured",
        *measured,
        *_int8(manifest),
        *_pair(manifest),
        "## Limits",
        _bullets([*_limits(manifest), *limits]),
        "## Use",
        *_use(manifest),
    ]
    (folder / CARD).write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _origin(manifest: Manifest) -> Iterator[str]:
    lineage = manifest.lineage
    if "method" not in lineage:
        yield f"Imported from {lineage.get('source', manifest.origin)}, and not trained here."
    else:
        rows = f" on {lineage['texts']:,} rows" if "texts" in lineage else ""
        yield f"Trained by the recipe {lineage['method']}{rows}, in {lineage['steps']:,} steps."
        yield f"Base, where the training began: {lineage['base']}."
        if "share" in lineage:
            yield f"{lineage['share']:.0%} of the way from the base to the trained weights was kept."
    for collection, use in sorted(manifest.search.items()):
        passages = f", passages of {use.passage_tokens} tokens" if use.passage_tokens else ""
        yield (
            f"Learned search settings of the collection {collection}: {use.mode}, weight {use.weight:g} of "
            f"the vectors{passages}."
        )
    if manifest.parent:
        yield f"Parent: {manifest.parent}."
    if ANCHOR in lineage:
        yield f"Anchor, the imported model of its line: {lineage[ANCHOR]}."
    yield f"Published: {manifest.created}."
    yield f"Fingerprint of its vector space: {manifest.fingerprint}."


def _int8(manifest: Manifest) -> Iterator[str]:
    cost = manifest.quantised
    if isinstance(cost, QuantizedScores):
        yield (
            f"The graph in 8 bits was compared with float32 on {cost.measured_on:,} pairs: the correlation "
            f"of their logits is {cost.correlation:.4f}, and their scores differ by {cost.score_mean:.4f} on "
            f"average, and by {cost.score_most:.4f} at most."
        )
    elif cost:
        yield (
            f"The graph in 8 bits was compared with float32 on {cost.measured_on:,} texts: mean cosine "
            f"{cost.cosine_mean:.4f}, smallest {cost.cosine_least:.4f}; {cost.same_neighbours:.1%} of the "
            "ten nearest texts are the same."
        )


def _pair(manifest: Manifest) -> Iterator[str]:
    if student := manifest.query_encoder:
        yield (
            f"Simile encodes the queries of searches with a student, {student.version} in {QUERIES}/. Its "
            f"vectors of {student.measured_on:,} texts have a mean cosine of {student.cosine_mean:.4f} to "
            f"those of this model, and {student.cosine_least:.4f} at least; {student.same_neighbours:.1%} of "
            "the ten nearest texts are the same. The rest of this card is about this model only."
        )


def _limits(manifest: Manifest) -> Iterator[str]:
    if manifest.kind == "reranker":
        yield (
            f"It reads {manifest.max_length} tokens of a pair, special ones included. The longer text is "
            "truncated first."
        )
        yield "Its scores may only be compared with scores of the same version for the same query."
        return
    yield (
        f"It reads {manifest.max_length} tokens of a text, special ones included. Simile also searches "
        "longer documents by passages; other tools truncate them."
    )
    yield (
        "Its vocabulary and the text it learned from decide which languages it reads, and the manifest does "
        "not name them. `simile training report --corpus FILE` says whether it can read yours."
    )
    yield "Its vectors may only be compared with vectors of the same version."
    if manifest.portable == "simile":
        yield "Its pooling is Simile's own, so sentence-transformers cannot open it; onnx/model.onnx has it."


def _use(manifest: Manifest) -> Iterator[str]:
    yield f"With Simile: `simile models activate {manifest.version}`."
    if manifest.kind == "reranker":
        yield (
            "With sentence-transformers:\n\n```python\nfrom sentence_transformers import CrossEncoder\n\n"
            'model = CrossEncoder("THIS FOLDER")\nscores = model.predict([("a query", "a text")])\n```'
        )
        yield (
            "With ONNX Runtime alone: onnx/model.onnx takes the ids of tokenizer.json. Its outputs are "
            f"`logits` and `scores` ({manifest.activation} of the logits)."
        )
        return
    if manifest.portable == "sentence-transformers":
        yield "With sentence-transformers:"
        prompt = ', prompt_name="query"' if "query" in manifest.prompts else ""
        yield (
            "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
            'model = SentenceTransformer("THIS FOLDER")\n'
            f'vectors = model.encode(["a text"]{prompt}, normalize_embeddings=True)\n```'
        )
    if manifest.search_prompt or manifest.document_prompt:
        yield (
            f"Put {manifest.search_prompt!r} before a query and {manifest.document_prompt!r} before a "
            "document; Simile does so itself."
        )
    yield (
        "With ONNX Runtime alone: onnx/model.onnx takes the ids of tokenizer.json, and its output "
        "`sentence_embedding` is the vector."
    )
