"""Near-duplicates: texts that share nearly all their shingles with an earlier text that is kept.

    signatures ─▶ texts that share a band with another ─▶ of these, pairs that share a rare shingle ─▶ Jaccard

A text is dropped only for a kept text that it is compared with itself, so no chain of small differences
drops a text that resembles nothing that is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.words.progress import counted
from training.errors import TrainingError
from training.mining.minhash import Hashes, band_keys, banding, jaccard, shingles

THRESHOLD = 0.9  # Jaccard of character shingles: one word in about thirty differs; chosen by us
_REMEMBERED = 512  # texts whose shingles are kept at hand
_TABLE = 1 << 20  # places to count shingles in; some share one, and then both count as more frequent


class Duplicate(NamedTuple):
    place: int  # of the text that is dropped
    first: int  # of the kept text, before it
    similarity: float  # Jaccard, not estimated


def near_duplicates(texts: Sequence[str], threshold: float = THRESHOLD, keep: int = 0) -> list[Duplicate]:
    """In the order of `texts`. No two of the others are as close, but for what MinHash misses.

    keep: the first so many are kept whatever they resemble, and every later text is compared with them.
    """
    if not 0 < threshold <= 1:
        raise TrainingError(f"--threshold must be above 0 and at most 1, not {threshold:g}.")
    keys = band_keys(texts, *banding(threshold))
    places = np.flatnonzero(_shares_a_band(keys)).tolist()
    of = lru_cache(_REMEMBERED)(lambda place: shingles(texts[place]))
    frequency = np.zeros(_TABLE, np.int64)
    for place in places:
        np.add.at(frequency, _counted(of(place)), 1)
    kept: dict[int, list[int]] = {}  # by each of their rarest shingles
    found = []
    for place in counted(places, "texts", len(places), "comparing"):
        rarest = _rarest(of(place), frequency, threshold)
        near = np.array(sorted(set().union(*(kept.get(shingle, ()) for shingle in rarest))), np.int64)
        alike = near[(keys[near] == keys[place]).any(axis=1)].tolist() if place >= keep else []
        for first in alike:
            similarity = jaccard(of(first), of(place))
            if similarity >= threshold:
                found.append(Duplicate(place, first, similarity))
                break
        else:
            for shingle in rarest:
                kept.setdefault(shingle, []).append(place)
    return found


def _shares_a_band(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(texts,): whether another text has the same key in the same band."""
    shares = np.zeros(len(keys), np.bool_)
    for band in keys.T:
        _, inverse, counts = np.unique(band, return_inverse=True, return_counts=True)
        shares |= counts[inverse] > 1
    return shares


def _counted(hashes: Hashes) -> NDArray[np.int64]:
    return (hashes % np.uint64(_TABLE)).astype(np.int64)


def _rarest(hashes: Hashes, frequency: NDArray[np.int64], threshold: float) -> list[int]:
    """So many shingles that two texts at the threshold must share one of them.

    The prefix filter of Chaudhuri, Ganti and Kaushik 2006. Texts of one template share bands by the
    thousand, yet few of them share what is rare: without it such a corpus takes hours.
    """
    order = np.lexsort((hashes, frequency[_counted(hashes)]))
    common = math.ceil(threshold * len(hashes) - 1e-9)  # less a rounding error: 0.07 * 100 is above 7
    rarest: list[int] = hashes[order[: len(hashes) - common + 1]].tolist()
    return rarest
