"""The interface of a published graph that a runtime has opened."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.engines.form import Form


class Engine(Protocol):
    """An opened graph. `run` is thread-safe."""

    @property
    def form(self) -> Form: ...

    @property
    def providers(self) -> list[str]:
        """The runtime's names of its devices, in order of preference."""

    @property
    def inputs(self) -> Collection[str]:
        """Names of the graph's inputs. `run` requires all of them."""

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        """Computes the graph's `output`, shape (n, dimension), from inputs of shape (n, length)."""

    def close(self) -> None:
        """Frees the memory. The engine cannot be used afterwards."""
