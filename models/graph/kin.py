"""Families whose layers are BERT's: what their config.json and their tensors are called, in BERT's words.

roberta, xlm-roberta, camembert   positions begin behind the padding's, and are not counted on it
mpnet                             the same, and a bias of attention by the distance of two tokens
distilbert                        no token types
electra                           a word table that may be narrower than the layers
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Kin(NamedTuple):
    """A family by its differences from BERT."""

    config: Mapping[str, str] = {}  # BERT's key -> its own
    fixed: Mapping[str, Any] = {}  # values that its config.json does not say
    tensors: tuple[tuple[str, str], ...] = ()  # a piece of its names -> BERT's, in this order
    padding: str | int | None = None  # the id that is not counted by positions: a key, or fixed
    buckets: str = ""  # key of the number of distances that attention tells apart
    table: str = ""  # key of the width of the word table


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
    """The family of a config.json, and its content by BERT's keys; None of another family."""
    kin = KIN.get(str(config.get("model_type")))
    if kin is None:
        return None
    own = {key: config[name] for key, name in kin.config.items() if name in config}
    return kin, {**config, **own, **kin.fixed}


def distance_buckets(longest: int, buckets: int) -> NDArray[np.int64]:
    """The bucket of each distance, key minus query, from 1 - longest to longest - 1.

    Half of them for each direction; of those half for single distances, the others ever wider up to 128: T5's
    (Raffel et al. 2020), as MPNet has them.
    """
    distances = np.arange(1 - longest, longest)
    half = buckets // 2
    exact = half // 2
    size = np.abs(distances)
    # In float32, as torch computes it: the logarithm decides at the edges.
    ratio = np.log(np.maximum(size, 1).astype(np.float32) / np.float32(exact))
    wide = exact + (ratio / np.float32(np.log(128 / exact)) * np.float32(half - exact)).astype(np.int64)
    found: NDArray[np.int64] = np.where(size < exact, size, np.minimum(wide, half - 1)) + half * (
        distances > 0
    )
    return found
