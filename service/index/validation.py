"""Checks the names and vectors that callers pass to an index."""

import numpy as np
from numpy.typing import ArrayLike

from service.index.segments import Vectors
from service.store.values import RowNames, passages_of, revisions_of


def rows(names: ArrayLike, vectors: ArrayLike, dimension: int) -> tuple[RowNames, Vectors]:
    """Returns row names (n,) and vectors (n, dimension) as arrays.

    Raises:
        ValueError: A shape is wrong, a number is not finite, or a row comes twice.

    """
    named, vectors = np.asarray(names, np.int64), matrix(vectors, dimension, "vector")
    if named.shape != (len(vectors),):
        raise ValueError(f"{len(vectors)} vectors came with names of shape {named.shape}; give one each.")
    refuse_twice(named)
    return named, vectors


def matrix(vectors: ArrayLike, dimension: int, noun: str) -> Vectors:
    """Returns vectors (n, dimension) as a float32 array. `noun` names them in messages.

    Raises:
        ValueError: The shape is wrong, or a number is not finite.

    """
    numbers = np.ascontiguousarray(vectors, np.float32)
    if numbers.ndim != 2 or numbers.shape[1] != dimension:
        raise ValueError(f"Expected an array of shape (n, {dimension}), got {numbers.shape}.")
    # The product also rejects numbers whose square overflows (2e19), so scores are always finite.
    finite = np.isfinite(np.vecdot(numbers, numbers))
    if not finite.all():
        raise ValueError(f"The {noun} at position {np.argmin(finite)} has a number that is not finite.")
    return numbers


def refuse_twice(names: RowNames) -> None:
    """Rejects duplicate names with a ValueError."""
    distinct, counts = np.unique(names, return_counts=True)
    if len(distinct) < len(names):
        first = distinct[counts > 1][:1]
        raise ValueError(
            f"Revision {revisions_of(first)[0]}, passage {passages_of(first)[0]} came twice; "
            "a row has one vector."
        )
