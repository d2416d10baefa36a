"""Post-processors, which change the vectors of an encoder after training or without training.

    sif, usif   weights of words (Arora, Liang and Ma 2017; Ethayarajh 2018)
    whiten      gives every direction the same variance (Su et al. 2021, BERT-whitening)
    drop_pcs    removes the strongest directions (Mu and Viswanath 2018, All-but-the-Top; Arora et al. 2017)
    flow        a normalizing flow (flow.py)

whiten and drop_pcs are affine maps x W + b, computed from the mean and the covariance of vectors. They become
dense layers of the published model. sif and usif multiply the embeddings of words by weights. The vector of a
text is then the weighted mean of word vectors, up to a factor that does not change cosines.
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
    """The number of vectors, the mean, shape (D,), and the covariance (divided by n), shape (D, D)."""

    texts: int
    mean: Floats
    covariance: Floats


class AffinePost:
    """Base class of post-processors that need only the mean and the covariance of vectors."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Fits the map on the vectors of `texts` and appends it to the encoder."""
        encoder.add_dense([self.fit(compute_moments(encoder.pooled_chunks(texts)))])

    def fit(self, moments: Moments) -> Affine:
        """Computes the affine map.

        Raises:
            TrainingError: There are too few vectors, or they are too similar.

        """
        raise NotImplementedError


@dataclass(frozen=True)
class Whiten(AffinePost):
    """Whitening, (x - μ) U Λ^(-1/2), with the `dimension` strongest directions, or all if there are fewer."""

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
    """Removes the projection of vectors on the `count` strongest directions (principal components).

    Attributes:
        count: Number of directions. 0 means one for every 100 dimensions (Mu and Viswanath 2018, section 2).
        centred: True to subtract the mean first. SIF and uSIF use the directions of uncentered vectors.
        by_share: True to remove only a share of each direction, which is its σ² divided by the sum over all
            removed directions (Ethayarajh 2018, section 3.4).

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
    """Base class of post-processors that weight words by their frequency in the corpus."""

    def apply(self, encoder: TrainedEncoder, texts: Sequence[str]) -> None:
        """Multiplies the word embeddings by the weights."""
        encoder.weigh_words(self.weights(encoder.word_counts(texts)))

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        """Returns the weight of each token id, shape (ids,), from its count in the corpus."""
        raise NotImplementedError


@dataclass(frozen=True)
class Sif(WordWeights):
    """SIF weights a / (a + p(w)) (Arora, Liang and Ma 2017, section 3, with `a` from 1e-4 to 1e-3)."""

    a: AboveZero = 1e-3
    name: Literal["sif"] = "sif"

    def weights(self, counts: NDArray[np.int64]) -> Floats:
        weights: Floats = self.a / (self.a + counts / counts.sum())
        return weights


@dataclass(frozen=True)
class Usif(WordWeights):
    """uSIF weights a / (a/2 + p(w)), with a = (1 - share) / (share * V/2) (Ethayarajh 2018, section 3.3).

    `share` is the share of frequent words, with p(w) > 1 - (1 - 1/V)^words, among the V words of the corpus.
    The field `words` is the number of words in a sentence, 11 in the paper.
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
    """Computes mean and covariance of vectors. Each chunk has shape (n, D).

    Raises:
        TrainingError: There are fewer than two vectors.

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
    """Returns the principal components: variances, shape (D,), largest first, and directions as columns.

    The largest component of each direction is positive.
    """
    variances, directions = np.linalg.eigh(moments.covariance)
    directions = directions[:, ::-1]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(len(directions))])
    return np.maximum(variances[::-1], 0), directions * signs
