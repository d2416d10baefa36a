"""Create a model folder for peers: a version's files, and its transformer exported to ONNX by torch.

    python -P benchmarks/peers/export.py VERSION FOLDER

infinity's ONNX engine and fastembed pool token vectors themselves, but a published version returns
sentence vectors. The export traces the model with plain attention, because the graph fusions of ONNX Runtime
and optimum expect it. With the fusions, this export is the fastest of torch's exports.
"""

import shutil
import sys
import warnings
from pathlib import Path

import torch
from transformers import AutoModel

OPSET = 17
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OURS = shutil.ignore_patterns("onnx", "golden.json", "manifest.json")


class Transformer(torch.nn.Module):
    """A transformer that returns one vector per token and does not pool."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.inner = AutoModel.from_pretrained(folder, attn_implementation="eager", add_pooling_layer=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.inner(
            input_ids=ids, attention_mask=mask, token_type_ids=types
        ).last_hidden_state
        return found


def main() -> None:
    version, folder = Path(sys.argv[1]), Path(sys.argv[2])
    shutil.copytree(version, folder, ignore=OURS)
    warnings.simplefilter("ignore")  # torch warns that tracing is deprecated
    axes = {0: "batch", 1: "sequence"}
    torch.onnx.export(
        Transformer(version).eval(),  # otherwise dropout is traced as well
        tuple(torch.ones((2, 8), dtype=torch.int64) for _ in INPUTS),
        folder / "model.onnx",
        input_names=list(INPUTS),
        output_names=["last_hidden_state"],
        dynamic_axes=dict.fromkeys((*INPUTS, "last_hidden_state"), axes),
        opset_version=OPSET,
        dynamo=False,
    )


if __name__ == "__main__":
    main()
