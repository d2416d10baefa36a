"""An alarm for vectors that have become one."""

from __future__ import annotations

import math

from training.errors import NothingToLearn
from training.methods.objectives import InfoNCE, NTXent, Triplet
from training.methods.recipe import Recipe
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


SATURATED = 0.01
LOOK = 10  # steps, or all of a shorter run


class Saturation:
    """Says when no step at the beginning of a run had anything to learn."""

    def __init__(self, recipe: Recipe, steps: int) -> None:
        """steps: of the run. Only recipes that contrast, and nothing else, are watched."""
        contrasts = all(isinstance(each, InfoNCE | NTXent | Triplet) for each in recipe.objectives)
        self._last = min(LOOK, steps) if contrasts else 0
        self._highest = 0.0

    def seen(self, number: int, loss: float) -> None:
        """Step `number`, counted from 1. Raise NothingToLearn at the last one that is looked at."""
        if number > self._last:
            return
        self._highest = max(self._highest, loss)
        if number == self._last and self._highest < SATURATED:
            raise NothingToLearn(
                f"The loss was {self._highest:.1g} at most in the first {number} steps: the model tells "
                "these texts apart already, and more steps would add noise. Take a recipe that asks for "
                "more, as crops, ict or pairs (docs/METHODS.md), in another folder."
            )
