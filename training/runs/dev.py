"""The dev set that a run is watched on: STS-B dev, 1500 pairs of sentences with a score from 0 to 5.

Choosing the best step by it uses its labels, so the last step is kept as well (methods, 4.8). Not here: the
test sets and what else is measured, which is the work of `python -m training evaluate`.
"""

from __future__ import annotations

from pathlib import Path

from training.errors import TrainingError
from training.evaluation.data import STSB, Pairs, load
from training.evaluation.encoding import Encode
from training.evaluation.sts import similarity

NAME = "stsb_dev"


def read_dev(data: Path | None) -> Pairs | None:
    """DATA/stsb/dev.tsv.gz; None when it is not there. Raise TrainingError when it cannot be read."""
    if data is None:
        return None
    if not data.is_dir():
        raise TrainingError(f"{data} is not a folder of evaluation sets.")
    return load(STSB, data, "dev") if (data / STSB / "dev.tsv.gz").is_file() else None


def spearman(encode: Encode, pairs: Pairs) -> float:
    """Rank correlation of cosine and score, from -1 to 1; NaN when every cosine is the same."""
    return similarity(pairs, encode).spearman_all
