"""A copy of a published version's files, for another version that is made of them."""

import shutil
from collections.abc import Collection
from pathlib import Path


def copy_tree(source: Path, folder: Path) -> None:
    """Copy the files in `source`, and those in its folders. Links are copied as links.

    Raises:
        OSError: The first fault. `shutil.copytree` goes on, and lists a full disk once for each file.

    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.is_dir() and not path.is_symlink():
            copy_tree(path, folder / path.name)
        else:
            shutil.copyfile(path, folder / path.name, follow_symlinks=False)


def copy_files(source: Path, folder: Path, without: Collection[str]) -> None:
    """Copy what is in `source` into `folder`, which is there.

    without: files and folders directly in `source`; what lies deeper under such a name is copied.
    """
    for path in source.iterdir():
        if path.name in without:
            continue
        if path.is_dir():
            copy_tree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)
