"""Measurements with given rates, so that tests can compute medians and ratios by hand."""

from benchmarks.rounds import Measured

CLEAN, BUSY = 0.01, 0.5  # processor shares of other programs


def rates(*values: float, foreign: float = CLEAN, **more: float) -> list[Measured | None]:
    """Return a measurement for each rate."""
    return [Measured(value, foreign, **more) for value in values]
