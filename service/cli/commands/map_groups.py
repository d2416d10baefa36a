"""Groups of a map's documents, the words that name each, the fields that colour it, and odd documents."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.search.terms import FUNCTION_WORDS
from service.index.kmeans import assigned, cluster
from service.index.segments import Vectors

WORDS = 5  # that name a group
MOST_GROUPS = 24
PER_GROUP = 40  # documents, about, until there are the most groups
CHARACTERS = 1000  # of a text, from which words are taken
MOST_VALUES = 30  # of a field that colours
LEAST_SHARE = 0.2  # of the documents that have such a field
STRAYS, COPIES = 20, 50
COPY = 0.98  # cosine
_WORD = re.compile(r"[^\W\d_]{3,}")


def groups(rows: Vectors) -> NDArray[np.int64]:
    """The number of each row's group, by spherical k-means; groups are numbered by size, largest first."""
    count = int(np.clip(len(rows) // PER_GROUP, min(4, len(rows)), MOST_GROUPS))
    order = np.random.default_rng(0).permutation(len(rows))
    centres = cluster(rows[order], count, lambda: False)
    found = np.concatenate([labels for _, labels in assigned(rows, centres, lambda: False)])
    sizes = np.bincount(found, minlength=count)
    rank = np.empty(count, np.int64)
    rank[np.argsort(-sizes, kind="stable")] = np.arange(count)
    return np.asarray(rank[found])


def words_of(texts: Sequence[str], group: NDArray[np.int64]) -> list[list[str]]:
    """The words of each group, most telling first: class-based TF-IDF (Grootendorst, arXiv:2203.05794).

    Counts are of documents that hold the word, so that one long text does not name a group.
    """
    counts: list[Counter[str]] = [Counter() for _ in range(int(group.max()) + 1)]
    for text, number in zip(texts, group.tolist(), strict=True):
        found = {word.lower() for word in _WORD.findall(text[:CHARACTERS])}
        counts[number].update(found - FUNCTION_WORDS)
    everywhere: Counter[str] = sum(counts, Counter())
    mean = sum(everywhere.values()) / max(1, len(counts))
    named = []
    for own in counts:
        total = max(1, sum(own.values()))
        score = {word: n / total * np.log1p(mean / everywhere[word]) for word, n in own.items() if n > 1}
        named.append(sorted(score, key=lambda word: (-score[word], word))[:WORDS])
    return named


def colouring(metadata: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Fields of few different values: `values`, and `of` each document the number of its value, or -1."""
    names = Counter(name for one in metadata for name, value in one.items() if _is_plain(value))
    fields = {}
    for name, times in names.most_common():
        if times < LEAST_SHARE * len(metadata):
            break
        counts = Counter(_text(one[name]) for one in metadata if _is_plain(one.get(name)))
        if not 2 <= len(counts) <= MOST_VALUES:
            continue
        first = {_text(one[name]): one[name] for one in reversed(metadata) if _is_plain(one.get(name))}
        place = {text: at for at, (text, _) in enumerate(counts.most_common())}
        of = [place[_text(one[name])] if _is_plain(one.get(name)) else -1 for one in metadata]
        fields[name] = {"values": [first[text] for text in place], "of": of}
    return fields


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _text(value: object) -> str:
    """A value by which `true`, `1` and `"1"` stay apart, as filters keep them."""
    return f"{type(value).__name__}:{value}"


def odd(neighbours: NDArray[np.int64], cosines: NDArray[np.float32]) -> dict[str, Any]:
    """Places of documents that are near to no other (`strays`), and pairs that nearly repeat (`copies`)."""
    own = np.arange(len(neighbours))
    others = np.where(neighbours == own[:, None], -1.0, cosines)
    best = others.max(axis=1)
    partner = neighbours[own, others.argmax(axis=1)]
    pairs = {
        (min(at, other), max(at, other))
        for at, other in zip(own.tolist(), partner.tolist(), strict=True)
        if best[at] >= COPY
    }
    return {"strays": np.argsort(best)[:STRAYS].tolist(), "copies": sorted(pairs)[:COPIES]}
