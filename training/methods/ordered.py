"""Sentences of documents in their order as a source: a batch is a run of them, and neighbours are known.

documents, in a random order ─▶ their sentences, one after another ─▶ runs of `batch` ─▶ a run for each step
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch

from training.errors import NothingToLearn
from training.methods.crops import sentences
from training.methods.sources import Batch, Given, Rounds, RowSource, Source, order_of
from training.text.corpus import TEXTS, Kind
from training.text.token_file import tokenise


class Runs:
    """Labels of a batch are the numbers of the sentences' documents."""

    remark = ""

    def __init__(self, given: Given) -> None:
        pieces: list[str] = []
        owners: list[int] = []
        for document in order_of(given.seed, 0, len(given.corpus)).tolist():
            found = [given.prompt + piece.strip() for piece in sentences(given.corpus.texts[document])]
            pieces += found
            owners += [document] * len(found)
            if len(pieces) >= given.batch * given.steps:
                break
        if len(pieces) == len(set(owners)):
            raise NothingToLearn("No text has two sentences: give documents, whose sentences are neighbours.")
        self._shelf = tokenise(pieces, given.tokenizer, threads=given.threads, folder=given.folder)
        self._owners = torch.tensor(owners)
        _, numbers = np.unique(np.array(pieces), return_inverse=True)
        self._numbers = torch.from_numpy(numbers.astype(np.int64))
        self._batch = given.batch
        self._rounds = Rounds(-(-len(pieces) // given.batch), 1, given.seed)

    def distinct(self) -> int:
        return len(set(self._numbers.tolist()))

    def batch(self, step: int) -> Batch:
        first = int(self._rounds.rows(step)[0]) * self._batch
        rows = torch.arange(first, min(first + self._batch, len(self._owners)))
        return Batch((self._shelf.take(rows),), self._numbers[rows, None], self._owners[rows])


@dataclass(frozen=True)
class OrderedSentences(RowSource):
    """Logeswaran and Lee 2018 (QuickThoughts), section 3.1: a batch is consecutive sentences, unshuffled."""

    name: Literal["sentences"] = "sentences"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        return Runs(given)
