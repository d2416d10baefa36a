"""Measure the cost of serving two versions: speed of documents, speed of single queries, and size.

In a pair of encoders, a student encodes the queries and its teacher the documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from models.encoder import Encoder
from models.manifest import ONNX, QUERIES
from models.progress import Progress
from models.store import ModelStore

_TEXTS = 64
_WORDS = 8  # first words of a text, which are used as a query
_ROUNDS = 5


def costs(
    active: tuple[ModelStore, str], candidate: tuple[ModelStore, str], texts: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Measures texts and single queries per second of one thread's CPU time, and megabytes of model files.

    CPU time is used because wall time depends on other processes: next to a busy process, one of two equal
    models seemed three times as slow. The two versions are measured alternately, in five rounds. The result
    is the median of the rounds.

    Returns:
        The figures of the active version, and those of the candidate.

    """
    sample = list(texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS])
    queries = [" ".join(text.split()[:_WORDS]) for text in sample]
    seconds: list[list[tuple[float, float]]] = [[], []]
    with ExitStack() as opened, Progress("rounds", 2 * _ROUNDS, "timing") as progress:
        encoders = [
            opened.enter_context(closing(store.open(version))) for store, version in (active, candidate)
        ]
        for _ in range(_ROUNDS):
            for times, encoder in zip(seconds, encoders, strict=True):
                single = sum(_timed(encoder.for_queries, [query]) for query in queries)
                times.append((_timed(encoder, sample), single))
                progress.add()
    paces = (len(sample) / np.median(seconds, axis=1)).round(1).tolist()
    sizes = [round(_bytes(store.folder(version)) / 1e6, 1) for store, version in (active, candidate)]
    names = "texts_per_second", "queries_per_second", "megabytes"
    before, after = (
        dict(zip(names, (*pace, size), strict=True)) for pace, size in zip(paces, sizes, strict=True)
    )
    return before, after


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in (folder / ONNX, folder / QUERIES / ONNX) if file.is_file())


def _timed(encoder: Encoder, texts: list[str]) -> float:
    began = time.thread_time()
    encoder.encode(texts)
    return time.thread_time() - began
