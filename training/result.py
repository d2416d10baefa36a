"""What a training run answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Result:
    out: Path
    steps: int  # done
    interrupted: bool  # then `best` and `last` may not be there yet; the run can be resumed
    loss: float  # of the last step
    dev: dict[int, float] = field(default_factory=dict)  # score after so many steps; empty without a dev set

    @property
    def best(self) -> Path:
        """The folder with the highest dev score; without a dev set the same weights as `last`."""
        return self.out / "best"

    @property
    def last(self) -> Path:
        return self.out / "last"
