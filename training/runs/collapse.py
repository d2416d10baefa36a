"""An alarm for vectors that have become one."""

from __future__ import annotations

import math

from training.runs.step import Step

COLLAPSED = -0.05  # uniformity of a batch; a mean cosine of about 0.99
LONG = 100  # steps that vectors may stay alike which begin so, as a raw RoBERTa's do


class Collapse:
    """Says once when the vectors of a batch have become one: training goes on, and would teach nothing."""

    def __init__(self) -> None:
        self.newest: float | None = None
        self._apart = self._said = False
        self._alike = 0  # steps since they were apart

    def seen(self, step: Step) -> str:
        if not math.isfinite(step.uniformity):
            return ""
        self.newest = step.uniformity
        if step.uniformity <= COLLAPSED:
            self._apart, self._alike = True, 0
            return ""
        self._alike += 1
        if self._said or not (self._apart or self._alike >= LONG):
            return ""
        self._said = True
        return (
            f"WARNING: the vectors have collapsed: uniformity {step.uniformity:.3f}, where 0 is all alike. "
            "Lower the recipe's lr, or look for texts that are all the same."
        )
