"""Estimates the memory that a version with its vectors needs, and compares it with the free memory.

The entry points are `shortage`, before a version is built, and `no_start` and `no_publishing`, before the
service starts.
"""

import math
from collections.abc import Collection
from pathlib import Path

from models.graph.file import LARGEST
from models.manifest import QUERIES, Manifest
from models.messages import amount
from models.open_version import graph_bytes
from models.search.passages import passage_tokens
from models.sources.files import optional_json
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from service.active import Generation
from service.index.index_set import StoredIndexes
from service.index.ivf import training_bytes
from service.index.maintenance import BASE_ROWS
from service.memory import BESIDE, MACHINE, MODEL, free, limit

# Memory to publish a model. Measured: 1.06 GB for 90 MB of weights, and 2.32 GB for 269 MB.
PUBLISHING, PUBLISHING_BYTES = 7.0, 430_000_000
# Peak memory to open a tokenizer, divided by the size of tokenizer.json. Measured with 250,000 tokens: 9 and
# 14.
WORDS = 14
SINGLE_TEXT_SHARE = 0.5  # memory of the session for single texts, divided by the size of the model's file
# Peak memory of a growing index, divided by the size of its rows. A merge holds its input and its result.
# Measured with 20,000 to 200,000 vectors of 128 and 384 dimensions.
GROWING = 2.5
NAME_BYTES = 8  # per row
COLLECTION_BYTES = 8 * 1024  # per collection, measured with 3,000 collections


def shortage(
    documents: int,
    rows: Collection[int],
    dimension: int,
    folder: Path,
    machine: Path = MACHINE,
    *,
    alone: bool = False,
    opening: int = 0,
) -> str | None:
    """Returns why there is too little memory for a candidate, with advice.

    Returns None if the candidate fits into memory, or if the free memory is not known.

    Args:
        documents: Number of stored documents, for the message.
        rows: Number of vectors of each collection.
        dimension: Length of a vector.
        folder: The folder of the version.
        machine: Folder that contains `proc` and `sys`.
        alone: Whether the version gets a second session for single texts (single_text.py).
        opening: Bytes that a reranker needs that is being opened at the moment.

    """
    need, left = needed(rows, dimension, folder, alone=alone), free(machine)
    if left is None or need + opening <= left:
        return None
    opened = f" besides {_in_words(opening)} for the reranker that is being opened" if opening else ""
    passages = f" in {sum(rows)} passages" if sum(rows) > documents else ""
    return (
        f"Its model and the index of {amount(documents, 'document')}{passages} need about {_in_words(need)} "
        f"of memory{opened}, and {_in_words(left)} are free. Give the service more memory, or keep the "
        "previous version for a shorter time (SIMILE_GRACE_SECONDS). SIMILE_MEMORY_CHECK=0 builds it anyway."
    )


def no_start(version: str, folder: Path, machine: Path = MACHINE) -> str | None:
    """Returns why the memory does not suffice to start with a version, or None if it does or is unknown.

    Args:
        version: Name of the version, for the message.
        folder: The folder of the version.
        machine: Folder that contains `proc` and `sys`.

    """
    return _no_room(f"{version} needs", needed([], 0, folder), machine)


def no_publishing(source: Path, machine: Path = MACHINE, setting: str = "SIMILE_MODEL") -> str | None:
    """Returns why the memory is too small to publish and serve a model.

    Returns None if it is large enough, or if the free memory is unknown.

    Args:
        source: The folder of the model that would be published.
        machine: Folder that contains `proc` and `sys`.
        setting: The setting that names the model.

    """
    size = sum(file.stat().st_size for file in source.rglob("*.safetensors"))
    need = int(BESIDE * size if size > LARGEST else PUBLISHING * size + PUBLISHING_BYTES)
    return _no_room(f"To publish and serve {source} takes", need, machine, setting)


