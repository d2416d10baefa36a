"""Score models on the dev part, to choose the best step of a training or the share of its weights to keep.

The dev part is used neither for training nor by the gate (sides.py, heldout.py). A score is nDCG@10, with the
passages and the search mode of the service. Start reading at `build_choose`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from models.manifest import Mode, SearchDefaults
from models.search.passages import learned_tokens
from training.evaluation.encoding import Choose, Encode
from training.evaluation.retrieval import Collection
from training.evaluation.scorable import Scorable
from training.mining.neighbors import unit_vectors
from training.model.encoder import TrainedEncoder
from training.retraining import searches as own
from training.retraining.gate.verdict import EACH, JUDGED
from training.retraining.heldout import Split
from training.runs.dev import Score
from training.text.service import fetch_nearest, qualified, split_qualified

CANDIDATES = 500  # documents that judged queries search. Their passages are encoded five times.


def build_choose(
    split: Split,
    judged: Mapping[str, Sequence[str]],
    active: Callable[[], Scorable],
    learned: Mapping[str, SearchDefaults],
    mode: Mode | None,
    service: str | None,
) -> Choose | None:
    """Returns a function that scores a model on the dev part, or None if dev has too few queries.

    The function returns one score for each judged query. If too few queries are judged, it returns one for
    each query made from text. With a service, judged queries search mainly the documents that the service
    finds for any of them, because other documents hardly compete.

    Args:
        split: The documents by part.
        judged: Ids of the relevant documents of each dev query.
        active: Function that opens the active model. The returned function does not use this model.
        learned: Search settings of the active version, by collection.
        mode: Mode that the service uses for searches without a mode. None means the learned mode.
        service: Address of a service with the documents, or None.

    """
    choosing = Split(split.train, split.dev, split.copies)
    if len(judged) >= own.MIN_DEV_QUERIES:  # Judgments count more than queries made from text.
        nearest = _find_nearest(service, judged, active()) if service is not None else ()
        made = {JUDGED: own.judged_search(choosing, judged, CANDIDATES, nearest=nearest)}
    else:
        made = own.collections(choosing, CANDIDATES // 2, own.MIN_DEV_QUERIES)
    return choose_by(made, active(), learned, mode) if made else None


def choose_by(
    dev: Mapping[str, Collection], model: Scorable, learned: Mapping[str, SearchDefaults], mode: Mode | None
) -> Choose:
    """Returns a function that scores a model on each query of the searches `dev`. See `build_choose`."""
    unrelated = model.unrelated
    passages = {
        (content, tokens): model.split(content, tokens)
        for collection in dev.values()
        for name, part in collection.parts()
        for tokens in [learned_tokens(learned.get(name))]
        for content in part.documents.values()
    }

    def figures(encode_queries: Encode, encode_documents: Encode) -> NDArray[np.float64]:
        encoders = encode_queries, encode_queries, encode_documents
        trained = Scorable(None, None, None, *encoders, lambda *key: passages[key], 0, unrelated)
        scores = own.score(dev, own.caching(trained), learned, mode)
        return np.concatenate([each[EACH] for each in scores.values()])

    return figures


def compute_score(choose: Choose | None) -> Score | None:
    """Returns a function that gives the mean of the scores of `choose`. None if `choose` is None."""
    if choose is None:
        return None

    def score(encoder: TrainedEncoder) -> float:
        return float(choose(encoder.encode_queries, encoder.encode_documents).mean())

    return score


def _find_nearest(service: str, judged: Mapping[str, Sequence[str]], model: Scorable) -> list[str]:
    """Returns the ids of the service's hits: the first hit of each query, then each second hit, and so on."""
    queries: dict[str, list[str]] = {}
    for query, ids in judged.items():
        for name in dict.fromkeys(split_qualified(id)[0] for id in ids):
            queries.setdefault(name, []).append(query)
    lists = [
        [qualified(name, hit["id"]) for hit in found]
        for name, some in queries.items()
        for found in fetch_nearest(
            service, name, unit_vectors(model.encode_queries, some), str(model.version)
        )
    ]
    return list(dict.fromkeys(id for rank in zip_longest(*lists) for id in rank if id is not None))
