"""The learned ranking of a collection: the second stage of hybrid search. Start at `Ranking`.

    features (n, f) ─▶ standardized over the candidates ─┬─▶ linear model ─┐
                                                         └─▶ trees         ┴─▶ scores (n,)

If a reranker orders the best hits again, a ranking may say how much its score counts (`RerankerWeight`).

A ranking is a small JSON file in the folder of a version, `ranking/COLLECTION.json`. It has no code: numpy
evaluates it. Fitting is in training/ranking/.
"""

from __future__ import annotations

from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.files.bounded import read_bytes
from models.manifest import Manifest, Sha256
from models.search.features import FEATURES, MEMORY, VERSION, Features
from models.tokens.late import DIMENSIONS, LATE

FOLDER = "ranking"  # Subfolder of a version's folder.
MAX_RANKED = 50  # Best hits in hybrid order that a ranking orders again.
MAX_RECALLED = 10  # Further hits, judged relevant for similar queries, that it orders with them.
RERANKED = 20  # Best hits that a reranker orders again, unless a search names another number.
_SATURATED = 1e-7  # A sigmoid in float32 cannot come nearer to 0 and 1.
_FLAT = 1e-9  # A feature with a smaller deviation does not tell the candidates apart.
_Number = Annotated[float, Field(allow_inf_nan=False)]


class Trees(BaseModel):
    """Boosted regression trees in plain arrays, one entry for each node.

    Node i goes to `left[i]` if `feature[i] <= threshold[i]`, and otherwise to `right[i]`. A leaf is its own
    child, and has the `value`. Features are numbered twice: first the raw ones, then the standardized ones.
    The standardized features of late interaction follow.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    roots: Annotated[list[int], Field(min_length=1)]
    feature: list[int]
    threshold: list[_Number]
    left: list[int]
    right: list[int]
    value: list[_Number]

    @model_validator(mode="after")
    def _check(self) -> Self:
        count = len(self.feature)
        if {len(self.threshold), len(self.left), len(self.right), len(self.value)} - {count}:
            raise ValueError("the arrays of the trees have different lengths")
        if not all(0 <= node < count for node in (*self.roots, *self.left, *self.right)):
            raise ValueError("a tree names a node that does not exist")
        if not all(0 <= column < 2 * len(FEATURES) + len(LATE) for column in self.feature):
            raise ValueError("a tree names a feature that does not exist")
        # Children come after their parent, so every walk ends.
        if any(to < at for at, both in enumerate(zip(self.left, self.right, strict=True)) for to in both):
            raise ValueError("a node of a tree comes before its parent")
        return self

    @cached_property
    def arrays(self) -> tuple[NDArray[np.number], ...]:
        """The fields as arrays, in their order."""
        return tuple(np.array(getattr(self, name)) for name in type(self).model_fields)

    def score(self, inputs: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the sum of the trees' values for each candidate, shape (n,).

        Args:
            inputs: The raw and the standardized features and late interaction, shape (n, 2 f + 3).
        """
        roots, feature, threshold, left, right, value = self.arrays
        nodes = np.repeat(roots[:, None], len(inputs), axis=1)  # (trees, n)
        rows = np.arange(len(inputs))
        while True:
            smaller = inputs[rows, feature[nodes]] <= threshold[nodes]
            after = np.where(smaller, left[nodes], right[nodes])
            if np.array_equal(after, nodes):
                total: NDArray[np.float64] = value[nodes].sum(axis=0)
                return total
            nodes = after


class RerankerWeight(BaseModel):
    """How much the score of a reranker counts, next to the ranking score.

    Attributes:
        fingerprint: Fingerprint of the reranker.
        weight: Weight of its score, if both scores have deviation 1 over the hits that it scored.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fingerprint: Sha256
    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    def contribute(self, ranked: NDArray[np.float64], scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the part of the reranker in each hit's score, shape (n,). NaN where it gave no score.

        The part is to be added to the ranking score.

        Args:
            ranked: Ranking scores, shape (n,).
            scores: Scores of the reranker before its activation, shape (n,). NaN: none.
        """
        known = ~np.isnan(scores)
        if not known.any():
            return scores
        scale = self.weight * _deviation(ranked[known])
        return np.where(known, scale * standardize_late(scores[:, None])[:, 0], np.nan)


