"""Judgements from use: what people clicked, and what they passed over, freed from the place where it stood.

A hit is clicked if it is examined and attractive, and its position alone decides whether it is examined: the
position-based model (Craswell et al. 2008; Chuklin, Markov, de Rijke 2015, "Click Models for Web Search").

    P(click on d at k) = examined(k) · attractive(query, d)        examined(k) = k^-bias

The form of `examined` is that of Joachims, Swaminathan, Schnabel 2017 ("Unbiased Learning-to-Rank with Biased
Feedback"), where a bias of 1 fits. Attraction is found by expectation maximisation with a Beta prior. Only
searches with an event are known, so those without any are part of the expectation: a model of truncated data
(Dempster, Laird, Rubin 1977). `estimated_bias` finds the bias by likelihood. It needs documents that stood in
several positions for one query (Agarwal et al. 2019, "intervention harvesting"), and keeps 1 otherwise.

A document is relevant if enough searches, from enough keys, led to it and its attraction is high. It is not
relevant if enough searches passed over it, above a hit that was clicked (Joachims et al. 2005), and its
attraction is low. The rest is left open.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from training.mining.labelled import folded
from training.retraining.judgements import Judgement
from training.text.lines import valid
from training.text.service import collections_of, events_of, shown
from training.text.service_collections import qualified

_SKIP = "skip"
_WEIGHTS = {"click": 1.0, "open": 1.0, "convert": 2.0}  # of a search with such an event
_RELEVANT, _NOT_RELEVANT = 0.5, 0.2  # attraction from which, and up to which, a document is judged
USUAL_BIAS = 1.0
_BIASES = np.linspace(0.0, 2.0, 9)
MOST = 50_000  # searches; more say the same of the same documents
_SAMPLE = 10_000  # searches from which the bias is estimated
_MOVED = 200  # impressions of documents in several positions, before the bias is estimated
_PRIOR, _STRENGTH = 0.25, 2.0  # mean of the Beta prior, and how many impressions it is worth
_ROUNDS = 60
# Searches without an event for each with one. Where one hit alone is ever clicked, events do not say how
# many there are, and without a bound the prior would decide. The bias comes from many pages, and needs none.
_MOST_UNSEEN, _UNBOUNDED = 0.75, 20.0


@dataclass
class Session:
    """A search with at least one event. Positions are from 1; weights are of documents with an event."""

    key: str
    query: str
    positions: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # said so by the user
    has_page: bool = False

    def passed_over(self) -> Iterator[str]:
        """Documents that the user looked at and did not want."""
        last = max((self.positions[id] for id in self.weights), default=0)
        for id, position in self.positions.items():
            if id in self.skipped or (position < last and id not in self.weights):
                yield id


class _Impressions(NamedTuple):
    """A row for each document of each session; `has_page` has one for each session instead."""

    pairs: list[tuple[str, str]]  # query and id, by number
    pair: NDArray[np.int64]
    session: NDArray[np.int64]
    position: NDArray[np.float64]
    clicked: NDArray[np.bool_]
    weight: NDArray[np.float64]
    has_page: NDArray[np.bool_]


def sessions_of(rows: Iterable[Mapping[str, Any]]) -> list[Session]:
    """Events as `GET /events` lists them, by key, search and query; the latest searches, at most MOST."""
    found: dict[tuple[str, str, str], Session] = {}
    for row in rows:
        key, query = str(row.get("key", "")), folded(row["query"])
        session = found.setdefault((key, row["search_id"], query), Session(key, query))
        _add(session, row["id"], row["type"], row.get("position"), row["shown"])
        if len(found) > MOST:
            del found[next(iter(found))]
    return [*found.values()]


def _add(session: Session, id: str, kind: str, position: int | None, page: Sequence[str]) -> None:
    if id in page:
        place = page.index(id) + 1
        before = (position or place) - place  # hits of earlier pages, and those that the event left out
        for at, other in enumerate(page, before + 1):
            session.positions.setdefault(other, at)
        session.has_page = True
    session.positions.setdefault(id, position or 1)
    if kind == _SKIP:
        session.skipped.add(id)
        session.weights.pop(id, None)
    elif kind in _WEIGHTS:
        session.weights[id] = max(_WEIGHTS[kind], session.weights.get(id, 0.0))
        session.skipped.discard(id)


class Use(NamedTuple):
    """Judgements and queries from the events of a service."""

    judgements: list[Judgement]
    line: str
    asked: dict[str, tuple[str, ...]]  # the queries of the same searches, by collection


def used_at(url: str, wanted: Sequence[str], bias: float | None, least: int, keys: int) -> Use:
    """Judgements from the events of the service at `url`, as `judgements_of` makes them.

    wanted: the names of the collections to read, or service_collections.ALL. Raise TrainingError.
    """
    asked: dict[str, dict[str, None]] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for collection in collections_of(url, wanted):
            for row in events_of(url, collection):
                query = valid(row["query"], f"{shown(url)}, events")
                asked.setdefault(collection, {})[folded(query)] = None
                yield row | {
                    "query": query,
                    "id": qualified(collection, row["id"]),
                    "shown": [qualified(collection, id) for id in row["shown"]],
                }

    sessions = sessions_of(rows())
    if not sessions:
        return Use([], "no events", {})
    used = estimated_bias(sessions) if bias is None else bias
    found = judgements_of(sessions, used, least, keys)
    verdicts = {(each.query, each.id): each.relevant for each in found}
    relevant = sum(verdicts.values())
    line = (
        f"{len(sessions):,} searches with events (position bias {used:g}): {relevant:,} answers, "
        f"{len(verdicts) - relevant:,} documents passed over"
    )
    kept = {session.query for session in sessions}
    of_kept = {name: tuple(query for query in queries if query in kept) for name, queries in asked.items()}
    return Use(found, line, of_kept)


def judgements_of(sessions: Sequence[Session], bias: float, least: int, keys: int) -> list[Judgement]:
    """The opinion of the sessions, in the order of queries and ids, as one judgement of each key that agrees.

    least: searches that must agree. keys: from so many keys, or from as many as sent events, whichever is
    fewer.
    """
    impressions = _impressions(sessions)
    attraction = _attraction(impressions, bias, _MOST_UNSEEN)
    clicks: dict[tuple[str, str], list[str]] = {}  # the keys
    skips: dict[tuple[str, str], list[str]] = {}
    for session in sessions:
        for id in session.weights:
            clicks.setdefault((session.query, id), []).append(session.key)
        for id in session.passed_over():
            skips.setdefault((session.query, id), []).append(session.key)
    needed = min(keys, len({session.key for session in sessions}))

    def agreed(found: list[str] | None) -> bool:
        return found is not None and len(found) >= least and len(set(found)) >= needed

    said: list[Judgement] = []
    for pair, value in sorted(zip(impressions.pairs, attraction.tolist(), strict=True)):
        if value >= _RELEVANT and agreed(clicks.get(pair)):
            said += _of_keys(pair, clicks[pair], relevant=True)
        elif value <= _NOT_RELEVANT and agreed(skips.get(pair)):
            said += _of_keys(pair, skips[pair], relevant=False)
    return said


def _of_keys(pair: tuple[str, str], keys: Iterable[str], *, relevant: bool) -> Iterator[Judgement]:
    for key in sorted({*keys}):
        yield Judgement(*pair, relevant, key, of_use=True)


def _impressions(sessions: Sequence[Session]) -> _Impressions:
    number: dict[tuple[str, str], int] = {}
    rows = [
        (
            number.setdefault((session.query, id), len(number)),
            at,
            1 if id in session.skipped else position,  # who says that a hit is wrong has examined it
            id in session.weights,
            session.weights.get(id, 1.0),
        )
        for at, session in enumerate(sessions)
        for id, position in session.positions.items()
    ]
    table = np.array(rows, np.float64).reshape(-1, 5)
    return _Impressions(
        [*number],
        table[:, 0].astype(np.int64),
        table[:, 1].astype(np.int64),
        table[:, 2],
        table[:, 3].astype(np.bool_),
        table[:, 4],
        np.array([session.has_page for session in sessions], np.bool_),
    )


def _attraction(found: _Impressions, bias: float, most_unseen: float) -> NDArray[np.float64]:
    """The attraction of each pair, 0 to 1."""
    examined = found.position**-bias
    attraction = np.full(len(found.pairs), _PRIOR)
    for _ in range(_ROUNDS):
        attractive = attraction[found.pair]
        click = np.minimum(examined * attractive, 1 - 1e-9)
        none = np.exp(np.bincount(found.session, np.log1p(-click), len(found.has_page)))
        unseen = np.where(found.has_page, np.minimum(none / np.maximum(1 - none, 1e-9), most_unseen), 0.0)
        of_unseen = unseen[found.session]
        unclicked = attractive * (1 - examined) / (1 - click)
        liked = np.where(found.clicked, found.weight, unclicked) + of_unseen * unclicked
        looks = np.where(found.clicked, found.weight, 1.0) + of_unseen
        likes, all_looks = (np.bincount(found.pair, each, len(found.pairs)) for each in (liked, looks))
        attraction = (likes + _PRIOR * _STRENGTH) / (all_looks + _STRENGTH)
    return attraction


def estimated_bias(sessions: Sequence[Session]) -> float:
    """The bias under which the clicks are likeliest; 1 where too few documents changed their position."""
    found = _impressions(sessions[-_SAMPLE:])
    lowest = np.full(len(found.pairs), np.inf)
    highest = np.zeros(len(found.pairs))
    np.minimum.at(lowest, found.pair, found.position)
    np.maximum.at(highest, found.pair, found.position)
    if np.count_nonzero((lowest < highest)[found.pair]) < _MOVED:
        return USUAL_BIAS
    return float(max(_BIASES, key=lambda bias: (_likelihood(found, bias), -abs(bias - USUAL_BIAS))))


def _likelihood(found: _Impressions, bias: float) -> float:
    """Logarithm of the likelihood of the clicks in sessions that have one."""
    click = np.clip(found.position**-bias * _attraction(found, bias, _UNBOUNDED)[found.pair], 1e-9, 1 - 1e-9)
    seen = np.where(found.clicked, np.log(click), np.log1p(-click))
    none = np.bincount(found.session, np.log1p(-click), len(found.has_page))
    return float(seen.sum() - np.log(np.maximum(-np.expm1(none), 1e-9))[found.has_page].sum())
