"""Searches that choose the best step: on neither side, and none where they would be too few."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.training.conftest import WORDS
from training.retraining import searches as own
from training.retraining.choosing import nothing_aside, set_aside
from training.retraining.documents import Document
from training.retraining.heldout import hold_out
from training.retraining.judgements import Judged


def documents(count: int) -> list[Document]:
    draw = random.Random(1)
    return [
        Document(
            f"d{at}", f"title {at} {draw.choice(WORDS)}", " ".join([*draw.choices(WORDS, k=12), str(at)])
        )
        for at in range(count)
    ]


class Told:
    """An encoder that knows each text by its number, right or wrong by `shift`."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.seen: list[str] = []

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(texts)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._of([(text, int(text.split()[1]) + self.shift) for text in texts])

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return self._of([(text, int(text.split()[-1])) for text in texts])

    def _of(self, found: list[tuple[str, int]]) -> NDArray[np.float32]:
        self.seen += [text for text, _ in found]
        return np.eye(3000, dtype=np.float32)[[number for _, number in found]]


def test_what_chooses_is_neither_trained_on_nor_judges() -> None:
    split = hold_out(documents(1000), 0.1)
    aside = set_aside(split, Judged({}, {}, 0))
    assert aside.score is not None
    chosen = {document.id for document in split.train} - {document.id for document in aside.documents}
    assert 20 <= len(chosen) <= 80
    right, wrong = Told(0), Told(1)
    assert aside.score(right) == 1.0
    assert aside.score(wrong) < 0.01
    asked = {text for text in right.seen if text.startswith("title")}
    titles = {document.title for document in split.train if document.id in chosen}
    assert asked == titles
    assert {own.plain(title) for title in titles} <= aside.withheld
    held = {document.title for document in split.held} | {document.text for document in split.held}
    assert not held & {*right.seen}
    assert not aside.withheld & {own.plain(document.text) for document in aside.documents}


def test_judged_queries_choose_where_there_are_enough() -> None:
    split = hold_out(documents(1000), 0.1)
    ids = [document.id for document in split.train]
    judged = {f"query {id[1:]} asks": [id] for id in ids}
    aside = set_aside(split, Judged(judged, {}, 0))
    assert aside.score is not None
    right = Told(0)
    assert aside.score(right) == 1.0
    asked = {text for text in right.seen if text.startswith("query")}
    assert asked == judged.keys() - aside.judged.keys()
    assert 20 <= len(asked) <= 80
    assert not [text for text in right.seen if text.startswith("title")], "what people said counts alone"
    assert {own.plain(query) for query in asked} <= aside.withheld


@pytest.mark.parametrize("count", [2, 100])
def test_too_few_searches_choose_nothing_and_all_is_trained_on(count: int) -> None:
    split = hold_out(documents(count), 0.1)
    found = Judged({"query 1": ["d1"]}, {}, 0)
    assert set_aside(split, found) == nothing_aside(split, found)
    assert nothing_aside(split, found).documents == split.train
