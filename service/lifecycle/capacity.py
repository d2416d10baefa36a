"""Memory for another generation beside those that are kept.

shortage()    why it does not fit; None when it does, or when nothing can be known
├── needed()    the model and the index that it will make, at their largest
└── memory.free()
no_start(), no_publishing()    the same of a service that is about to start
"""

import math
from collections.abc import Collection
from pathlib import Path

from models.encoder import graph_bytes
from models.graph.file import LARGEST
from models.manifest import QUERIES, Manifest
from models.search.passages import passage_tokens
from models.sources.files import optional_json
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from service.index.index_set import StoredIndexes
from service.index.ivf import training_bytes
from service.index.maintenance import BASE_ROWS
from service.live import Generation
from service.memory import BESIDE, MACHINE, MODEL, free, limit

# Publishing in memory: 1.06 GB were measured for 90 MB of weights, and 2.32 GB for 269 MB.
PUBLISHING, PUBLISHING_BYTES = 7.0, 430_000_000
WORDS = 14  # of tokenizer.json: 9 and 14 times its bytes were measured of 250,000 words, while it is opened
ALONE = 0.5  # what the session for lone texts takes, over the model's file
# Measured with 20,000 to 200,000 vectors of 128 and 384 dimensions: an index at its largest, while it grows,
# over its rows: what is merged stands beside the result for a moment, also where vectors are halved.
GROWING = 2.5
NAME_BYTES = 8  # of a row
COLLECTION_BYTES = 8 * 1024  # of the index of a collection, whatever it holds: measured with 3,000 of them


def shortage(
    documents: int,
    rows: Collection[int],
    dimension: int,
    folder: Path,
    machine: Path = MACHINE,
    *,
    alone: bool = False,
) -> str | None:
    """The reason why the version in `folder` must wait with its index, and what to do; None when it fits.

    rows, alone: as of `needed`.
    """
    need, left = needed(rows, dimension, folder, alone=alone), free(machine)
    if left is None or need <= left:
        return None
    passages = f" in {sum(rows)} passages" if sum(rows) > documents else ""
    return (
        f"Its model and the index of {documents} documents{passages} need about {_in_words(need)} of memory, "
        f"and {_in_words(left)} are free. It is built as soon as there is room: give the service more memory "
        "or end the grace of the version before sooner (SIMILE_GRACE_SECONDS). SIMILE_MEMORY_CHECK=0 builds "
        "it all the same."
    )


def no_start(version: str, folder: Path, machine: Path = MACHINE) -> str | None:
    """The reason why a service cannot start with the version in `folder`, None when it can."""
    return _no_room(f"{version} needs", needed([], 0, folder), machine)


def no_publishing(source: Path, machine: Path = MACHINE) -> str | None:
    """The reason why the model in a source folder cannot be published and served here; None when it can."""
    size = sum(file.stat().st_size for file in source.rglob("*.safetensors"))
    need = int(BESIDE * size if size > LARGEST else PUBLISHING * size + PUBLISHING_BYTES)
    return _no_room(f"To publish and serve {source} takes", need, machine)


def _no_room(what: str, need: int, machine: Path) -> str | None:
    left = free(machine)
    if left is None or need <= left:
        return None
    allowed = limit(machine)
    most = "" if allowed is None else f" of the {_in_words(allowed)} that it may have"
    return (
        f"{what} about {_in_words(need)} of memory, and {_in_words(left)} are free{most}. Give the service "
        "more memory, or a smaller model (SIMILE_MODEL). SIMILE_MEMORY_CHECK=0 starts all the same."
    )


def needed(rows: Collection[int], dimension: int, folder: Path, *, alone: bool = False) -> int:
    """Bytes that a generation takes at its largest, about.

    Args:
        rows: vectors of each collection: a document has one, or one for each of its passages.
        alone: it is opened once more for lone texts (single_text.py).

    """
    model = _model(folder, alone=alone)
    if (queries := folder / QUERIES).is_dir():
        model += _model(queries, alone=alone)
    return int(model + sum(_index(count, dimension) for count in rows))


def _model(folder: Path, *, alone: bool) -> float:
    """Bytes of one model of a generation, opened."""
    more = ALONE if alone else 0
    inside, beside = graph_bytes(folder)
    tokenizer = folder / TOKENIZER
    words = tokenizer.stat().st_size if tokenizer.is_file() else 0
    held = beside - min(beside, _looked_up(folder))
    return (MODEL + more) * inside + (BESIDE + more) * held + WORDS * words


def _looked_up(folder: Path) -> int:
    """Bytes of the vectors of the vocabulary: beside the graph they stay in the file, and a few are read."""
    config = optional_json(folder / "config.json")
    return 4 * int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)


def expected_rows(live: Generation, documents: int, manifest: Manifest) -> list[int]:
    """Rows that each collection will have, about: as many as now, or more where texts are cut shorter.

    documents: stored ones of all collections; those that the index in service lacks yet count as well.
    """
    if isinstance(live.indexes, StoredIndexes):  # they take no memory here
        return []
    rows = []
    for name, index in live.indexes.collections.items():
        was, will_be = passage_tokens(live.manifest, name), passage_tokens(manifest, name)
        behind = math.ceil(max(1.0, was / will_be) * (index.rows - index.documents))
        # Shorter passages begin at the start of a text, so they cut what one vector held.
        within = math.ceil(manifest.max_length / will_be) if will_be < min(was, manifest.max_length) else 0
        if index.rows:
            rows.append(index.documents * (1 + within) + behind)
    lacking = documents - live.indexes.documents
    return [*rows, lacking] if lacking > 0 else rows


def _index(rows: int, dimension: int) -> float:
    """Bytes of one collection's index. A large one copies a sample to find the centres of its base."""
    sample = training_bytes(rows, dimension) if rows > BASE_ROWS else 0
    return COLLECTION_BYTES + GROWING * rows * (4 * dimension + NAME_BYTES) + sample


def _in_words(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
