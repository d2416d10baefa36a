"""Derive judgments from clicks of users, corrected for the positions of hits.

The model is the position-based model (Craswell et al. 2008; Chuklin, Markov, de Rijke 2015, "Click Models
for Web Search"): a user clicks a hit if the user examines it and finds it attractive. The probability of
examining a hit depends only on its position.

    P(click on d at k) = examined(k) · attractive(query, d)        examined(k) = k^-bias

The form of `examined` is from Joachims, Swaminathan, Schnabel 2017 ("Unbiased Learning-to-Rank with Biased
Feedback"), where a bias of 1 fits. Attraction is estimated by expectation maximization with a Beta prior. The
service records only searches with an event, so the data are truncated, and the expectation includes searches
without events (Dempster, Laird, Rubin 1977). `estimated_bias` estimates the bias by maximum likelihood. This
needs documents that were in several positions for the same query (Agarwal et al. 2019, "intervention
harvesting"). Without them, the bias is 1.

A document is relevant to a query if enough searches of enough visitors led to clicks on it, and its
attraction is high. It is not relevant if users of enough searches skipped it above a clicked hit (Joachims et
al. 2005), and its attraction is low. Other documents get no judgment. Rankings and the memory of the service
learn from graded labels instead, where the gain of each document with enough clicks depends on its attraction
(`get_gain`).
trust.py says which searches count, and the weight of each. Start at `judged_by`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp2
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from models.messages import amount
from training.mining.pairs import folded
from training.retraining import trust
from training.retraining.grouping import group
from training.retraining.judgements import Clicked, Judgment
from training.text.lines import valid
from training.text.service import fetch_collections, fetch_events, qualified, shown, split_qualified

_SKIP = "skip"
_WEIGHTS = {"click": 1.0, "open": 1.0, "convert": 2.0}  # weight of a search with an event of this kind
_RELEVANT, _NOT_RELEVANT = 0.5, 0.2  # minimum attraction of relevant documents, maximum of others
_GRADES = 4
USUAL_BIAS = 1.0
_BIASES = np.linspace(0.0, 2.0, 9)
MAX_SEARCHES = 50_000  # More searches say the same about the same documents.
_SAMPLE = 10_000  # searches from which the bias is estimated
_MOVED = 200  # impressions of documents in several positions that the estimate requires
_SEEN_BY = 2  # visitors who must see a position; fewer if events.visitors is less
_PRIOR, _STRENGTH = 0.25, 2.0  # mean of the Beta prior, and its weight in impressions
_ROUNDS = 60
# Maximum number of searches without an event for each search with one. If only one hit is ever clicked,
# events do not show that number, and without a bound the prior would decide it. The bias needs no bound,
# because many pages determine it.
_MAX_UNSEEN, _UNBOUNDED = 0.75, 20.0


@dataclass
class Session:
    """A search with at least one event.

    `positions` count from 1. `weights` has the documents with a click, open or convert.
    """

    caller: trust.Caller
    query: str
    positions: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)  # documents that the user called wrong
    has_page: bool = False

    @property
    def visitor(self) -> str:
        return trust.build_visitor(*self.caller)

    @property
    def collection(self) -> str:
        return split_qualified(next(iter(self.positions)))[0]

    def passed_over(self) -> Iterator[str]:
        """Yields the documents that the user probably examined and did not click."""
        last = max((self.positions[id] for id in self.weights), default=0)
        for id, position in self.positions.items():
            if id in self.skipped or (position < last and id not in self.weights):
                yield id


class _Impressions(NamedTuple):
    """Arrays with one row for each document of each session.

    `has_page` and `share` have one row for each session. `pairs` has each pair of query and document once.
    """

    pairs: list[tuple[str, str]]  # query and id of each number in `pair`
    pair: NDArray[np.int64]
    session: NDArray[np.int64]
    position: NDArray[np.float64]
    weight: NDArray[np.float64]  # of the event with the document, 0 without one
    has_page: NDArray[np.bool_]
    share: NDArray[np.float64]  # trust.weights of each session


Pair = tuple[str, str]  # query and id
_Named = dict[tuple[str, str, str], Session]  # by visitor, search and query


class Sessions(NamedTuple):
    """The latest searches that count, at most MAX_SEARCHES.

    Also has the numbers of clicks in other searches, by pair of query and document.
    """

    found: list[Session]
    over_share: Counter[Pair]  # clicks in searches that exceed a share, by pair
    untrusted: Counter[Pair]


def build_sessions(rows: Iterable[Mapping[str, Any]]) -> Sessions:
    """Groups events from `GET /events` into searches.

    Searches that exceed the share of their API key or visitor (trust.py) are dropped while reading.
    """
    trusted: _Named = {}
    untrusted: _Named = {}
    over_share = Counter[Pair]()
    for row in rows:
        caller, query = (str(row.get("key", "")), str(row.get("user", ""))), folded(row["query"])
        # Older services do not report whether a key is trusted, and count all keys.
        sessions = trusted if row.get("trusted", True) else untrusted
        name = trust.build_visitor(*caller), row["search_id"], query
        session = sessions.setdefault(name, Session(caller, query))
        _add(session, row["id"], row["type"], row.get("position"), row["shown"])
        if len(sessions) > 2 * MAX_SEARCHES:
            dropped = _count_clicks(_bounded(sessions))
            over_share.update(dropped if sessions is trusted else ())
    over_share.update(_count_clicks(_bounded(trusted)))
    return Sessions([*trusted.values()], over_share, _count_clicks(untrusted.values()))


def _bounded(sessions: _Named) -> list[Session]:
    """Removes the searches that exceed the share of their key or visitor. Returns the removed searches."""
    stay = {*trust.in_turns([session.caller for session in sessions.values()], MAX_SEARCHES)}
    return [sessions.pop(name) for at, name in enumerate([*sessions]) if at not in stay]


def _count_clicks(sessions: Iterable[Session]) -> Counter[Pair]:
    return Counter((session.query, id) for session in sessions for id in session.weights)


def _add(session: Session, id: str, kind: str, position: int | None, page: Sequence[str]) -> None:
    if id in page:
        place = page.index(id) + 1
        before = max(0, (position or place) - place)  # number of hits before the sent page
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
    """Judgments and queries derived from the events of a service."""

    judgements: list[Judgment]
    line: str
    queried: dict[str, tuple[str, ...]]  # queries of these searches, by collection
    clicked: Mapping[str, Clicked] = MappingProxyType({})  # by query
    dropped: Mapping[str, int] = MappingProxyType({})  # number of ignored answers for each of trust.REASONS
    warnings: Sequence[str] = ()


def used_at(url: str, requested: Sequence[str], bias: float | None, least: int, visitors: int) -> Use:
    """Reads the events of a service and derives judgments from them.

    Args:
        url: Address of the service.
        requested: Names of the collections to read, or service.ALL.
        bias: Position bias. None means to estimate it.
        least: Minimum number of searches that must agree.
        visitors: Minimum number of visitors that must agree.

    Raises:
        TrainingError: The service does not answer as expected.

    """
    queried: dict[str, dict[str, None]] = {}

    def rows() -> Iterator[dict[str, Any]]:
        for collection in fetch_collections(url, requested):
            for row in fetch_events(url, collection):
                query = valid(row["query"], f"{shown(url)}, events")
                queried.setdefault(collection, {})[folded(query)] = None
                yield row | {
                    "query": query,
                    "id": qualified(collection, row["id"]),
                    "shown": [qualified(collection, id) for id in row["shown"]],
                }

    read = build_sessions(rows())
    if not (read.found or read.untrusted):
        return Use([], "no events", {})
    sessions = read.found
    used = estimated_bias(sessions, min(_SEEN_BY, visitors)) if bias is None else bias
    found, dropped, graded = judged_by(read, used, least, visitors)
    verdicts = {(each.query, each.id): each.relevant for each in found}
    relevant = sum(verdicts.values())
    line = (
        f"{amount(len(sessions), 'search', 'searches')} with events (position bias {used:g}): "
        f"{amount(relevant, 'answer')}, {amount(len(verdicts) - relevant, 'document')} passed over"
    )
    if lost := trust.dropped_line(dropped):
        line += f"; {lost}"
    kept = {session.query for session in sessions}
    of_kept = {name: tuple(query for query in queries if query in kept) for name, queries in queried.items()}
    named = any(session.caller[1] for session in sessions)
    return Use(found, line, of_kept, graded, dropped, trust.warnings(relevant, dropped, users=named))


def judged_by(
    read: Sessions, bias: float, least: int, visitors: int
) -> tuple[list[Judgment], Counter[str], dict[str, Clicked]]:
    """Derives judgments and graded labels from searches.

    Args:
        read: The searches.
        bias: Position bias.
        least: Minimum number of searches that must agree.
        visitors: Minimum number of visitors that must agree, as trust.get_number counts them.

    Returns:
        Three values. The judgments, one for each visitor that agrees. The number of answers that the rules of
        trust.py dropped, by reason. What clicks say about the hits of each query, by query: a document with
        clicks of too few searches or visitors is `unclear`.

    """
    impressions = _impressions(read.found)
    attraction = dict(
        zip(impressions.pairs, _attraction(impressions, bias, _MAX_UNSEEN).tolist(), strict=True)
    )
    clicks = group(((session.query, id), session) for session in read.found for id in session.weights)
    skips = group(((session.query, id), session) for session in read.found for id in session.passed_over())

    def agree(some: Sequence[Session]) -> bool:
        return len(some) >= least and trust.get_number(session.caller for session in some) >= visitors

    said: list[Judgment] = []
    dropped = Counter[str]()
    gains: defaultdict[str, dict[str, float]] = defaultdict(dict)
    unclear: defaultdict[str, set[str]] = defaultdict(set)
    for pair in dict.fromkeys([*attraction, *read.over_share, *read.untrusted]):
        query, id = pair
        value, clicked, voters = attraction.get(pair, 1.0), clicks.get(pair, []), list[Session]()
        if value <= _NOT_RELEVANT and agree(skips.get(pair, ())):
            gains[query][id], voters = 0.0, skips[pair]
        elif agree(clicked):
            gains[query][id], voters = get_gain(value), clicked if value >= _RELEVANT else []
        else:
            if clicked:
                unclear[query].add(id)
            # Otherwise the attraction is too low, and no rule of trust is the reason.
            if len(clicked) < least or value >= _RELEVANT:
                left_out = read.over_share[pair], read.untrusted[pair]
                dropped[trust.reason_for(len(clicked), *left_out, least=least)] += 1
        latest = {session.visitor: session for session in voters}
        said += [
            Judgment(query, id, value >= _RELEVANT, *each.caller, of_use=True) for each in latest.values()
        ]
    del dropped[""]
    examined, unrecorded = _examine(read.found, impressions.share.tolist(), bias)
    graded = {
        query: Clicked(each, frozenset(unclear[query]), examined[query], unrecorded[query], bias)
        for query, each in gains.items()
    }
    return said, dropped, graded


def get_gain(attraction: float) -> float:
    """Returns the gain of a clicked document, 0.01 to 1.

    The attraction is read as a grade of at most 4, and its gain grows exponentially (Burges et al. 2005,
    "Learning to Rank using Gradient Descent"). So stray clicks on many hits weigh little.
    """
    return max(0.01, round((exp2(_GRADES * attraction) - 1) / (exp2(_GRADES) - 1), 2))


def _examine(
    sessions: Sequence[Session], shares: Sequence[float], bias: float
) -> tuple[Mapping[str, Mapping[str, float]], Mapping[str, Mapping[str, float]]]:
    """Returns `Clicked.examined` and `Clicked.unrecorded` of each query.

    Args:
        sessions: The searches.
        shares: trust.weights of each search.
        bias: Position bias.
    """
    examined: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    unrecorded: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for session, share in zip(sessions, shares, strict=True):
        if not session.has_page:
            unrecorded[session.query][session.collection] += share
            continue
        known = examined[session.query]
        for id, position in session.positions.items():
            known[id] = 1 - (1 - known[id]) * (1 - position**-bias) ** share
    return examined, unrecorded


def _impressions(sessions: Sequence[Session]) -> _Impressions:
    number: dict[Pair, int] = {}
    rows = [
        (
            number.setdefault((session.query, id), len(number)),
            at,
            1 if id in session.skipped else position,  # A user who calls a hit wrong has examined it.
            session.weights.get(id, 0.0),
        )
        for at, session in enumerate(sessions)
        for id, position in session.positions.items()
    ]
    table = np.array(rows, np.float64).reshape(-1, 4)
    pair, session = table[:, :2].astype(np.int64).T
    pages = np.array([each.has_page for each in sessions], np.bool_)
    groups = [(each.collection, each.query) for each in sessions]
    shares = trust.weights(groups, [each.visitor for each in sessions])
    return _Impressions([*number], pair, session, table[:, 2], table[:, 3], pages, np.array(shares))


def _attraction(found: _Impressions, bias: float, most_unseen: float) -> NDArray[np.float64]:
    """Estimates the attraction of each pair of query and document, 0 to 1.

    `most_unseen` is the largest number of unrecorded searches, without an event, for each recorded search.
    """
    examined = found.position**-bias
    share, clicked = found.share[found.session], found.weight > 0
    attraction = np.full(len(found.pairs), _PRIOR)
    for _ in range(_ROUNDS):
        attractive = attraction[found.pair]
        click = np.minimum(examined * attractive, 1 - 1e-9)
        none = np.exp(np.bincount(found.session, np.log1p(-click), len(found.has_page)))
        unseen = np.where(found.has_page, np.minimum(none / np.maximum(1 - none, 1e-9), most_unseen), 0.0)
        of_unseen = unseen[found.session]
        unclicked = attractive * (1 - examined) / (1 - click)
        liked = np.where(clicked, found.weight, unclicked) + of_unseen * unclicked
        looks = np.where(clicked, found.weight, 1.0) + of_unseen
        likes, all_looks = (
            np.bincount(found.pair, share * each, len(found.pairs)) for each in (liked, looks)
        )
        attraction = (likes + _PRIOR * _STRENGTH) / (all_looks + _STRENGTH)
    return attraction


def estimated_bias(sessions: Sequence[Session], seen_by: int = _SEEN_BY) -> float:
    """Returns the position bias with the highest likelihood, or 1 if too few documents changed position.

    The weight of each visitor in the sample is limited, both for each query and overall.

    Args:
        sessions: The searches.
        seen_by: Minimum number of visitors that have seen a document in a position, for it to count.

    """
    sample = [sessions[at] for at in trust.in_turns([each.caller for each in sessions], _SAMPLE)]
    found = _impressions(sample)
    in_all = trust.weights([0] * len(sample), [session.visitor for session in sample])
    found = found._replace(share=np.minimum(found.share, in_all))
    callers = [session.caller for session in sample]
    if not sample or float(found.share[found.session] @ _has_moved(found, callers, seen_by)) < _MOVED:
        return USUAL_BIAS
    return float(max(_BIASES, key=lambda bias: (_likelihood(found, bias), -abs(bias - USUAL_BIAS))))


def _has_moved(found: _Impressions, callers: Sequence[trust.Caller], seen_by: int) -> NDArray[np.bool_]:
    """Returns for each row whether its document was in several positions that enough visitors saw."""
    places = zip(found.pair.tolist(), found.position.tolist(), strict=True)
    saw = group(zip(places, (callers[session] for session in found.session.tolist()), strict=True))
    known = Counter(pair for (pair, _), each in saw.items() if trust.get_number(each) >= seen_by)
    moved = np.array([known[pair] > 1 for pair in range(len(found.pairs))], np.bool_)
    return moved[found.pair]


def _likelihood(found: _Impressions, bias: float) -> float:
    """Returns the log-likelihood of the clicks, given that each session with a page has a click."""
    click = np.clip(found.position**-bias * _attraction(found, bias, _UNBOUNDED)[found.pair], 1e-9, 1 - 1e-9)
    seen = found.share[found.session] * np.where(found.weight > 0, np.log(click), np.log1p(-click))
    none = np.bincount(found.session, np.log1p(-click), len(found.has_page))
    some = found.share * np.log(np.maximum(-np.expm1(none), 1e-9))
    return float(seen.sum() - some[found.has_page].sum())
