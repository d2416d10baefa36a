"""Finds unsafe links in an untrusted folder, which could point to any file of the machine.

The hub's cache consists of links from `snapshots` to `blobs`. These are safe.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path


def outside(folder: Path) -> tuple[Path, ...]:
    """Returns the links in a folder with targets outside of it."""
    whole = folder.resolve()
    allowed = [whole, *([whole.parents[1] / "blobs"] if whole.parent.name == "snapshots" else [])]
    return tuple(
        link for link in _links(folder) if not any(_target(link).is_relative_to(place) for place in allowed)
    )


def _links(folder: Path) -> Iterator[Path]:
    for at, folders, files in os.walk(folder):
        for name in sorted((*folders, *files)):
            if (path := Path(at, name)).is_symlink():
                yield path


def _target(link: Path) -> Path:
    """Returns the final target of a link; for a cycle, a path outside of every folder."""
    try:
        return link.resolve(strict=True)
    except RuntimeError:  # A cycle, before Python 3.13.
        return Path("/")
    except OSError as error:
        return Path("/") if error.errno == errno.ELOOP else link.resolve()
