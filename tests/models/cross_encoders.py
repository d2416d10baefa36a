"""Tiny random cross-encoders of many families, as sentence-transformers itself saves them.

cross_encoder_source(folder, "electra", outputs=3)     a folder as the hub has them
modular_source(folder)                                 a CrossEncoder of several modules, with ModernBERT
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from sentence_transformers import CrossEncoder
from sentence_transformers.sentence_transformer import modules
from tokenizers import processors

from models.publishing.from_torch.backbone import quiet
from tests.models.families import FAMILIES, WIDTH, Family, learned, raw_source

CLASSES = {
    "bert": transformers.BertForSequenceClassification,
    "roberta": transformers.RobertaForSequenceClassification,
    "xlm-roberta": transformers.XLMRobertaForSequenceClassification,
    "distilbert": transformers.DistilBertForSequenceClassification,
    "electra": transformers.ElectraForSequenceClassification,
    "mpnet": transformers.MPNetForSequenceClassification,
    "deberta-v2": transformers.DebertaV2ForSequenceClassification,
    "modernbert": transformers.ModernBertForSequenceClassification,
}
TYPED = {"bert", "electra"}
LABELS = ("contradiction", "entailment", "neutral", "other")


def cross_encoder_source(folder: Path, name: str, outputs: int = 1, seed: int = 0, **how: Any) -> Path:
    """Writes a folder of the family `name`.

    Args:
        how: Arguments of CrossEncoder, such as `activation_fn` and `prompts`.
    """
    raw = raw_cross_encoder(folder.with_name(f"{folder.name}-raw"), name, outputs, seed)
    with quiet():
        CrossEncoder(str(raw), device="cpu", **how).save_pretrained(str(folder), create_model_card=False)
    return folder


def raw_cross_encoder(folder: Path, name: str, outputs: int = 1, seed: int = 0, **settings: Any) -> Path:
    """Writes a Hugging Face folder, without files of sentence-transformers.

    Args:
        settings: They replace those of the configuration.
    """
    torch.manual_seed(seed)
    family = FAMILIES[name]
    labels = {at: LABELS[at] if outputs > 1 else "LABEL_0" for at in range(outputs)}
    changed: dict[str, Any] = {"id2label": labels, "label2id": {name: at for at, name in labels.items()}}
    changed |= {"pooler_hidden_size": WIDTH} if name == "deberta-v2" else {}
    scored = family._replace(model=CLASSES[name], settings=family.settings | changed)
    typed = name in TYPED or settings.get("type_vocab_size", 0) > 1
    return _paired(raw_source(folder, scored, settings), family.tokenizer, typed=typed)


def modular_source(folder: Path, outputs: int = 1, seed: int = 0, **how: Any) -> Path:
    """Writes a CrossEncoder whose head is modules after a ModernBERT."""
    torch.manual_seed(seed)
    family: Family = FAMILIES["modernbert"]
    raw = _paired(raw_source(folder.with_name(f"{folder.name}-raw"), family), family.tokenizer, typed=False)
    with quiet():
        stages = [
            modules.Transformer(str(raw)),
            modules.Pooling(WIDTH, pooling_mode="cls"),
            modules.Dense(WIDTH, WIDTH, bias=False, activation_function=torch.nn.GELU()),
            modules.LayerNorm(WIDTH),
            modules.Dense(
                WIDTH, outputs, activation_function=torch.nn.Identity(), module_output_name="scores"
            ),
        ]
        CrossEncoder(modules=stages, device="cpu", **how).save_pretrained(
            str(folder), create_model_card=False
        )
    return folder


def _paired(folder: Path, kind: str, *, typed: bool) -> Path:
    """Replaces the tokenizer of a folder with one that has a template for pairs."""
    tokenizer = learned(kind)
    special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    pair = "[CLS] $A [SEP] $B:1 [SEP]:1" if typed else "[CLS] $A [SEP] [SEP] $B [SEP]"
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair=pair, special_tokens=special
    )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    types = ["token_type_ids"] if typed else []
    fast: Any = transformers.PreTrainedTokenizerFast
    with quiet():
        fast(
            tokenizer_object=tokenizer,
            pad_token="[PAD]",
            unk_token="[UNK]",
            cls_token="[CLS]",
            sep_token="[SEP]",
            mask_token="[MASK]",
            model_max_length=64,
            model_input_names=["input_ids", *types, "attention_mask"],
        ).save_pretrained(folder)
    return folder
