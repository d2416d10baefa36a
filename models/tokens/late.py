"""Late interaction: compares each token of a query with each token of a document. Start at `compare`.

    token vectors (t, width) ─▶ projection (width, DIMENSIONS) ─▶ length 1 ─▶ int8 (t, DIMENSIONS)

The features are those of ColBERT (Khattab and Zaharia, 2020). The token vectors are those of the encoder
itself, before pooling. The projection is fitted to texts of a collection, and is part of its ranking.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 128  # Of a stored token vector, one byte each.
COMPARED = 30  # Best hits in hybrid order that are compared.
STRONGEST = 10  # Tokens of a document that `maxsim_doc` reads.
_SCALE = 127.0
LATE = (
    "maxsim",  # Mean over the query's tokens of the largest cosine to a token of the document.
    "maxsim_rare",  # The same. Tokens count as much as this cosine differs between the documents.
    "maxsim_doc",  # Mean of the STRONGEST largest cosines of the document's tokens to a token of the query.
)

READ = 256  # Tokens of a text, so at most 32 KiB of a document are stored.

Tokens = NDArray[np.int8]  # (t, DIMENSIONS)


def fit_projection(tokens: NDArray[np.float32]) -> NDArray[np.float32]:
    """Returns the projection that keeps most of the token vectors, shape (width, DIMENSIONS).

    Its columns are the first singular vectors. With a width below DIMENSIONS, the last columns are 0.

    Args:
        tokens: Token vectors of length 1, shape (t, width).
    """
    _, vectors = np.linalg.eigh(tokens.T.astype(np.float64) @ tokens)  # Ascending.
    kept = vectors[:, ::-1][:, :DIMENSIONS]
    # Rankings store it in float16.
    return np.pad(kept, ((0, 0), (0, DIMENSIONS - kept.shape[1]))).astype(np.float16).astype(np.float32)


def compress(tokens: NDArray[np.float32], projection: NDArray[np.float32]) -> Tokens:
    """Returns token vectors as they are stored."""
    found = tokens @ projection
    lengths = np.linalg.norm(found, axis=1, keepdims=True)
    stored: Tokens = np.rint(found / np.maximum(lengths, 1e-9) * _SCALE).astype(np.int8)
    return stored


def compare(query: Tokens, documents: Sequence[Tokens | None]) -> NDArray[np.float64]:
    """Returns the features LATE of the first COMPARED documents, shape (n, len(LATE)). Others are NaN.

    Args:
        query: Token vectors of the query.
        documents: Token vectors of the documents, best first in hybrid order. None: not stored.
    """
    features = np.full((len(documents), len(LATE)), np.nan)
    known = {
        row: tokens for row, tokens in enumerate(documents[:COMPARED]) if tokens is not None and len(tokens)
    }
    if not known or not len(query):
        return features
    ends = np.cumsum([len(tokens) for tokens in known.values()])
    starts = [0, *ends[:-1].tolist()]
    wanted = query.astype(np.float32) / _SCALE**2
    cosines = wanted @ np.concatenate([*known.values()]).astype(np.float32).T
    best = np.maximum.reduceat(cosines, starts, axis=1).T  # (documents, tokens of the query)
    spread = best.std(axis=0)
    strongest = np.split(cosines.max(axis=0), starts[1:])
    features[[*known]] = np.column_stack(
        (
            best.mean(axis=1),
            best @ (spread / (spread.sum() or 1)),
            [np.sort(each)[-STRONGEST:].mean() for each in strongest],
        )
    )
    return features
