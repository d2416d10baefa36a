"""Reads files of a source folder: JSON of limited size, shards of weights, and unsafe links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from models.errors import Unsupported
from models.files import bounded
from models.files.links import outside

NO_MODEL = "{folder} has no {file}: it is not a sentence-transformers or Hugging Face folder."
_MOST_BYTES = 256 << 20  # A tokenizer.json of many languages has tens of MB.
_OPTIONAL = {"README.md", "LICENSE", "LICENSE.txt"}
_NEEDED = {".json", ".safetensors", ".txt", ".model", ".onnx", ".onnx_data"}
_INDEX = "model.safetensors.index.json"


def read_json(file: Path) -> dict[str, Any]:
    """Reads a JSON object. Raises Unsupported for other content or a missing file."""
    try:
        content = bounded.read_json(file, _MOST_BYTES)
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
    """Returns the safetensors of a backbone: one file or all shards. Raises Unsupported if one is missing."""
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
    """Returns the links with targets outside of the folder. Raises Unsupported if the model may need one."""
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
