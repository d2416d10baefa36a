"""The dev set that a run is watched on: STS-B dev, 1500 pairs of sentences with a score from 0 to 5.

Choosing the best step by it uses its labels, so the last step is kept as well (methods, 4.8). Not here: the
test sets and what else is measured, which is the work of `python -m training evaluate`.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from training.errors import TrainingError

NAME = "stsb_dev"
Encode = Callable[[Sequence[str]], NDArray[np.float32]]


class Pairs(NamedTuple):
    scores: list[float]
    first: list[str]
    second: list[str]


def read_dev(data: Path | None) -> Pairs | None:
    """DATA/stsb/dev.tsv.gz; None when it is not there. Raise TrainingError when it cannot be read."""
    file = data / "stsb" / "dev.tsv.gz" if data else None
    if file is None or not file.is_file():
        return None
    try:
        with gzip.open(file, "rt", encoding="utf-8", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE))
        return Pairs(
            [float(row["score"]) for row in rows],
            [row["sentence1"] for row in rows],
            [row["sentence2"] for row in rows],
        )
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise TrainingError(f"{file} is not the table of STS-B dev: {error!r}") from None


def spearman(encode: Encode, pairs: Pairs) -> float:
    """Rank correlation of cosine and score, from -1 to 1. encode: texts to unit vectors."""
    vectors = encode([*pairs.first, *pairs.second])
    first, second = vectors[: len(pairs.first)], vectors[len(pairs.first) :]
    return float(spearmanr(np.sum(first * second, axis=1), pairs.scores).statistic)
