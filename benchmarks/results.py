"""The figures of a run, as JSON keeps them: rates, and ratios between two contestants.

A ratio is taken round by round, of measurements a minute apart at most, and the median of those is quoted;
so the machine's own ups and downs are in both and fall out.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.contestant import Measured
from benchmarks.turns import Cell

Figure = Callable[[Measured], float | None]


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and what it rests on."""

    median: float
    least: float
    greatest: float
    clean: int  # 0: of contended measurements alone

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """The spread of values that are all clean."""
        return cls(statistics.median(values), min(values), max(values), len(values))

    def words(self, digits: int = 2) -> str:
        mark = "" if self.clean else " (c)"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.greatest:.{digits}f}){mark}"


class Results:
    """The whole of one run's JSON, and its measurements by cell."""

    def __init__(self, kept: dict[str, Any]) -> None:
        self.kept = kept
        self._cells: dict[Cell, list[Measured | None]] = {
            (cell["contestant"], cell["scenario"]): [
                None if one is None else Measured(**one) for one in cell["rounds"]
            ]
            for cell in kept["cells"]
        }

    @property
    def names(self) -> list[str]:
        """Everybody who was measured, in the order of the round."""
        return list(dict.fromkeys(name for name, _ in self._cells if any(self._cells_of(name))))

    def spread(self, cell: Cell, figure: Figure = lambda one: one.rate) -> Spread | None:
        """Over the clean rounds; over all when none is clean."""
        pairs = [(value, one.contended) for one in self._there(cell) if (value := figure(one)) is not None]
        return spread(pairs)

    def ratio(self, above: Cell, below: Cell, figure: Figure = lambda one: one.rate) -> Spread | None:
        """`above` over `below`, round by round."""
        return self._both(above, below, figure, lambda a, b: a / b)

    def difference(self, more: Cell, less: Cell, figure: Figure) -> Spread | None:
        return self._both(more, less, figure, lambda a, b: a - b)

    def _both(
        self, one: Cell, other: Cell, figure: Figure, of: Callable[[float, float], float]
    ) -> Spread | None:
        pairs = []
        for a, b in zip(self._cells.get(one, ()), self._cells.get(other, ()), strict=False):
            if a is None or b is None:
                continue
            first, second = figure(a), figure(b)
            if first is not None and second:
                pairs.append((of(first, second), a.contended or b.contended))
        return spread(pairs)

    def _there(self, cell: Cell) -> Iterator[Measured]:
        return (one for one in self._cells.get(cell, ()) if one is not None)

    def _cells_of(self, name: str) -> Iterator[Measured | None]:
        return (one for (who, _), found in self._cells.items() if who == name for one in found)


def cells(found: Mapping[Cell, Sequence[Measured | None]]) -> list[dict[str, Any]]:
    """For JSON."""
    return [
        {
            "contestant": name,
            "scenario": scenario,
            "rounds": [None if one is None else asdict(one) for one in rounds],
        }
        for (name, scenario), rounds in found.items()
    ]


def spread(pairs: Sequence[tuple[float, bool]]) -> Spread | None:
    """Over the values that are not contended; over all when each is."""
    if not pairs:
        return None
    clean = [value for value, contended in pairs if not contended]
    return Spread.of(clean) if clean else replace(Spread.of([value for value, _ in pairs]), clean=0)


def p50_p99(values: Sequence[float] | NDArray[np.float64]) -> tuple[float, float]:
    p50, p99 = np.quantile(values, (0.5, 0.99))
    return float(p50), float(p99)
