"""Warnings about filters without matches are never wrong, and hostile documents take little memory."""

import tracemalloc
from difflib import get_close_matches
from typing import Any

import pytest

from service.store.filters import explain as module
from service.store.filters.explain import MAX_FIELDS, MAX_PATH, MAX_WARNINGS, FieldSample, explain


def nested(depth: int, name: str, inner: Any) -> dict[str, Any]:
    for _ in range(depth):
        inner = {name: inner}
    return {name: inner}


MANY = {f"{at}": at for at in range(5000)}
NEVER = {"zzz": 1}


@pytest.mark.parametrize(
    "metadata",
    [
        nested(30, "n" * 1000, MANY),
        nested(1, "n" * 32_000, MANY),
        {"n" * 32_000: [{} for _ in range(10_000)]},
        {"n" * 500: [{} for _ in range(10_000)]},
        {"n" * 32_000: [{"a": 1} for _ in range(5000)]},
        nested(30, "n" * 15, MANY),
    ],
    ids=["deep", "long", "array", "short array", "array of objects", "within the limit"],
)
def test_a_sample_of_hostile_documents_takes_little_memory(metadata: dict[str, Any]) -> None:
    sample = FieldSample()
    tracemalloc.start()
    try:
        for _ in range(3):
            sample.add(metadata)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    assert sample.documents == 3
    assert explain(NEVER, sample) == ["No document has the field 'zzz'."]


def test_a_sample_keeps_so_many_fields_and_says_nothing_of_others() -> None:
    sample = FieldSample()
    tracemalloc.start()
    try:
        for start in range(0, 3 * MAX_FIELDS, 1000):
            sample.add({f"{at:0400}": {"in": at} for at in range(start, start + 1000)})
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 32 << 20
    assert len(sample.kinds) == MAX_FIELDS
    assert sample.truncated
    assert explain({f"{MAX_FIELDS * 2:0400}": "x"}, sample) == []
    assert explain(NEVER, sample) == []
    [said] = explain({f"{0:0400}.in": "x"}, sample)
    assert said.endswith("holds numbers, and none of them equals a text.")
    # The kinds of a field are those of all paths to it.
    sample.add({"new": {"in": 1}, f"{0:0400}": [{"in": "x"}]})
    assert explain({f"{0:0400}.in": "x"}, sample) == []


@pytest.mark.parametrize(("over", "said"), [(0, 1), (1, 0)])
def test_nothing_is_said_of_fields_longer_than_those_that_are_kept(over: int, said: int) -> None:
    sample = FieldSample()
    place = "n" * (MAX_PATH - 2 + over)
    sample.add({place: {"a": 1}, "b": 1})
    assert len(explain({f"{place}.a": "x"}, sample)) == said
    assert explain(NEVER, sample) == ["No document has the field 'zzz'."]


def test_each_field_is_compared_with_others_once_and_long_ones_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[str, list[str]]] = []

    def compare(word: str, possibilities: list[str], n: int, cutoff: float) -> list[str]:
        compared.append((word, possibilities))
        return get_close_matches(word, possibilities, n, cutoff)

    monkeypatch.setattr(module, "get_close_matches", compare)
    sample = FieldSample()
    sample.add({"category": 1, "c" * 400: 1})
    same = [{"categorie": {operator: 1}} for operator in ("$gt", "$lt", "$ne")] * 50
    said = ["No document has the field 'categorie'. Did you mean 'category'?"]
    assert explain({"$or": [{"categorie": {"$exists": False}}, *same]}, sample) == said
    assert explain({"d" * 400: 1}, sample)[0].endswith("'.")
    assert compared == [("categorie", ["category"]), ("d" * 400, [])]
    assert len(explain({f"categorie{at}": 1 for at in range(100)}, sample)) == MAX_WARNINGS
    assert len(compared) == 2 + MAX_WARNINGS
