"""The one door to torch: a folder as a torch model, and its way from there to a proved version.

    folder ─▶ load ─▶ Forward (backbone, pooling, dense …)
                          │ in eval mode, each text alone: what the version must compute
                          ▼
    BERT: bert.py ─────▶ ONNX ─▶ proof ─▶ Store
    other families: torch.onnx.export of the backbone, then head.py

Nothing else of `models` imports torch or transformers, and the service imports nothing of this. Only
safetensors are read; code that a folder may bring is never run.
"""

# ruff: noqa: N803, N806  shapes live in names
from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import torch
import transformers
from torch import Tensor, nn

from models.errors import Unsupported
from models.graph.backbone import Backbone
from models.graph.bert import HIDDEN
from models.graph.head import Dense, Head, mask_distance
from models.graph.nodes import OPSET
from models.manifest import Manifest
from models.publishing.proof import Vectors
from models.publishing.publish import Prepared, prepare, publish_prepared
from models.sources.folder import Source, read_source
from models.store import Store
from models.words.progress import Say, silent

Modes = Sequence[str]


def export(
    folder: Path,
    store: Store,
    *,
    origin: str,
    parent: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    say: Say = silent,
) -> Manifest:
    """Publish a trained sentence-transformers folder; the version already there if it is published.

    origin: the middle part of the version's name. The reference of the proof is torch in eval mode.
    Raises Unsupported or ProofFailed; then nothing was published.
    """
    say("reading the model")
    prepared = prepare_trained(read_source(folder), say)
    return publish_prepared(store, prepared, origin=origin, parent=parent, lineage=lineage or {}, say=say)


def prepare_trained(source: Source, say: Say = silent) -> Prepared:
    """The graph of a folder's weights, with torch as the reference of its proof."""
    forward = Forward.load(source)
    forward.check_length(source.max_length)
    if Backbone.knows(source.config):
        prepared = prepare(replace(source, onnx=None))
    else:
        say("exporting the backbone from torch")
        with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
            file = Path(temporary) / "model.onnx"
            onnx.save(backbone_onnx(forward.backbone), file)
            prepared = prepare(replace(source, onnx=file))
    return prepared._replace(reference=forward.embed, computed_in="torch")


def load_backbone(folder: Path, attention: str | None = "eager") -> nn.Module:
    """The encoder in `folder` in float32 and eval mode, without BERT's own pooler.

    attention: as transformers names it; None: as it chooses itself. Raise Unsupported when the weights are
    not whole.
    """
    try:
        with quiet():
            backbone, report = transformers.AutoModel.from_pretrained(
                folder,
                dtype=torch.float32,
                attn_implementation=attention,
                use_safetensors=True,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise Unsupported(f"{folder} cannot be opened with transformers: {reason}") from None
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise Unsupported(f"The weights in {folder} lack {missing[0]} and {len(missing) - 1} more.")
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None  # of the pre-training; nothing here uses it, and it may be random
    found: nn.Module = backbone.eval()
    return found


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without transformers' bars and tables: what matters of them is checked by `load_backbone`."""
    level, bars = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        transformers.logging.set_verbosity(level)
        if bars:
            transformers.logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def pool(hidden_RTD: Tensor, mask_RT: Tensor, modes: Modes) -> Tensor:
    """A vector for each row; several poolings are concatenated in the order given.

    hidden_RTD: of `token_vectors`. mask_RT: 1 on tokens, 0 on padding, which stands on the right.
    """
    return torch.cat([_pool(hidden_RTD, mask_RT, mode) for mode in modes], dim=-1)


def token_vectors(backbone: nn.Module, ids_RT: Tensor, mask_RT: Tensor, tokens: str = "last") -> Tensor:
    """The token vectors that are pooled, (rows, tokens, width); tokens: as in head.py."""
    if tokens == "static":
        words: Tensor = cast("transformers.PreTrainedModel", backbone).get_input_embeddings()(ids_RT)
        return words
    both = tokens == "first_last"
    found = backbone(input_ids=ids_RT, attention_mask=mask_RT, output_hidden_states=both)
    hidden: Tensor = first_last(found.hidden_states) if both else found.last_hidden_state
    return hidden


def first_last(states: Sequence[Tensor]) -> Tensor:
    """The mean of the first and the last layer's output, float32; states: as transformers gives them.

    The first of the states are the embeddings, which are no layer.
    """
    return (states[1].float() + states[-1].float()) / 2


def _pool(hidden_RTD: Tensor, mask_RT: Tensor, mode: str) -> Tensor:
    distance = mask_distance(mode)
    if distance is None:
        return _POOLS[mode](hidden_RTD, mask_RT[..., None].to(hidden_RTD.dtype))
    rows_R = torch.arange(len(hidden_RTD), device=hidden_RTD.device)
    return hidden_RTD[rows_R, mask_RT.sum(1) - 1 - distance]


def _mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return (hidden * mask).sum(1) / mask.sum(1)


_POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": lambda hidden, _mask: hidden[:, 0],
    "max": lambda hidden, mask: hidden.masked_fill(mask == 0, -torch.inf).amax(1),
    "mean": _mean,
    "mean_sqrt_len_tokens": lambda hidden, mask: _mean(hidden, mask) * mask.sum(1).sqrt(),
}


