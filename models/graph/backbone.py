"""Reads the sizes and tensors of a BERT checkpoint. Start at `Backbone.from_config` and `read_backbone`.

Only safetensors files are read; nothing is unpickled. Families with BERT's layers have other names for
configuration keys and tensors, which `KIN` translates to BERT's names:

    roberta, xlm-roberta, camembert   positions start after the padding id, and skip padding
    mpnet                             the same, plus a relative-position bias in attention
    distilbert                        no token types
    electra                           a word table that may be narrower than the layers
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import safetensors
from numpy.typing import NDArray

from models.errors import Unsupported
from models.files.bounded import parse_json
from models.graph.file import LARGEST


class Kin(NamedTuple):
    """Describes how a model family differs from BERT."""

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
    """Returns how the family of a config.json differs from BERT, and the values under BERT's keys.

    Returns None for families whose layers differ from BERT's.
    """
    kin = KIN.get(str(config.get("model_type")))
    if kin is None:
        return None
    own = {key: config[name] for key, name in kin.config.items() if name in config}
    return kin, {**config, **own, **kin.fixed}


def distance_buckets(longest: int, buckets: int) -> NDArray[np.int64]:
    """Returns the bucket of each relative position (key minus query) from 1 - longest to longest - 1.

    In each direction, half of the buckets have one distance each. The other buckets have ever wider ranges,
    and the last one has no upper end (T5, Raffel et al. 2020).
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


Tensors = dict[str, NDArray[np.float32]]

ACTIVATIONS = {"gelu": "gelu", "relu": "relu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh"}
_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
MAX_TENSORS = 100_000  # A model of some hundred layers has a few thousand.
MAX_HEADER_BYTES = 100_000_000  # The limit of the safetensors format.
SIZES = {
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "heads": "num_attention_heads",
    "inner": "intermediate_size",
    "vocabulary": "vocab_size",
    "positions": "max_position_embeddings",
    "types": "type_vocab_size",
}
_PREFIXES = ("bert.", "roberta.", "distilbert.", "mpnet.", "electra.", "model.", "0.auto_model.", "")
_RENAMED = [pair for kin in KIN.values() for pair in kin.tensors]
OTHERS = "`simile models import` exports others with torch (extra `train`), or uses their onnx/model.onnx."


