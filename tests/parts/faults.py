"""Faults that tests inject with `monkeypatch`."""

from collections.abc import Callable
from typing import Any

import pytest

from models.encoder import Encoder


def broken(*_: object, **__: object) -> None:
    """Raises a RuntimeError, as a bug could."""
    raise RuntimeError("injected")


def before_passes(patch: pytest.MonkeyPatch, do: Callable[[Encoder, Any], object]) -> None:
    """Calls `do` before each forward pass of any encoder, with the encoder and the rows of token ids."""
    forward = Encoder.forward

    def passed(encoder: Encoder, ids: Any, **options: Any) -> Any:
        do(encoder, ids)
        return forward(encoder, ids, **options)

    patch.setattr(Encoder, "forward", passed)
