"""Checks of the names and vectors that callers hand to an index."""

import numpy as np
from numpy.typing import ArrayLike

from service.index.segments import Vectors
from service.store.values import RowNames, passages_of, revisions_of


def rows(names: ArrayLike, vectors: ArrayLike, dimension: int) -> tuple[RowNames, Vectors]:
    """Names of rows (n,) and their vectors (n, dimension).

    Raises:
        ValueError: another shape, a number that is not finite, or a row twice.

    """
    named, vectors = np.asarray(names, np.int64), matrix(vectors, dimension, "vector")
    if named.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors came with names of shape {named.shape}; give one each.")
    refuse_twice(named)
    return named, vectors


def matrix(vectors: ArrayLike, dimension: int, noun: str) -> Vectors:
    """Vectors (n, dimension), of which each is a `noun`.

    Raises:
        ValueError: another shape, or a number that is not finite.

    """
    numbers = np.ascontiguousarray(vectors, np.float32)
    if numbers.ndim != 2 or numbers.shape[1] != dimension:
        raise ValueError(f"Expected an array of shape (n, {dimension}), got {numbers.shape}.")
    # The square of a float32 is infinite from 2e19 on, so no score can be either.
    finite = np.isfinite(np.vecdot(numbers, numbers))
    if not finite.all():
        raise ValueError(f"The {noun} at position {np.argmin(finite)} has a number that is not finite.")
    return numbers


def refuse_twice(names: RowNames) -> None:
    """Raises ValueError when a row is named twice."""
    distinct, counts = np.unique(names, return_counts=True)
    if len(distinct) < len(names):
        first = distinct[counts > 1][:1]
        raise ValueError(
            f"Revision {revisions_of(first)[0]}, passage {passages_of(first)[0]} came twice; "
            "a row has one vector."
        )
