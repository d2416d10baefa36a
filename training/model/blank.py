"""python -m training blank FOLDER: a BERT with random weights, to pre-train by the recipe mlm.

    tokenizer of another model, and sizes ─▶ config.json, tokenizer.json, model.safetensors

For a language or a field that no released model reads, and for comparing methods from one start.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.graph.backbone import Backbone
from models.messages import positive
from models.sources.folder import read_source
from models.store import models_dir
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.arguments import seed as any_seed
from training.errors import TrainingError
from training.model.base import open_base

_SPREAD = 0.02  # BERT's initializer_range
_POSITIONS = 512
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "blank",
        help="a BERT with random weights, to pre-train",
        description="Write a BERT with random weights, to be pre-trained by the recipe mlm.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it: new, or empty")
    command.add_argument(
        "--tokenizer", default="default", metavar="MODEL", help="whose vocabulary it takes (%(default)s)"
    )
    command.add_argument("--layers", type=positive, default=6, metavar="N", help="(%(default)s)")
    command.add_argument(
        "--width", type=positive, default=384, metavar="N", help="of a token vector (%(default)s)"
    )
    command.add_argument(
        "--heads", type=positive, metavar="N", help="of attention (default: one for each 64)"
    )
    command.add_argument("--seed", type=any_seed, default=42, metavar="N", help="(%(default)s)")
    command.set_defaults(run=_run)


def blank(
    tokenizer: Path, out: Path, *, layers: int, width: int, heads: int | None = None, seed: int = 42
) -> Path:
    """tokenizer: a folder that has one. Raise TrainingError for sizes that make no model."""
    heads = max(width // 64, 1) if heads is None else heads
    if min(layers, width, heads) < 1 or width % heads:
        raise TrainingError(f"{layers} layers of {width} dimensions in {heads} heads are no model.")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise TrainingError(f"{out} is not an empty folder.")
    source = read_source(tokenizer)
    config = {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": _POSITIONS,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": source.config.get("pad_token_id", 0),
        "type_vocab_size": 2,
        "vocab_size": source.config["vocab_size"],
    }
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source.backbone / TOKENIZER, out / TOKENIZER)
    for name in _BESIDE:
        if (source.backbone / name).is_file():
            shutil.copyfile(source.backbone / name, out / name)
    random = np.random.default_rng(seed)
    weights = {}
    for name, shape in Backbone.from_config(config).shapes():
        scale = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        drawn = random.normal(0, _SPREAD, shape) if len(shape) > 1 else np.full(shape, scale)
        weights[f"bert.{name}"] = drawn.astype(np.float32)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return out


def _run(options: argparse.Namespace) -> int:
    with open_base(options.tokenizer, models_dir(os.environ)) as base:
        sizes = {"layers": options.layers, "width": options.width, "heads": options.heads}
        blank(base.folder, options.folder, **sizes, seed=options.seed)
    print(f"{options.folder}: `python -m training train mlm --base {options.folder} …` pre-trains it")  # noqa: T201
    return 0
