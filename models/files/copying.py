"""Copies the files of a published version to a new version."""

import shutil
from collections.abc import Collection
from pathlib import Path


def copy_tree(source: Path, folder: Path) -> None:
    """Copies a folder with its subfolders. Links stay links.

    Raises:
        OSError: On the first error. `shutil.copytree` would continue on a full disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir() and not path.is_symlink():
            copy_tree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name, follow_symlinks=False)


def copy_files(source: Path, folder: Path, without: Collection[str]) -> None:
    """Copies the content of `source` to an existing folder, except the names `without` at the top level."""
    for path in source.iterdir():
        if path.name in without:
            continue
        if path.is_dir():
            copy_tree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)
