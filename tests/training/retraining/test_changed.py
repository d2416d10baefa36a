"""The queries that a candidate changed most, with both answers."""

from __future__ import annotations

from typing import Any

from models.search.content import Content
from training.evaluation.retrieval import Collection
from training.retraining.changed import MOST, changed

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
