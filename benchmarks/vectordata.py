"""Vectors to measure an index with: made from a mixture, or real sentences embedded by the default model.

synthetic()   clusters in 32 dimensions, lifted to many with noise: easier than text, any number of them
wiki()        Wikipedia sentences; embedding 100,000 takes some minutes, so they are kept for the next run
"""

import sys
from collections.abc import Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks.places import SCRATCH
from benchmarks.workloads import WIKIPEDIA, evaluation_folder, texts_of
from training.evaluation.encoding import encode_once
from training.evaluation.scorable import open_scorable

Vectors = NDArray[np.float32]
CLUSTERS, INNER, SPREAD, NOISE = 2000, 32, 0.5, 0.15
CHUNK_ROWS = 50_000


def synthetic(rows: int, dimension: int, queries: int, seed: int = 0) -> tuple[Vectors, Vectors]:
    """Unit vectors (rows, dimension), and as many queries of the same mixture that are not among them."""
    chance = np.random.default_rng(seed)
    centres = chance.standard_normal((CLUSTERS, INNER))
    lift = chance.standard_normal((INNER, dimension)) / np.sqrt(INNER)
    vectors = np.empty((rows + queries, dimension), np.float32)
    for start in range(0, len(vectors), CHUNK_ROWS):
        chunk = vectors[start : start + CHUNK_ROWS]
        inner = centres[chance.integers(0, CLUSTERS, len(chunk))]
        inner = inner + SPREAD * chance.standard_normal((len(chunk), INNER))
        chunk[:] = inner @ lift + NOISE * chance.standard_normal((len(chunk), dimension))
        chunk /= np.linalg.norm(chunk, axis=1, keepdims=True)
    return vectors[:rows], vectors[rows:]


def wiki(rows: int, queries: int) -> tuple[Vectors, Vectors]:
    """Vectors of `rows` distinct Wikipedia sentences, and of `queries` that are not among them."""
    file = SCRATCH / f"wiki-{rows + queries}.npy"
    if not file.exists():
        texts = list(_sentences(rows + queries))
        if len(texts) < rows + queries:
            sys.exit(f"{WIKIPEDIA} has only {len(texts)} sentences; ask for fewer with --rows.")
        np.save(file, _embedded(texts))
    vectors: Vectors = np.load(file)
    chosen = np.random.default_rng(0).permutation(len(vectors))
    return vectors[chosen[:rows]], vectors[chosen[rows:]]


def _sentences(count: int) -> Iterator[str]:
    file = evaluation_folder() / WIKIPEDIA
    if not file.is_file():
        sys.exit(
            f"{file} is missing. Name its folder with SIMILE_EVAL_DATA, or measure without --corpus wiki."
        )
    yield from islice(filter(None, dict.fromkeys(islice(texts_of(file), 2 * count))), count)


def _embedded(texts: list[str]) -> Vectors:
    with open_scorable("default") as model:
        return encode_once(model.encode, texts)(texts)
