"""Links in a folder that comes from elsewhere: one may name any file of the machine.

A hub's cache is made of links, into the `blobs` beside its `snapshots`. Those stay in what was fetched.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path


def outside(folder: Path) -> tuple[Path, ...]:
    """The links in a folder whose targets lie outside of it; none is followed on the way."""
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
    """The final target of a link; a circle leads nowhere."""
    try:
        return link.resolve(strict=True)
    except RuntimeError:  # a circle, before Python 3.13
        return Path("/")
    except OSError as error:
        return Path("/") if error.errno == errno.ELOOP else link.resolve()