def no_reranker(version: str, folder: Path, building: int = 0, machine: Path = MACHINE) -> str | None:
    """Returns why a reranker must wait for memory, or None if it fits or the free memory is unknown.

    Args:
        version: Name of the version, for the message.
        folder: The folder of the version.
        building: Bytes that an encoder needs that is being built at the moment.
        machine: Folder that contains `proc` and `sys`.

    """
    need, left = needed([], 0, folder), free(machine)
    if left is None or need + building <= left:
        return None
    built = f" besides {_in_words(building)} for the version that is being built" if building else ""
    return (
        f"The reranker {version} needs about {_in_words(need)} of memory{built}, and {_in_words(left)} are "
        "free. It is opened when enough memory is free. SIMILE_MEMORY_CHECK=0 opens it anyway."
    )


def _no_room(what: str, need: int, machine: Path, setting: str = "SIMILE_MODEL") -> str | None:
    left = free(machine)
    if left is None or need <= left:
        return None
    allowed = limit(machine)
    most = "" if allowed is None else f" of the {_in_words(allowed)} that it may have"
    return (
        f"{what} about {_in_words(need)} of memory, and {_in_words(left)} are free{most}. Give the service "
        f"more memory, or a smaller model ({setting}). SIMILE_MEMORY_CHECK=0 starts anyway."
    )


def needed(rows: Collection[int], dimension: int, folder: Path, *, alone: bool = False) -> int:
    """Estimates the peak memory of a generation in bytes.

    Args:
        rows: Number of vectors of each collection. A document has one vector, or one for each passage.
        dimension: Length of a vector.
        folder: The folder of the version.
        alone: Whether the version gets a second session for single texts (single_text.py).

    """
    model = _model(folder, alone=alone)
    if (queries := folder / QUERIES).is_dir():
        model += _model(queries, alone=alone)
    return int(model + sum(_index(count, dimension) for count in rows))


def _model(folder: Path, *, alone: bool) -> float:
    """Estimates the memory of an open model in bytes."""
    more = SINGLE_TEXT_SHARE if alone else 0
    inside, outside = graph_bytes(folder)
    tokenizer = folder / TOKENIZER
    words = tokenizer.stat().st_size if tokenizer.is_file() else 0
    # External token embeddings stay in the file, and few of them are read.
    config = optional_json(folder / "config.json")
    embeddings = 4 * int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)
    return (MODEL + more) * inside + (BESIDE + more) * max(0, outside - embeddings) + WORDS * words


def expected_rows(active: Generation, documents: int, manifest: Manifest) -> list[int]:
    """Estimates the number of vectors of each collection after a new version is built.

    The number is at least as large as now. It is larger if the new version divides texts into shorter
    passages. The result is empty if the vectors are in a database.

    Args:
        active: The active generation.
        documents: Number of documents of all collections, including those that are missing from the active
            index.
        manifest: The manifest of the new version.

    """
    if isinstance(active.indexes, StoredIndexes):  # The database holds them.
        return []
    rows = []
    for name, index in active.indexes.collections.items():
        was, will_be = passage_tokens(active.manifest, name), passage_tokens(manifest, name)
        behind = math.ceil(max(1.0, was / will_be) * (index.rows - index.documents))
        # Shorter passages also divide texts that had a single vector.
        within = math.ceil(manifest.max_length / will_be) if will_be < min(was, manifest.max_length) else 0
        if index.rows:
            rows.append(index.documents * (1 + within) + behind)
    lacking = documents - active.indexes.documents
    return [*rows, lacking] if lacking > 0 else rows


def _index(rows: int, dimension: int) -> float:
    """Estimates the memory of a collection's index in bytes.

    A large index also copies a sample of its vectors.
    """
    sample = training_bytes(rows, dimension) if rows > BASE_ROWS else 0
    return COLLECTION_BYTES + GROWING * rows * (4 * dimension + NAME_BYTES) + sample


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
