"""Locks and copies folders."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection
from pathlib import Path


def lock(folder: Path) -> int | None:
    """Locks `folder` until the returned descriptor is closed. Returns None if it is already locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def copy_tree(source: Path, folder: Path, without: Collection[str] = ()) -> None:
    """Copies a folder with its subfolders. Links are copied as links.

    Args:
        without: Names in the top level of `source` that are not copied.

    Raises:
        OSError: On the first error. `shutil.copytree` would continue on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name in without:
            continue
        if path.is_dir() and not path.is_symlink():
            copy_tree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name, follow_symlinks=False)
