"""Find near-duplicates: texts that share nearly all shingles (5-character substrings) with an earlier text.

    text ─▶ shingles ─▶ MinHash ─▶ bands ─▶ texts that share a band with another text
         ─▶ pairs of these that also share a rare shingle ─▶ exact Jaccard similarity

Start reading at `near_duplicates`. A text is dropped only if it resembles an earlier text that stays. So each
dropped text resembles a remaining text.

Shingles consist of characters instead of words, so scripts without spaces need no special case. With five
characters, unrelated prose shares few shingles (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets,
3.2). Two texts with the same words in another order are near-duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from models.progress import counted
from training.errors import TrainingError

Shingles = NDArray[np.uint32]  # hashes of the distinct shingles of one text, sorted

THRESHOLD = 0.9  # Jaccard similarity of shingles: about one word in thirty differs. Our choice
RECALL = 0.99  # share of the pairs at the threshold that are found; more above it. Our choice
WIDTH = 5  # characters of a shingle
PERMUTATIONS = 128  # the standard error of an estimated similarity is at most 1/2 / sqrt(128) = 0.044
_SEED = 20_240_607  # arbitrary but fixed: the same corpus always gives the same result
_SLICE = 1 << 13  # shingles that MinHash permutes at once: 4 MB
_CACHED = 512  # texts whose shingles stay in memory
_COUNTERS = 1 << 20  # counters of shingles; shingles that share a counter count as more frequent


class Duplicate(NamedTuple):
    """A text to drop: its index `place`, and the index `first` of the earlier text that it resembles."""

    place: int  # the dropped text
    first: int  # the kept text
    similarity: float  # exact Jaccard similarity


def near_duplicates(texts: Sequence[str], threshold: float = THRESHOLD, keep: int = 0) -> list[Duplicate]:
    """Finds texts that nearly equal an earlier text.

    Args:
        texts: All texts. Of two near-duplicates, the later text is dropped.
        threshold: Minimum Jaccard similarity of near-duplicates.
        keep: Number of texts at the beginning that are never dropped. Later texts are compared with them.

    Returns:
        The texts to drop, in the order of `texts`. The remaining texts are less similar than `threshold`,
        apart from a few pairs that MinHash misses (`RECALL`).

    Raises:
        TrainingError: `threshold` is not above 0 and at most 1.

    """
    if not 0 < threshold <= 1:
        raise TrainingError(f"--threshold must be above 0 and at most 1, not {threshold:g}.")
    bands, rows = banding(threshold)
    keys = _band_keys(texts, bands, rows)
    places = np.flatnonzero(_shares_a_band(keys)).tolist()
    of = lru_cache(_CACHED)(lambda place: shingles(texts[place]))
    frequency = np.zeros(_COUNTERS, np.int64)
    for place in places:
        np.add.at(frequency, of(place) % _COUNTERS, 1)
    kept: dict[int, list[int]] = {}  # places of kept texts by each of their rarest shingles
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


def shingles(text: str) -> Shingles:
    """Returns the hashed shingles of a text, after case folding and with single spaces.

    A text with fewer characters than a shingle is a single shingle.
    """
    plain = " ".join(text.split()).casefold()
    pieces = (plain[at : at + WIDTH] for at in range(max(1, len(plain) - WIDTH + 1)))
    return np.unique(np.fromiter((crc32(piece.encode()) for piece in pieces), np.uint32))


def jaccard(first: Shingles, second: Shingles) -> float:
    """Returns the Jaccard similarity: the number of common shingles divided by the size of the union."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)


def banding(threshold: float) -> tuple[int, int]:
    """Returns the number of bands, and the number of rows (MinHash values) in each band.

    Bands have as many rows as possible while pairs of similarity `threshold` still share a band with
    probability RECALL. A pair of similarity s agrees in one row with probability s (Broder 1997). So the pair
    shares at least one of b bands of r rows with probability 1 - (1 - s^r)^b.
    """
    for rows in range(PERMUTATIONS, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL:
            return bands, rows
    return PERMUTATIONS, 1


def _band_keys(texts: Sequence[str], bands: int, rows: int) -> NDArray[np.uint64]:
    """Returns one key for each text and band, shape (texts, bands).

    Two texts have the same key if all MinHash values of the band are equal.
    """
    from datasketch import MinHash  # noqa: PLC0415  its import takes a third of a second

    empty = MinHash(bands * rows, seed=_SEED, hashfunc=int)
    factors = np.random.default_rng(_SEED).integers(1 << 63, size=rows, dtype=np.uint64) | np.uint64(1)
    keys = np.empty((len(texts), bands), np.uint64)
    for place, text in enumerate(counted(texts, "texts", len(texts), "hashing")):
        minhash, hashes = empty.copy(), shingles(text)
        for at in range(0, len(hashes), _SLICE):
            minhash.update_batch(hashes[at : at + _SLICE].tolist())
        keys[place] = (minhash.hashvalues.reshape(bands, rows) * factors).sum(axis=1)
    return keys


def _shares_a_band(keys: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Returns for each text whether another text has the same key in the same band, shape (texts,)."""
    shares = np.zeros(len(keys), np.bool_)
    for band in keys.T:
        _, inverse, counts = np.unique(band, return_inverse=True, return_counts=True)
        shares |= counts[inverse] > 1
    return shares


def _rarest(hashes: Shingles, frequency: NDArray[np.int64], threshold: float) -> list[int]:
    """Returns the rarest shingles of a text. Texts at the threshold have one of those in common.

    This is the prefix filter of Chaudhuri, Ganti and Kaushik 2006. The filter matters for thousands of texts
    from one template: all of them share bands, but few share a rare shingle. Without the filter, such a
    corpus takes hours.
    """
    order = np.lexsort((hashes, frequency[hashes % _COUNTERS]))
    common = math.ceil(threshold * len(hashes) - 1e-9)  # minus a rounding error: 0.07 * 100 is above 7
    rarest: list[int] = hashes[order[: len(hashes) - common + 1]].tolist()
    return rarest
