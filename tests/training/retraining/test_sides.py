"""Sides of judged queries: with their answers, for ever, and nothing judges that was learned."""

from __future__ import annotations

import random

from training.retraining.heldout import JUDGE, TRAIN
from training.retraining.sides import Sides, digest, learned, sides, unlearned


def split(relevant: dict[str, list[str]], share: float = 0.5) -> Sides:
    return sides(relevant, share, relevant)


def graph(seed: int, queries: int = 200, documents: int = 150) -> dict[str, list[str]]:
    """Queries with one or two answers each, many of them shared."""
    rng = random.Random(seed)
    ids = [f"d{at}" for at in range(documents)]
    return {f"how do I do {at * 7919}?": rng.sample(ids, rng.choice([1, 1, 1, 2])) for at in range(queries)}


def positives(part: dict[str, list[str]]) -> set[str]:
    return {id for ids in part.values() for id in ids}


def test_no_query_that_judges_has_an_answer_that_was_a_positive_in_training() -> None:
    for seed in range(5):
        relevant = graph(seed)
        found = split(relevant)
        assert not positives(found.judge) & positives(found.train)
        assert not positives(found.dev) & (positives(found.train) | positives(found.judge))
        assert min(len(found.judge), len(found.train)) > 40
        assert all(found.judge[query] == relevant[query] for query in found.judge)
        assert all(found.parts[id] == JUDGE for id in positives(found.judge))


def test_queries_that_are_nearly_equal_are_on_one_side() -> None:
    long = "how do I reset the password of the second account that I have at your shop number {}"
    relevant = {long.format(at) + mark: [f"{at}{mark}"] for at in range(40) for mark in ("", "?", " !")}
    found = split(relevant)
    for at in range(40):
        together = {
            name
            for name, part in (("train", found.train), ("dev", found.dev), ("judge", found.judge))
            if any(query.startswith(long.format(at)) for query in part)
        }
        assert len(together) == 1
    assert split({"Reset  it": ["a"], "reset it": ["b"]}).groups == {"Reset  it": 0, "reset it": 0}


def test_new_queries_on_known_documents_move_nothing() -> None:
    before = graph(1, documents=600)  # its components are small
    found = split(before)
    more = before | {f"and then {digest(str(at))}": ids for at, ids in enumerate(list(before.values())[:50])}
    later = split(more)
    for name in ("train", "dev", "judge"):
        assert {*getattr(found, name)} <= {*getattr(later, name)}


def test_a_component_that_is_most_of_all_is_cut_and_still_shares_no_answer() -> None:
    rng = random.Random(1)
    relevant = {
        f"how do I do {at * 7919}?": rng.sample([f"d{n}" for n in range(300)], 8) for at in range(200)
    }
    found = split(relevant)
    assert 60 < len(found.judge) < 140
    assert len(found.train) > 20
    assert not positives(found.judge) & positives(found.train)
    assert len({found.groups[query] for query in found.judge}) == len(found.judge)


def test_of_components_that_merge_one_follows_and_what_trained_before_does_not_judge() -> None:
    """A query on documents of two components joins them; of many merges some turn training into judging."""
    turned = 0
    for at in range(60):
        apart = {"first question": [f"a{at}"], "another thing": [f"b{at}"]}
        before = split(apart)
        merged = apart | {"which of both": [f"a{at}", f"b{at}"]}
        after = split(merged)
        assert len({after.parts[f"a{at}"], after.parts[f"b{at}"]}) == 1
        trained_before = learned(before.train)
        new = {*after.judge} & {*before.train}
        turned += bool(new)
        assert not {*unlearned(after.judge, trained_before, merged)} & {*before.train}
    assert turned > 5, "the case that this test is about did not come up"


def test_a_query_whose_answer_was_learned_does_not_judge_either() -> None:
    found = sides({"q": ["a"], "r": ["b"]}, 0.9999, ["q", "r"])
    assert unlearned(found.judge, {digest("A")}, ["q", "r"]) == {"r": ["b"]}
    assert unlearned(found.judge, {digest(" R ")}, ["q", "r"]) == {"q": ["a"]}


def test_what_was_learned_trains_with_its_answers_and_what_is_new_judges() -> None:
    relevant = {"learned": ["a"], "both": ["b", "c"], "new": ["c"]}
    before = sides({"learned": ["a"], "both": ["b"]}, 0.9999, ["learned", "both"])
    assert before.train == {}
    found = sides(relevant, 0.9999, relevant, learned(before.judge))
    assert (found.train, found.judge) == ({"learned": ["a"], "both": ["b"]}, {"new": ["c"]})
    assert found.parts == {"a": TRAIN, "b": TRAIN, "c": JUDGE}


def test_what_nearly_equals_a_learned_query_does_not_judge_the_model_that_trains_on_it() -> None:
    asked = "what are the opening hours of the bridge at your shop"
    known = learned({asked: ["a"]})
    found = sides({asked: ["a"], f"{asked}?": ["b"]}, 0.9999, [asked, f"{asked}?"], known)
    assert found.train == {asked: ["a"], f"{asked}?": ["b"]}
    assert not found.judge


def test_what_was_learned_trains_also_where_it_would_choose() -> None:
    relevant = {f"query {at}": [f"{at}"] for at in range(40)}
    before = sides(relevant, 0.5, relevant)
    assert before.dev
    found = sides(relevant, 0.5, relevant, learned(before.dev))
    assert not found.dev
    assert found.train == {query: relevant[query] for query in relevant if query not in before.judge}


def test_what_may_not_judge_trains_unless_its_answer_judges() -> None:
    found = sides({"q": ["a"], "r": ["a"], "s": ["b"]}, 0.9999, ["q"])
    assert found.judge == {"q": ["a"]}
    assert {**found.train, **found.dev} == {"s": ["b"]}
    assert found.parts["a"] == JUDGE
    assert found.parts["b"] in {TRAIN, "dev"}
