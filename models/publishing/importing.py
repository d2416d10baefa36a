"""An import by the command: with torch, where it is installed, for what has no graph of ours.

    folder ─▶ a graph of ours, from the weights      BERT and its kin, tables of words
           ─▶ torch.onnx.export, proved by torch     every other family that transformers reads
           ─▶ the ONNX file that it brings           without torch, or without weights

The service imports nothing of this: it publishes what needs no torch, and names this command for the rest.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from models.errors import Unsupported
from models.graph.families import knows
from models.manifest import FILE_NAME as MANIFEST
from models.publishing.publish import Prepared, prepare
from models.sources.folder import Asked, Source, read_source
from models.words.progress import Say

_INSTALL = "`make setup` installs it, or in Simile's folder: pip install -c constraints.txt '.[train]'"


def open_asked(asked: Asked, folder: Path, say: Say) -> Prepared:
    """Read a folder as `asked`, and prepare its graph with torch where that is needed."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        source = read_source(folder, asked)
        if _needs_torch(source) and source.onnx is None:
            family = source.config.get("model_type")
            raise Unsupported(
                f"{folder} is of the family {family!r}, which is exported by torch, and the extra `train` is "
                f"not installed. {_INSTALL}."
            )
        return prepare(source)
    from models.publishing.from_torch.tokenizer import converted  # noqa: PLC0415  torch

    source = read_source(folder, asked, converted)
    if not _needs_torch(source):
        return prepare(source)
    from models.publishing.from_torch.export import prepare_trained  # noqa: PLC0415

    return prepare_trained(source, say)


def _needs_torch(source: Source) -> bool:
    """True of weights that no graph of ours is there for, unless the folder is a version with its own."""
    ours = source.is_table or knows(source.config)
    published = source.onnx is not None and (source.folder / MANIFEST).is_file()
    return bool(source.weights) and not ours and not published
