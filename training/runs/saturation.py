"""An alarm for a loss that is next to nothing from the start: Adam would then make noise large.

A loss that falls so low later has taught something on its way, so only the first steps count. Measured with
the default model, the highest loss of the first ten steps: `simcse-unsup` 0.003 on Cranfield, 0.0006 on
SciFact and 0.00001 on Wikipedia's sentences, `gs-infonce` 0.0001 and `esimcse` 0.00002 there. Of all others
that contrast it was above 0.05: `triplet` 0.054, `triples` 0.44, `pairs` 0.77, `crops` 1.5, `ict` 1.0.

Where another objective stands beside, nothing is watched. DiffCSE's has a weight of 0.005, so the sum can be
0.004 while its own loss is 0.7, and Adam makes much of it.
"""

from __future__ import annotations

from training.errors import NothingToLearn
from training.methods.objectives import InfoNCE, NTXent, Triplet
from training.methods.recipe import Recipe

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
