"""Tensors into a safetensors file, as the checkpoint and the published folder both write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from training.errors import TrainingError


def save_weights(tensors: Mapping[str, Tensor], file: Path, metadata: dict[str, str]) -> None:
    """Raise TrainingError when it cannot be written, as on a full disk; then half a file is not left."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in _own(tensors).items()}
    try:
        save_file(plain, file, metadata=metadata)
    except (SafetensorError, OSError) as error:
        file.unlink(missing_ok=True)
        raise TrainingError(f"{file} cannot be written: {error}") from None


def _own(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tied weights once, by the first of their names, as transformers saves them."""
    seen: set[tuple[int, int]] = set()
    own = {}
    for name, tensor in tensors.items():
        at = (tensor.data_ptr(), tensor.numel())
        if at not in seen or not tensor.numel():
            own[name] = tensor
        seen.add(at)
    return own
