"""Reads JSON files of a source folder, and finds its weight files and unsafe links.

A link in an untrusted folder could point to any file of the machine. In the hub's cache, links from
`snapshots` to `blobs` are normal and safe.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.errors import Unsupported
from models.files import bounded

NO_MODEL = "{folder} has no {file}: it is not a sentence-transformers or Hugging Face folder."
_MAX_BYTES = 256 << 20  # A tokenizer.json of many languages has tens of MB.
_OPTIONAL = {"README.md", "LICENSE", "LICENSE.txt"}
_NEEDED = {".json", ".safetensors", ".txt", ".model", ".onnx", ".onnx_data"}
_INDEX = "model.safetensors.index.json"


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object from a file.

    Raises:
        Unsupported: The file is missing, too large, or not a JSON object.
    """
    try:
        content = bounded.read_json(file, _MAX_BYTES)
    except FileNotFoundError:
        raise Unsupported(NO_MODEL.format(folder=file.parent, file=file.name)) from None
    except ValueError as error:
        raise Unsupported(f"{file} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise Unsupported(f"{file} is not a JSON object.")
    return content


def optional_json(file: Path) -> dict[str, Any]:
    return read_json(file) if file.is_file() else {}


def weight_files(backbone: Path) -> tuple[Path, ...]:
    """Returns the safetensors files of a backbone: one file, or all shards.

    Raises:
        Unsupported: A shard or the index of the shards is missing.
    """
    whole = backbone / "model.safetensors"
    if whole.is_file():
        return (whole,)
    shards = tuple(sorted(backbone.glob("model-*-of-*.safetensors")))
    index = optional_json(backbone / _INDEX).get("weight_map", {})
    for name in sorted(set(map(str, index.values()))):
        if backbone / name not in shards:
            raise Unsupported(f"{backbone / name} is missing, but {_INDEX} lists it. Copy the whole folder.")
    if shards and not index:
        raise Unsupported(f"{backbone} has its weights in several files, but no {_INDEX}.")
    return shards


def skipped_links(folder: Path) -> tuple[Path, ...]:
    """Returns the links with targets outside of the folder.

    Raises:
        Unsupported: The model may need the target of one of these links.
    """
    found = outside(folder)
    needed = [
        link for link in found if link.is_dir() or (link.name not in _OPTIONAL and link.suffix in _NEEDED)
    ]
    if needed:
        raise Unsupported(
            f"{needed[0]} is a link that points outside of {folder}, and is not followed. Copy the folder "
            f"with the targets of its links: cp -rL {folder} COPY."
        )
    return found


def outside(folder: Path) -> tuple[Path, ...]:
    """Returns the links in a folder that lead to files outside of the folder."""
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
    """Returns the final target of a link. For a cycle of links, returns a path outside of every folder."""
    try:
        return link.resolve(strict=True)
    except RuntimeError:  # A cycle, before Python 3.13.
        return Path("/")
    except OSError as error:
        return Path("/") if error.errno == errno.ELOOP else link.resolve()
