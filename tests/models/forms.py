"""Marks that skip tests without bf16 or int8, and a record of the batches that reach an engine."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from models.engines.onnx import OnnxEngine
from models.engines.opening import BF16, has_int8, require
from models.errors import FormUnavailable


def _why_no_bf16() -> str:
    try:
        require(BF16)
    except FormUnavailable as error:
        return str(error)
    return ""


needs_bf16 = pytest.mark.skipif(bool(_why_no_bf16()), reason=_why_no_bf16() or "bf16 can be computed here")
needs_int8 = pytest.mark.skipif(not has_int8(), reason="this processor has no VNNI instructions")


def counted(engine: object, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Returns a list that receives the shape (rows, length) of each later batch of `engine`."""
    assert isinstance(engine, OnnxEngine)
    shapes: list[tuple[int, int]] = []
    run = engine.run

    def noting(feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        rows, length = feed["input_ids"].shape
        shapes.append((rows, length))
        return run(feed, output)

    monkeypatch.setattr(engine, "run", noting)
    return shapes
