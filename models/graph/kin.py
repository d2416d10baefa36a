"""Families with BERT's layers: translates their configs and tensor names to BERT's names.

roberta, xlm-roberta, camembert   positions start after the padding id, and skip padding
mpnet                             the same, plus a relative-position bias in attention
distilbert                        no token types
electra                           a word table that may be narrower than the layers
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kin(NamedTuple):
    """The differences of a family from BERT."""

    config: Mapping[str, str] = {}  # BERT's config key to the family's key
    fixed: Mapping[str, Any] = {}  # Values that its config.json leaves out.
    tensors: tuple[tuple[str, str], ...] = ()  # Replacements in tensor names, in order.
    padding: str | int | None = None  # Config key or value of the padding id that positions skip.
    buckets: str = ""  # Config key of the number of relative-position buckets.
    table: str = ""  # Config key of the width of the word table.


_AFTER_PADDING = Kin(padding="pad_token_id")
KIN = {
    "bert": Kin(),
    "roberta": _AFTER_PADDING,
    "xlm-roberta": _AFTER_PADDING,
    "camembert": _AFTER_PADDING,
    "electra": Kin(table="embedding_size"),
    "distilbert": Kin(
        config={
            "num_hidden_layers": "n_layers",
            "hidden_size": "dim",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        fixed={"type_vocab_size": 0, "layer_norm_eps": 1e-12},
        tensors=(
            ("transformer.layer.", "encoder.layer."),
            ("attention.q_lin", "attention.self.query"),
            ("attention.k_lin", "attention.self.key"),
            ("attention.v_lin", "attention.self.value"),
            ("attention.out_lin", "attention.output.dense"),
            ("sa_layer_norm", "attention.output.LayerNorm"),
            ("ffn.lin1", "intermediate.dense"),
            ("ffn.lin2", "output.dense"),
            ("output_layer_norm", "output.LayerNorm"),
        ),
    ),
    "mpnet": Kin(
        fixed={"type_vocab_size": 0},
        tensors=(
            ("attention.attn.q.", "attention.self.query."),
            ("attention.attn.k.", "attention.self.key."),
            ("attention.attn.v.", "attention.self.value."),
            ("attention.attn.o.", "attention.output.dense."),
            ("attention.LayerNorm", "attention.output.LayerNorm"),
        ),
        padding=1,
        buckets="relative_attention_num_buckets",
    ),
}


def in_berts_words(config: Mapping[str, Any]) -> tuple[Kin, dict[str, Any]] | None:
    """Returns the family of a config.json and its values under BERT's keys, or None."""
    kin = KIN.get(str(config.get("model_type")))
    if kin is None:
        return None
    own = {key: config[name] for key, name in kin.config.items() if name in config}
    return kin, {**config, **own, **kin.fixed}


def distance_buckets(longest: int, buckets: int) -> NDArray[np.int64]:
    """Returns the bucket of each distance (key minus query) from 1 - longest to longest - 1.

    Half of each direction's buckets hold one distance; the others widen up to 128 (T5, Raffel et al. 2020).
    """
    distances = np.arange(1 - longest, longest)
    half = buckets // 2
    exact = half // 2
    size = np.abs(distances)
    # Float32, as in torch: rounding decides at the edges of buckets.
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    wide = exact + (ratio / np.float32(np.log(128 / exact)) * np.float32(half - exact)).astype(np.int64)
    found: NDArray[np.int64] = np.where(size < exact, size, np.minimum(wide, half - 1)) + half * (
        distances > 0
    )
    return found
