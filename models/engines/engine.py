"""Engine: a published graph, opened by a runtime. What the encoder needs of it, and no more."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from models.engines.form import Form


class Engine(Protocol):
    """Thread safe: any number of threads may call `run` at once."""

    @property
    def form(self) -> Form: ...

    @property
    def providers(self) -> list[str]:
        """The devices that compute, the first choice first, in the runtime's own words."""

    @property
    def inputs(self) -> Collection[str]:
        """Names of the graph's inputs; `run` takes all of them."""

    def run(self, feed: Mapping[str, NDArray[np.int64]], output: str) -> NDArray[np.float32]:
        """The graph's `output`, (n, dimension), of inputs that are (n, length) each."""

    def close(self) -> None:
        """Free its memory; it cannot be used afterwards."""
