"""Simulated users of a search: clicks with position bias and noise, and the judgments that follow from them.

A user looks at the hit at position k in one of k searches. Then an answer is clicked with probability 0.8,
and another hit with 0.1.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from training.retraining.clicks import USUAL_BIAS, Session, judgements_of
from training.retraining.config import EventsTable
from training.retraining.judgements import Judgement

SEARCHES = 8  # of each query
VISITORS = 4
PAGE = 10  # hits that are shown
ANSWER_CLICKS, OTHER_CLICKS = 0.8, 0.1  # of the hits that a user looked at
SHIFT = 2  # maximum positions that a hit moves from one search to the next


def judge_by_clicks(
    ranked: Mapping[str, Sequence[str]], relevant: Mapping[str, Mapping[str, float]], seed: int
) -> list[Judgement]:
    """Return judgments from simulated clicks on the first page.

    Neighbors change places from search to search, as they do after new documents.

    Args:
        ranked: Ids of hits of each query, best first.
        relevant: The answers of each query.
        seed: Seed of the users.

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
            page = list(ids[:PAGE])
            places = np.arange(len(page)) + random.uniform(0, SHIFT, len(page))
            shown = [page[at] for at in np.argsort(places)]
            positions = {id: place for place, id in enumerate(shown, start=1)}
            clicked = dict.fromkeys(clicks(shown, relevant[query], random), 1.0)
            if clicked:  # the service knows only searches with an event
                user = f"user {search % VISITORS}"
                yield Session("shop", query, user, positions, clicked, has_page=True)


def clicks(shown: Sequence[str], relevant: Mapping[str, float], random: np.random.Generator) -> Iterator[str]:
    """Yield the ids of the shown hits that a user clicks, best first."""
    for place, id in enumerate(shown, start=1):
        share = ANSWER_CLICKS if id in relevant else OTHER_CLICKS
        if random.random() < 1 / place and random.random() < share:
            yield id
