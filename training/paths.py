"""Paths as people name them."""

from __future__ import annotations

from pathlib import Path

from training.errors import TrainingError


def expanded(name: str) -> Path:
    """With ~ and ~user as the home folder. Raise TrainingError when there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise TrainingError(f"There is no home folder for {Path(name).parts[0]!r} in {name}.") from None
