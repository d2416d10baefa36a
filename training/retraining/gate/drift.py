"""Drift: the distance of a model from its anchor, the first version of a series of retrainings.

Many small losses, one in each retraining, add up to a drift that no comparison with the previous version
shows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from models.store import ModelStore
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from training.evaluation.encoding import Vectors
from training.evaluation.scorable import build_scorable
from training.mining.corpus_report import read
from training.mining.neighbors import unit_vectors

NEAREST = 10
_TEXTS = 500  # texts that are compared with each other


def drift(anchor: Vectors, candidate: Vectors) -> float:
    """Returns the drift: the mean share of a text's ten nearest neighbors that change, 0 to 1.

    A rotation of the space, or another number of dimensions, does not count. With fewer than 12 texts the
    drift is 0, because all other texts are among the nearest ten.

    Args:
        anchor: Unit vectors of n texts by the anchor, shape (n, d).
        candidate: Unit vectors of the same texts by the candidate, shape (n, any dimension).

    """
    count = min(NEAREST, len(anchor) - 1)
    before, after = _nearest(anchor, count), _nearest(candidate, count)
    kept = [len({*was} & {*now}) for was, now in zip(before.tolist(), after.tolist(), strict=True)]
    return 1 - sum(kept) / (count * len(kept)) if count > 0 else 0.0


def compute_drift(
    anchor: tuple[ModelStore, str], candidate: tuple[ModelStore, str], texts: Iterable[str]
) -> dict[str, float]:
    """Computes the drift over a fixed sample of `texts`. Returns it under the key `neighbours`.

    Only texts that suit the vocabulary of the anchor are compared, because its vectors of other texts mean
    nothing. With fewer than 12 such texts, the result is empty.
    """
    began = anchor[0].folder(anchor[1])
    _, sample = read(draw_sample(texts), began / TOKENIZER)
    if len(sample) <= NEAREST + 1:
        return {}
    vectors = []
    for store, version in (anchor, candidate):
        with closing(store.open(version)) as encoder:
            vectors.append(unit_vectors(build_scorable(encoder).encode_documents, sample))
    return {"neighbours": round(drift(vectors[0], vectors[1]), 6)}


def draw_sample(texts: Iterable[str]) -> list[str]:
    """Draws up to 500 texts by hash, so a corpus that has grown a little gives mostly the same sample."""
    distinct = dict.fromkeys(texts)
    return sorted(distinct, key=lambda text: hashlib.sha256(text.encode()).digest())[:_TEXTS]


def _nearest(vectors: Vectors, count: int) -> NDArray[np.intp]:
    cosines = (vectors @ vectors.T).round(6)
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :count]
