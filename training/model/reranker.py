"""The cross-encoder in training: a torch model that reads two texts together and returns scores.

It takes the place of the encoder in a run. The "vector" of a pair is its raw scores (logits), one or one per
class. `save` writes a Hugging Face folder, which sentence-transformers' CrossEncoder opens and
`simile models import` publishes as a reranker. `load_reranker` creates it from any base: an encoder, a
masked language model or another cross-encoder. A head of the base is kept if it has as many outputs, with
equal names.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn

from models.errors import Unsupported
from models.progress import Progress
from models.publishing.from_torch.backbone import quiet
from models.publishing.layout import published_tokenizer, write_backbone
from models.sources.files import optional_json
from models.sources.folder import Source, read_source
from models.tokens.pairs import INPUT_NAMES, TOKENIZER_CONFIG, Around, Pair, PairTokenizer
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Tokenizer, open_tokenizer
from training.errors import TrainingError
from training.model.dropout import set_dropout
from training.model.encoder import Encoded, TrainedEncoder, save_weights
from training.model.packed import build_groups
from training.text.tokens import Tokens, build_tokens

_ACTIVATIONS = ("sentence_transformers", "sbert_ce_default_activation_function")  # keys of config.json
_CHUNK = 4096  # pairs that are tokenized at a time


class TrainedReranker(TrainedEncoder):
    """Scores pairs of texts.

    Args:
        source: The base.
        model: A *ForSequenceClassification of transformers.

    Raises:
        TrainingError: The tokenizer does not separate two texts.

    """

    def __init__(self, source: Source, model: Any) -> None:
        super().__init__(source, model, nn.Sequential())
        self.pairs = Around.of(open_tokenizer(source.tokenizer))
        if not self.pairs.between:
            raise TrainingError(
                "The base's tokenizer puts no token between two texts, and a cross-encoder needs one: take "
                "another base."
            )
        scoring = source.scoring  # A new cross-encoder uses all token types that its base has.
        self._types = scoring.typed if scoring else getattr(model.config, "type_vocab_size", 0) > 1

    def tokenizer(self, max_length: int, *, whole: bool = False) -> Tokenizer:  # noqa: ARG002  no source is whole
        """Returns a tokenizer that adds no special tokens, because a pair has its own."""
        content = self.source.tokenizer | {"post_processor": None}
        return Tokenizer(
            content, min(max_length, self.source.max_length), self.source.config.get("vocab_size")
        )

    def forward(self, tokens: Tokens, dropout: float | Sequence[float] = 0.0) -> Encoded:
        """Scores pairs. `Encoded.pooled` has their raw scores, shape (R, outputs); `hidden` is empty."""
        set_dropout(self.backbone, dropout)
        found: list[Tensor] = []
        groups = [*build_groups(tokens.lengths, self.device)]  # of like lengths, so with little padding
        for group in groups:
            some = tokens.select(group)
            ids_RT, mask_RT = (x.to(self.device) for x in some.padded(self.pad_id))
            given = {"input_ids": ids_RT, "attention_mask": mask_RT}
            if self._types and some.second is not None:
                types_RT = torch.arange(ids_RT.shape[1]) >= some.second[:, None]
                given["token_type_ids"] = types_RT.long().to(self.device) * mask_RT
            found.append(self.backbone(**given).logits.float())
        back = torch.cat(groups).argsort().to(self.device)
        return Encoded(torch.cat(found)[back], torch.empty(0))

    @property
    def width(self) -> int:
        """The number of scores of a pair."""
        return int(self.backbone.config.num_labels)

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """Returns the raw scores (logits) of pairs of texts, without dropout, shape (n, outputs)."""
        length = self.source.max_length
        tokenizer = PairTokenizer(self.source.tokenizer, length, self.source.config.get("vocab_size"))
        found = [np.empty((0, self.width), np.float32)]
        with Progress("pairs", len(pairs), "scoring") as progress:
            for at in range(0, len(pairs), _CHUNK):
                some = [Pair(*pair) for pair in pairs[at : at + _CHUNK]]
                rows: list[Any] = [row.ids for row in tokenizer.tokenize_pairs(some)]
                second = torch.tensor([ids.second for ids in rows])
                found.append(self(replace(build_tokens(rows), second=second)).pooled.cpu().numpy())
                progress.add(len(some))
        return np.concatenate(found)

    def save(self, folder: Path) -> None:
        """Writes the model to an empty folder, in the layout of Hugging Face."""
        source = self.source
        write_backbone(source, folder)
        self.backbone.config.architectures = [type(self.backbone).__name__]
        self.backbone.config.save_pretrained(folder)
        tokenizer = published_tokenizer(source.tokenizer, source.max_length)
        (folder / TOKENIZER).write_text(json.dumps(tokenizer, ensure_ascii=False), encoding="utf-8")
        inputs = ["input_ids", *(["token_type_ids"] if self._types else []), "attention_mask"]
        config = optional_json(source.backbone / TOKENIZER_CONFIG)
        config |= {"model_max_length": source.max_length, INPUT_NAMES: inputs}
        (folder / TOKENIZER_CONFIG).write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
        save_weights(self.backbone.state_dict(), folder / "model.safetensors", {"format": "pt"})


def load_reranker(
    folder: Path, outputs: int | None = None, labels: Sequence[str] = (), seed: int = 0
) -> TrainedReranker:
    """Loads the base in `folder` as a cross-encoder.

    Args:
        folder: Folder of the base.
        outputs: Number of scores of a pair. None: those of the folder, which must be a cross-encoder.
        labels: Names of the scores.
        seed: Seed of a new head.

    Raises:
        ModelError: The folder cannot be opened.
        TrainingError: The folder has no safetensors file, or is not a cross-encoder.

    """
    source = read_source(folder)
    if not source.weights or source.is_table:
        raise TrainingError(f"{folder} has no layers in a model.safetensors, which a cross-encoder needs.")
    architectures = source.config.get("architectures") or [""]
    if outputs is None and not architectures[0].endswith("ForSequenceClassification"):
        raise TrainingError(
            f"{folder} is not a cross-encoder ({architectures[0]}). Train one: `simile train cross-encoder`."
        )
    names = {"id2label": dict(enumerate(labels)), "label2id": {name: at for at, name in enumerate(labels)}}
    given = {} if outputs is None else names if labels else {"num_labels": outputs}
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                source.backbone,
                dtype=torch.float32,
                attn_implementation="eager",  # in training faster than others on a CPU (packed.py)
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                ignore_mismatched_sizes=True,  # the head of another number of outputs
                output_loading_info=True,
                **given,
            )
    except Exception as error:  # noqa: BLE001  each of its configurations raises its own
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{folder} cannot be opened as a cross-encoder: {reason}") from None
    within = f"{model.base_model_prefix}."
    missing = sorted(
        name
        for name in report["missing_keys"]
        if outputs is None or (name.startswith(within) and ".pooler." not in name)
    )
    if missing:
        raise Unsupported(
            f"The weights in {folder} are incomplete: {missing[0]} and {len(missing) - 1} more are missing."
        )
    for name, found, expected in sorted(report["mismatched_keys"]):
        if outputs is None or name.startswith(within):
            raise Unsupported(
                f"The weights in {folder} do not fit its config.json: {name} has the shape {[*found]}, not "
                f"{[*expected]}. Copy the folder again from its source."
            )
    if labels and source.scoring and source.scoring.classifies:
        _fit_head(model, source.scoring.labels, labels, seed)
    for name in _ACTIVATIONS if outputs is not None else ():  # The losses are of the default activations.
        vars(model.config).pop(name, None)
    # A cross-encoder reads its texts without the prompts of an encoder.
    bare = replace(source, prompts={}, default_prompt="", search_prompt="", document_prompt="")
    return TrainedReranker(bare, model)


def _fit_head(model: Any, before: Sequence[str], labels: Sequence[str], seed: int) -> None:
    """Puts the scores of a head in the order of `labels`. A head with other names gets random weights.

    Args:
        model: A *ForSequenceClassification with a score for each of `labels`.
        before: Names of the scores in the base.
        labels: Names of the scores in the new model.
        seed: Seed of random weights.

    """
    if len(before) != len(labels):
        return  # The head is new.
    within = f"{model.base_model_prefix}."
    head = (part for name, part in model.named_modules() if not name.startswith(within))
    scores = [part for part in head if isinstance(part, nn.Linear)][-1]
    names, wanted = ([name.casefold() for name in each] for each in (before, labels))
    with torch.no_grad():
        if sorted(names) == sorted(wanted):
            rows = [names.index(name) for name in wanted]
            for tensor in scores.parameters():
                tensor.copy_(tensor[rows])
        else:
            spread = getattr(model.config, "initializer_range", 0.02)
            scores.weight.normal_(0, spread, generator=torch.Generator().manual_seed(seed))
            if scores.bias is not None:
                scores.bias.zero_()
