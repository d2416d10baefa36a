"""Judgments from clicks, and attacks on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from training.retraining import clicks, trust
from training.retraining.clicks import Use, build_sessions, estimated_bias, get_gain, judged_by, used_at
from training.retraining.gather import of_keys
from training.retraining.judgements import JUDGMENTS, UNTRUSTED, Clicked, Judgment, judged

Rows = list[dict[str, Any]]
QUERIES, VISITORS = 20, 10
PAGE = ["wrong", "right", "other"]


def shop(key: str = "shop", visitors: int = VISITORS, queries: int = QUERIES, *, users: bool = True) -> Rows:
    return [
        event(f"q{at}", "right", PAGE, search=f"{at} {who}", key=key, user=f"u{who}" if users else "")
        for at in range(queries)
        for who in range(visitors)
    ]


def said(rows: Rows) -> list[Judgment]:
    return judged_by(build_sessions(rows), 1.0, 3, 2)[0]


def answers(rows: Rows) -> set[tuple[str, str]]:
    return {(each.query, each.id) for each in said(rows) if each.relevant}


def pairs(rows: Rows) -> set[tuple[str, str, bool]]:
    return {each[:3] for each in said(rows)}


RIGHT = {(f"q{at}", "right") for at in range(QUERIES)}


# Attacks


def test_a_rotated_key_costs_no_answer() -> None:
    rows = shop()
    for row in rows[::2]:
        row["key"] = "shop-2"
    assert answers(rows) == RIGHT
    assert {each.key for each in said(rows)} == {"shop", "shop-2"}


@pytest.mark.parametrize("trusted", [True, False])
@pytest.mark.parametrize("users", ["", "user {}"])
def test_a_flood_of_one_key_pushes_out_no_other_searches(
    monkeypatch: pytest.MonkeyPatch, trusted: bool, users: str
) -> None:
    monkeypatch.setattr(clicks, "MAX_SEARCHES", 2 * len(shop()) + 50)
    flood = [
        event(f"flood {at}", "spam", ["spam"], search=f"f{at}", key="flood", user=users.format(at))
        | {"trusted": trusted}
        for at in range(3 * clicks.MAX_SEARCHES)
    ]
    read = build_sessions([*shop(), *flood])
    assert len(read.found) == (clicks.MAX_SEARCHES if trusted else len(shop()))
    assert answers([*shop(), *flood]) == answers([*flood, *shop()]) == RIGHT


@pytest.mark.parametrize(
    ("visitors", "who", "keeps"),
    [
        (4, lambda _: {"key": "flood", "user": "bot"}, 400),
        (4, lambda _: {"key": "flood", "user": ""}, 400),
        (4, lambda at: {"key": "flood", "user": ("", "bot")[at % 2]}, 400),
        (4, lambda at: {"key": "flood", "user": f"u{at % 4}"}, 250),
        (10, lambda at: {"key": "flood", "user": f"bot {at}"}, 250),
        (10, lambda at: {"key": f"flood {at % 3}", "user": f"bot {at}"}, 125),
        (10, lambda at: {"key": f"flood {at % 2}", "user": "bot"}, 400),
        (4, lambda _: {"key": "shop", "user": "bot"}, 400),
    ],
    ids=["user", "key", "logged out", "as many", "many", "keys of many", "two keys", "own key"],
)
def test_a_flood_leaves_a_shop_with_many_searches_its_share(
    monkeypatch: pytest.MonkeyPatch, visitors: int, who: Callable[[int], dict[str, str]], keeps: int
) -> None:
    monkeypatch.setattr(clicks, "MAX_SEARCHES", 500)
    rows = shop(visitors=visitors, queries=400 // visitors)
    flood = [event(f"x{at}", "x", search=f"f{at}") | who(at) for at in range(1500)]
    for events in ([*rows, *flood], [*flood, *rows]):
        of_shop = [each for each in build_sessions(events).found if each.query.startswith("q")]
        assert keeps <= len(of_shop) <= keeps + 1
        assert {each.caller[1] for each in of_shop} == {f"u{at}" for at in range(visitors)}
        if keeps == 400:
            assert answers(events) == answers(rows)
            assert len(answers(rows)) == 400 // visitors


def hostile(kind: str, id: str, page: list[str], who: Callable[[int], dict[str, Any]]) -> Rows:
    """Returns 30 events of `kind` on `id` for each query. `who` gives the key and user of an event."""
    return [
        event(f"q{at % QUERIES}", id, page, kind, search=f"h{at}") | who(at) for at in range(30 * QUERIES)
    ]


@pytest.mark.parametrize(
    ("kind", "id", "page"),
    [
        ("skip", "right", PAGE),
        ("convert", "wrong", PAGE),
        ("click", "other", PAGE),
        ("click", "spam", ["right", "wrong", "spam"]),
        ("open", "spam", ["spam"]),
    ],
)
@pytest.mark.parametrize(
    "who",
    [
        lambda _: {"key": "shop", "user": "bot"},
        lambda _: {"key": "other", "user": ""},
        lambda _: {"key": "", "user": ""},
        lambda at: {"key": f"key {at}", "user": "bot"},
        lambda at: {"key": "shop", "user": "u3", "search_id": f"h{at}"},
        lambda at: {"key": "public", "user": f"bot {at}", "trusted": False},
        lambda at: {"key": "public", "user": f"u{at % VISITORS}", "trusted": False},
    ],
    ids=["user", "key", "no key", "many keys", "honest before", "untrusted key", "untrusted names users"],
)
def test_a_flood_of_one_visitor_or_untrusted_key_changes_nothing(
    kind: str, id: str, page: list[str], who: Callable[[int], dict[str, Any]]
) -> None:
    flood = hostile(kind, id, page, who)
    expected = pairs(shop())
    assert {pair[:2] for pair in expected if pair[2]} == RIGHT
    assert pairs([*shop(), *flood]) == expected
    assert pairs([*flood, *shop()]) == expected


def test_two_visitors_of_one_key_are_enough_and_one_is_not() -> None:
    for visitors, found in ((1, set[tuple[str, str]]()), (2, RIGHT)):
        rows = [
            row | {"search_id": f"{row['search_id']} {at}"} for row in shop("shop", visitors) for at in (1, 2)
        ]
        assert answers(rows) == found


@pytest.mark.parametrize("keys", [("a", "b"), ("a", "a"), ("", "a")])
def test_a_visitor_counts_once_whatever_its_keys(keys: tuple[str, str]) -> None:
    rows = [event("q", "right", PAGE, search=f"{at}", key=keys[at % 2], user="same") for at in range(8)]
    assert said(rows) == []
    assert said([*rows, event("q", "right", PAGE, search="9", key=keys[0], user="else")]) != []


def test_a_visitor_who_logs_out_is_no_second_one() -> None:
    """One person searches with one key, sometimes with a user and sometimes without."""
    rows = [event("q", "right", PAGE, search=f"{at}", user=("x", "")[at % 2]) for at in range(8)]
    assert said(rows) == []
    skips = [event("q", "other", PAGE, search=f"{at}", user=("x", "")[at % 2]) for at in range(8)]
    assert said(skips) == [], "nothing is passed over by one person"
    assert judged_by(build_sessions(rows), 1.0, 3, 2)[1] == {"single visitor": 1}
    second = event("q", "right", PAGE, search="9", user="y")
    assert {each.user for each in said([*rows, second]) if each.relevant} == {"x", "y", ""}
    alone = judged_by(build_sessions(rows), 1.0, 3, 1)[0]
    assert judged(alone, {id: id for id in PAGE}, 0.5).keys == {"q": "k"}
    without = [row | {"user": ""} for row in rows]
    assert {each[:3] for each in judged_by(build_sessions(without), 1.0, 3, 1)[0]} >= {("q", "right", True)}
    # A key that names its first user costs no answer of two keys.
    keys = [row | {"user": "", "key": f"k{at % 2}"} for at, row in enumerate(rows)]
    assert answers(keys) == answers([*keys, event("q", "right", PAGE, search="9", key="k0")]) != set()


def test_without_users_each_key_is_a_visitor_and_rows_of_an_older_service_count() -> None:
    old = [
        {name: value for name, value in row.items() if name not in {"user", "trusted"}}
        for key in ("a", "b")
        for row in shop(key, 2)
    ]
    assert answers(old) == RIGHT
    assert answers([row for row in old if row["key"] == "a"]) == set()


# Exactly


@st.composite
def honest(draw: st.DrawFn) -> Rows:
    """Draws queries of 12 to 16 visitors, who all click `right` at any place. One may click `a`, too.

    With far fewer visitors, a single one could change an answer near the limit.
    """
    rows: Rows = []
    for at in range(draw(st.integers(1, 3))):
        page = draw(st.permutations(["right", "a", "b", "c"]))
        for who in range(draw(st.integers(12, 16))):
            user = {"key": draw(st.sampled_from(["shop", "app"])), "user": f"u{who}"}
            rows.append(event(f"q{at}", "right", page, search=f"{at} {who}", **user))
        if draw(st.booleans()):
            rows.append(event(f"q{at}", "a", page, search=f"{at} 0", key="shop", user="u0"))
    return rows


@st.composite
def flood(draw: st.DrawFn) -> Rows:
    """Draws up to 300 events of one visitor, in up to three groups of similar events."""
    rows: Rows = []
    for kind in range(draw(st.integers(1, 3))):
        query = f"q{draw(st.integers(0, 3))}"
        id = draw(st.sampled_from(["right", "a", "b", "spam"]))
        page = draw(st.permutations(["right", "a", "b", "spam"]))
        type = draw(st.sampled_from(["click", "open", "convert", "skip"]))
        count = draw(st.sampled_from([1, 2, 3, 100]))
        rows += [event(query, id, page, type, search=f"h{kind} {at}", user="") for at in range(count)]
    return rows


@settings(max_examples=25, deadline=None)
@given(honest(), flood(), st.booleans(), st.booleans())
def test_a_visitor_takes_no_answer_of_the_others_and_adds_none_of_its_own(
    others: Rows, more: Rows, first: bool, many_keys: bool
) -> None:
    of_one = [row | {"key": f"k{at}" if many_keys else "shop", "user": "bot"} for at, row in enumerate(more)]
    before = answers(others)
    assert before >= {(row["query"], "right") for row in others}
    after = answers([*of_one, *others] if first else [*others, *of_one])
    assert after >= before
    clicked = {(row["query"], row["id"]) for row in others}
    assert after <= before | clicked, "only what another visitor has clicked, too"
    untrusted = [row | {"key": "public", "user": f"{at}", "trusted": False} for at, row in enumerate(more)]
    assert said([*untrusted, *others] if first else [*others, *untrusted]) == said(others)


def users(rows: Rows) -> Rows:
    return [row | {"key": "shop", "user": row["search_id"].partition("/")[2]} for row in rows]


@pytest.mark.parametrize(
    ("place", "who"), [(0, {"user": "bot"}), (9, {"key": "other", "user": ""})], ids=["top", "bottom"]
)
def test_a_flood_of_one_visitor_leaves_the_bias_as_it_is(place: int, who: dict[str, str]) -> None:
    """The visitor always clicks at one place. A former rule changed the bias from 1.0 to 1.75 or 0.25."""
    forged: Rows = []
    for at in range(1500):
        number = at % 60
        page = [f"{number}-{(at * 7 + each) % 10}" for each in range(10)]
        forged.append(event(f"query {number}", page[place], page, search=f"h{at}") | who)
    moved = users(log_of(1.0, reordered=0.5).events)
    assert estimated_bias(build_sessions([*moved, *forged]).found) == 1.0
    still = users(log_of(0.5, searches=10).events)
    assert estimated_bias(build_sessions([*still, *forged]).found) == 1.0, "one visitor alone saw hits move"


# The rule by itself


def test_searches_are_read_in_turns_of_keys_and_visitors() -> None:
    callers = [("a", user) for user in "1211"] + [("b", "")] * 5 + [("c", "")]
    assert trust.in_turns(callers, 10) == [*range(10)]
    assert trust.in_turns(callers, 1) == [3]
    assert trust.in_turns(callers, 3) == [3, 8, 9]
    assert trust.in_turns(callers, 4) == [1, 3, 8, 9]
    assert trust.in_turns(callers, 5) == [1, 2, 3, 8, 9], "with two visitors, `a` has two turns for one"
    assert trust.in_turns(callers, 8) == [0, 1, 2, 3, 6, 7, 8, 9]
    assert trust.in_turns([], 5) == []
    # Another key that names the users of `a` takes no turn of theirs.
    assert trust.in_turns([*callers, *[("d", "2")] * 20], 5)[:2] == [1, 3]


CALLERS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 14)), max_size=200)


@settings(max_examples=60, deadline=None)
@given(CALLERS, CALLERS, st.integers(1, 150))
def test_a_key_keeps_its_share_and_each_user_of_it_one(
    some: list[tuple[str, int]], more: list[tuple[str, int]], most: int
) -> None:
    callers = [(key, f"{user}" if user else "") for key, user in [*some, *more, *some]]
    kept = trust.in_turns(callers, most)
    assert len(kept) == min(most, len(callers))
    assert kept == sorted({*kept})
    users = {key: {user for other, user in callers if other == key} for key in {key for key, _ in callers}}
    turns = {key: min(10, len(names - {""}) or 1) for key, names in users.items()}
    for key, names in users.items():
        of_key = [at for at in kept if callers[at][0] == key]
        share = most * turns[key] // sum(turns.values())
        assert len(of_key) >= min(share, sum(other == key for other, _ in callers))
        for user in names:
            own = [at for at, caller in enumerate(callers) if caller == (key, user)]
            of_user = [at for at in of_key if at in own]
            assert len(of_user) >= min(len(of_key) // len(names), len(own))
            assert of_user == own[len(own) - len(of_user) :], "its latest"


@pytest.mark.parametrize(
    ("callers", "number"),
    [
        ([], 0),
        ([("shop", "")], 1),
        ([("shop", "x")], 1),
        ([("shop", "x"), ("shop", "")], 1),  # one person, who was logged out for a while
        ([("shop", ""), ("shop", "x"), ("shop", "y")], 2),
        ([("shop", "x"), ("app", "x")], 1),
        ([("shop", "x"), ("app", "x"), ("shop", ""), ("app", "")], 1),
        ([("shop", "x"), ("app", "")], 2),
        ([("shop", ""), ("", "")], 2),
        ([("shop", ""), ("app", ""), ("app", "x")], 2),  # a user more takes no visitor away
    ],
)
def test_a_key_without_a_user_is_no_visitor_beside_its_users(
    callers: list[tuple[str, str]], number: int
) -> None:
    assert trust.get_number(iter(callers)) == number


@pytest.mark.parametrize(
    ("searches", "weights"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 100}, {"a": 1.0}),
        ({"a": 2, "b": 8}, {"a": 1.0, "b": 0.25}),
        ({"a": 1, "b": 1, "c": 6000}, {"a": 1.0, "b": 1.0, "c": 1 / 6000}),
        ({"a": 4, "b": 5, "c": 6, "d": 10}, {"a": 1.0, "b": 1.0, "c": 5 / 6, "d": 0.5}),
    ],
)
def test_a_visitor_weighs_as_much_as_the_median_one_at_most(
    searches: dict[str, int], weights: dict[str, float]
) -> None:
    visitors = [who for who, count in searches.items() for _ in range(count)]
    found = trust.weights(["q"] * len(visitors), visitors)
    assert dict(zip(visitors, found, strict=True)) == weights
    if len(searches) > 1:
        share = max(searches[who] * weight for who, weight in weights.items()) / sum(found)
        assert share <= 2 / (len(searches) + 1) + 1e-9


def use(monkeypatch: pytest.MonkeyPatch, rows: Rows, visitors: int = 2, bias: float | None = 1.0) -> Use:
    monkeypatch.setattr(clicks, "fetch_events", lambda *_: rows)
    return used_at("http://service", ("default",), bias, 3, visitors)


def test_a_shop_that_names_no_user_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = shop(users=False)
    found = use(monkeypatch, rows)
    assert found.judgements == [] == said(rows)
    assert found.dropped == {"single visitor": QUERIES}
    assert found.line.endswith(": 0 answers, 0 documents passed over; 20 answers dropped (20 single visitor)")
    [warning] = found.warnings
    for words in ("drops most", "No search names its user", "send an opaque `user`", "events.visitors = 1"):
        assert words in warning
    assert use(monkeypatch, shop()).warnings == []
    alone = use(monkeypatch, rows, visitors=1)
    assert len({each.query for each in alone.judgements if each.relevant}) == QUERIES
    assert (dict(alone.dropped), [*alone.warnings]) == ({}, [])


def test_answers_are_dropped_for_a_reason_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clicks, "MAX_SEARCHES", 40)
    single = [event("q", "right", PAGE, search=f"s{at}", user="one") for at in range(3)]
    public = [event("q", "spam", PAGE, search=f"p{at}") | {"trusted": False} for at in range(3)]
    older = [event("old", "right", PAGE, search=f"o{at}", key="app", user=f"o{at % 3}") for at in range(30)]
    newer = [event(f"new {at}", "right", PAGE, search=f"n{at}", key="app", user=f"n{at}") for at in range(60)]
    both = [event("both", "right", PAGE, search=f"b{at}", key="b", user=f"u{at}") for at in range(4)]
    found = use(monkeypatch, [*single, *public, *older, *newer, *both])
    assert found.dropped == {"single visitor": 1, "untrusted key": 1, "over the share": 1}
    assert "1 answer," in found.line
    assert "3 answers dropped (1 single visitor, 1 untrusted key, 1 over the share)" in found.line
    [warning] = found.warnings
    assert "No search names its user" not in warning
    for words in ("`simile keys list`", "more searches than a run reads", "share were not read", "1 count"):
        assert words in warning


def test_events_of_untrusted_keys_alone_are_reported_and_their_queries_train_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = use(monkeypatch, [row | {"trusted": False} for row in shop()])
    assert (found.judgements, found.dropped) == ([], {"untrusted key": QUERIES})
    assert found.queried == {"default": ()}
    assert use(monkeypatch, []) == Use([], "no events", {})


# Graded labels

LONG_PAGE = [f"d{at}" for at in range(20)]


def graded(rows: Rows) -> dict[str, Clicked]:
    return judged_by(build_sessions(rows), 1.0, 3, 2)[2]


def test_every_clicked_hit_has_a_gain_that_grows_with_its_attraction() -> None:
    """Of twelve users, five click the first hit, three the second and four the third."""
    rows = [
        event("q", id, LONG_PAGE, search=f"{id} {at}")
        for id, clicks in (("d0", 5), ("d1", 3), ("d2", 4))
        for at in range(clicks)
    ]
    found = graded(rows)["q"]
    assert found.gains.keys() == {"d0", "d1", "d2"}
    assert found.gains["d2"] > found.gains["d1"]
    assert found.gains["d2"] > found.gains["d0"]
    assert all(0.05 < gain <= 1 for gain in found.gains.values())
    binary = {each.id for each in judged_by(build_sessions(rows), 1.0, 3, 2)[0] if each.relevant}
    assert binary < found.gains.keys(), "as a binary judgment, one of them says nothing"


def test_a_gain_grows_exponentially_and_is_never_that_of_a_wrong_answer() -> None:
    assert [get_gain(attraction) for attraction in (0.0, 0.25, 0.5, 0.75, 1.0)] == [
        0.01,
        0.07,
        0.2,
        0.47,
        1.0,
    ]


def test_a_hit_is_wrong_as_far_as_users_examined_it() -> None:
    rows = [event("q", "d4", LONG_PAGE, search=f"{at}") for at in range(8)]
    once = event("q", "d2", LONG_PAGE, search="once")
    found = graded([*rows, once])["q"]
    assert found.gains.keys() == {"d0", "d1", "d3", "d4"}
    assert [found.gains[f"d{at}"] for at in (0, 1, 3)] == [0, 0, 0], "users passed them over"
    assert found.unclear == {"d2"}, "one click is too little for right, and no wrong"
    assert (found.unrecorded, found.bias) == ({}, 1)
    hits = ["new", "d9", "d2", "d1", "d0"]
    assert found.get_examined("default", hits) == pytest.approx([0, 1 - 0.9**9, 0, 1 - 0.5**9, 1])


def test_a_search_without_a_page_examines_hits_by_their_rank() -> None:
    rows = [event("q", "d1", ["d0", "d1"], search=f"{at}") for at in range(3)]
    rows += [event("q", "d1", [], search=f"none {at}") for at in range(2)]
    found = graded(rows)["q"]
    assert found.unrecorded == {"default": 2}
    assert found.get_examined("default", ["new", "d0", "other"]) == pytest.approx([1, 1, 1 - (2 / 3) ** 2])
    assert found.get_examined("tickets", ["new", "d0"]) == pytest.approx([0, 0])


@pytest.mark.parametrize("kind", ["click", "skip", "convert"])
def test_a_single_visitor_grades_nothing(kind: str) -> None:
    flood = [event("q", "d9", LONG_PAGE, kind, search=f"f{at}", user="one") for at in range(50)]
    assert graded(flood) == {}
    rows = [event("q", "d1", LONG_PAGE, search=f"{at}") for at in range(6)]
    before, after = graded(rows)["q"], graded([*rows, *flood])["q"]
    assert before.gains.keys() == after.gains.keys() == {"d0", "d1"}
    assert before.examined["d9"] == pytest.approx(1 - 0.9**6)
    assert after.examined["d9"] == pytest.approx(1 - 0.9**7), "a visitor weighs as much as the median visitor"


def test_untrusted_keys_grade_nothing() -> None:
    rows = [event("q", "d1", LONG_PAGE, search=f"{at}") for at in range(6)]
    others = [event("q", "d3", LONG_PAGE, search=f"u{at}") | {"trusted": False} for at in range(60)]
    assert graded(others) == {}
    assert graded([*rows, *others]) == graded(rows)


def test_searches_of_another_collection_examine_no_hit() -> None:
    many = [event("q", "d1", LONG_PAGE, search=f"{at}", user=f"u{at % 4}") for at in range(100)]
    few = [
        event("q", "tickets/d1", [f"tickets/d{at}" for at in range(20)], search=f"t{at}", user="u0")
        for at in range(3)
    ]
    for row in few:
        row["id"], row["shown"] = f"collection:{row['id']}", [f"collection:{id}" for id in row["shown"]]
    found = graded([*many, *few])["q"]
    hits = [f"d{at}" for at in range(20)]
    assert found.get_examined("default", hits)[19] == pytest.approx(1 - 0.95**100)
    assert found.get_examined("tickets", hits)[19] == pytest.approx(1 - 0.95**3)


def test_a_judgment_takes_the_gain_from_clicks() -> None:
    clicked = {
        "q": Clicked({"a": 0.7, "b": 0.6, "gone": 0.9}, frozenset("c"), {}, {}, 1),
        "r": Clicked({"a": 1}, frozenset(), {}, {}, 1),
    }
    known = dict.fromkeys("abc")
    found = judged([Judgment("q", "a", False)], {id: id for id in known}, 0.5, clicked=clicked)
    assert [found.clicked[query].gains for query in "qr"] == [{"b": 0.6}, {"a": 1}]


# Judgements


def test_judgments_of_untrusted_keys_count_for_nothing_and_are_counted() -> None:
    good = [Judgment(f"q{at}", "a", True, "shop") for at in range(4)]
    bad = [Judgment(f"q{at}", id, id == "b", f"k{at % 3}", trusted=False) for at in range(9) for id in "ab"]
    known = {"a": "a", "b": "b"}
    found = judged([*good, *bad], known, 0.5)
    assert found.answers == judged(good, known, 0.5).answers == {f"q{at}": ["a"] for at in range(4)}
    assert found.negatives == {}
    assert (found.counts[UNTRUSTED], found.counts[JUDGMENTS]) == (18, 4)
    assert any("18 judgments of untrusted keys not counted" in warning for warning in of_keys(found))
    assert not any("untrusted" in warning for warning in of_keys(judged(good, known, 0.5)))


@pytest.mark.parametrize(
    ("voters", "rests_on"),
    [
        ([("shop", "")], "shop"),
        ([("shop", "1")], "shop"),
        ([("shop", "1"), ("shop", "2")], "shop"),
        ([("shop", "1"), ("shop", "")], "shop"),
        ([("shop", "1"), ("app", "1")], "app"),
        ([("shop", "1"), ("app", "2")], None),
        ([("shop", ""), ("app", "2")], None),
        ([("", "1")], None),
    ],
)
def test_a_judgment_may_move_a_result_and_bounds_count_keys(
    voters: list[tuple[str, str]], rests_on: str | None
) -> None:
    given = [Judgment("q", "a", True, key, user=user) for key, user in voters]
    found = judged(given, {"a": "a"}, 0.5)
    assert found.answers == {"q": ["a"]}
    assert found.keys == ({} if rests_on is None else {"q": rests_on})
    assert judged(given, {"a": "a"}, 0.5, ("shop", "")).keys == {}, "a key that may judge alone vouches"
    assert [f"the key {rests_on!r}" in each for each in of_keys(found)] == [True] * (rests_on is not None)


# A key names another user in each judgment, or click
USERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "none": lambda _: {},
    "one": lambda _: {"user": "u"},
    "another in each": lambda at: {"user": f"u{at}"},
    "half of them": lambda at: {"user": f"u{at}" if at % 2 else ""},
    "ten in turns": lambda at: {"user": f"u{at % 10}"},
    "clicks": lambda at: {"user": f"u{at}", "of_use": True},
}


@pytest.mark.parametrize("who", USERS.values(), ids=USERS)
def test_a_key_judges_half_at_most_whichever_users_it_names(
    who: Callable[[int], dict[str, Any]],
) -> None:
    file = [Judgment(f"question {at}", f"d{at}", True) for at in range(40)]
    bot = [Judgment(f"spam {at}", f"d{at}", True, "bot")._replace(**who(at)) for at in range(40, 360)]
    if not bot[0].of_use:
        bot += [each._replace(query=f"{each.query} ", **who(at)) for at, each in enumerate(bot)]
    known = {f"d{at}": f"d{at}" for at in range(360)}
    found = judged([*file, *bot], known, 0.5)
    assert {*found.keys.values()} == {"bot"}
    assert len(found.keys) == 320
    for judging in (found.judges, *(() if bot[0].of_use else (found.held,))):
        of_bot = sum(query in found.keys for query in judging)
        assert 10 < of_bot == len(judging) - of_bot
    alone = judged(bot, known, 0.5)
    assert (alone.held, alone.judges) == ({}, frozenset()), "and never alone"


def test_a_key_has_one_vote_whichever_users_and_spellings_it_uses() -> None:
    honest = [Judgment("a query", "a", False, key) for key in ("one", "two")]
    bot = [
        Judgment(query, id, True, "bot", user=user)
        for query in ("a query", " a query", "a  query ")
        for id in ("a", "copy of a")
        for user in ("1", "2", "")
    ]
    for all_said in ([*honest, *bot], [*bot, *honest]):
        found = judged(all_said, {"a": "a", "copy of a": "a"}, 0.5)
        assert (found.answers, found.negatives) == ({}, {"a query": ["a"]})
    newest = judged([*bot, Judgment("a\tquery", "a", False, "bot", user="3")], {"a": "a"}, 0.5)
    assert newest.negatives == {"a query": ["a"]}, "the newest vote of a key, whichever user it names"


def test_clicks_of_two_visitors_of_one_key_may_judge() -> None:
    made = judged(said(shop()), {id: id for id in PAGE}, 0.5)
    assert made.keys == {}
    assert made.held or made.dev or made.train


LOG_QUERIES, DOCUMENTS, RELEVANT = 60, 10, 2


class Log(NamedTuple):
    events: list[dict[str, Any]]
    truth: set[tuple[str, str]]


def log_of(
    bias: float = 1.0, noise: float = 0.15, searches: int = 40, reordered: float = 0.0, seed: int = 1
) -> Log:
    """Returns a log of users who examine a hit at position k with probability k^-bias.

    They click 85% of the relevant hits that they examine, and the share `noise` of other examined hits.
    Each query has a fixed order of hits, but the share `reordered` of its searches has random orders.
    """
    rng = np.random.default_rng(seed)
    events, truth = [], set()
    for number in range(LOG_QUERIES):
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
    """Returns an event as the service lists it. Without `user`, each search has its own visitor."""
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


def opinion(events: Iterable[dict[str, Any]], least: int = 3, visitors: int = 2) -> list[Judgment]:
    """Returns the distinct judgments of the events, without keys and visitors."""
    found = judged_by(build_sessions(events), 1.0, least, visitors)[0]
    assert all(each.of_use for each in found)
    return [*dict.fromkeys(Judgment(*each[:3]) for each in found)]


def pairs_of(found: Iterable[Judgment], relevant: bool) -> set[tuple[str, str]]:
    return {(each.query, each.id) for each in found if each.relevant is relevant}


@pytest.mark.parametrize(("noise", "precision"), [(0.0, 1.0), (0.1, 0.97), (0.2, 0.9)])
def test_noise_does_not_flip_judgments(noise: float, precision: float) -> None:
    log = log_of(noise=noise)
    found = opinion(log.events)
    relevant, wrong = pairs_of(found, relevant=True), pairs_of(found, relevant=False)
    assert len(relevant & log.truth) / len(relevant) >= precision
    assert len(relevant & log.truth) / len(log.truth) >= 0.65
    assert len(wrong) > len(log.truth)
    assert len(wrong & log.truth) / len(wrong) <= 0.02


@pytest.mark.parametrize("bias", [0.5, 1.0, 1.5])
def test_the_bias_is_found_where_hits_change_places(bias: float) -> None:
    assert abs(estimated_bias(build_sessions(log_of(bias, reordered=0.5).events).found) - bias) <= 0.25


def test_without_a_change_of_places_the_usual_bias_is_kept() -> None:
    assert estimated_bias(build_sessions(log_of(0.5).events).found) == 1.0
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
    assert ("position bias 1)" not in use(monkeypatch, rows, visitors, None).line) is found


def test_a_visitor_who_logs_out_sees_no_hits_move() -> None:
    rows = log_of(0.5, searches=15, reordered=0.5).events
    logged_out = [row | {"key": "k", "user": ("x", "")[at % 2]} for at, row in enumerate(rows)]
    assert estimated_bias(build_sessions(logged_out).found) == 1.0
    assert estimated_bias(build_sessions(logged_out).found, 1) < 1.0


def test_deep_clicks_weigh_more_than_those_at_the_top() -> None:
    """Both d1 and d8 are clicked in 8 of 46 searches: few for the first place, many for the eighth."""
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
    assert opinion(events) == [Judgment("q", "d1", True), Judgment("q", "d4", False)]
    events += [event("q", "d1", page, "skip", search=f"{at}") for at in range(6)]
    assert pairs_of(opinion(events), relevant=False) == {("q", "d1"), ("q", "d4")}, "the last word counts"


def test_a_conversion_says_more_than_a_click() -> None:
    page = ["d1", "d2"]
    others = [event("q", "d2", page, search=f"o{at}") for at in range(3)]
    of_kind = {
        kind: opinion([*others, *(event("q", "d1", page, kind, search=f"{at}") for at in range(6))])
        for kind in ("click", "convert")
    }
    assert Judgment("q", "d1", True) not in of_kind["click"]
    assert Judgment("q", "d1", True) in of_kind["convert"]


def test_pages_behind_the_first_keep_their_positions() -> None:
    [session] = build_sessions([event("q", "d12", ["d11", "d12", "d13"]) | {"position": 12}]).found
    assert session.positions == {"d11": 11, "d12": 12, "d13": 13}


def test_a_position_that_is_too_small_for_its_page_breaks_nothing() -> None:
    """A client that counts its own hits may send it, and the service adds the page that it remembers."""
    rows = [event("q", "d2", ["d1", "d2"], search=f"{at}") | {"position": 1} for at in range(3)]
    found = build_sessions(rows)
    assert found.found[0].positions == {"d1": 1, "d2": 2}
    assert Judgment("q", "d2", True, "k", user="user 0", of_use=True) in judged_by(found, 1.0, 3, 2)[0]


def test_the_queries_that_may_be_trained_on_are_of_the_searches_that_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = {
        "default": [event("old", "a", search="1"), event("Held  on", "a", search="2")],
        "other": [event("new", "a", search="3"), event("new", "b", search="4")],
    }
    monkeypatch.setattr(clicks, "MAX_SEARCHES", 3)
    monkeypatch.setattr(clicks, "fetch_events", lambda _, collection: kept[collection])
    used = clicks.used_at("http://service", tuple(kept), 1.0, 1, 1)
    assert used.queried == {"default": ("Held on",), "other": ("new",)}
