"""Post-processors: maps fitted on vectors, after training or instead of it; published as dense layers.

vectors ─▶ mean and covariance, in float64, a chunk at a time ─▶ x W + b

sif, usif   weights of words, before anything else (word_weights.py)
whiten      every direction gets the same spread (Su et al. 2021, BERT-whitening)
drop_pcs    the strongest directions are taken out (Mu and Viswanath 2018, All-but-the-Top; Arora et al. 2017)
flow        every vector at once, by a normalising flow, after anything else (flow.py)
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from training.errors import TrainingError
from training.methods.flow import Flow
from training.methods.ranges import Count, Flag
from training.methods.word_weights import Sif, Usif
from training.model.encoder import Affine, TrainedEncoder

Floats = NDArray[np.float64]
_FOR_ONE = 100  # dimensions for one direction that drop_pcs takes out
_NOTHING = 1e-10  # of the strongest direction's variance: a direction in which vectors do not differ


class Moments(NamedTuple):
    """Moments of the vectors: how many, their mean (D,) and covariance (D, D), divided by their number."""

    texts: int
    mean: Floats
    covariance: Floats

    def through(self, layer: Affine) -> Moments:
        """The moments of what `layer` makes of the same vectors."""
        mean = self.mean @ layer.weight + layer.bias
        return Moments(self.texts, mean, layer.weight.T @ self.covariance @ layer.weight)


class Post(Protocol):
    """One that needs no more than moments."""

    def fit(self, moments: Moments) -> Affine:
        """Raise TrainingError when the vectors are too few or too alike."""


@dataclass(frozen=True)
class Whiten:
    """(x - μ) U Λ^(-1/2), of which the `dimension` strongest directions are kept; all where it is larger."""

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
class DropPcs:
    """x without its part in the `count` strongest directions.

    count: 0 is one for every 100 dimensions (Mu and Viswanath 2018, section 2). centred: around the mean,
    which is subtracted; SIF and uSIF take directions from 0. by_share: of each direction only the share that
    its σ² has in those of all `count` (Ethayarajh 2018, section 3.4).
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
        count = self.count or max(round(len(directions) / _FOR_ONE), 1)
        if count >= len(directions):
            raise TrainingError(f"Vectors of {len(directions)} dimensions cannot lose {count} of them.")
        top, strongest = directions[:, :count], variances[:count]
        shares = strongest / strongest.sum() if self.by_share else np.ones(count)
        weight = np.eye(len(directions)) - top * shares @ top.T
        return Affine(weight, -moments.mean @ weight)


def moments_of(chunks: Iterable[NDArray[np.float32]]) -> Moments:
    """chunks: (n, D) each. Raise TrainingError for fewer than two vectors."""
    count = 0
    total: Floats = np.zeros(0)
    products: Floats = np.zeros((0, 0))
    shift: Floats = np.zeros(0)  # of the first chunk: sums around it lose no digits
    for chunk in chunks:
        x_ND = chunk.astype(np.float64)
        if not count:
            shift = x_ND.mean(0)
            total, products = np.zeros_like(shift), np.zeros((len(shift), len(shift)))
        x_ND = x_ND - shift
        count += len(x_ND)
        total = total + x_ND.sum(0)
        products = products + x_ND.T @ x_ND
    if count < 2:
        raise TrainingError("A post-processor is fitted on two texts or more.")
    mean = total / count
    return Moments(count, mean + shift, products / count - np.outer(mean, mean))


def process(posts: Sequence[Post | Flow | Sif | Usif], encoder: TrainedEncoder, texts: Sequence[str]) -> None:
    """Fit one after another, each on what those before it make of the vectors of `texts`, and add them."""
    affine: list[Post] = []
    flows: list[Flow] = []
    for post in posts:
        if isinstance(post, Sif | Usif):
            encoder.weigh_words(post.weights(encoder.word_counts(texts)))
        elif isinstance(post, Flow):
            flows.append(post)
        else:
            affine.append(post)
    if affine:
        encoder.add_dense(fit(affine, moments_of(encoder.pooled_chunks(texts))))
    for flow in flows:
        encoder.add_dense(flow.fit(np.concatenate([*encoder.pooled_chunks(texts)])))


def fit(posts: Sequence[Post], moments: Moments) -> list[Affine]:
    """Fit one after another, each on what those before it make of the vectors."""
    layers = []
    for post in posts:
        layers.append(post.fit(moments))
        moments = moments.through(layers[-1])
    return layers


def _principal(moments: Moments) -> tuple[Floats, Floats]:
    """Variances (D,), the largest first, and their directions (D, D) in columns, with a sign of their own."""
    variances, directions = np.linalg.eigh(moments.covariance)
    directions = directions[:, ::-1]
    signs = np.sign(directions[np.abs(directions).argmax(0), np.arange(len(directions))])
    return np.maximum(variances[::-1], 0), directions * signs
