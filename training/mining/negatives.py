"""Mine hard negatives: texts that the model ranks close to the anchor of a pair, but not too close.

For each pair of an anchor and a positive, the mining does this:

    1. drops known positives of the anchor, and the anchor itself
    2. drops texts with a score above   positive - margin · |positive|   or below   min_score
    3. takes the `count` highest of the remaining texts

The second rule avoids false negatives. Labels are never complete: the highest hits of a good model are often
correct but unlabeled, and training against them does harm (Qu et al. 2021, RocketQA). Moreira et al. 2024
(NV-Retriever) compared such filters. The best was a maximum of 95 % of the positive's score (TopK-PercPos),
which is the default here.

A retraining mines documents instead of texts: `search` finds the nearest documents of queries with their best
passages, and retraining/rows.py applies the same margin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.progress import counted
from models.search.content import Content
from models.search.passages import usual_tokens
from training.errors import TrainingError
from training.evaluation.encoding import Encode, Vectors
from training.evaluation.modes import CANDIDATES
from training.evaluation.scorable import Scorable
from training.mining.neighbors import cosine_blocks, highest, unit_vectors
from training.mining.pairs import Labelled, folded
from training.text.corpus import MAX_NEGATIVES


@dataclass(frozen=True)
class Rules:
    """Options of the mining, as the module's docstring describes them. Scores are cosines.

    Raises:
        TrainingError: A number is out of range.

    """

    count: int = 1
    margin: float = 0.05  # NV-Retriever's 95 %
    min_score: float = -1.0

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MAX_NEGATIVES:
            raise TrainingError(f"--count must be from 1 to {MAX_NEGATIVES}, not {self.count}.")
        if not 0 <= self.margin < 1:
            raise TrainingError(f"--margin must be at least 0 and below 1, not {self.margin:g}.")
        check_min_score(self.min_score)


def check_min_score(cosine: float) -> None:
    """Raises TrainingError if the number is not from -1 to below 1."""
    if not -1 <= cosine < 1:
        raise TrainingError(f"--min-score must be from -1 to below 1, not {cosine:g}.")


class Mined(NamedTuple):
    """A pair with its negatives, highest score first. Scores are cosines with the anchor."""

    anchor: str
    positive: str
    negatives: tuple[str, ...]
    score_positive: float
    score_negatives: tuple[float, ...]

    def line(self) -> dict[str, str | float | list[str] | list[float]]:
        """Returns the JSON object of the output. One negative is a text, several are a list."""
        single = len(self.negatives) == 1
        return {
            "anchor": self.anchor,
            "positive": self.positive,
            "negative": self.negatives[0] if single else [*self.negatives],
            "score_positive": self.score_positive,
            "score_negative": self.score_negatives[0] if single else [*self.score_negatives],
        }


def mine_negatives(
    labelled: Labelled, encode_queries: Encode, encode_documents: Encode, rules: Rules, counts: Counter[str]
) -> Iterator[Mined]:
    """Yields the pairs for which negatives are found, in the order of `labelled`, and updates `counts`.

    `counts` has the numbers of `pairs`, of all their negatives (`triples`), of candidates dropped by the
    margin (`above_margin`), of pairs with fewer negatives than `rules.count` (`short`), and of pairs without
    negatives (`none`).
    """
    anchors = list(labelled.positives)
    known = (text for positives in labelled.positives.values() for text in positives)
    texts = list(dict.fromkeys([*labelled.candidates, *known]))
    place = {text: at for at, text in enumerate(texts)}
    vectors = unit_vectors(encode_documents, texts)
    of_anchors = unit_vectors(encode_queries, anchors)
    for start, block in cosine_blocks(of_anchors, vectors[: len(labelled.candidates)], "anchors"):
        for cosines, anchor, vector in zip(block, anchors[start:], of_anchors[start:], strict=False):
            positives = labelled.positives[anchor]
            allowed = np.ones(len(cosines), np.bool_)
            own = np.array([place[text] for text in (anchor, *positives) if text in place])
            allowed[own[own < len(allowed)]] = False
            for positive in positives:
                score = float(vector @ vectors[place[positive]])
                below_margin = cosines <= score - rules.margin * abs(score)
                found = highest(cosines, allowed & below_margin & (cosines >= rules.min_score), rules.count)
                counts.update(
                    pairs=1,
                    triples=len(found),
                    above_margin=int(np.count_nonzero(allowed & ~below_margin)),
                    short=len(found) < rules.count,
                    none=not found,
                )
                if found:
                    negatives = tuple(texts[negative] for negative in found)
                    scores = tuple(round(float(cosines[negative]), 6) for negative in found)
                    yield Mined(anchor, positive, negatives, round(score, 6), scores)


PASSAGE_TOKENS = 128  # `max_length` of the recipes for search; also the default model's passage length


class Hits(NamedTuple):
    """The nearest documents of a query, by their places in a list of documents."""

    cosines: Mapping[int, float]  # of the best passage, the best document first
    text: Callable[[int], str]  # returns the best passage of a document, after its title


class Passages:
    """The vectors and texts of the passages of several documents, one document after another.

    Documents are split as in the service, but into passages of at most PASSAGE_TOKENS tokens, the length
    that a training reads. If a model reads more, the vector of a whole document is left out, because its
    passages have the text.
    """

    def __init__(self, contents: Sequence[Content], model: Scorable) -> None:
        shown = counted(contents, "texts", len(contents), "splitting")
        length = PASSAGE_TOKENS if usual_tokens(model.reads) > PASSAGE_TOKENS else None
        parts = [model.split(content, length) for content in shown]
        if model.reads > PASSAGE_TOKENS:
            parts = [others or [head] for head, *others in parts]
        self.texts = [folded(part) for of_text in parts for part in of_text]
        self.starts = np.cumsum([0, *map(len, parts)])
        self.vectors: Vectors = unit_vectors(model.encode_documents, self.texts)

    def best(self, cosines: NDArray[np.float32]) -> NDArray[np.float32]:
        """Returns the best cosine of each document, given the cosines of all passages."""
        return np.maximum.reduceat(cosines, self.starts[:-1])

    def nearest(self, document: int, query: Vectors) -> tuple[float, str]:
        """Returns the highest cosine of a query with the passages of a document, and that passage."""
        start, end = self.starts[document : document + 2]
        cosines = self.vectors[start:end] @ query
        at = int(cosines.argmax())
        return float(cosines[at]), self.texts[start + at]

    def text(self, query: Vectors, document: int) -> str:
        """Returns the passage of `nearest`."""
        return self.nearest(document, query)[1]


def search(documents: Sequence[Content], queries: Vectors, model: Scorable) -> Iterator[Hits]:
    """Embeds documents, and yields the best CANDIDATES of them for each query.

    Args:
        documents: The documents.
        queries: Unit vectors of the queries, shape (q, d).
        model: The model that encoded the queries.

    """
    passages = Passages(documents, model)
    for start, block in cosine_blocks(queries, passages.vectors, "queries"):
        for row, query in zip(block, queries[start:], strict=False):
            best = passages.best(row)
            order = np.argsort(-best, kind="stable")[:CANDIDATES].tolist()
            cosines = {place: float(best[place]) for place in order}
            yield Hits(cosines, partial(passages.text, query))
