"""Judged queries with random candidates, for tests of rankings."""

from __future__ import annotations

import numpy as np

from models.search.features import FEATURES
from models.search.ranking import MAX_RANKED
from training.ranking.examples import Example

COVER, HYBRID = FEATURES.index("cover"), FEATURES.index("hybrid")


def judged_queries(
    count: int, *, documents: int = 400, candidates: int = MAX_RANKED, seed: int = 0, repeats: int = 1
) -> list[Example]:
    """Returns queries whose only answer has a high `cover`, which the hybrid order ignores.

    Args:
        repeats: Number of queries per question, with nearly equal vectors and the same answer.
    """
    random = np.random.default_rng(seed)
    examples: list[Example] = []
    while len(examples) < count:
        center = random.normal(size=16)
        answer = int(random.integers(documents))
        for _ in range(min(repeats, count - len(examples))):
            others = random.permutation(np.delete(np.arange(documents), answer))[: candidates - 1]
            found = random.permutation([*others.tolist(), answer])
            features = random.normal(size=(candidates, len(FEATURES)))
            features[:, HYBRID] = -np.sort(-features[:, HYBRID])
            features[:, COVER] += 1.5 * (found == answer)
            vector = center + 0.05 * random.normal(size=16)
            vector /= np.linalg.norm(vector)
            name = f"question {len(examples)}"
            ids = [f"d{id}" for id in found]
            examples.append(Example(name, vector.astype(np.float32), ids, features, {f"d{answer}": 1.0}))
    return examples


def with_shuffled_labels(examples: list[Example], seed: int = 0) -> list[Example]:
    """Returns the queries with an answer drawn at random from their candidates."""
    random = np.random.default_rng(seed)
    return [each._replace(relevant={str(random.choice(np.array(each.ids))): 1.0}) for each in examples]
