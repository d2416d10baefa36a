"""Label pairs of texts with a cross-encoder, for Augmented SBERT (Thakur et al. 2021, sections 3.1 and 3.2).

    texts of the gold pairs ─▶ each with its nearest by BM25 and by the encoder ─▶ scored ─▶ silver pairs
    gold pairs ───────────────────────────────────────────────────────────────────────────▶ gold pairs

Pairs of random texts are mostly unlike each other, and a model that learns from them gets worse (section
3.2).
Start reading at `silver_pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import numpy as np

from models.tokens.pairs import Pair
from training.errors import NothingToLearn, TrainingError
from training.evaluation.encoding import Encode
from training.evaluation.modes import WordIndex
from training.mining.neighbors import cosine_blocks, highest, unit_vectors
from training.mining.rerankers import Score
from training.mining.teacher import DECIMALS
from training.text.corpus import Corpus

PER_TEXT = 3  # nearest texts of each text, by BM25 and by the encoder; as in the authors' examples


class Scored(NamedTuple):
    """A pair with a score from 0 to 1: one line of the output."""

    anchor: str
    positive: str
    score: float
    source: str  # gold or silver


def silver_pairs(
    gold: Corpus, encode: Encode, score: Score, count: int = PER_TEXT, top: float = 1.0
) -> Iterator[Scored]:
    """Yields the gold pairs, then the silver pairs.

    Args:
        gold: Pairs that people scored.
        encode: Encoder that samples pairs. The authors take one that was trained on the gold pairs.
        score: Cross-encoder that was trained on the gold pairs.
        count: Nearest texts of each text, by BM25 and as many by the encoder.
        top: Highest score of a gold pair, by which the scores are divided.

    Raises:
        NothingToLearn: No two texts form a new pair.
        TrainingError: A gold score is not from 0 to `top`.

    """
    assert gold.labels is not None  # noqa: S101  the kind of the corpus
    pairs = list(zip(gold.texts[::2], gold.texts[1::2], strict=True))
    for pair, label in zip(pairs, gold.labels, strict=True):
        share = label[0] / top if isinstance(label, tuple) else 0.0
        if not 0 <= share <= 1:
            raise TrainingError(f"A gold score is {share * top:g}, and not from 0 to --highest {top:g}.")
        yield Scored(*pair, round(share, DECIMALS), "gold")
    sampled = sample_pairs(pairs, encode, count)
    if not sampled:
        raise NothingToLearn("No two texts of the gold pairs form a new pair.")
    for pair, share in zip(sampled, score(sampled).tolist(), strict=True):
        yield Scored(*pair, round(share, DECIMALS), "silver")


def sample_pairs(gold: Sequence[tuple[str, str]], encode: Encode, count: int) -> list[Pair]:
    """Returns new pairs of near texts, each once, in the order of the texts.

    Args:
        gold: Pairs whose texts are used. They are not returned themselves.
        encode: Encoder that finds near texts.
        count: Nearest texts of each text, by BM25 and as many by the encoder.

    """
    texts = list(dict.fromkeys(text for pair in gold for text in pair))
    place = {text: at for at, text in enumerate(texts)}
    known = {frozenset(place[text] for text in pair) for pair in gold}
    found: dict[frozenset[int], tuple[int, int]] = {}
    vectors = unit_vectors(encode, texts)
    with closing(WordIndex(texts)) as words:
        for start, block in cosine_blocks(vectors, vectors, "texts"):
            for at, cosines in enumerate(block, start):
                worded = [other for other in words.nearest(texts[at], count + 1) if other != at][:count]
                others = np.ones(len(texts), np.bool_)
                others[at] = False
                for other in (*worded, *highest(cosines, others, count)):
                    both = frozenset((at, other))
                    if both not in known:
                        found.setdefault(both, (at, other))
    return [Pair(texts[first], texts[second]) for first, second in found.values()]
