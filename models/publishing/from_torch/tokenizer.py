"""Converts other kinds of tokenizers to tokenizer.json with transformers."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers

from models.errors import Unsupported
from models.publishing.from_torch.backbone import quiet

_FILES = (
    "vocab.txt",
    "vocab.json",
    "spiece.model",
    "sentencepiece.bpe.model",
    "spm.model",
    "tokenizer.model",
)


def converted(folder: Path) -> dict[str, Any]:
    """Returns the content of tokenizer.json. Raises Unsupported if transformers cannot convert."""
    if not any((folder / name).is_file() for name in _FILES):
        raise Unsupported(f"{folder} has no tokenizer: neither tokenizer.json nor {', '.join(_FILES)}.")
    if any(folder.glob("*.model")) and find_spec("sentencepiece") is None:
        raise Unsupported(
            f"{folder} has no tokenizer.json. To convert its SentencePiece file, install a package: "
            "pip install -c constraints.txt sentencepiece"
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
