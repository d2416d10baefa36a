"""Clicks become judgements: position, noise and single callers do not decide, what users want does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest

from training.retraining import clicks
from training.retraining.clicks import estimated_bias, judged_by, sessions_of
from training.retraining.judgements import Judgement

QUERIES, DOCUMENTS, RELEVANT = 60, 10, 2


class Log(NamedTuple):
    events: list[dict[str, Any]]
    truth: set[tuple[str, str]]


def log_of(
    bias: float = 1.0, noise: float = 0.15, searches: int = 40, reordered: float = 0.0, seed: int = 1
) -> Log:
    """Events of users who examine a hit at position k with probability k^-bias.

    They click 85 % of the relevant hits that they examine, and `noise` of the others. Each query has one
    order of hits; `reordered` of the searches have another one.
    """
    rng = np.random.default_rng(seed)
    events, truth = [], set()
    for number in range(QUERIES):
        query, ids = f"query {number}", [f"{number}-{at}" for at in range(DOCUMENTS)]
        order = rng.permutation(ids)
        relevant = set(rng.choice(ids, RELEVANT, replace=False).tolist())
        truth |= {(query, id) for id in relevant}
        for search in range(searches):
            page = (rng.permutation(ids) if rng.random() < reordered else order).tolist()
            for position, id in enumerate(page, 1):
                if rng.random() < position**-bias * (0.85 if id in relevant else noise):
                    whose = {"key": f"k{search % 3}", "user": ""}
                    events.append(event(query, id, page, search=f"{number}/{search}", **whose))
    return Log(events, truth)


def event(
    query: str,
    id: str,
    page: Iterable[str] = (),
    kind: str = "click",
    search: str = "s",
    key: str = "k",
    user: str | None = None,
) -> dict[str, Any]:
    """An event as the service lists it. Without `user`, each search is another visitor's."""
    page = list(page)
    position = page.index(id) + 1 if id in page else None
    return {
        "query": query,
        "id": id,
        "type": kind,
        "search_id": search,
        "key": key,
        "user": f"user {search}" if user is None else user,
        "trusted": True,
        "shown": page,
        "position": position,
    }


def opinion(events: Iterable[dict[str, Any]], least: int = 3, visitors: int = 2) -> list[Judgement]:
    """Without the visitors, who agree."""
    found, _ = judged_by(sessions_of(events), 1.0, least, visitors)
    assert all(each.of_use for each in found)
    return [*dict.fromkeys(Judgement(*each[:3]) for each in found)]


def pairs(found: Iterable[Judgement], relevant: bool) -> set[tuple[str, str]]:
    return {(each.query, each.id) for each in found if each.relevant is relevant}


@pytest.mark.parametrize(("noise", "precision"), [(0.0, 1.0), (0.1, 0.97), (0.2, 0.9)])
def test_noise_does_not_flip_judgements(noise: float, precision: float) -> None:
    log = log_of(noise=noise)
    found = opinion(log.events)
    relevant, wrong = pairs(found, relevant=True), pairs(found, relevant=False)
    assert len(relevant & log.truth) / len(relevant) >= precision
    assert len(relevant & log.truth) / len(log.truth) >= 0.65
    assert len(wrong) > len(log.truth)
    assert len(wrong & log.truth) / len(wrong) <= 0.02


def test_counting_clicks_would_be_wrong_where_the_model_is_not() -> None:
    log = log_of(noise=0.2)
    counted: dict[tuple[str, str], set[str]] = {}
    for each in log.events:
        counted.setdefault((each["query"], each["id"]), set()).add(each["search_id"])
    often = {pair for pair, searches in counted.items() if len(searches) >= 3}
    found = pairs(opinion(log.events), relevant=True)
    assert len(often & log.truth) / len(often) < 0.5
    assert len(found & log.truth) / len(found) > 0.9


@pytest.mark.parametrize("bias", [0.5, 1.0, 1.5])
def test_the_bias_is_found_where_hits_change_places(bias: float) -> None:
    assert abs(estimated_bias(sessions_of(log_of(bias, reordered=0.5).events).found) - bias) <= 0.25


def test_without_a_change_of_places_the_usual_bias_is_kept() -> None:
    assert estimated_bias(sessions_of(log_of(0.5).events).found) == 1.0
    assert estimated_bias([]) == 1.0


