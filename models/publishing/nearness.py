"""Nearness of two encoders' vectors: their cosines, and the texts that are nearest by both."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from models.encoder import Encoder
from models.words.progress import Progress

_NEAREST = 10
_AT_ONCE = 32  # texts between two steps of the progress

Vectors = NDArray[np.float32]


def encoded(encoder: Encoder, texts: list[str], progress: Progress) -> Vectors:
    """Vectors (n, dimension) of `texts`; each is a step of the progress."""
    parts = []
    for start in range(0, len(texts), _AT_ONCE):
        parts.append(encoder.encode(texts[start : start + _AT_ONCE]).vectors)
        progress.add(len(parts[-1]))
    return np.concatenate(parts)


def cosines(one: Vectors, other: Vectors) -> Vectors:
    """Cosines (n,) of the rows of two matrices (n, dimension) of unit vectors."""
    found: Vectors = np.clip(np.sum(one * other, axis=1), -1, 1)
    return found


def same_neighbours(one: tuple[Vectors, Vectors], other: tuple[Vectors, Vectors]) -> float:
    """Share of each query's ten nearest documents that are the same for two pairs of (queries, documents).

    Query n is the text of document n, which does not count.
    """
    pairs = zip(_nearest(*one), _nearest(*other), strict=True)
    return float(np.mean([len(nearest & others) / _NEAREST for nearest, others in pairs]))


def _nearest(queries: Vectors, documents: Vectors) -> list[set[int]]:
    similarity = queries @ documents.T
    np.fill_diagonal(similarity, -np.inf)
    return [set(row[:_NEAREST].tolist()) for row in np.argsort(-similarity, axis=1)]
