"""An alarm for a loss that is next to nothing from the start: Adam would then make noise large.

A loss that falls so low later has taught something on its way, so only the first steps count.
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
        """steps: of the run. Only losses that contrast are watched; the size of others means other things."""
        contrasts = any(isinstance(each, InfoNCE | NTXent | Triplet) for each in recipe.objectives)
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
