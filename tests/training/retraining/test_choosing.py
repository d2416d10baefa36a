"""Searches over dev that choose the best step: what they ask, and what their score is."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.training.conftest import WORDS
from training.retraining import searches as own
from training.retraining.choosing import CANDIDATES, score_of
from training.retraining.documents import Document
from training.retraining.heldout import hold_out


def documents(count: int) -> list[Document]:
    draw = random.Random(1)
    texts = [" ".join([*draw.choices(WORDS, k=12), str(at)]) for at in range(count)]
    return [Document(f"d{at}", f"title {at} {draw.choice(WORDS)}", text) for at, text in enumerate(texts)]


class Told:
    """An encoder that knows each text by the number in it, right or wrong by `shift`."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.asked: set[str] = set()
        self.found: set[str] = set()

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        raise AssertionError(texts)

    def encode_queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.asked |= {*texts}
        return self._of(texts, self.shift)

    def encode_documents(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.found |= {*texts}
        return self._of(texts, 0)

    def _of(self, texts: Sequence[str], shift: int) -> NDArray[np.float32]:
        numbers = [next((int(word) for word in text.split() if word.isdigit()), 2000) for text in texts]
        return np.eye(3000, dtype=np.float32)[[number + shift for number in numbers]]


def test_titles_and_their_like_choose_without_labelled_queries() -> None:
    split = hold_out(documents(1000), 0.1)
    made = own.dev_collections(split, {}, CANDIDATES)
    score: Any = score_of({"titles": made["titles"]})
    assert score is not None
    right, wrong = Told(0), Told(1)
    assert score(right) == 1.0
    assert score(wrong) < 0.5, "dense finds nothing; hybrid still has the words"
    assert right.asked == {document.title for document in split.dev}
    held = {document.title for document in split.held} | {document.text for document in split.held}
    assert not held & (right.asked | right.found)


def test_labelled_queries_choose_alone_where_there_are_enough() -> None:
    split = hold_out(documents(1000), 0.1)
    judged = {f"query {document.id[1:]} asks": [document.id] for document in split.dev}
    score: Any = score_of(own.dev_collections(split, judged, CANDIDATES))
    assert score is not None
    right = Told(0)
    assert score(right) == 1.0
    assert right.asked == {*judged}


def test_without_searches_nothing_chooses() -> None:
    assert score_of({}) is None
