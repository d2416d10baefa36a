"""Post-processors: changes of an encoder, fitted on vectors or words after training or instead of it.

    sif, usif   weights of words (Arora, Liang and Ma 2017; Ethayarajh 2018)
    whiten      every direction gets the same spread (Su et al. 2021, BERT-whitening)
    drop_pcs    removes the strongest directions (Mu and Viswanath 2018, All-but-the-Top; Arora et al. 2017)
    flow        a normalizing flow (flow.py)

whiten and drop_pcs are affine maps, x W + b, that follow from the mean and the covariance of the vectors. The
model is published with them as dense layers. sif and usif multiply the rows of the word table: the mean of a
text's weighted rows is then the weighted mean, whose length cancels in a cosine.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from training.errors import TrainingError
from training.evaluation.sts import Floats
from training.model.encoder import Affine, TrainedEncoder
from training.validation import AboveZero, Count, Flag

_DIMENSIONS_PER_DIRECTION = 100  # drop_pcs removes one direction for so many dimensions
_NOTHING = 1e-10  # share of the largest variance below which vectors do not differ in a direction


class Moments(NamedTuple):
    """Number of vectors, their mean (D,) and their covariance (D, D), divided by the number."""

    texts: int
    mean: Floats
    covariance: Floats


class AffinePost:
    """A post-processor that needs only the moments of the vectors."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Fits the map on the vectors of `texts` and appends it to the encoder."""
        encoder.add_dense([self.fit(compute_moments(encoder.pooled_chunks(texts)))])

    def fit(self, moments: Moments) -> Affine:
        """Returns the map.

        Raises:
            TrainingError: The vectors are too few or too similar.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class Whiten(AffinePost):
    """(x - μ) U Λ^(-1/2), with the `dimension` strongest directions, or all if it is larger."""

    dimension: Count
    name: Literal["whiten"] = "whiten"

    def fit(self, moments: Moments) -> Affine:
        variances, directions = _principal(moments)
        kept = min(self.dimension, len(variances))
        if variances[kept - 1] <= _NOTHING * variances[0]:
            rank = int((variances > _NOTHING * variances[0]).sum())
            raise TrainingError(
                f"The {moments.texts} texts differ in {rank} directions only; whitening to {kept} needs more "
                "text, or a smaller dimension."
            )
        weight = directions[:, :kept] / np.sqrt(variances[:kept])
        return Affine(weight, -moments.mean @ weight)


@dataclass(frozen=True)
class DropPcs(AffinePost):
    """x without its part in the `count` strongest directions.

    Attributes:
        count: 0 means one for every 100 dimensions (Mu and Viswanath 2018, section 2).
        centred: Directions around the mean, which is subtracted. SIF and uSIF take directions from 0.
        by_share: Removes only a share of each direction: its σ² divided by the sum over all `count`
            (Ethayarajh 2018, section 3.4).

    """

    count: Annotated[int, Field(ge=0, le=1 << 20, strict=True)] = 0
    centred: Flag = True
    by_share: Flag = False
    name: Literal["drop_pcs"] = "drop_pcs"

    def fit(self, moments: Moments) -> Affine:
        if not self.centred:
            second = moments.covariance + np.outer(moments.mean, moments.mean)
            moments = Moments(moments.texts, np.zeros_like(moments.mean), second)
        variances, directions = _principal(moments)
        count = self.count or max(round(len(directions) / _DIMENSIONS_PER_DIRECTION), 1)
        if count >= len(directions):
            raise TrainingError(f"Vectors of {len(directions)} dimensions cannot lose {count} of them.")
        top, strongest = directions[:, :count], variances[:count]
        shares = strongest / strongest.sum() if self.by_share else np.ones(count)
        weight = np.eye(len(directions)) - top * shares @ top.T
        return Affine(weight, -moments.mean @ weight)


class WordWeights:
    """A post-processor that weighs words by how often the corpus has them."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Multiplies the rows of the word table by the weights."""
        encoder.weigh_words(self.weights(encoder.word_counts(texts)))

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """Returns the weight of each id, (ids,), from the count of each id in the corpus."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sif(WordWeights):
    """Arora, Liang and Ma 2017, section 3: a / (a + p(w)). The paper's `a` is from 1e-4 to 1e-3."""

    a: AboveZero = 1e-3
    name: Literal["sif"] = "sif"

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        weights: Floats = self.a / (self.a + counts / counts.sum())
        return weights


@dataclass(frozen=True)
class Usif(WordWeights):
    """Ethayarajh 2018, section 3.3: a / (a/2 + p(w)) with a = (1 - share) / (share * V/2).

    `share` is the share of frequent words among the V words of the corpus: p(w) > 1 - (1 - 1/V)^words.
    `words` is the number of words of a sentence, 11 in the paper.
    """

    words: Count = 11
    name: Literal["usif"] = "usif"

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        p = counts / counts.sum()
        known = int((counts > 0).sum())
        # At least one word counts as frequent; otherwise the weights would have no bound.
        share = max((p > 1 - (1 - 1 / known) ** self.words).sum(), 1) / known
        a = (1 - share) / (share * known / 2)
        weights: Floats = a / (a / 2 + p)
        return weights


def compute_moments(chunks: Iterable[NDArray[np.float32]]) -> Moments:
    """Returns the moments of vectors that come in chunks of (n, D).

    Raises:
        TrainingError: Fewer than two vectors.

    """
    count = 0
    total = products = shift = np.zeros(())
    for chunk in chunks:
        shift = shift if count else chunk.mean(0, np.float64)  # sums around the first mean lose no digits
        x_ND = chunk - shift
        count += len(x_ND)
        total = total + x_ND.sum(0)
        products = products + x_ND.T @ x_ND
    if count < 2:
        raise TrainingError("A post-processor is fitted on two texts or more.")
    mean = total / count
    return Moments(count, mean + shift, products / count - np.outer(mean, mean))


def _principal(moments: Moments) -> tuple[Floats, Floats]:
    """Returns variances (D,), the largest first, and their directions as columns (D, D) with a fixed sign."""
    variances, directions = np.linalg.eigh(moments.covariance)
    directions = directions[:, ::-1]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(len(directions))])
    return np.maximum(variances[::-1], 0), directions * signs
