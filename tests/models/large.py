"""XLM-RoBERTa folders of any size with random weights, written tensor by tensor, without torch.

large_source(folder)                                   2.5 GB: 250,002 words, 30 layers of width 1024
large_source(folder, layers=2, width=32, heads=2)      small, except for the vocabulary
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator
from itertools import islice, product
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.graph.backbone import Backbone
from models.tokens.texts import PROOF_TEXTS

WORDS = 250_002
_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_SYLLABLES = [a + b for a in "bcdfghjklmnprstvwz" for b in "aeiou"]  # 90
_STEP = 1 << 22  # random numbers that are drawn at once


def large_source(
    folder: Path,
    *,
    layers: int = 30,
    width: int = 1024,
    heads: int = 16,
    vocabulary: int = WORDS,
    kind: str = "unigram",
    max_length: int = 128,
) -> Path:
    """Writes the folder and returns it. `kind` is the kind of the tokenizer, a key of `KINDS`."""
    folder.mkdir(parents=True)
    tokenizer = KINDS[kind](vocabulary)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "model_type": "xlm-roberta",
        "architectures": ["XLMRobertaModel"],
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "layer_norm_eps": 1e-5,
        "max_position_embeddings": 514,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "vocab_size": tokenizer.get_vocab_size(),
    }
    said = {
        "config.json": config,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": 512,
            "pad_token": "<pad>",
        },
        "sentence_bert_config.json": {"max_seq_length": max_length},
    }
    for name, content in said.items():
        (folder / name).write_text(json.dumps(content))
    _write_weights(folder / "model.safetensors", dict(Backbone.from_config(config).shapes()))
    return folder


def unigram(size: int) -> Tokenizer:
    # A word is likelier than its letters, and a longer one likelier than its parts.
    vocabulary = [(token, 0.0) for token in _SPECIAL]
    vocabulary += [(letter, -18.0) for letter in _letters()]
    left = size - len(vocabulary)
    vocabulary += [(f"▁{word}", -10.0 - at / left) for at, word in enumerate(words(left))]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=_SPECIAL.index("<unk>")))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return _framed(tokenizer)


def bpe(size: int) -> Tokenizer:
    """Returns a byte-level BPE tokenizer. Each token merges two earlier ones."""
    vocabulary = {
        token: id for id, token in enumerate([*_SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())])
    }
    merges = []

    def merge(first: str, second: str) -> None:
        if first + second not in vocabulary:
            merges.append((first, second))
            vocabulary[first + second] = len(vocabulary)

    for syllable in _SYLLABLES:
        merge(syllable[0], syllable[1])
    for word in words(size):
        if len(vocabulary) >= size:
            break
        if len(word) > 2:
            merge(word[:-2], word[-2:])
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _framed(tokenizer)


def wordpiece(size: int) -> Tokenizer:
    first = [*_SPECIAL, *_letters(), *(f"##{syllable}" for syllable in _SYLLABLES)]
    vocabulary = {token: id for id, token in enumerate([*first, *words(size - len(first))])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return _framed(tokenizer)


def words(count: int) -> Iterator[str]:
    """Yields `count` distinct words of one, two and three syllables."""
    every = ("".join(parts) for size in (1, 2, 3) for parts in product(_SYLLABLES, repeat=size))
    return islice(every, count)


def _letters() -> Iterable[str]:
    return sorted({letter for text in PROOF_TEXTS for letter in text if letter.isprintable()} | set("▁"))


def _framed(tokenizer: Tokenizer) -> Tokenizer:
    around = [(token, _SPECIAL.index(token)) for token in ("<s>", "</s>")]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


KINDS = {"unigram": unigram, "bpe": bpe, "wordpiece": wordpiece}


def _write_weights(file: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """Writes a safetensors file of random numbers: length of the header, header, numbers."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 4 * int(np.prod(shape))
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    generator = np.random.default_rng(7)
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(content)) + content)
        for name, shape in shapes.items():
            mean, spread = (1.0, 0.1) if name.endswith("LayerNorm.weight") else (0.0, 0.05)
            for start in range(0, int(np.prod(shape)), _STEP):
                count = min(_STEP, int(np.prod(shape)) - start)
                drawn = generator.standard_normal(count, np.float32) * np.float32(spread) + np.float32(mean)
                stream.write(drawn.tobytes())
