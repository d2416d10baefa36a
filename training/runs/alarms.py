"""Detect training runs that cannot succeed: collapsed vectors, or a loss near zero from the start."""

from __future__ import annotations

import math

from training.errors import NothingToLearn
from training.methods.objectives import InfoNCE, NTXent, Triplet
from training.methods.recipe import Recipe
from training.runs.step import Step

COLLAPSED = -0.05  # uniformity of a batch; a mean cosine of about 0.99
LONG = 100  # steps in which vectors that are alike from the start, such as a raw RoBERTa's, have to part
# The default model's highest loss of the first ten steps was measured. `simcse-unsup` had 0.003 on Cranfield,
# 0.0006 on SciFact, and 0.00001 on sentences of Wikipedia. On these sentences, `gs-infonce` had 0.0001 and
# `esimcse` 0.00002. Other contrastive recipes had more than 0.05: `triplet` 0.054, `triples` 0.44, `pairs`
# 0.77, `crops` 1.5, and `ict` 1.0.
SATURATED = 0.01
LOOK = 10  # steps, or all steps of a shorter run


class Collapse:
    """Warns once if the vectors of a batch have become nearly equal, or were so for the first LONG steps.

    The training continues.
    """

    def __init__(self) -> None:
        self.newest: float | None = None
        self._apart = self._said = False
        self._alike = 0  # steps since the vectors were apart

    def seen(self, step: Step) -> str:
        """Checks a step. Returns a warning, or an empty string."""
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


class Saturation:
    """Stops a run whose loss starts near zero, because Adam would amplify noise.

    Only the first steps count, because a loss that reaches zero later has taught the model something. Only
    recipes whose objectives are all contrastive are checked. In DiffCSE, the second loss has a weight of
    0.005, so the sum can be 0.004 while the second loss is 0.7.
    """

    def __init__(self, recipe: Recipe, steps: int) -> None:
        contrasts = all(isinstance(each, InfoNCE | NTXent | Triplet) for each in recipe.objectives)
        self._last = min(LOOK, steps) if contrasts else 0
        self._highest = 0.0

    def seen(self, number: int, loss: float) -> None:
        """Records the loss of step `number`, counted from 1.

        Raises:
            NothingToLearn: The loss of all first steps was below `SATURATED`.
        """
        if number > self._last:
            return
        self._highest = max(self._highest, loss)
        if number == self._last and self._highest < SATURATED:
            raise NothingToLearn(
                f"The loss was {self._highest:.1g} at most in the first {number} steps: the model tells "
                "these texts apart already, and more steps would add noise. Take a recipe that asks for "
                "more, as crops, ict or pairs (docs/METHODS.md), in another folder."
            )
