"""The seam: an evaluator knows an encoder as one function, sentences in, vectors out."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from models.progress import Progress
from training.errors import TrainingError

Vectors = NDArray[np.float32]  # (n, dimension)
Encode = Callable[[list[str]], Vectors]
# From the encoders of queries and of documents to a figure of each search, in their order; more is better.
Choose = Callable[[Encode, Encode], NDArray[np.float64]]

_CHUNK = 64  # sentences between two steps of the progress: seconds on a busy machine


def encode_once(encode: Encode, sentences: Iterable[str]) -> Encode:
    """Encode each distinct sentence now, once; the answer looks vectors up and knows no others.

    Longest first, so that the bar's forecast does not grow and too little memory shows at once.
    Raise TrainingError when `encode` does not give one vector per sentence.
    """
    unique = sorted(set(sentences), key=lambda sentence: (-len(sentence), sentence))
    row = {sentence: at for at, sentence in enumerate(unique)}
    table = np.empty((0, 0), np.float32)
    with Progress("texts", len(unique), "encoding") as progress:
        for start in range(0, len(unique), _CHUNK):
            chunk = unique[start : start + _CHUNK]
            vectors = encode(chunk)
            if not start:
                table = np.empty((len(unique), vectors.shape[-1]), np.float32)
            if vectors.shape != (len(chunk), table.shape[1]):
                raise TrainingError(
                    f"The model gave vectors of shape {vectors.shape} for {len(chunk)} sentences."
                )
            table[start : start + len(chunk)] = vectors
            progress.add(len(chunk))
    return lambda asked: table[[row[sentence] for sentence in asked]]


def remembering(encode: Encode) -> Encode:
    """Encode each distinct text once, however often it is asked for: searches share most of their documents.

    Every vector is kept as long as the answer is: 4 bytes for each dimension.
    """
    known: dict[str, NDArray[np.float32]] = {}

    def encoded(texts: list[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, encode(new), strict=True))
        return np.array([known[text] for text in texts], np.float32)

    return encoded
