"""Pairs for a team without labels: mutual nearest neighbours, and titles with their text.

Mutual neighbours are pseudo-labels of the model that finds them: they sharpen what it knows already. Near-
duplicates are taken out first, since a pair of them teaches nothing but to ignore a comma.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from training.evaluation.encoding import Encode
from training.mining.dedupe import THRESHOLD, near_duplicates
from training.mining.labelled import folded
from training.mining.neighbours import mutual_nearest, unit_vectors

MIN_SCORE = 0.7  # cosine of the default model; chosen by us


class Pair(NamedTuple):
    """A line of the output; the names are its keys."""

    anchor: str
    positive: str
    score_positive: float | None  # None: no model was asked
    source: str  # neighbours or title


def body_of(title: str, text: str) -> str:
    """The text without its title, if it begins with that: else the title would find itself. Both `folded`.

    A title that goes on as a longer word (VPN, VPNs) stays.
    """
    rest = text[len(title) :]
    repeated = bool(title) and text[: len(title)].casefold() == title.casefold()
    return rest.lstrip(" .:-") if repeated and not rest[:1].isalnum() else text


def title_pairs(documents: Sequence[tuple[str, str]]) -> Iterator[Pair]:
    """Titles and the texts behind them. A title of several documents names none of them and is left out.

    documents: (title, text).
    """
    distinct = list(dict.fromkeys((folded(title), folded(text)) for title, text in documents))
    used = Counter(title for title, _ in distinct)
    for title, text in distinct:
        body = body_of(title, text)
        if title and body and title != body and used[title] == 1:
            yield Pair(title, body, None, "title")


def neighbour_pairs(
    texts: Sequence[str], encode: Encode, *, min_score: float = MIN_SCORE, max_score: float = 1.0
) -> Iterator[Pair]:
    """Mutual nearest neighbours with a cosine in [min_score, max_score], in the order of `texts`."""
    distinct = list(dict.fromkeys(filter(None, map(folded, texts))))
    dropped = {duplicate.place for duplicate in near_duplicates(distinct, THRESHOLD)}
    kept = [text for place, text in enumerate(distinct) if place not in dropped]
    for first, second, cosine in mutual_nearest(unit_vectors(encode, kept)):
        if min_score <= cosine <= max_score:
            yield Pair(kept[first], kept[second], round(cosine, 6), "neighbours")
