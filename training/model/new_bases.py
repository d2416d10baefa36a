"""The commands `blank` and `extend-vocabulary`, which write a base to pre-train with the recipe mlm.

    blank                the tokenizer of another model, and sizes ─▶ a BERT with random weights
    extend-vocabulary    words that a base splits ─▶ WordPiece's trainer ─▶ new tokens, appended to the base

Use a blank BERT for a language or a field that no released model supports, or to compare training methods
from the same start.

`extend-vocabulary` changes neither the normalizer nor the old tokens of the base. So texts without new tokens
keep their vectors. The embedding of a new token is the mean of the embeddings of the old tokens that it
replaces. The normalizer of BERT splits Hangul syllables into letters, so new tokens consist of letters.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from models.graph.backbone import Backbone, read_safetensors
from models.messages import positive
from models.progress import counted, to_stderr
from models.publishing.layout import write_layout
from models.sources.folder import Source, read_source
from models.store import models_dir
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import open_tokenizer
from training.arguments import check_empty
from training.arguments import seed as any_seed
from training.errors import NothingToLearn, TrainingError
from training.model.base import open_base
from training.text.corpus import read_corpus

_SPREAD = 0.02  # BERT's initializer_range
_POSITIONS = 512
_COPIED = ("tokenizer_config.json", "special_tokens_map.json", "vocab.txt")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    _add_blank(commands)
    _add_extend_vocabulary(commands)


def _add_blank(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "blank",
        help="a BERT with random weights, to pre-train",
        description="Write a BERT with random weights, to be pre-trained by the recipe mlm.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it: new, or empty")
    command.add_argument(
        "--tokenizer", default="default", metavar="MODEL", help="model with the vocabulary (%(default)s)"
    )
    command.add_argument("--layers", type=positive, default=6, metavar="N", help="(%(default)s)")
    command.add_argument(
        "--width", type=positive, default=384, metavar="N", help="of a token vector (%(default)s)"
    )
    command.add_argument("--seed", type=any_seed, default=42, metavar="N", help="(%(default)s)")
    command.set_defaults(run=_run_blank)


def blank(tokenizer: Path, out: Path, *, layers: int, width: int, seed: int = 42) -> Path:
    """Writes a BERT with random weights to the folder `out`. Returns `out`.

    Args:
        tokenizer: Folder of the model whose tokenizer is used.
        out: Folder to write.
        layers: Number of layers.
        width: Size of token vectors.
        seed: Seed of the random weights.

    Raises:
        TrainingError: The sizes do not fit together, or `out` is not empty.

    """
    heads = max(width // 64, 1)
    if min(layers, width) < 1 or width % heads:
        raise TrainingError(f"{layers} layers of {width} dimensions in {heads} heads are no model.")
    check_empty(out)
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
    for name in _COPIED:
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


def _run_blank(options: argparse.Namespace) -> int:
    with open_base(options.tokenizer, models_dir(os.environ)) as base:
        sizes = {"layers": options.layers, "width": options.width}
        blank(base.folder, options.folder, **sizes, seed=options.seed)
    print(f"{options.folder}: `simile train mlm --base {options.folder} …` pre-trains it")  # noqa: T201
    return 0


ADD = 8000  # measured on Korean (RESULTS.md)
_SEEN = 3  # minimum uses of a token in the text
_LETTERS = 500  # minimum of letters that the trainer distinguishes
_UNKNOWN = "[UNK]"
_CHUNK = 2000  # texts that are tokenized together


def _add_extend_vocabulary(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    command = commands.add_parser(
        "extend-vocabulary",
        help="teach a base the words of a language or a field",
        description="Write a base with tokens learned from your text, to be trained by the recipe mlm.",
    )
    command.add_argument("folder", type=Path, metavar="FOLDER", help="where to write it: new, or empty")
    command.add_argument("--corpus", type=Path, required=True, metavar="FILE", help="as for `train`")
    command.add_argument("--base", default="default", metavar="MODEL", help="as for `train` (%(default)s)")
    command.add_argument(
        "--add", type=positive, default=ADD, metavar="N", help="how many tokens, at most (%(default)s)"
    )
    command.set_defaults(run=_run_extend_vocabulary)


def takes_tokens(tokenizer: Mapping[str, Any]) -> bool:
    """Returns True if new tokens can be added to a tokenizer, given as the content of tokenizer.json."""
    return bool(tokenizer["model"].get("type") == "WordPiece")


def extend(base: Path, texts: Sequence[str], out: Path, count: int) -> int:
    """Writes a copy of the folder `base` with up to `count` new tokens to the folder `out`.

    Returns:
        The number of new tokens.

    Raises:
        TrainingError: The base has no WordPiece vocabulary or no weights.
        NothingToLearn: The base splits no word of the texts.

    """
    source = read_source(base)
    if not takes_tokens(source.tokenizer) or not source.weights:
        raise TrainingError(
            f"{base.name} cannot take new tokens: that needs a WordPiece vocabulary (as BERT's) and "
            "model.safetensors. Models of many languages read them already."
        )
    check_empty(out)
    learned = learn(source.tokenizer, texts, count)
    if not learned:
        raise NothingToLearn("The base has a token for every word of this text.")
    vocabulary = source.tokenizer["model"]
    prefix = vocabulary["continuing_subword_prefix"]
    rows = [_pieces(token, vocabulary["vocab"], prefix) for token in learned]
    old = int(source.config["vocab_size"])
    source.tokenizer["model"]["vocab"] |= {token: old + place for place, token in enumerate(learned)}
    source.config["vocab_size"] = old + len(learned)
    _write(source, rows, old, out)
    return len(learned)


def learn(tokenizer: dict[str, Any], texts: Sequence[str], count: int) -> list[str]:
    """Returns up to `count` new tokens that texts use, the most frequent first.

    Args:
        tokenizer: Content of the base's tokenizer.json.
        texts: Texts to learn tokens from.
        count: Maximum number of tokens.

    """
    known: dict[str, int] = tokenizer["model"]["vocab"]
    prefix: str = tokenizer["model"]["continuing_subword_prefix"]
    opened = open_tokenizer(tokenizer)
    words = _split_words(opened, texts, known)
    trained = tokenizers.Tokenizer(WordPiece(unk_token=_UNKNOWN, continuing_subword_prefix=prefix))
    trained.pre_tokenizer = WhitespaceSplit()
    trainer = WordPieceTrainer(
        vocab_size=2 * max(count, _LETTERS),  # more than needed, because some exist in the base
        min_frequency=_SEEN,
        limit_alphabet=max(count // 2, _LETTERS),
        continuing_subword_prefix=prefix,
        special_tokens=[_UNKNOWN],
        show_progress=False,
    )
    to_stderr(f"learning up to {count:,} tokens: seconds for 100,000 texts")
    trained.train_from_iterator(words, trainer)
    uses: Counter[str] = Counter()
    for start in range(0, len(words), _CHUNK):
        for encoded in trained.encode_batch(words[start : start + _CHUNK]):
            uses.update(encoded.tokens)
    new = [(-times, token) for token, times in uses.items() if token not in known and times >= _SEEN]
    return [token for _, token in sorted(new)[:count]]


def _split_words(opened: tokenizers.Tokenizer, texts: Sequence[str], known: Container[str]) -> list[str]:
    """Returns for each text its normalized words that are not tokens of the base, joined by spaces."""
    found = []
    for text in counted(texts, "texts", len(texts), "reading words"):
        normal = opened.normalizer.normalize_str(text) if opened.normalizer else text
        words = (word for word, _ in opened.pre_tokenizer.pre_tokenize_str(normal))
        found.append(" ".join(word for word in words if word not in known))
    return found


def _pieces(token: str, known: dict[str, int], prefix: str) -> list[int]:
    """Splits a new token into old tokens, by WordPiece's longest match. Skips unknown letters.

    Args:
        token: The new token.
        known: Ids of the old tokens.
        prefix: Prefix of tokens that continue a word, such as "##".

    Returns:
        The ids of the old tokens.

    """
    start = prefix if token.startswith(prefix) else ""
    rest = token.removeprefix(prefix)
    found = []
    while rest:
        end = next((end for end in range(len(rest), 0, -1) if start + rest[:end] in known), 0)
        if end:
            found.append(known[start + rest[:end]])
        rest, start = rest[end or 1 :], prefix
    return found


def _write(source: Source, rows: Sequence[Sequence[int]], old: int, out: Path) -> None:
    tensors = {name: array for file in source.weights for name, array in read_safetensors(file).items()}
    tables = [name for name, array in tensors.items() if array.ndim and array.shape[0] == old]
    for name in tables:  # the word table, and per-token weights of a masked-language head
        table = tensors[name]
        whole = table.mean(0)  # vector of a new token without old tokens
        means = [table[pieces].mean(0) if pieces else whole for pieces in rows]
        tensors[name] = np.concatenate([table, np.stack(means).astype(table.dtype)])
    out.mkdir(parents=True, exist_ok=True)
    write_layout(replace(source, weights=()), out)
    (out / "config.json").write_text(json.dumps(source.config, indent=2) + "\n", encoding="utf-8")
    (out / "vocab.txt").unlink(missing_ok=True)  # outdated; tokenizer.json replaces it
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})


def _run_extend_vocabulary(options: argparse.Namespace) -> int:
    corpus = read_corpus(options.corpus)
    with open_base(options.base, models_dir(os.environ)) as base:
        added = extend(base.folder, corpus.texts, options.folder, options.add)
    print(  # noqa: T201  the answer of the command
        f"{options.folder}: {added:,} new tokens; `simile train mlm --base {options.folder} …` teaches them"
    )
    return 0
