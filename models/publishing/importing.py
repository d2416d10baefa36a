"""Prepares a folder for the import command, with torch if necessary. Start at `open_asked`.

    folder ─▶ Simile's graph, from the weights         BERT and its relatives, word tables
           ─▶ torch.onnx.export, verified by torch     every other family that transformers supports
           ─▶ the ONNX file of the folder              without torch, or without weights

The service never imports this module.
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
    """Reads a folder as requested, and prepares its graph, with torch if necessary."""
    if find_spec("torch") is None or find_spec("transformers") is None:
        source = read_source(folder, asked)
        if _needs_torch(source) and source.onnx is None:
            family = source.config.get("model_type")
            raise Unsupported(
                f"{folder} is of the family {family!r}, which needs torch for the export, but the extra "
                f"`train` is not installed. {_INSTALL}."
            )
        return prepare(source)
    from models.publishing.from_torch.tokenizer import converted  # noqa: PLC0415  torch

    source = read_source(folder, asked, converted)
    if not _needs_torch(source):
        return prepare(source)
    from models.publishing.from_torch.export import prepare_trained  # noqa: PLC0415

    return prepare_trained(source, say)


def _needs_torch(source: Source) -> bool:
    """Returns True for weights without a graph by Simile, except in a published version."""
    ours = source.is_table or knows(source.config)
    published = source.onnx is not None and (source.folder / MANIFEST).is_file()
    return bool(source.weights) and not ours and not published