@pytest.mark.parametrize(
    ("visitors", "who", "found"),
    [
        (1, {"key": "k", "user": ""}, True),
        (1, {"key": "k", "user": "x"}, True),
        (2, {"key": "k", "user": ""}, False),
        (2, {"key": "k", "user": "x"}, False),
        (3, {}, True),
    ],
)
def test_the_bias_of_one_visitor_is_found_where_one_may_decide(
    monkeypatch: pytest.MonkeyPatch, visitors: int, who: dict[str, str], found: bool
) -> None:
    rows = [row | who for row in log_of(0.5, searches=15, reordered=0.5).events]
    monkeypatch.setattr(clicks, "events_of", lambda *_: rows)
    used = clicks.used_at("http://service", ("default",), None, 3, visitors)
    assert ("position bias 1)" not in used.line) is found


def test_a_visitor_who_logs_out_sees_no_hits_move() -> None:
    rows = log_of(0.5, searches=15, reordered=0.5).events
    logged_out = [row | {"key": "k", "user": ("x", "")[at % 2]} for at, row in enumerate(rows)]
    assert estimated_bias(sessions_of(logged_out).found) == 1.0
    assert estimated_bias(sessions_of(logged_out).found, 1) < 1.0


def test_deep_clicks_weigh_more_than_those_at_the_top() -> None:
    """Each was clicked in 8 of 46 searches: at the first place that is little, at the eighth much."""
    page = [f"d{at}" for at in range(1, 9)]
    events = [event("q", "d1", page, search=f"a{at}") for at in range(8)]
    events += [event("q", "d8", page, search=f"b{at}") for at in range(8)]
    events += [event("q", "d2", page, search=f"c{at}") for at in range(30)]
    found = {each.id: each.relevant for each in opinion(events)}
    assert found["d8"] is found["d2"] is True
    assert found["d1"] is False
    assert found["d3"] is False, "it was passed over by those who went to the eighth"


def test_events_of_one_search_are_one_search() -> None:
    page = ["d1", "d2"]
    events = [event("q", "d2", page, kind) for kind in ("click", "open", "convert") for _ in range(9)]
    assert opinion(events) == []


def test_a_hit_that_users_rejected_is_not_relevant_wherever_it_stood() -> None:
    page = ["d1", "d2", "d3", "d4"]
    events = [event("q", "d1", page, search=f"{at}") for at in range(6)]
    events += [event("q", "d4", page, "skip", search=f"{at}") for at in range(6)]
    assert opinion(events) == [Judgement("q", "d1", True), Judgement("q", "d4", False)]
    events += [event("q", "d1", page, "skip", search=f"{at}") for at in range(6)]
    assert pairs(opinion(events), relevant=False) == {("q", "d1"), ("q", "d4")}, "the last word counts"


def test_a_conversion_says_more_than_a_click() -> None:
    page = ["d1", "d2"]
    others = [event("q", "d2", page, search=f"o{at}") for at in range(3)]
    of_kind = {
        kind: opinion([*others, *(event("q", "d1", page, kind, search=f"{at}") for at in range(6))])
        for kind in ("click", "convert")
    }
    assert Judgement("q", "d1", True) not in of_kind["click"]
    assert Judgement("q", "d1", True) in of_kind["convert"]


def test_pages_behind_the_first_keep_their_positions() -> None:
    [session] = sessions_of([event("q", "d12", ["d11", "d12", "d13"]) | {"position": 12}]).found
    assert session.positions == {"d11": 11, "d12": 12, "d13": 13}


def test_the_queries_that_may_be_trained_on_are_of_the_searches_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {
        "default": [event("old", "a", search="1"), event("Held  on", "a", search="2")],
        "other": [event("new", "a", search="3"), event("new", "b", search="4")],
    }
    monkeypatch.setattr(clicks, "MOST", 3)
    monkeypatch.setattr(clicks, "events_of", lambda _, collection: kept[collection])
    used = clicks.used_at("http://service", tuple(kept), 1.0, 1, 1)
    assert used.asked == {"default": ("Held on",), "other": ("new",)}


def test_no_events_say_nothing() -> None:
    assert opinion([]) == []
