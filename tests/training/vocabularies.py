"""Lexicons of WordPiece (##) and of byte-level BPE (Ġ), with tokenizers, texts and checks for tests."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
from scipy import stats
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from models.sources.folder import read_source
from tests.tiny import tiny_source
from training.text.lexicon import Lexicon
from training.text.tokens import Tokens, build_tokens

CLS, SEP, MASK = 2, 3, 4  # the order of tests/tiny.py
_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
_LEARNT = "the river market letters engines garden paper windows forest cats animals sleeping running".split()


def source_with(folder: Path, tokenizer: dict[str, Any], vocabulary: int | None = None) -> Path:
    """Writes the tiny model with another tokenizer. `vocabulary` overrides the size in config.json."""
    tiny_source(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    config = json.loads((folder / "config.json").read_bytes())
    size = tokenizers.Tokenizer.from_str(json.dumps(tokenizer)).get_vocab_size(with_added_tokens=True)
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": vocabulary or size}))
    return folder


def byte_level() -> dict[str, Any]:
    """Returns a tokenizer.json like RoBERTa's. A learned word and its space are one token, others several."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=330, special_tokens=_SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([f" {word}" for word in _LEARNT], trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=False)
    written: dict[str, Any] = json.loads(tokenizer.to_str())
    return written


def lexicon_of(folder: Path) -> Lexicon:
    return Lexicon.of(read_source(folder))


def opened(lexicon: Lexicon) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(lexicon.tokenizer))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def tokens_in(lexicon: Lexicon, *texts: str) -> Tokens:
    tokenizer = opened(lexicon)
    return build_tokens([tokenizer.encode(text).ids for text in texts])


def build_rows(tokens: Tokens) -> list[list[int]]:
    return [tokens.ids[a:b].tolist() for a, b in itertools.pairwise(tokens.starts.tolist())]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def sentences(lexicon: Lexicon, words: int, count: int) -> Tokens:
    """Returns `count` random texts of `words` different words. Each word is one token."""
    one = [id for id in lexicon.ordinary.tolist() if lexicon.begins_word[id]]
    random = np.random.default_rng(0)
    before, after = lexicon.affixes
    return build_tokens([[*before, *random.permutation(one)[:words].tolist(), *after] for _ in range(count)])


def alike(counts: list[int]) -> bool:
    """Returns True if the counts may come from draws with equal probabilities."""
    return len(counts) == 1 or bool(stats.chisquare(counts).pvalue > 1e-3)


def between(tokens: Tokens) -> list[list[int]]:
    """Returns the rows without [CLS] and [SEP], which must be their first and last tokens."""
    rows = build_rows(tokens)
    assert all((row[0], row[-1]) == (CLS, SEP) for row in rows)
    return [row[1:-1] for row in rows]