class DenseLayer(nn.Module):
    """A `2_Dense` module: activation(linear(x))."""

    def __init__(self, linear: nn.Linear, activation: str) -> None:
        super().__init__()
        self.linear = linear
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return torch.tanh(x) if self.activation == "tanh" else x


def dense_layers(head: Head) -> nn.Sequential:
    """The dense layers of a published head, to be used or trained on."""
    layers = []
    for dense in head.dense:
        outputs, inputs = dense.weight.shape
        linear = nn.Linear(inputs, outputs, bias=dense.bias is not None)
        with torch.no_grad():
            linear.weight.copy_(torch.from_numpy(np.array(dense.weight)))
            if dense.bias is not None:
                linear.bias.copy_(torch.from_numpy(np.array(dense.bias)))
        layers.append(DenseLayer(linear, dense.activation))
    return nn.Sequential(*layers)


def published_dense(layer: nn.Module) -> Dense:
    """The other way: a layer of `dense_layers` with the weights of now."""
    if not isinstance(layer, DenseLayer):
        raise TypeError(f"{type(layer).__name__} is no layer that a version can have.")
    bias = layer.linear.bias
    return Dense(
        layer.linear.weight.detach().cpu().numpy(),
        None if bias is None else bias.detach().cpu().numpy(),
        layer.activation,
    )


class Forward:
    """The vectors of a folder, computed by torch."""

    def __init__(self, backbone: nn.Module, head: Head) -> None:
        self.backbone = backbone.eval()
        self._dense = dense_layers(head).eval()
        self._head = head

    @classmethod
    def load(cls, source: Source) -> Forward:
        return cls(load_backbone(source.backbone), source.head)

    @torch.inference_mode()
    def embed(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """The unit vectors of rows of token ids, each computed alone: (rows, dimension)."""
        self.backbone.eval()  # torch's exporter has left models in training mode, where dropout is on
        vectors: Vectors = torch.cat([self._vector(torch.tensor([row])) for row in rows]).numpy()
        return vectors

    def check_length(self, length: int) -> None:
        """Raise Unsupported when the position table is shorter: RoBERTa's begins two places in."""
        try:
            self.embed([[1] * length])
        except (IndexError, RuntimeError):
            raise Unsupported(
                f"The model takes fewer than {length} tokens. Say how many in sentence_bert_config.json: "
                f'{{"max_seq_length": {length - 2}}}.'
            ) from None

    def _vector(self, ids_1T: Tensor) -> Tensor:
        mask_1T = torch.ones_like(ids_1T)
        hidden_1TD = token_vectors(self.backbone, ids_1T, mask_1T, self._head.tokens)
        return nn.functional.normalize(self._dense(pool(hidden_1TD, mask_1T, self._head.pooling)), dim=-1)


class _Hidden(nn.Module):
    """A backbone with plain tensors in and out."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


def backbone_onnx(backbone: nn.Module) -> onnx.ModelProto:
    """The graph up to `last_hidden_state`, by torch's tracing exporter.

    Its newer one (dynamo=True) makes a graph that ONNX Runtime fuses less of, and needs five times as long
    (measured on MiniLM).
    """
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]])
    target = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        # It announces its own retirement, and each Python number that it takes for a constant.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Hidden(backbone).eval(),
            (ids, torch.ones_like(ids)),
            target,  # type: ignore[arg-type]  # the tracing exporter takes a stream
            input_names=["input_ids", "attention_mask"],
            output_names=[HIDDEN],
            dynamic_axes={
                name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask", HIDDEN)
            },
            opset_version=OPSET,
            dynamo=False,
        )
    return onnx.load_from_string(target.getvalue())