@dataclass(frozen=True)
class Backbone:
    """The sizes of a BERT encoder, as its config.json states them."""

    layers: int
    width: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    types: int
    activation: str  # gelu, gelu_tanh or relu
    epsilon: float
    table: int = 0  # Width of the word table; 0 if it equals `width`.
    padding: int | None = None  # Padding id that positions skip and start after; None in BERT.
    buckets: int = 0  # Relative-position buckets; 0 without relative positions.

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Backbone:
        found = in_berts_words(config)
        if found is None:
            family = config.get("model_type")
            raise Unsupported(f"The family {family!r} is not among {', '.join(KIN)}. {OTHERS}")
        kin, config = found
        activation = config.get("hidden_act", "gelu")
        if activation not in ACTIVATIONS:
            raise Unsupported(f"The activation {activation!r} is not supported. {OTHERS}")
        position_type = config.get("position_embedding_type", "absolute")
        if position_type != "absolute" or config.get("is_decoder"):
            raise Unsupported(f"Only encoders with absolute positions are supported. {OTHERS}")
        sizes = {field: get_size(config, name) for field, name in SIZES.items()}
        if sizes["width"] % sizes["heads"]:
            raise Unsupported(f"{sizes['width']} dimensions cannot be shared among {sizes['heads']} heads.")
        epsilon = float(config.get("layer_norm_eps", 1e-12))
        table = (kin.table and config.get(kin.table)) or sizes["width"]
        padding = config.get(kin.padding, 1) if isinstance(kin.padding, str) else kin.padding
        return cls(
            **sizes,
            activation=ACTIVATIONS[activation],
            epsilon=epsilon,
            table=0 if table == sizes["width"] else int(table),
            padding=None if padding is None else int(padding),
            buckets=int(config.get(kin.buckets, 32)) if kin.buckets else 0,
        )

    @property
    def said(self) -> dict[str, Any]:
        """The sizes for the fingerprint, without `table`, `padding` and `buckets` if they are as in BERT."""
        later = {"table": 0, "padding": None, "buckets": 0}
        return {name: value for name, value in asdict(self).items() if later.get(name, ...) != value}

    def shapes(self, tokens: str = "last") -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields the name and shape of each tensor in the graph.

        Weight matrices have the shape (outputs, inputs). With `static` tokens, only the word table is needed.
        """
        d = self.width
        narrow = self.table or d
        yield "embeddings.word_embeddings.weight", (self.vocabulary, narrow)
        if tokens == "static":
            return
        yield "embeddings.position_embeddings.weight", (self.positions, narrow)
        if self.types:
            yield "embeddings.token_type_embeddings.weight", (self.types, narrow)
        yield from _both("embeddings.LayerNorm", (narrow,), (narrow,))
        if self.table:
            yield from _both("embeddings_project", (d, narrow), (d,))
        if self.buckets:
            yield "encoder.relative_attention_bias.weight", (self.buckets, self.heads)
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            for part in ("self.query", "self.key", "self.value", "output.dense"):
                yield from _both(f"{at}.attention.{part}", (d, d), (d,))
            yield from _both(f"{at}.attention.output.LayerNorm", (d,), (d,))
            yield from _both(f"{at}.intermediate.dense", (self.inner, d), (self.inner,))
            yield from _both(f"{at}.output.dense", (d, self.inner), (d,))
            yield from _both(f"{at}.output.LayerNorm", (d,), (d,))


def get_size(config: Mapping[str, Any], name: str) -> int:
    size = config.get(name)
    if not isinstance(size, int) or size < (name != SIZES["types"]):
        raise Unsupported(f"{name} is missing from config.json, or is not a positive integer.")
    return size


def _both(at: str, weight: tuple[int, ...], bias: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield f"{at}.weight", weight
    yield f"{at}.bias", bias


class Shaped(Protocol):
    """The interface that `Backbone` and `ModernBackbone` share."""

    def shapes(self, tokens: str = "last", /) -> Iterator[tuple[str, tuple[int, ...]]]: ...


def read_backbone(files: Sequence[Path], backbone: Shaped, tokens: str = "last") -> Tensors:
    """Reads the tensors that the graph uses, as float32.

    Raises:
        Unsupported: A tensor is missing, not finite, or has the wrong shape.
    """
    read = map_safetensors if sum(file.stat().st_size for file in files) > LARGEST else read_safetensors
    stored = {modern_name(name): tensor for file in files for name, tensor in read(file).items()}
    words = next(name for name, _ in backbone.shapes(tokens))
    prefix = next((p for p in _PREFIXES if p + words in stored), "")
    for own, berts in _RENAMED:
        stored = {name.replace(own, berts): tensor for name, tensor in stored.items()}
    tensors: Tensors = {}
    for name, shape in backbone.shapes(tokens):
        tensor = stored.get(prefix + name)
        if tensor is None:
            raise Unsupported(f"The weights are incomplete: the tensor {name} is missing.")
        if tensor.shape != shape:
            raise Unsupported(f"The tensor {name} has the shape {tensor.shape}; config.json says {shape}.")
        require_finite(name, tensor)
        tensors[name] = tensor
    return tensors


def require_finite(name: str, tensor: NDArray[np.float32]) -> None:
    """Rejects a tensor with a NaN or an infinity."""
    if not np.isfinite(tensor).all():
        raise Unsupported(f"The tensor {name} is not finite: its training diverged, or it is damaged.")


def require_few_tensors(file: Path) -> None:
    """Rejects a file with more than MAX_TENSORS tensors, because even empty tensors take memory."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = stream.read(min(size, MAX_HEADER_BYTES))
    # The JSON header has two lists for each tensor: shape and offsets.
    if (count := header.count(b"[") // 2) > MAX_TENSORS:
        raise Unsupported(f"{file.name} has {count} tensors; at most {MAX_TENSORS} are read.")


def read_safetensors(file: Path) -> Tensors:
    """Reads the floating-point tensors of a file as float32."""
    require_few_tensors(file)
    try:
        entries = safetensors.deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise Unsupported(f"{file.name} is not a valid safetensors file: {error}") from None
    return {name: _as_float32(entry) for name, entry in entries if entry["dtype"] in _DTYPES}


def map_safetensors(file: Path, names: Collection[str] | None = None) -> Tensors:
    """Reads like `read_safetensors`, but maps float32 tensors from the file. The file must not change.

    Args:
        names: The tensors to read, in BERT's spelling (`modern_name`). None for all.
    """
    tensor_shapes(file)  # Rejects a damaged file.
    mapped = np.memmap(file, np.uint8, "r")
    size = int(mapped[:8].view("<u8")[0])
    entries = parse_json(bytes(mapped[8 : 8 + size]))
    found: Tensors = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise Unsupported(f"{file.name} is not a valid safetensors file: {name!r:.100} is not an object")
        if entry.get("dtype") in _DTYPES and (names is None or modern_name(name) in names):
            start, end = entry["data_offsets"]
            found[name] = _as_float32(entry | {"data": mapped[8 + size + start : 8 + size + end]})
    return found


def tensor_shapes(file: Path) -> dict[str, list[int]]:
    """Reads the shape of every tensor from the header. Raises Unsupported for a damaged file."""
    require_few_tensors(file)
    try:
        with safetensors.safe_open(file, "np") as opened:
            return {name: opened.get_slice(name).get_shape() for name in opened.keys()}  # noqa: SIM118  no dict
    except safetensors.SafetensorError as error:
        raise Unsupported(f"{file.name} is not a valid safetensors file: {error}") from None


def _as_float32(entry: Mapping[str, Any]) -> NDArray[np.float32]:
    stored = np.frombuffer(entry["data"], dtype=_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    if entry["dtype"] == "BF16":  # bfloat16 is the upper half of a float32.
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.astype(np.float32, copy=False)


def modern_name(name: str) -> str:
    """Renames TensorFlow's gamma and beta to weight and bias."""
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")
