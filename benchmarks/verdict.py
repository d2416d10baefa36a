"""A figure against what is promised of it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """A figure against its floor, or its ceiling."""

    what: str
    value: float
    bound: float
    at_least: bool
    contended: bool = False  # no clean repeat: the figure says little

    @property
    def kept(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def line(self) -> str:
        sign = ">=" if self.at_least else "<="
        note = "  (contended: measure again on a quiet machine)" if self.contended else ""
        word = "kept  " if self.kept else "MISSED"
        return f"{word}  {self.what}: {self.value:.3g} {sign} {self.bound:g}{note}"
