"""Judgments, and the split of judged queries into those to train on and those that judge versions."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.training.corpora import write
from training.errors import TrainingError
from training.retraining.judgements import (
    CONTRADICTED,
    KEPT,
    PER_DOCUMENT,
    UNKNOWN,
    Judged,
    Judgment,
    judged,
    judgments_in,
)
from training.retraining.split import JUDGE, TRAIN, QueryParts, assign_queries, digest, digest_pairs

KNOWN = {"a": "a", "b": "b", "c": "c", "copy of a": "a"}


def test_a_table_and_json_lines_are_read(tmp_path: Path) -> None:
    table = write(tmp_path, "j.tsv", "query\tid\trelevant\nhow?\ta\t1\nhow?\tb\tfalse\n")
    assert list(judgments_in(table)) == [Judgment("how?", "a", True), Judgment("how?", "b", False)]
    without = write(tmp_path, "k.tsv", "query\tdocument\nhow?\ta\n")
    assert list(judgments_in(without)) == [Judgment("how?", "a", True)]
    lines = write(tmp_path, "j.jsonl", '{"query": "q", "id": 17, "relevant": false}\n\n')
    assert list(judgments_in(lines)) == [Judgment("q", "17", False)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("j.txt", "how?\n", "holds no judgments"),
        ("j.tsv", "query\tid\trelevant\nq\ta\tperhaps\n", "line 2: relevant must be 1 or 0, not 'perhaps'"),
        ("j.tsv", "query\tname\nq\ta\n", "no column `id`"),
        ("j.jsonl", '{"query": "q"}\n', "line 1 has no text under the name id"),
    ],
)
def test_what_is_no_judgment_is_refused_with_its_place(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    with pytest.raises(TrainingError, match=says):
        list(judgments_in(write(tmp_path, name, content)))


def test_the_newest_word_counts() -> None:
    said = [Judgment("q", "a", True), Judgment("q", "b", True), Judgment("q ", "a", False)]
    found = judged(said, KNOWN, 0.5)
    assert of(found) == {"q": ["b"]}


def test_a_query_without_a_relevant_document_is_none_and_unknown_ones_are_counted() -> None:
    said = [Judgment("q", "a", False), Judgment("r", "gone", True), Judgment(" ", "a", True)]
    found = judged(said, KNOWN, 0.5)
    assert (found.train, found.held, found.counts[UNKNOWN]) == ({}, {}, 1)


def test_a_query_trains_or_judges_and_its_spelling_does_not_matter() -> None:
    said = [Judgment(f"{('query', 'Query')[at % 2]}   {at // 2}", f"d{at // 2}", True) for at in range(400)]
    found = judged(said, MANY, 0.5)
    train, dev, held = ({query.casefold() for query in part} for part in (found.train, found.dev, found.held))
    assert not train & held
    assert not dev & (train | held)
    assert 60 < len(held) < 140
    assert 5 < len(dev) < 30


def of(found: Judged) -> dict[str, list[str]]:
    """Returns the relevant documents of all queries of `train`, `dev` and `held`."""
    return {**found.train, **found.dev, **found.held}


def build_queries(key: str | None, first: int, count: int) -> list[Judgment]:
    return [Judgment(f"question {at}", f"d{at}", True, key) for at in range(first, first + count)]


MANY = {f"d{at}": f"d{at}" for at in range(1000)}


def test_one_key_never_judges_alone_and_beside_others_as_much_as_they_do() -> None:
    alone = judged(build_queries("shop", 0, 320), MANY, 0.5)
    assert (len(alone.held), alone.counts[KEPT]) == (0, 320)
    assert len(alone.train) > 250, "what may not judge still trains"
    beside = judged([*build_queries("shop", 0, 320), *build_queries(None, 320, 60)], MANY, 0.5)
    of_shop = [query for query in beside.held if beside.keys.get(query) == "shop"]
    assert 20 < len(beside.held) - len(of_shop) == len(of_shop) < 40
    trusted = judged(build_queries("shop", 0, 320), MANY, 0.5, trusted=["shop"])
    assert len(trusted.held) > 120
    assert trusted.keys == {}


def test_all_that_the_active_version_learned_trains_and_what_nobody_learned_judges() -> None:
    first = judged(build_queries(None, 0, 40), MANY, 0.5)
    known = digest_pairs(first.train | first.held)
    again = judged(build_queries(None, 0, 40), MANY, 0.5, learned=known)
    assert again.held == {}
    assert again.judges == first.dev.keys()
    assert again.train == first.train | first.held
    assert {part for query in again.train for part in map(again.parts.get, again.train[query])} == {"train"}
    more = judged(build_queries(None, 0, 80), MANY, 0.5, learned=known)
    assert len(more.held) > 10
    assert {int(query.split()[1]) >= 40 for query in more.held} == {True}
    assert more.train.items() >= again.train.items()


def test_where_keys_are_trusted_the_word_of_others_trains_only() -> None:
    said = [*build_queries("a", 0, 100), *build_queries("b", 0, 200), *build_queries("spam", 200, 300)]
    found = judged(said, MANY, 0.5, trusted=["a"])
    assert 30 < len(found.held) < 70
    assert {int(query.split()[1]) < 100 for query in found.held} == {True}
    assert any(int(query.split()[1]) >= 200 for query in found.train)


def test_another_answer_of_an_untrusted_key_to_a_trusted_query_neither_judges_nor_joins() -> None:
    said = build_queries("a", 0, 200)
    spam = [Judgment(judgment.query, "d999", True, "spam") for judgment in said]
    alone = judged(said, MANY, 0.5, trusted=["a"])
    found = judged([*said, *spam], MANY, 0.5, trusted=["a"])
    assert found.held == alone.held
    assert not any("d999" in ids for part in (found.train, found.dev, found.held) for ids in part.values())


def test_two_keys_of_one_mind_are_no_lone_one() -> None:
    found = judged([*build_queries("a", 0, 200), *build_queries("b", 0, 200)], MANY, 0.5)
    assert found.keys == {}
    assert len(found.held) > 70


def test_many_queries_on_one_document_are_bounded() -> None:
    said = [Judgment(f"number {at} of {at * 7919}", "d1", True) for at in range(300)]
    said += [Judgment(f"question {at}", f"d{at}", True) for at in range(100, 130)]
    found = judged(said, MANY, 0.999)
    assert sum(ids == ["d1"] for ids in found.held.values()) == PER_DOCUMENT


def test_a_judgment_of_a_copy_is_one_of_the_document_that_stands_for_it() -> None:
    said = [Judgment("q", "copy of a", True), Judgment("q", "b", True)]
    found = judged(said, KNOWN, 0.5)
    assert of(found) == {"q": ["a", "b"]}
    assert found.counts[UNKNOWN] == 0


@pytest.mark.parametrize(
    ("votes", "relevant"),
    [
        ([("x", True), ("y", True), ("z", False)], True),
        ([("x", True), ("y", False), ("z", False)], False),
        ([("x", True), ("x", False)], False),  # a key has one vote, its newest
        ([("x", True), ("y", False)], None),
        ([("x", True), ("y", False), ("", True)], True),  # callers without a key are one
        ([(None, False), ("x", True)], True),  # feedback is newer than the file
        ([(None, True), ("x", True), ("y", False)], None),
        ([(None, False), (None, True)], True),
    ],
)
def test_of_several_keys_the_majority_counts(
    votes: list[tuple[str | None, bool]], relevant: bool | None
) -> None:
    said = [Judgment("q", "a", verdict, key) for key, verdict in votes]
    found = judged(said, KNOWN, 0.5)
    assert (of(found) == {"q": ["a"]}) is (relevant is True)
    assert found.counts[CONTRADICTED] == (relevant is None)


def test_what_is_not_relevant_is_kept_by_query() -> None:
    said = [Judgment("q", "a", True), Judgment("q ", "b", False), Judgment("r", "copy of a", False)]
    said += [Judgment("q", "gone", False), Judgment("q", "c", True, "x"), Judgment("q", "c", False, "y")]
    found = judged(said, KNOWN, 0.5)
    assert found.negatives == {"q": ["b"], "r": ["a"]}
    assert (found.counts[UNKNOWN], found.counts[CONTRADICTED]) == (1, 1)


def test_a_judgment_names_the_collection_of_its_document(tmp_path: Path) -> None:
    content = '{"query": "q", "id": "a", "collection": "tickets"}\n{"query": "q", "id": "a"}\n'
    lines = write(tmp_path, "j.jsonl", content)
    assert [judgment.id for judgment in judgments_in(lines)] == ["collection:tickets/a", "a"]


@pytest.mark.parametrize(
    ("said", "relevant"),
    [([], True), ([(None, False)], False), ([("x", False)], False), ([("x", True), (None, False)], True)],
)
def test_what_people_said_counts_more_than_what_their_clicks_say(
    said: list[tuple[str | None, bool]], relevant: bool
) -> None:
    clicks = [Judgment("q", "a", True, key, of_use=True) for key in ("x", "y")]
    people = [Judgment("q", "a", verdict, key) for key, verdict in said]
    for both in ([*clicks, *people], [*people, *clicks]):
        found = judged(both, KNOWN, 0.5)
        assert (of(found) == {"q": ["a"]}) is relevant
        assert (found.negatives == {"q": ["a"]}) is not relevant


def test_clicks_of_one_key_rest_on_it_and_do_not_judge_alone() -> None:
    clicks = [Judgment(f"q{at}", "a", True, "page", of_use=True) for at in range(40)]
    found = judged(clicks, KNOWN, 0.5)
    assert of(found) != {}
    assert found.held == {}
    assert {*found.keys.values()} == {"page"}
    by_two = [click._replace(key="other") for click in clicks]
    assert judged([*clicks, *by_two], KNOWN, 0.5).keys == {}


def test_a_query_is_of_use_where_nobody_named_one_of_its_answers() -> None:
    said = [
        Judgment("clicked", "a", True, "key", of_use=True),
        Judgment("both", "a", True, "key", of_use=True),
        Judgment("both", "b", True, "key"),
        Judgment("said later", "a", True, "key", of_use=True),
        Judgment("said later", "a", True, "key"),
        Judgment("named", "c", True),
    ]
    assert judged(said, KNOWN, 0.5).of_use == {"clicked"}


def test_clicks_judge_rankings_and_no_encoder() -> None:
    """Clicks favor the hits that were shown. They can judge rankings of these hits, but no encoder."""
    clicks = [
        Judgment(f"question {at}", f"d{at}", True, "page", of_use=True, user=user)
        for at in range(100)
        for user in ("ann", "ben")
    ]
    found = judged(clicks, MANY, 0.5)
    assert found.held == {}
    assert len(found.judges) == 100
    assert {*found.train, *found.dev} == found.judges


def split(relevant: dict[str, list[str]], share: float = 0.5) -> QueryParts:
    return assign_queries(relevant, share, relevant)


def graph(seed: int, queries: int = 200, documents: int = 150) -> dict[str, list[str]]:
    """Returns queries with one or two answers each. Many answers are shared."""
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
        sides = found.train, found.dev, found.judge
        assert sum(any(query.startswith(long.format(at)) for query in part) for part in sides) == 1
    assert {*split({"Reset  it": ["a"], "reset it": ["b"]}).alike.values()} == {"reset it"}


def test_new_queries_on_known_documents_move_nothing() -> None:
    before = graph(1, documents=600)  # its components are small
    found = split(before)
    more = before | {f"and then {digest(str(at))}": ids for at, ids in enumerate(list(before.values())[:50])}
    later = split(more)
    for name in ("train", "dev", "judge"):
        assert {*getattr(found, name)} <= {*getattr(later, name)}


def test_a_component_that_is_most_of_all_is_cut_and_still_shares_no_answer() -> None:
    rng = random.Random(1)
    ids = [f"d{at}" for at in range(300)]
    relevant = {f"how do I do {at * 7919}?": rng.sample(ids, 8) for at in range(200)}
    found = split(relevant)
    assert 60 < len(found.judge) < 140
    assert len(found.train) > 20
    assert not positives(found.judge) & positives(found.train)


def test_of_components_that_merge_one_follows_and_what_trained_before_does_not_judge() -> None:
    """A new query with answers in two components merges the components.

    Some of the 60 merges move a query from training to judging.
    """
    turned = 0
    for at in range(60):
        apart = {"first question": [f"a{at}"], "another thing": [f"b{at}"]}
        before = split(apart)
        merged = apart | {"which of both": [f"a{at}", f"b{at}"]}
        after = split(merged)
        assert len({after.parts[f"a{at}"], after.parts[f"b{at}"]}) == 1
        trained_before = digest_pairs(before.train)
        new = {*after.judge} & {*before.train}
        turned += bool(new)
        known = assign_queries(merged, 0.5, merged, trained_before)
        assert not {*known.judge} & {*before.train}
    assert turned > 5, "the case that this test is about did not come up"


def test_a_query_whose_answer_was_learned_does_not_judge_either() -> None:
    relevant = {"q": ["a"], "r": ["b"]}
    assert assign_queries(relevant, 0.9999, relevant, {digest("A")}).judge == {"r": ["b"]}
    assert assign_queries(relevant, 0.9999, relevant, {digest(" R ")}).judge == {"q": ["a"]}


def test_what_was_learned_trains_with_its_answers_and_what_is_new_judges() -> None:
    relevant = {"learned": ["a"], "both": ["b", "c"], "new": ["c"]}
    before = assign_queries({"learned": ["a"], "both": ["b"]}, 0.9999, ["learned", "both"])
    assert before.train == {}
    found = assign_queries(relevant, 0.9999, relevant, digest_pairs(before.judge))
    assert (found.train, found.judge) == ({"learned": ["a"], "both": ["b"]}, {"new": ["c"]})
    assert found.parts == {"a": TRAIN, "b": TRAIN, "c": JUDGE}


def test_what_nearly_equals_a_learned_query_does_not_judge_the_model_that_trains_on_it() -> None:
    queried = "what are the opening hours of the bridge at your shop"
    known = digest_pairs({queried: ["a"]})
    found = assign_queries({queried: ["a"], f"{queried}?": ["b"]}, 0.9999, [queried, f"{queried}?"], known)
    assert found.train == {queried: ["a"], f"{queried}?": ["b"]}
    assert not found.judge


def test_what_was_learned_trains_also_where_it_would_choose() -> None:
    relevant = {f"query {at}": [f"{at}"] for at in range(40)}
    before = assign_queries(relevant, 0.5, relevant)
    assert before.dev
    found = assign_queries(relevant, 0.5, relevant, digest_pairs(before.dev))
    assert not found.dev
    assert found.train == {query: relevant[query] for query in relevant if query not in before.judge}


def test_what_may_not_judge_trains_unless_its_answer_judges() -> None:
    found = assign_queries({"q": ["a"], "r": ["a"], "s": ["b"]}, 0.9999, ["q"])
    assert found.judge == {"q": ["a"]}
    assert {**found.train, **found.dev} == {"s": ["b"]}
    assert found.parts["a"] == JUDGE
    assert found.parts["b"] in {TRAIN, "dev"}
