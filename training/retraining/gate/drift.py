"""Drift: how far a model is from its anchor, the model that its line began with.

A chain of small losses would show in no comparison of neighbours in it, but it shows here.
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
_TEXTS = 500  # that are compared with each other


def drift(anchor: Vectors, candidate: Vectors) -> float:
    """The share of each text's ten nearest that are others with the candidate: 0 to 1.

    (n, …) vectors of length 1 of the same n texts. What turns the whole space, or gives it other dimensions,
    is no drift. Fewer than 12 texts have all others among their ten nearest.
    """
    count = min(NEAREST, len(anchor) - 1)
    before, after = _nearest(anchor, count), _nearest(candidate, count)
    kept = [len({*was} & {*now}) for was, now in zip(before.tolist(), after.tolist(), strict=True)]
    return 1 - sum(kept) / (count * len(kept)) if count > 0 else 0.0


def compute_drift(
    anchor: tuple[ModelStore, str], candidate: tuple[ModelStore, str], texts: Iterable[str]
) -> dict[str, float]:
    """Over a fixed sample of `texts`, as the scores of a version have it.

    The anchor's vectors of what it cannot read mean nothing, so there is nothing to drift from: of such text
    those are compared that it reads, and without enough of them the answer is empty.
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
    """The same texts of the same corpus, and most of them when it has grown a little."""
    distinct = dict.fromkeys(texts)
    return sorted(distinct, key=lambda text: hashlib.sha256(text.encode()).digest())[:_TEXTS]


def _nearest(vectors: Vectors, count: int) -> NDArray[np.intp]:
    cosines = (vectors @ vectors.T).round(6)
    np.fill_diagonal(cosines, -np.inf)
    return np.argsort(-cosines, axis=1, kind="stable")[:, :count]
