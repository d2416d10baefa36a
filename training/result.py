"""What a training run answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Result:
    out: Path
    steps: int  # done
    interrupted: bool  # asked to stop; unless it is `finished` all the same, the run can be resumed
    loss: float  # of the last step
    # The score after so many steps, None where it was no number; empty without a dev set.
    dev: dict[int, float | None] = field(default_factory=dict)
    finished: bool = True  # `best` and `last` are there

    @property
    def best(self) -> Path:
        """The folder with the highest dev score; without a dev set the same weights as `last`."""
        return self.out / "best"

    @property
    def last(self) -> Path:
        return self.out / "last"
