"""The device that computes a version, and its memory limit."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, TypeAlias

Device: TypeAlias = Literal["cpu", "cuda"]


class Place(NamedTuple):
    device: Device
    number: int = 0  # GPU number
    memory_mb: int = 0  # Limit of GPU memory per version in MiB; 0 means no limit.

    def __str__(self) -> str:
        return f"cuda:{self.number}" if self.device == "cuda" else self.device


CPU = Place("cpu")


def place_of(name: str, memory_mb: int = 0) -> Place:
    """Parses `cpu`, `cuda` (the first GPU) or `cuda:N`. Raises ValueError for anything else."""
    found = re.fullmatch(r"cpu|cuda(?::(\d{1,3}))?", name)
    if found is None:
        raise ValueError("name cpu, cuda or cuda:N")
    return CPU if name == "cpu" else Place("cuda", int(found[1] or 0), memory_mb)
