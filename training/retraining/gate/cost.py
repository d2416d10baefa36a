"""The cost of serving a version: its pace and its size, of two versions side by side."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

from models.encoder import ONNX, Encoder
from models.store import Store
from models.words.progress import Progress

_TEXTS = 64
_ROUNDS = 5


def costs(
    active: tuple[Store, str], candidate: tuple[Store, str], texts: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Texts per second of one thread's processor time and the megabytes of the model file, of each.

    Not by the clock: beside a busy neighbour one of two equal models was three times as slow. What is left of
    such a neighbour, in caches, is in both, since they take turns; the median of five rounds.
    """
    sample = list(texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS])
    sides = [(store, version, store.open(version)) for store, version in (active, candidate)]
    try:
        seconds: list[list[float]] = [[], []]
        with Progress("rounds", 2 * _ROUNDS, "timing") as progress:
            for _ in range(_ROUNDS):
                for times, (_, _, encoder) in zip(seconds, sides, strict=True):
                    times.append(_timed(encoder, sample))
                    progress.add()
        found = [
            {
                "texts_per_second": round(len(sample) / statistics.median(times), 1),
                "megabytes": round((store.folder(version) / ONNX).stat().st_size / 1e6, 1),
            }
            for times, (store, version, _) in zip(seconds, sides, strict=True)
        ]
    finally:
        for _, _, encoder in sides:
            encoder.close()
    return found[0], found[1]


def _timed(encoder: Encoder, texts: list[str]) -> float:
    began = time.thread_time()
    encoder.encode(texts)
    return time.thread_time() - began
