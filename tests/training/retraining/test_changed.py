"""The queries that a candidate changed most, with both answers."""

from __future__ import annotations

from typing import Any

from models.search.content import Content
from training.evaluation.retrieval import Collection
from training.retraining.changed import MOST, MOST_ANSWERS, answers, changed

DOCUMENTS = {"right": "the  right\none " + "x" * 200, "wrong": "the wrong one"}
QUERIES = {f"q{at}": f"question {at}" for at in range(40)}
ASKED = {
    "judged": Collection(
        {id: Content(text) for id, text in DOCUMENTS.items()},
        QUERIES,
        {name: {"right": 1.0} for name in QUERIES},
        0,
    )
}


def scores(each: list[float], hits: list[list[str]]) -> dict[str, Any]:
    figures = {"each": each, "hits": hits}
    return {"judged": figures | {"hybrid": figures}}


def test_the_largest_changes_come_first_with_what_both_found() -> None:
    before = scores([0.5] * 40, [["wrong", "right"]] * 40)
    after = scores([at / 40 for at in range(40)], [["right", "wrong"]] * 40)
    found = changed(ASKED, before, after)
    assert [row["query"] for row in found["gained"]] == [f"question {39 - at}" for at in range(MOST)]
    assert [row["query"] for row in found["lost"]] == [f"question {at}" for at in range(MOST)]
    worst = found["lost"][0]
    assert (worst["difference"], worst["relevant"]) == (-0.5, ["right"])
    assert worst["active"][0] == {"id": "wrong", "text": "the wrong one"}
    assert worst["candidate"][0]["text"].startswith("the right one xx")
    assert len(worst["candidate"][0]["text"]) == 120


def test_nothing_changed_is_an_empty_list_and_titles_stand_in_by_their_documents() -> None:
    same = scores([0.5] * 40, [["wrong"]] * 40)
    assert changed(ASKED, same, same) == {"gained": [], "lost": []}
    titles = {"titles": Collection({"a\0text": Content("A text")}, {"a": "A"}, {"a": {"a\0text": 1.0}}, 0)}
    before, after = ({"titles": {"each": [each], "hits": [["a\0text"]]}} for each in (0.0, 1.0))
    [row] = changed(titles, before, after)["gained"]
    assert (row["relevant"], row["candidate"]) == (["a"], [{"id": "a", "text": "A text"}])


def test_every_query_has_both_answers_the_largest_change_first() -> None:
    hits = [f"d{at}" for at in range(12)]
    documents = {id: Content(id) for id in hits}
    asked = {"judged": Collection(documents, QUERIES, {name: {"d0": 1.0} for name in QUERIES}, 0)}
    before = scores([0.5] * 40, [hits] * 40)
    after = scores([0.5] * 38 + [0.2, 0.7], [hits[::-1]] * 40)
    found = answers(asked, before, after)
    assert [row["query"] for row in found[:3]] == ["question 38", "question 39", "question 0"]
    assert len(found) == 40
    assert [hit["id"] for hit in found[0]["active"]] == hits[:10]
    assert [hit["id"] for hit in found[0]["candidate"]] == hits[:1:-1]


def test_of_very_many_queries_those_that_changed_most_are_kept() -> None:
    many = {f"q{at}": f"question {at}" for at in range(MOST_ANSWERS + 5)}
    asked = {"judged": Collection({"a": Content("a")}, many, {name: {"a": 1.0} for name in many}, 0)}
    before = scores([0.0] * len(many), [["a"]] * len(many))
    after = scores([0.0] * 5 + [1.0] * MOST_ANSWERS, [["a"]] * len(many))
    found = answers(asked, before, after)
    assert len(found) == MOST_ANSWERS
    assert {row["difference"] for row in found} == {1.0}
