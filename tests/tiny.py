"""A tiny BERT with random weights, which tests publish and serve.

    tiny_source(folder, seed=0)     2 layers, 32 wide, 2 heads, at most 64 tokens, a vocabulary of 250
    tiny_cross_encoder(folder)      the same with a classification head: one score of a pair, or several
    tiny_student(source, folder)    the first layer alone: its vectors are near those of both layers

Two seeds give two models whose answers differ. The vectors mean nothing, but they are reproducible.
"""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from models.graph.backbone import Backbone

WIDTH, LAYERS, HEADS, INNER, MAX_LENGTH = 32, 2, 2, 64, 64
# Two libraries that compute one vector differ by rounding: each adds in an order of its own, which depends on
# the processor too. A float32 sum of n terms, of size 1 together, is off by at most n x eps / 2 in any order,
# so two differ by at most n x eps. Here n is at most INNER, the components of a unit vector are at most 1,
# and LayerNorm brings every layer back to that size. The sums of all layers follow each other, but their
# errors have either sign, and sqrt(n) is nearer to them than n: in random orders, vectors are within 4e-7 of
# float64's.
ROUNDING = INNER * float(np.finfo(np.float32).eps)  # 7.6e-6
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_ENDINGS = ("s", "ed", "ing", "er", "est", "ly", "ment", "ness", "able", "ion")
_SYLLABLES = ("ba", "ko", "ri", "sun", "tel", "mar", "vin", "lo", "pe", "dra", "fi", "gum", "ha", "jor")
_WORDS = (
    "the a an of to in is on and for with how do i my what when it red green blue river stone market letter "
    "engine garden bridge paper window forest harbour cat dog animal sleeps runs open close password account "
    "reset number"
).split()


def tiny_source(
    folder: Path,
    seed: int = 0,
    *,
    prompts: dict[str, str] | None = None,
    pooling: str = "mean",
    max_length: int = MAX_LENGTH,
) -> Path:
    """Creates `folder`, and writes the model into it. Returns `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = _config(tokenizer.get_vocab_size())
    save_file(_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", config)
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer", "model_max_length": 512})
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _write(folder / "config_sentence_transformers.json", {"prompts": prompts or {}})
    _write(folder / "1_Pooling" / "config.json", {"embedding_dimension": WIDTH, "pooling_mode": pooling})
    modules = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    _write(
        folder / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules.items())
        ],
    )
    return folder


def tiny_cross_encoder(
    folder: Path, seed: int = 0, *, labels: Sequence[str] = (), max_length: int = MAX_LENGTH, **config: Any
) -> Path:
    """Creates `folder`, and writes a cross-encoder into it as transformers does. Returns `folder`.

    Args:
        labels: Names of the outputs. Empty for one output.
        config: Added to config.json.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    own = _config(tokenizer.get_vocab_size())
    weights = {f"bert.{name}": tensor for name, tensor in _weights(own, seed).items()}
    generator = np.random.default_rng(seed + 1)
    for name, rows in (("bert.pooler.dense", WIDTH), ("classifier", max(1, len(labels)))):
        weights[f"{name}.weight"] = generator.normal(0, 0.3, (rows, WIDTH)).astype(np.float32)
        weights[f"{name}.bias"] = generator.normal(0, 0.3, rows).astype(np.float32)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    names = dict(enumerate(labels or ["LABEL_0"]))
    own |= {"architectures": ["BertForSequenceClassification"], "id2label": names, **config}
    _write(folder / "config.json", own)
    _write(
        folder / "tokenizer_config.json",
        {"tokenizer_class": "BertTokenizer", "model_max_length": max_length},
    )
    return folder


def tiny_student(source: Path, folder: Path) -> Path:
    """Writes the embeddings and the first layer of the model `source` into `folder`. Returns `folder`."""
    shutil.copytree(source, folder)
    weights = {
        name: each for name, each in load_file(source / "model.safetensors").items() if "layer.1." not in name
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    _write(
        folder / "config.json", json.loads((source / "config.json").read_bytes()) | {"num_hidden_layers": 1}
    )
    return folder


def tiny_tokenizer() -> Tokenizer:
    vocabulary = {token: id for id, token in enumerate(_vocabulary())}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=special
    )
    tokenizer.add_special_tokens(list(_SPECIAL))
    # Many published files also have a wrong maximum, and padding that must be ignored.
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    return tokenizer


def _vocabulary() -> Iterator[str]:
    letters = string.ascii_lowercase + string.digits
    yield from _SPECIAL
    yield from letters
    yield from string.punctuation
    yield from (f"##{letter}" for letter in letters)
    yield from (word for word in _WORDS if len(word) > 1)
    yield from (f"##{ending}" for ending in _ENDINGS if len(ending) > 1)
    yield from (first + second for first in _SYLLABLES for second in _SYLLABLES[:6])
    yield from "天地人語学日本"


def _config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 128,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": vocabulary,
    }


def _weights(config: dict[str, Any], seed: int) -> dict[str, NDArray[np.float32]]:
    generator = np.random.default_rng(seed)
    # Wider than usual initial weights, so that attention and every layer change the vector.
    weights = {
        name: generator.normal(0, 0.2, shape).astype(np.float32)
        for name, shape in Backbone.from_config(config).shapes()
    }
    for name in weights:
        if name.endswith("LayerNorm.weight"):
            weights[name] += 1
    weights["embeddings.word_embeddings.weight"] *= 5  # so that mostly the words make texts differ
    # The graph does not use the pooler. Real checkpoints have one, too.
    return weights | {"pooler.dense.weight": np.zeros((WIDTH, WIDTH), np.float32)}


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")
