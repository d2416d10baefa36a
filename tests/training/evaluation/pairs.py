"""Small evaluation sets with known answers. A sentence such as `0.3` states its cosine with `east`."""

import gzip
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from training.evaluation.data import Pairs
from training.evaluation.encoding import Vectors

EAST = "east"
# (subset, cosine, gold) of two subsets. Spearman is 1 in A and -1 in B. Together, cosines rank 1 2 3 4 5 and
# gold scores 3 4 5 2 1, so the squared differences sum to 32 and Spearman is 1 - 6 * 32 / (5 * 24).
TWO_SOURCES = (("A", 0.1, 3.0), ("A", 0.2, 4.0), ("A", 0.3, 5.0), ("B", 0.8, 2.0), ("B", 0.9, 1.0))
TWO_SOURCES_ALL = -0.6


def encode(sentences: list[str]) -> Vectors:
    """Returns unit vectors: (1, 0) for `east`, a vector with cosine 0.3 to it for `0.3`. `nowhere`: zeros."""
    return np.array([_vector(sentence) for sentence in sentences], np.float32).reshape(-1, 2)


def pairs_of(rows: Sequence[tuple[str, float | str, float]]) -> Pairs:
    subsets, cosines, gold = zip(*rows, strict=True)
    right = [str(cosine) for cosine in cosines]
    return Pairs([EAST] * len(rows), right, np.array(gold), list(subsets), 0)


def write(
    file: Path, rows: Sequence[Sequence[object]], header: str = "subset score sentence1 sentence2"
) -> Path:
    """Writes a gzipped TSV file with a header, and creates its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(header.split()), *("\t".join(map(str, row)) for row in rows)]
    file.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return file


def small_data(folder: Path) -> Path:
    """Writes STS12, STS-B in three splits and SICK-R, with words that the tiny model knows."""
    rows = [
        ("A", 5, "the cat sleeps", "a cat is in sleep"),
        ("A", 1, "the dog runs", "a stone bridge"),
        ("A", 3.5, "red paper", "blue paper"),
        ("B", 4.5, "open the window", "when do i open a window"),
        ("B", 0, "river market", "how do i reset my password"),
        ("B", 2, "a forest garden", "the garden"),
    ]
    write(folder / "sts12" / "test.tsv.gz", rows)
    for split, part in {"train": rows[:2], "dev": rows[2:4], "test": rows[1:]}.items():
        write(folder / "stsb" / f"{split}.tsv.gz", part, "genre score sentence1 sentence2")
    sick = [(number, 1 + score * 0.8, *texts) for number, (_, score, *texts) in enumerate(rows)]
    write(folder / "sick" / "test.tsv.gz", sick, "pair_id score sentence1 sentence2")
    return folder


def _vector(sentence: str) -> tuple[float, float]:
    if sentence == "nowhere":
        return 0.0, 0.0
    cosine = 1.0 if sentence == EAST else float(sentence)
    return cosine, math.sqrt(1 - cosine**2)
