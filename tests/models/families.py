"""Tiny random encoders of many families, as sentence-transformers itself saves them.

    family_source(folder, "qwen3")     a folder as the hub has them: tokenizer, weights, modules

Weights are random with a wide spread: vectors mean nothing, but each layer changes them. The tokenizers
learn from a few lines in several scripts: WordPiece, byte-level BPE, BPE with byte fallback, Unigram.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from models.publishing.from_torch.backbone import quiet
from models.tokens.texts import PROOF_TEXTS, long_text
from tests import tiny

WIDTH, LAYERS, HEADS, INNER, POSITIONS = 32, 2, 2, 64, 128
LEARNED_FROM = [*PROOF_TEXTS, long_text(400), "the query and the passage, the title and the text " * 3]
_SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": INNER,
    "initializer_range": 0.2,
    "max_position_embeddings": POSITIONS,
}
_DECODER = _SIZES | {"num_key_value_heads": 1, "head_dim": 16}


class Family(NamedTuple):
    """A family: its configuration and model, its tokenizer, and the modules after the transformer."""

    config: Callable[..., Any]
    model: Callable[[Any], Any]
    settings: dict[str, Any]
    tokenizer: str
    pooling: str | Sequence[str] = "mean"
    dense: tuple[int, ...] = ()  # the output width of each dense module
    padding_side: str = "right"


FAMILIES = {
    "bert": Family(transformers.BertConfig, transformers.BertModel, _SIZES, "wordpiece", "cls"),
    "albert": Family(
        transformers.AlbertConfig, transformers.AlbertModel, _SIZES | {"embedding_size": 16}, "unigram"
    ),
    "deberta-v2": Family(
        transformers.DebertaV2Config,
        transformers.DebertaV2Model,
        _SIZES
        | {
            "relative_attention": True,
            "position_buckets": 16,
            "pos_att_type": ["p2c", "c2p"],
            "norm_rel_ebd": "layer_norm",
            "share_att_key": True,
            "position_biased_input": False,
            "type_vocab_size": 0,
        },
        "unigram",
    ),
    "distilbert": Family(
        transformers.DistilBertConfig,
        transformers.DistilBertModel,
        {
            "dim": WIDTH,
            "n_layers": LAYERS,
            "n_heads": HEADS,
            "hidden_dim": INNER,
            "initializer_range": 0.2,
            "max_position_embeddings": POSITIONS,
        },
        "wordpiece",
    ),
    "electra": Family(
        transformers.ElectraConfig, transformers.ElectraModel, _SIZES | {"embedding_size": 16}, "wordpiece"
    ),
    "gemma3": Family(
        transformers.Gemma3TextConfig,
        transformers.Gemma3TextModel,
        _DECODER
        | {
            "use_bidirectional_attention": True,
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "byte-fallback",
        dense=(64, 24),
    ),
    "modernbert": Family(
        transformers.ModernBertConfig,
        transformers.ModernBertModel,
        _SIZES | {"num_hidden_layers": 4, "local_attention": 16, "global_attn_every_n_layers": 3},
        "byte-level",
        "cls",
    ),
    "mpnet": Family(
        transformers.MPNetConfig, transformers.MPNetModel, _SIZES | {"pad_token_id": 0}, "wordpiece"
    ),
    "roberta": Family(
        transformers.RobertaConfig, transformers.RobertaModel, _SIZES | {"type_vocab_size": 1}, "byte-level"
    ),
    "t5": Family(
        transformers.T5Config,
        transformers.T5EncoderModel,
        {
            "d_model": WIDTH,
            "d_kv": 16,
            "d_ff": INNER,
            "num_layers": LAYERS,
            "num_heads": HEADS,
            "feed_forward_proj": "gated-gelu",
            "initializer_factor": 1.0,
        },
        "unigram",
        dense=(24,),
    ),
    "xlm-roberta": Family(
        transformers.XLMRobertaConfig,
        transformers.XLMRobertaModel,
        _SIZES | {"type_vocab_size": 1},
        "unigram",
        "cls",
    ),
    "qwen3": Family(
        transformers.Qwen3Config, transformers.Qwen3Model, _DECODER, "byte-level", "lasttoken", (), "left"
    ),
}
STATIC = "static"
NAMES = [*FAMILIES, STATIC]


def family_source(folder: Path, name: str, seed: int = 0, **settings: Any) -> Path:
    """Writes a folder of the family `name`. `settings` replace those of its configuration."""
    torch.manual_seed(seed)
    stages = [_static()] if name == STATIC else _stages(folder, FAMILIES[name], settings)
    with quiet():
        SentenceTransformer(modules=stages).save_pretrained(str(folder), create_model_card=False)
    return folder


def assembled(raw: Path, folder: Path, behind: Sequence[torch.nn.Module], **saved: Any) -> Path:
    """Saves the model of `raw` by sentence-transformers, with the modules `behind` after the transformer."""
    with quiet():
        stages = [modules.Transformer(str(raw), max_seq_length=64), *behind]
        SentenceTransformer(modules=stages, **saved).save_pretrained(str(folder), create_model_card=False)
    return folder


def _static() -> torch.nn.Module:
    tokenizer = learned("wordpiece")
    tokenizer.no_truncation()  # Sentence-transformers would apply it.
    static: torch.nn.Module = modules.StaticEmbedding(
        tokenizer, embedding_weights=torch.randn(tokenizer.get_vocab_size(), WIDTH)
    )
    return static


def _stages(folder: Path, family: Family, settings: dict[str, Any]) -> list[torch.nn.Module]:
    raw = raw_source(folder.with_name(f"{folder.name}-raw"), family, settings)
    with quiet():
        stages = [modules.Transformer(str(raw), max_seq_length=64)]
    stages.append(modules.Pooling(WIDTH, pooling_mode=family.pooling))
    width = WIDTH if isinstance(family.pooling, str) else WIDTH * len(family.pooling)
    for out in family.dense:
        activation = torch.nn.Identity() if out != family.dense[0] else torch.nn.Tanh()
        stages.append(modules.Dense(width, out, bias=False, activation_function=activation))
        width = out
    return [*stages, modules.Normalize()]


def raw_source(folder: Path, family: Family, settings: dict[str, Any] | None = None) -> Path:
    """Writes a Hugging Face folder with random weights, without modules of sentence-transformers."""
    tokenizer = learned(family.tokenizer)
    ids = {token: tokenizer.token_to_id(token) for token in ("[PAD]", "[CLS]", "[SEP]", "[MASK]")}
    special = {"pad_token_id": ids["[PAD]"], "bos_token_id": ids["[CLS]"], "eos_token_id": ids["[SEP]"]}
    config = family.config(
        vocab_size=tokenizer.get_vocab_size(), **special | family.settings | (settings or {})
    )
    with quiet():
        model = family.model(config).eval()
        _spread(model)
        model.save_pretrained(folder)
        fast: Any = transformers.PreTrainedTokenizerFast
        fast(
            tokenizer_object=tokenizer,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            padding_side=family.padding_side,
            model_max_length=POSITIONS - 2,
        ).save_pretrained(folder)
    return folder


def _spread(model: Any) -> None:
    """Moves biases from 0 and scales from 1, so that a graph without one fails. Enlarges word vectors."""
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if tensor.dim() == 1:
                tensor.add_(torch.randn_like(tensor) * 0.1)
            elif name.endswith("word_embeddings.weight"):
                tensor.mul_(3)


def learned(kind: str) -> Tokenizer:
    if kind == "wordpiece":
        return tiny.tiny_tokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer: Any
    if kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=special, unk_token="[UNK]", show_progress=False
        )
    elif kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=400,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="[UNK]", fuse_unk=True))
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(
            vocab_size=600, special_tokens=[*special, *bytes_], show_progress=False, limit_alphabet=100
        )
    tokenizer.train_from_iterator([text[:2000] for text in LEARNED_FROM], trainer)
    before = "[CLS] $A [SEP]" if kind != "byte-fallback" else "[CLS] $A"
    around = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single=before, special_tokens=around)
    return tokenizer
