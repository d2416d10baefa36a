"""Loads the encoder of a folder as a torch module, and computes token vectors.

`converted` converts other kinds of tokenizers to the content of a tokenizer.json.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from models.errors import Unsupported, install_command
from models.graph.backbone import read_safetensors
from models.graph.head import MIXED, beside_last
from models.sources.files import read_json
from models.sources.folder import STATIC

# ruff: noqa: N803  shapes live in names


def load_backbone(folder: Path, attention: str | None = "eager") -> nn.Module:
    """Loads the encoder in float32 and eval mode, without BERT's pooler. A word table becomes a `Table`.

    `load_classifier` loads a cross-encoder.

    Args:
        attention: Name of an attention implementation of transformers; None for the default.

    Raises:
        Unsupported: transformers cannot open the folder, or weights are missing or not finite.
    """
    if not (folder / "config.json").is_file() or read_json(folder / "config.json")["model_type"] == STATIC:
        [rows] = read_safetensors(folder / "model.safetensors").values()
        return Table(rows)
    backbone = _load(folder, _class(folder), attention, optional="pooler.")
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # An unused part of the pre-training, which may be random.
    found: nn.Module = backbone
    return found


def load_classifier(folder: Path) -> nn.Module:
    """Loads a `*ForSequenceClassification` model in float32 and eval mode. Raises Unsupported."""
    found: nn.Module = _load(folder, transformers.AutoModelForSequenceClassification, "eager")
    return found


def _load(folder: Path, class_: Any, attention: str | None, optional: str | None = None) -> Any:
    """Loads a model of transformers. Weights whose names start with `optional` may be missing."""
    try:
        with quiet():
            model, report = class_.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # noqa: BLE001  each of its configurations raises its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{folder} cannot be opened with transformers: {reason}") from None
    missing = sorted(
        name for name in report["missing_keys"] if optional is None or not name.startswith(optional)
    )
    if missing:
        raise Unsupported(
            f"The weights in {folder} are incomplete: {missing[0]} and {len(missing) - 1} more are missing."
        )
    for name, tensor in model.named_parameters():
        if not tensor.isfinite().all():
            raise Unsupported(f"The tensor {name} is not finite: its training diverged, or it is damaged.")
    return model.eval()


def _class(folder: Path) -> Any:
    """Returns the class in transformers that loads a folder: for an encoder-decoder, only its encoder."""
    config = read_json(folder / "config.json")
    whole = config.get("is_encoder_decoder") or config.get("model_type") in ("t5", "mt5", "umt5")
    return transformers.AutoModelForTextEncoding if whole else transformers.AutoModel


class Table(nn.Module):
    """A backbone that only looks up rows of a word table."""

    def __init__(self, rows: NDArray[np.float32]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(rows.shape[0], rows.shape[1], _weight=torch.from_numpy(rows.copy()))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        hidden = self.embedding(input_ids)
        return BaseModelOutput(last_hidden_state=hidden, hidden_states=(hidden,))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides the progress bars and reports of transformers."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def token_vectors(
    backbone: nn.Module, ids_RT: Tensor, mask_RT: Tensor, tokens: str = "last", **types: Tensor
) -> Tensor:
    """Computes the token vectors that `Head` pools, shape (rows, tokens, width).

    Args:
        types: The token types as `token_type_ids`, if the model takes them.
    """
    if tokens == "static":
        words: Tensor = cast("transformers.PreTrainedModel", backbone).get_input_embeddings()(ids_RT)
        return words
    both = tokens in MIXED
    found = backbone(input_ids=ids_RT, attention_mask=mask_RT, output_hidden_states=both, **types)
    return mixed(found.hidden_states, tokens) if both else found.last_hidden_state


def mixed(states: Sequence[Tensor], tokens: str) -> Tensor:
    """Averages the outputs of two layers in float32, as `Head.tokens` requires.

    Args:
        states: The embeddings and the output of each layer, as transformers returns them.
        tokens: `first_last` or `top2`.
    """
    other = states[1 + beside_last(tokens, len(states) - 1)]
    return (other.float() + states[-1].float()) / 2


_FILES = (
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.model",
)


def converted(folder: Path) -> dict[str, Any]:
    """Converts a folder's tokenizer with transformers, and returns the content of a tokenizer.json.

    Raises:
        Unsupported: The folder has no tokenizer, or transformers cannot convert it.
    """
    if not any((folder / name).is_file() for name in _FILES):
        raise Unsupported(f"{folder} has no tokenizer: neither tokenizer.json nor {', '.join(_FILES)}.")
    if any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        raise Unsupported(
            f"{folder} has no tokenizer.json. To convert its SentencePiece file, install a package: "
            f"{install_command('train')}"
        )
    try:
        with quiet():
            tokenizer = transformers.AutoTokenizer.from_pretrained(
                folder, use_fast=True, trust_remote_code=False, local_files_only=True
            )
        content: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # noqa: BLE001  each of its tokenizers raises its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(
            f"{folder} has no tokenizer.json, and transformers cannot convert its tokenizer: {reason}"
        ) from None
    return content
