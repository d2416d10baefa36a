"""Clustering: whether k-means on the vectors finds the classes that people gave the sentences.

    the sentences of a set ─▶ as many clusters as classes ─▶ the pairing that agrees most ─▶ accuracy

Short-text clustering is scored so (Xu et al. 2017; Zhang et al. 2021, PairSupCon). Each cluster stands for
one class (Kuhn 1955), and the best of several starts is taken by its own spread, never by the labels.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.cluster.vq import kmeans2
from scipy.optimize import linear_sum_assignment

from models.words.progress import Say, silent
from training.evaluation.classifier import Floats, Labels
from training.evaluation.encoding import Encode
from training.evaluation.geometry import directions
from training.evaluation.tasks import Task

STARTS = 10  # our choice
_ROUNDS = 100  # of one start at most
_SEED = 20_211_107  # any number; the same vectors give the same clusters


class Clusters(NamedTuple):
    accuracy: float  # from 0 to 1; 1 / classes or a little more by chance
    classes: int
    sentences: int
    undefined: int  # vectors without a direction, which count as 0


def clustering(task: Task, encode: Encode, say: Say = silent) -> Clusters:
    """Of the sentences of all splits, by cosine."""
    say(f"clustering {task.title}")
    texts = [text for split in task.splits.values() for side in split.sides for text in side]
    labels = np.concatenate([split.labels for split in task.splits.values()])
    units = directions(encode(texts))
    undefined = int(np.isnan(units).any(axis=1).sum())
    found = clusters(np.nan_to_num(units), len(task.classes))
    return Clusters(agreement(found, labels, len(task.classes)), len(task.classes), len(texts), undefined)


def clusters(x: Floats, count: int) -> Labels:
    """The cluster of each row, (n, d) -> (n,): the start with the least squared distance to its centres."""
    best: Labels = np.zeros(len(x), np.int64)
    least = np.inf
    for start in range(STARTS):
        centres, found = kmeans2(x, count, iter=_ROUNDS, minit="++", seed=_SEED + start, missing="warn")
        spread = float(((x - centres[found]) ** 2).sum())
        if spread < least:
            best, least = found.astype(np.int64), spread
    return best


def agreement(found: Labels, labels: Labels, classes: int) -> float:
    """The share of rows whose cluster stands for their class, under the best pairing of the two."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (found, labels), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / len(labels))
