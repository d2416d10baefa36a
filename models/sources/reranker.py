"""Recognizes a cross-encoder's folder, and reads its head and settings. Start at `is_reranker`.

A folder has one of three layouts:

*ForSequenceClassification     the weights have the head (graph/classifier.py)
modules.json of a              Transformer alone: the same
sentence-transformers          Transformer, Pooling, Dense, …: the last Dense outputs the scores
CrossEncoder
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from models.errors import Unsupported
from models.graph.classifier import read_classifier
from models.graph.head import Head
from models.manifest import Activation
from models.sources.files import optional_json
from models.tokens.pairs import INPUT_NAMES, TOKENIZER_CONFIG
from models.tokens.tokenizer import TYPES

CROSS_ENCODER = "CrossEncoder"  # `model_type` in config_sentence_transformers.json.
_CLASSIFIER = "ForSequenceClassification"
_ACTIVATIONS: dict[str, Activation] = {"Sigmoid": "sigmoid", "Softmax": "softmax", "Identity": "identity"}
ACTIVATION_NAMES = {
    "sigmoid": "torch.nn.modules.activation.Sigmoid",
    "softmax": "torch.nn.modules.activation.Softmax",
    "identity": "torch.nn.modules.linear.Identity",
}
# Tokenizers of transformers that make token types, and those that do not, if tokenizer_config.json does not
# name its inputs. They are listed by class. The families are for folders that do not name a class. Only
# families that can have several token types must be listed.
_TYPED = {
    *("Bert", "BertJapanese", "ConvBert", "Deberta", "DebertaV2", "Electra", "FNet", "LayoutLM", "Lxmert"),
    *("MobileBert", "SqueezeBert"),
}
_UNTYPED = {
    *("Albert", "BigBird", "Camembert", "DistilBert", "GPT2", "Herbert", "Llama", "Longformer", "Luke"),
    *("MPNet", "PreTrained", "Qwen2", "RemBert", "RoCBert", "RoFormer", "Roberta", "T5", "TokenizersBackend"),
    "XLMRoberta",
}
_TYPED_FAMILIES = {
    *("bert", "convbert", "deberta", "deberta-v2", "electra", "ernie", "fnet", "layoutlm", "megatron-bert"),
    *("mobilebert", "nomic_bert", "squeezebert"),
}
_UNTYPED_FAMILIES = {
    *("albert", "big_bird", "camembert", "data2vec-text", "ibert", "longformer", "luke", "nystromformer"),
    *("rembert", "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm-roberta", "xmod"),
}


class Scoring(NamedTuple):
    """How a cross-encoder computes its scores."""

    head: Head  # Has layers unless the head of the model family is unknown.
    activation: Activation
    labels: tuple[str, ...]  # Names of the outputs. Empty for a single output.
    typed: bool  # True if tokens have types.
    classifies: bool  # True if the transformer's weights include the head.


def is_reranker(said: Mapping[str, Any], config: Mapping[str, Any], *, has_modules: bool) -> bool:
    """Returns True if a folder contains a cross-encoder.

    Args:
        said: The content of config_sentence_transformers.json.
        config: The content of config.json.
        has_modules: True if the folder has modules.json.
    """
    if has_modules:
        return said.get("model_type") == CROSS_ENCODER
    return any(str(name).endswith(_CLASSIFIER) for name in config.get("architectures") or [])


def read_scoring(
    backbone: Path,
    weights: Sequence[Path],
    config: Mapping[str, Any],
    said: Mapping[str, Any],
    head: Head | None,
) -> Scoring:
    """Reads how a cross-encoder scores pairs. Raises Unsupported.

    Args:
        backbone: The folder with config.json.
        weights: Its safetensors files.
        config: The content of config.json.
        said: The content of config_sentence_transformers.json.
        head: The modules after the transformer. None if the transformer's weights include the head.
    """
    classifies = head is None
    if head is None:
        found = read_classifier(config, weights)
        head = Head((found.pooling,), found.layers) if found else Head(("cls",), ())
    outputs = head.dimension(0) or len(config.get("id2label") or "01")  # Two is the default of transformers.
    activation = _activation(said, config, outputs)
    head = replace(head, activation=activation)
    return Scoring(head, activation, _labels(config, outputs), _is_typed(backbone, config), classifies)


def _activation(said: Mapping[str, Any], config: Mapping[str, Any], outputs: int) -> Activation:
    """Returns the activation that sentence-transformers applies. Raises Unsupported if it is unknown."""
    own = (config.get("sentence_transformers") or {}).get("activation_fn")
    for path in (said.get("activation_fn"), own or config.get("sbert_ce_default_activation_function")):
        if path is None or not str(path).startswith("torch."):  # Other classes are ignored.
            continue
        if (activation := _ACTIVATIONS.get(str(path).rpartition(".")[2])) is None:
            raise Unsupported(f"The activation {path} is not supported; {', '.join(_ACTIVATIONS)} are.")
        return activation
    return "sigmoid" if outputs == 1 else "identity"


def _labels(config: Mapping[str, Any], outputs: int) -> tuple[str, ...]:
    if outputs == 1:
        return ()
    named = {int(id): str(name) for id, name in (config.get("id2label") or {}).items()}
    return tuple(named.get(at, f"LABEL_{at}") for at in range(outputs))


def _is_typed(backbone: Path, config: Mapping[str, Any]) -> bool:
    """Returns True if transformers gives the model token types, with type 1 for the text of a pair.

    Raises:
        Unsupported: The folder's tokenizer is unknown.
    """
    if int(config.get("type_vocab_size") or 0) < 2:
        return False
    said = optional_json(backbone / TOKENIZER_CONFIG)
    if said.get(INPUT_NAMES) is not None:
        return TYPES in said[INPUT_NAMES]
    kind, family = said.get("tokenizer_class") or config.get("tokenizer_class"), str(config.get("model_type"))
    typed, untyped = (_TYPED, _UNTYPED) if kind else (_TYPED_FAMILIES, _UNTYPED_FAMILIES)
    name = str(kind).removesuffix("Fast").removesuffix("Tokenizer") if kind else family
    if name not in typed | untyped:
        raise Unsupported(
            f"The tokenizer {kind or f'of the family {family}'} is unknown, so it is not clear if it makes "
            f"{TYPES}. If it does so in transformers, add {INPUT_NAMES} to {TOKENIZER_CONFIG}: "
            f'["input_ids", "{TYPES}", "attention_mask"]. If not, add it without {TYPES}.'
        )
    return name in typed
