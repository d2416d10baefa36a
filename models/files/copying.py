"""A copy of a published version's files, for another version that is made of them."""

import shutil
from collections.abc import Collection
from pathlib import Path


def copy_files(source: Path, folder: Path, without: Collection[str]) -> None:
    """Copy what is in `source` into `folder`, which is there.

    without: files and folders directly in `source`; what lies deeper under such a name is copied.
    """
    for path in source.iterdir():
        if path.name in without:
            continue
        if path.is_dir():
            shutil.copytree(path, folder / path.name)
        else:
            shutil.copy2(path, folder / path.name)
