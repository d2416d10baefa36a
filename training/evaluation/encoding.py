"""Types and wrappers for encoders, which the evaluation calls as functions from texts to vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from models.progress import Progress
from training.errors import TrainingError

Vectors = NDArray[np.float32]  # (n, dimension)
Encode = Callable[[list[str]], Vectors]
# Takes the encoders of queries and of documents. Returns a score for each search; higher is better.
Choose = Callable[[Encode, Encode], NDArray[np.float64]]

_CHUNK = 64  # sentences per step of the progress bar


def encode_once(encode: Encode, sentences: Iterable[str]) -> Encode:
    """Encodes each distinct sentence once. Returns a function that looks up the stored vectors.

    The longest sentences are encoded first. So memory errors occur early, and the remaining time that the
    progress bar shows is never too short.

    Raises:
        TrainingError: `encode` does not return one vector per sentence.
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
    return lambda chosen: table[[row[sentence] for sentence in chosen]]


def remembering(encode: Encode) -> Encode:
    """Returns an encoder that caches the vectors of all texts, at 4 bytes per dimension.

    Use it for several searches over almost the same documents.
    """
    known: dict[str, NDArray[np.float32]] = {}

    def encoded(texts: list[str]) -> Vectors:
        new = [text for text in dict.fromkeys(texts) if text not in known]
        if new:
            known.update(zip(new, encode_once(encode, new)(new), strict=True))
        return np.array([known[text] for text in texts], np.float32)

    return encoded
