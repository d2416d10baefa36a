"""Simulated use of a search: clicks with position bias and noise, and the judgements that come of them.

A hit at place k is looked at in one of k searches. Then an answer is clicked in eight cases of ten, and
another hit in one.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from training.retraining.clicks import USUAL_BIAS, Session, judgements_of
from training.retraining.config import EventsTable
from training.retraining.judgements import Judgement

SEARCHES = 8  # of each query
VISITORS = 4
_PAGE = 10  # hits that are shown
_ON_ANSWER, _ON_OTHER = 0.8, 0.1  # of a hit that was looked at
_NEIGHBOURS = 2  # places that a hit moves from one search to the next, at most


def judged_by_clicks(
    ranked: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, float]], seed: int
) -> list[Judgement]:
    """Judgements from clicks on the first page of `ranked`, by query.

    relevant: the answers of each query. Neighbours change places from search to search, as new documents make
    them do.
    """
    random = np.random.default_rng(seed)
    sessions = [*_sessions(ranked, relevant, random)]
    events = EventsTable()
    return judgements_of(sessions, USUAL_BIAS, events.least, events.visitors)


def _sessions(
    ranked: Mapping[str, Sequence[str]],
    relevant: Mapping[str, Mapping[str, float]],
    random: np.random.Generator,
) -> Iterator[Session]:
    for query, ids in ranked.items():
        for search in range(SEARCHES):
            page = list(ids[:_PAGE])
            places = np.arange(len(page)) + random.uniform(0, _NEIGHBOURS, len(page))
            shown = [page[at] for at in np.argsort(places)]
            positions = {id: place for place, id in enumerate(shown, start=1)}
            clicked = dict.fromkeys(clicks(shown, relevant[query], random), 1.0)
            if clicked:  # a search without an event is not known
                user = f"user {search % VISITORS}"
                yield Session("shop", query, user, positions, clicked, has_page=True)


def clicks(shown: Sequence[str], relevant: Mapping[str, float], random: np.random.Generator) -> Iterator[str]:
    """The ids that one user clicks of those `shown`, best first."""
    for place, id in enumerate(shown, start=1):
        share = _ON_ANSWER if id in relevant else _ON_OTHER
        if random.random() < 1 / place and random.random() < share:
            yield id
