"""Publishes a folder, and verifies the ONNX graph against torch. Start at `export` and `Forward`."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from models.errors import Unsupported
from models.graph.bert import INPUTS
from models.graph.file import HIDDEN, LOGITS
from models.graph.head import Head
from models.graph.nodes import OPSET
from models.manifest import Manifest
from models.progress import Say, silent
from models.publishing.from_torch.backbone import load_backbone, load_classifier, token_vectors
from models.publishing.from_torch.pooling import pool, skipped, torch_layers
from models.publishing.proof import Vectors
from models.publishing.publish import Prepared, prepare, prepare_adopted, publish_prepared
from models.sources.folder import Source, read_source
from models.store import ModelStore
from models.tokens.tokenizer import TYPES, build_feed

# ruff: noqa: N806  shapes live in names


class Forward:
    """Computes the vectors of an encoder, or the logits of a cross-encoder.

    Args:
        typed: Whether the backbone takes token types.
        classifies: Whether the backbone outputs logits, so `head` is not used.
    """

    def __init__(
        self, backbone: nn.Module, head: Head, *, typed: bool = False, classifies: bool = False
    ) -> None:
        self.backbone = backbone.eval()
        self.typed, self.classifies = typed, classifies
        self._types = [TYPES] if typed else []
        self._layers = torch_layers(head.layers).eval()
        self._head = head

    @classmethod
    def load(cls, source: Source) -> Forward:
        scoring = source.scoring
        if scoring is None:
            return cls(load_backbone(source.backbone), source.head)
        load = load_classifier if scoring.classifies else load_backbone
        how = {"typed": scoring.typed, "classifies": scoring.classifies}
        return cls(load(source.backbone), source.head, **how)

    @torch.inference_mode()
    def embed(self, rows: Sequence[Sequence[int]]) -> Vectors:
        """Embeds rows of token ids one by one. Returns unit vectors or logits, shape (rows, dimension)."""
        self.backbone.eval()  # torch's exporter may leave a model in training mode, with dropout.
        return torch.cat([self._vector(row) for row in rows]).numpy()

    def check_length(self, length: int) -> None:
        """Raises Unsupported if the model's position table has fewer than `length` positions."""
        if not any(name.endswith("position_embeddings") for name, _ in self.backbone.named_modules()):
            return
        config: Any = self.backbone.config
        padding = getattr(config, "pad_token_id", None)
        token = 0 if padding == 1 else 1  # RoBERTa's relatives skip padding in positions.
        try:
            self.embed([[token] * length])
        except (IndexError, RuntimeError):
            raise Unsupported(
                f"The model takes fewer than {length} tokens. Set the limit in sentence_bert_config.json: "
                f'{{"max_seq_length": {length - 2}}}.'
            ) from None

    def _vector(self, row: Sequence[int]) -> Tensor:
        feed = {name: torch.from_numpy(array) for name, array in build_feed([row], self._types).items()}
        ids_1T, mask_1T = feed["input_ids"], feed["attention_mask"]
        types = {name: feed[name] for name in self._types}
        if self.classifies:
            logits: Tensor = self.backbone(input_ids=ids_1T, attention_mask=mask_1T, **types).logits
            return logits
        hidden_1TD = token_vectors(self.backbone, ids_1T, mask_1T, self._head.tokens, **types)
        left_out_1 = skipped(ids_1T, self._head.left_out)
        pooled_1D = pool(hidden_1TD, mask_1T, self._head.pooling, left_out_1)
        found: Tensor = self._layers(pooled_1D)
        return found if self._head.activation else nn.functional.normalize(found, dim=-1)


def export(
    folder: Path,
    store: ModelStore,
    *,
    origin: str,
    parent: str | None = None,
    lineage: Mapping[str, Any] | None = None,
    int8: bool = False,
    say: Say = silent,
) -> Manifest:
    """Publishes a trained sentence-transformers folder, unless the same model is already published.

    Args:
        origin: The middle part of the version's name.
        parent: The version that the model was trained from.
        lineage: How the model was trained, for the manifest.
        int8: Whether to add an int8 graph even if `parent` has none in `store`.

    Raises:
        Unsupported: The folder cannot be published.
        ProofFailed: The graph computes wrong vectors.
    """
    say("reading the model")
    prepared = prepare_trained(read_source(folder), say)
    lineage = lineage or {}
    return publish_prepared(
        store, prepared, origin=origin, parent=parent, lineage=lineage, int8=int8, say=say
    )


def prepare_trained(source: Source, say: Say = silent) -> Prepared:
    """Builds a graph from a folder's weights, and loads the folder in torch to verify the graph."""
    forward = Forward.load(source)
    forward.check_length(source.max_length)
    if source.is_written_here:
        prepared = prepare(replace(source, onnx=None))
        return prepared._replace(reference=forward.embed, computed_in="torch")
    return prepare_traced(source, forward, say)


def prepare_traced(source: Source, forward: Forward, say: Say = silent) -> Prepared:
    """Exports the graph of a model of any family with torch. Raises Unsupported."""
    say("exporting the backbone from torch")
    with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
        file = Path(temporary) / "model.onnx"
        try:
            export_backbone(forward, file)
        except OSError:
            raise
        except Exception as error:  # The exporter and the traced code raise many types.
            family, reason = source.config.get("model_type"), (str(error).splitlines() or [""])[0]
            raise Unsupported(f"torch cannot export the family {family!r}: {reason}") from error
        prepared = prepare_adopted(replace(source, onnx=file))
    return prepared._replace(reference=forward.embed, computed_in="torch")


class _Plain(nn.Module):
    """Wraps a backbone so that inputs and output are plain tensors."""

    def __init__(self, backbone: nn.Module, output: str) -> None:
        super().__init__()
        self.backbone, self.output = backbone, output

    def forward(self, *inputs: Tensor) -> Tensor:
        found: Tensor = getattr(self.backbone(**dict(zip(INPUTS, inputs, strict=False))), self.output)
        return found


def export_backbone(forward: Forward, file: Path) -> None:
    """Exports a graph up to `last_hidden_state` or `logits`. Large weights go to a data file next to it."""
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]])
    output = LOGITS if forward.classifies else HIDDEN
    inputs = INPUTS if forward.typed else INPUTS[:2]
    printed = contextlib.redirect_stdout(io.StringIO())  # torch prints the graph for unknown operators.
    with printed, _plain_masks(), warnings.catch_warnings(), torch.no_grad():
        # Hides the deprecation of this exporter, and its warnings about constants. On MiniLM, the newer
        # exporter (dynamo=True) took five times as long, and ONNX Runtime fused less of its graph.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Plain(forward.backbone, output).eval(),
            (ids, torch.ones_like(ids), torch.zeros_like(ids))[: len(inputs)],
            file,
            input_names=[*inputs],
            output_names=[output],
            dynamic_axes={name: {0: "batch", 1: "sequence"} for name in (*inputs, HIDDEN)}
            | {LOGITS: {0: "batch"}},
            opset_version=OPSET,
            dynamo=False,
        )


@contextlib.contextmanager
def _plain_masks() -> Iterator[None]:
    """Makes transformers build attention masks by broadcasting, because tracing does not support `vmap`."""
    made_by: Any = ALL_MASK_ATTENTION_FUNCTIONS
    eager = made_by["eager"]

    def plain(*arguments: Any, **options: Any) -> Any:
        return eager(*arguments, **options | {"use_vmap": False})

    made_by["eager"] = plain
    try:
        yield
    finally:
        made_by["eager"] = eager
