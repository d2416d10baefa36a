"""Compares the vectors of two encoders: their cosines, and their nearest neighbors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.words.progress import Progress

_NEAREST = 10
_AT_ONCE = 32  # Texts per progress update.

Vectors = NDArray[np.float32]


def encoded(encoder: Encoder, texts: list[str], progress: Progress) -> Vectors:
    """Encodes texts with progress; returns vectors (n, dimension)."""
    parts = []
    for start in range(0, len(texts), _AT_ONCE):
        parts.append(encoder.encode(texts[start : start + _AT_ONCE]).vectors)
        progress.add(len(parts[-1]))
    return np.concatenate(parts)


def cosines(one: Vectors, other: Vectors) -> Vectors:
    """Returns the cosines (n,) of the rows of two matrices (n, dimension) of unit vectors."""
    found: Vectors = np.clip(np.sum(one * other, axis=1), -1, 1)
    return found


def same_neighbours(one: tuple[Vectors, Vectors], other: tuple[Vectors, Vectors]) -> float:
    """Returns the mean share of common documents among the ten nearest of each query.

    Both arguments are queries and documents of an encoder. Query n skips document n, its own text.
    """
    pairs = zip(_nearest(*one), _nearest(*other), strict=True)
    return float(np.mean([len(nearest & others) / _NEAREST for nearest, others in pairs]))


def _nearest(queries: Vectors, documents: Vectors) -> list[set[int]]:
    similarity = queries @ documents.T
    np.fill_diagonal(similarity, -np.inf)
    return [set(row[:_NEAREST].tolist()) for row in np.argsort(-similarity, axis=1)]
