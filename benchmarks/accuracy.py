"""Cosines between the vectors of contestants. A speed without them says little."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.command import BenchError, progress
from benchmarks.rounds import Embedder, Vectors
from benchmarks.workloads import MAX_TOKENS, Workload

TEXTS = 500


def sample(workloads: Sequence[Workload]) -> list[str]:
    """Return equally many texts of each workload, without the longest, which some engines would cut."""
    each = TEXTS // len(workloads)
    return [
        text
        for workload in workloads
        for text in [
            text for text, ids in zip(workload.texts, workload.ids, strict=True) if len(ids) < MAX_TOKENS
        ][:each]
    ]


def compare_vectors(
    embedders: Sequence[Embedder], reference: str, fallback: str, texts: Sequence[str]
) -> tuple[str, Mapping[str, NDArray[np.float64]]]:
    """Compare the vectors of all contestants with those of a reference.

    Args:
        embedders: The contestants.
        reference: Name of the reference.
        fallback: Name of the reference if the first is missing.
        texts: The texts to embed.

    Returns:
        The name of the reference, and the cosines of each contestant, shape (n,). Contestants that fail are
        missing.

    """
    progress(f"comparing the vectors of {len(texts)} texts")
    found = {}
    for embedder in embedders:
        try:
            found[embedder.name] = embedder.vectors(texts)
        except BenchError as error:
            progress(f"{embedder.name} returned no vectors: {error}")
    name = reference if reference in found else fallback
    return name, {other: cosines(vectors, found[name]) for other, vectors in found.items()}


def cosines(found: Vectors, expected: Vectors) -> NDArray[np.float64]:
    """Return the cosine of each pair of rows, shape (n,). Vectors may have any length."""
    dots = np.einsum("nd,nd->n", found.astype(np.float64), expected.astype(np.float64))
    lengths = np.linalg.norm(found.astype(np.float64), axis=1) * np.linalg.norm(expected, axis=1)
    return np.asarray(dots / lengths)
