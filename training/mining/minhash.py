"""MinHash of character shingles: how much two texts share, estimated from short signatures.

    text ─▶ folded ─▶ shingles of 5 characters ─▶ 64-bit hashes ─▶ the least of each of 128 hashings ─▶ bands

Two texts agree in one place of their signatures with the probability of their Jaccard similarity (Broder
1997), and in a whole band of r places with its r-th power: texts that share a band are worth a look.
Characters rather than words, so that a script without spaces needs nothing of its own; five of them, so that
unrelated prose shares few (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, 3.2). The order of
words counts only within a shingle, and their meaning not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from models.words.progress import Progress

Hashes = NDArray[np.uint64]  # of the distinct shingles of one text, sorted
Signatures = NDArray[np.uint32]  # (texts, PERMUTATIONS)

WIDTH = 5  # characters of a shingle
PERMUTATIONS = 128  # the standard error of an estimate is at most 1/2 / sqrt(128) = 0.044
RECALL = 0.99  # of pairs exactly at the threshold; chosen by us, those above it are found more surely
_SEED = 20_240_607  # any number; always the same, so that a corpus always gives the same answer
_CHUNK = 1 << 16  # characters that are hashed together: their hashes stay in the second-level cache

_random = np.random.default_rng(_SEED)
_BASE = np.uint64(_random.integers(1 << 63) * 2 + 1)
_FACTORS = _random.integers(1 << 31, size=PERMUTATIONS, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
_SHIFTS = _random.integers(1 << 32, size=PERMUTATIONS, dtype=np.uint32)
_PLACES = _random.integers(1 << 63, size=PERMUTATIONS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)


def shingles(text: str) -> Hashes:
    """A text shorter than a shingle is one shingle. Different shingles have equal hashes once in 2^64."""
    return np.unique(_shingles([text])[0])


def jaccard(first: Hashes, second: Hashes) -> float:
    """Shared shingles as a part of all that either has."""
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)


def signatures(texts: Sequence[str]) -> Signatures:
    found = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for start, chunk in _chunks(texts):
        hashes, starts = _shingles(chunk)
        short = (hashes >> np.uint64(32)).astype(np.uint32)
        for place, (factor, shift) in enumerate(zip(_FACTORS, _SHIFTS, strict=True)):
            found[start : start + len(chunk), place] = np.minimum.reduceat(short * factor + shift, starts)
    return found


def banding(threshold: float) -> tuple[int, int]:
    """(bands, rows of each): the longest bands that still find a pair at `threshold` with RECALL.

    A pair of similarity s shares one of b bands with the probability 1 - (1 - s^r)^b.
    """
    for rows in range(PERMUTATIONS, 1, -1):
        bands = PERMUTATIONS // rows
        if 1 - (1 - threshold**rows) ** bands >= RECALL:
            return bands, rows
    return PERMUTATIONS, 1


def band_keys(texts: Sequence[str], bands: int, rows: int) -> NDArray[np.uint64]:
    """(texts, bands): equal where two texts agree in a whole band. Nothing else of a signature is kept."""
    keys = np.empty((len(texts), bands), np.uint64)
    with Progress("texts", len(texts), "hashing") as progress:
        for start, chunk in _chunks(texts):
            signed = signatures(chunk)[:, : bands * rows].astype(np.uint64) * _PLACES[: bands * rows]
            keys[start : start + len(chunk)] = _mixed(signed.reshape(len(chunk), bands, rows).sum(axis=2))
            progress.add(len(chunk))
    return keys


def _chunks(texts: Sequence[str]) -> Iterator[tuple[int, Sequence[str]]]:
    start = characters = 0
    for at, text in enumerate(texts):
        if characters + len(text) > _CHUNK and at > start:
            yield start, texts[start:at]
            start, characters = at, 0
        characters += len(text)
    if start < len(texts):
        yield start, texts[start:]


def _shingles(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hashes of every shingle of every text, repeated ones too, and where each text's begin."""
    plain = [" ".join(text.split()).casefold().ljust(WIDTH, "\0") for text in texts]
    characters = np.frombuffer("".join(plain).encode("utf-32-le"), np.uint32).astype(np.uint64)
    hashes = np.zeros(len(characters) - WIDTH + 1, np.uint64)
    for place in range(WIDTH):
        hashes = hashes * _BASE + characters[place : place + len(hashes)]
    lengths = np.array([len(text) for text in plain])
    whole = np.ones(len(characters), np.bool_)
    for place in range(1, WIDTH):  # the last windows of a text run into the next
        whole[np.cumsum(lengths) - place] = False
    return _mixed(hashes[whole[: len(hashes)]]), np.cumsum(lengths - WIDTH + 1) - (lengths - WIDTH + 1)


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the answer depends on every bit: the finaliser of Steele, Lea and Flood 2014."""
    hashes = (hashes ^ (hashes >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    hashes = (hashes ^ (hashes >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return hashes ^ (hashes >> np.uint64(31))