class Ranking(BaseModel):
    """A learned ranking.

    Attributes:
        features: Version of the features.
        fingerprint: Fingerprint of the encoder whose vectors it learned from. None: any encoder.
        weights: Weights of the features, by name. A missing feature has weight 0.
        trees: Trees that are added to the linear model. None: the linear model alone.
        mean_query: Mean of the query vectors, length 1, for the feature `hub`. Empty: `hub` is 0.
        memory_threshold: Judged queries nearer to a search than this count (`Memory.recall`).
        queries: Number of judged queries that it learned from.
        late: The projection of late interaction in float16 (tokens/late.py). Empty: without late interaction.
        reranker: Weight of a reranker. None: a reranker orders the best hits alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = 1
    features: int = VERSION
    fingerprint: Sha256 | None = None
    weights: dict[str, _Number]
    trees: Trees | None = None
    mean_query: list[_Number] = Field(default_factory=list)
    memory_threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8
    queries: Annotated[int, Field(ge=0)] = 0
    late: Base64Bytes = b""
    reranker: RerankerWeight | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if unknown := self.weights.keys() - {*FEATURES, *LATE}:
            raise ValueError(f"the ranking has a weight for an unknown feature: {min(unknown)}")
        if len(self.late) % (2 * DIMENSIONS):
            raise ValueError(f"the projection of late interaction does not have {DIMENSIONS} columns")
        return self

    @cached_property
    def projection(self) -> NDArray[np.float32] | None:
        """The projection of late interaction, shape (width, DIMENSIONS)."""
        found = np.frombuffer(self.late, "<f2").reshape(-1, DIMENSIONS).astype(np.float32)
        return found if len(found) else None

    @cached_property
    def space(self) -> str:
        """Names the token vectors that this ranking compares: those of one encoder and projection."""
        return sha256(f"{self.fingerprint} ".encode() + self.late).hexdigest()[:16]

    @cached_property
    def mean_vector(self) -> NDArray[np.float32] | None:
        return np.array(self.mean_query, np.float32) if self.mean_query else None

    def score(self, features: Features, late: Features | None = None) -> NDArray[np.float64]:
        """Returns the score of each candidate of one query, shape (n,). Larger is better."""
        return sum(self.contribute(features, late).values(), np.zeros(len(features)))

    def contribute(self, features: Features, late: Features | None = None) -> dict[str, NDArray[np.float64]]:
        """Returns the part of each feature in the scores, shape (n,) each. `trees` is a part of its own.

        The linear score and the trees have equal influence. Their sum has the deviation of the linear score.
        So the features of MEMORY, which are added last, have the effect that was learned without trees.

        Args:
            features: Shape (n, len(FEATURES)).
            late: Features of late interaction, shape (n, len(LATE)). None: unknown.
        """
        scaled = standardize(features)
        tokens = np.zeros((len(features), len(LATE))) if late is None else standardize_late(late)
        columns = dict(zip((*FEATURES, *LATE), np.hstack([scaled, tokens]).T, strict=True))
        linear = {name: weight * columns[name] for name, weight in self.weights.items()}
        memory = {name: linear.pop(name) for name in MEMORY if name in linear}
        if self.trees is not None:
            boosted = self.trees.score(np.hstack([features, scaled, tokens]))
            spread = _deviation(sum(linear.values(), np.zeros(1)))
            linear["trees"] = (boosted - boosted.mean()) * spread / _deviation(boosted)
            scale = spread / _deviation(sum(linear.values()))
            linear = {name: scale * part for name, part in linear.items()}
        return linear | memory


@cache
def get_default() -> Ranking:
    """Returns the ranking of collections that have not learned one."""
    return Ranking.model_validate_json(read_bytes(Path(__file__).parent / "default_ranking.json"))


def read_ranking(folder: Path, collection: str, manifest: Manifest) -> Ranking:
    """Reads the ranking of a collection from the folder of a version.

    Raises:
        OSError: The file cannot be read.
        ValueError: The ranking is malformed, or was learned with other features or another encoder. The
            message begins with "it".
    """
    try:
        ranking = Ranking.model_validate_json(read_bytes(folder / FOLDER / f"{collection}.json"))
    except ValidationError as error:
        raise ValueError(f"it is malformed: {error.errors()[0]['msg']}") from None
    if ranking.features != VERSION:
        raise ValueError(f"it has features of version {ranking.features}, and this release has {VERSION}")
    if ranking.fingerprint not in {None, manifest.fingerprint}:
        raise ValueError(f"it was learned with the encoder {str(ranking.fingerprint)[:8]}")
    if len(ranking.mean_query) not in {0, manifest.dimension}:
        raise ValueError(f"its mean query has {len(ranking.mean_query)} components")
    return ranking


def standardize(features: Features) -> Features:
    """Returns features with mean 0 and deviation 1 over a query's candidates. Constant features become 0.

    Features of MEMORY stay as they are, because most candidates of most queries have none.
    """
    if not len(features):
        return features
    centered = features - features.mean(axis=0)
    deviation = centered.std(axis=0)
    scaled: Features = np.where(deviation > _FLAT, centered / np.where(deviation > _FLAT, deviation, 1), 0)
    scaled[:, -len(MEMORY) :] = features[:, -len(MEMORY) :]
    return scaled


def standardize_late(features: Features) -> Features:
    """Standardizes the features of late interaction. Candidates without them (NaN) get the mean, 0."""
    known = ~np.isnan(features[:, 0])
    scaled = np.zeros(features.shape)
    if known.any():
        centered = features[known] - features[known].mean(axis=0)
        scaled[known] = centered / np.maximum(centered.std(axis=0), _FLAT)
    return scaled


def remove_activation(scores: NDArray[np.float32], activation: str | None) -> NDArray[np.float64]:
    """Returns the scores that a reranker had before its activation. NaN stays NaN."""
    found = scores.astype(np.float64)
    if activation != "sigmoid":
        return found
    shares = np.clip(found, _SATURATED, 1 - _SATURATED)
    logits: NDArray[np.float64] = np.log(shares) - np.log1p(-shares)
    return logits


def rerank(scores: NDArray[np.floating]) -> NDArray[np.intp]:
    """Returns the positions of hits, best first. Hits without a score (NaN) keep their places."""
    order = np.arange(len(scores))
    scored = np.flatnonzero(np.isfinite(scores))
    order[scored] = scored[np.argsort(-scores[scored], kind="stable")]
    return order


def _deviation(scores: NDArray[np.float64]) -> float:
    return max(float(np.std(scores)), _FLAT)
