"""Paths as people name them."""

from __future__ import annotations

from pathlib import Path

from training.errors import TrainingError


def target(name: str, *read: Path) -> Path:
    """The file to write: one in a folder that is there, and none of those that are `read`.

    Where a link leads, since writing replaces the file; a device or a pipe would be replaced as well.
    """
    file = expanded(name).resolve()
    if not file.parent.is_dir() or (file.exists() and not file.is_file()):
        raise TrainingError(f"{name} cannot be written: name a file in a folder that is there.")
    if any(file == other.resolve() for other in read):
        raise TrainingError(f"{name} is what is read here: name another file to write.")
    return file


def expanded(name: str) -> Path:
    """With ~ and ~user as the home folder. Raise TrainingError when there is no such user."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise TrainingError(f"There is no home folder for {Path(name).parts[0]!r} in {name}.") from None
