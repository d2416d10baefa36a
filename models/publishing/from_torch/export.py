"""A folder's way from torch to a proved version, and torch.onnx.export of a backbone."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from models.errors import Unsupported
from models.graph.bert import HIDDEN
from models.graph.families import knows
from models.graph.nodes import OPSET
from models.manifest import Manifest
from models.publishing.from_torch.forward import Forward
from models.publishing.publish import Prepared, prepare, prepare_adopted, publish_prepared
from models.sources.folder import Source, read_source
from models.store import Store
from models.words.progress import Say, silent


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
    if source.is_table or knows(source.config):
        prepared = prepare(replace(source, onnx=None))
        return prepared._replace(reference=forward.embed, computed_in="torch")
    return prepare_traced(source, forward, say)


def prepare_traced(source: Source, forward: Forward, say: Say = silent) -> Prepared:
    """The same by torch's exporter, whatever the family is."""
    say("exporting the backbone from torch")
    with tempfile.TemporaryDirectory(prefix="simile-") as temporary:
        file = Path(temporary) / "model.onnx"
        try:
            export_backbone(forward.backbone, file)
        except OSError:
            raise
        except Exception as error:  # of its own kinds, and those of the code that is traced
            family, said = source.config.get("model_type"), (str(error).splitlines() or [""])[0]
            raise Unsupported(f"torch cannot export the family {family!r}: {said}") from error
        prepared = prepare_adopted(replace(source, onnx=file))
    return prepared._replace(reference=forward.embed, computed_in="torch")


class _Hidden(nn.Module):
    """A backbone with plain tensors in and out."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden


def export_backbone(backbone: nn.Module, file: Path) -> None:
    """Write the graph up to `last_hidden_state`, by torch's tracing exporter; large weights beside it.

    Its newer one (dynamo=True) makes a graph that ONNX Runtime fuses less of, and needs five times as long
    (measured on MiniLM).
    """
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 7, 8]])
    printed = contextlib.redirect_stdout(io.StringIO())  # a whole graph, where an operator is not known
    with printed, _plain_masks(), warnings.catch_warnings(), torch.no_grad():
        # It announces its own retirement, and each Python number that it takes for a constant.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _Hidden(backbone).eval(),
            (ids, torch.ones_like(ids)),
            file,
            input_names=["input_ids", "attention_mask"],
            output_names=[HIDDEN],
            dynamic_axes={
                name: {0: "batch", 1: "sequence"} for name in ("input_ids", "attention_mask", HIDDEN)
            },
            opset_version=OPSET,
            dynamo=False,
        )


@contextlib.contextmanager
def _plain_masks() -> Iterator[None]:
    """Attention masks made by broadcasting, since tracing cannot follow `vmap`; the values are the same."""
    made_by: Any = ALL_MASK_ATTENTION_FUNCTIONS
    eager = made_by["eager"]

    def plain(*arguments: Any, **options: Any) -> Any:
        return eager(*arguments, **options | {"use_vmap": False})

    made_by["eager"] = plain
    try:
        yield
    finally:
        made_by["eager"] = eager
