"""A source that draws spans from documents: anchors, and positives near each anchor (DeCLUTR)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from training.errors import NothingToLearn, TrainingError
from training.methods.sources import DRAWN, Batch, Given, Rounds, RowSource, Source, build_shelf, draw_order
from training.text.corpus import TEXTS, Kind
from training.text.tokens import Shelf, build_tokens
from training.validation import Count


class Spans:
    """Draws anchors and their positives from each document, again in every step.

    Args:
        given: Corpus, tokenizer and sizes of the run.
        recipe: Numbers and lengths of the spans.

    Raises:
        TrainingError: The base takes fewer tokens than the shortest span has.
        NothingToLearn: Fewer than two documents are long enough.

    """

    def __init__(self, given: Given, recipe: DocumentSpans) -> None:
        self._before, self._after = given.tokenizer.affixes
        room = given.longest - len(self._before) - len(self._after)
        if room < recipe.shortest:
            raise TrainingError(
                f"The recipe's spans have {recipe.shortest} tokens or more, and no row may have more than "
                f"{room} beside the special ones. Lower `shortest`, or raise `max_length`."
            )
        self._recipe, self._seed = replace(recipe, longest=min(recipe.longest, room)), given.seed
        seen = draw_order(given.seed, 0, len(given.corpus))[: given.batch * given.steps]
        self._shelf = build_shelf(given, seen, given.prompt)
        lengths = self._shelf.starts.diff() - len(self._before) - len(self._after)
        long_enough = (lengths >= recipe.min_tokens()).nonzero()[:, 0]
        self._long_enough = _first_of_equals(self._shelf, long_enough)
        if len(self._long_enough) < 2:
            raise NothingToLearn(
                f"{len(self._long_enough)} of {len(seen)} documents have the {recipe.min_tokens()} tokens "
                f"that {recipe.anchors} anchors of {recipe.shortest} tokens need. "
                "Lower the recipe's `shortest`."
            )
        left_out = {
            "too short for spans": len(seen) - len(long_enough),
            "with the tokens of others": len(long_enough) - len(self._long_enough),
        }
        said = [f"{count:,} documents {why} are left out" for why, count in left_out.items() if count]
        self.remark = ", and ".join(said)
        self._rounds = Rounds(len(self._long_enough), given.batch, given.seed)

    def distinct(self) -> int:
        return self._rounds.count

    def batch(self, step: int) -> Batch:
        random = np.random.default_rng([self._seed, DRAWN, step])
        columns: list[list[list[int]]] = [[] for _ in range(1 + self._recipe.positives)]
        for row in self._long_enough[torch.from_numpy(self._rounds.rows(step))].tolist():
            ids = self._shelf.document(row)[len(self._before) :]
            ids = ids[: len(ids) - len(self._after)]
            for spans in self._recipe.spans(len(ids), random):
                for column, (first, last) in zip(columns, spans, strict=True):
                    column.append([*self._before, *ids[first:last].tolist(), *self._after])
        numbers = torch.arange(len(columns[0]) * len(columns)).reshape(-1, len(columns))
        return Batch(tuple(build_tokens(column) for column in columns), numbers)


def _first_of_equals(shelf: Shelf, rows: Tensor) -> Tensor:
    """Returns the first of each set of equal documents, which would be negatives of each other."""
    first: dict[bytes, int] = {}
    for row in rows.tolist():
        first.setdefault(hashlib.sha256(shelf.document(row).tobytes()).digest(), row)
    return torch.tensor(list(first.values()), dtype=torch.int64)


@dataclass(frozen=True)
class DocumentSpans(RowSource):
    """Spans of long texts: `anchors` per document, and `positives` near each anchor.

    Giorgi et al. 2021 (DeCLUTR), section 3.1: Beta(4, 2) makes anchors long and Beta(2, 4) positives short. A
    positive lies in its anchor, overlaps it or touches it. Anchors lie in different parts of their document.
    Lengths are in tokens without the special tokens. A document that is too short for `longest` gives shorter
    spans, and so does a base that takes fewer tokens.

    `near` says where positives lie. any: as above. subsuming: in their anchor. adjacent: directly before or
    after it if the document has room (the paper's code: sampling_strategy).
    """

    anchors: Count
    positives: Count
    shortest: Count
    longest: Count
    near: Literal["any", "subsuming", "adjacent"] = "any"
    name: Literal["documents"] = "documents"

    kind: ClassVar[Kind] = TEXTS
    whole: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        return 1 + self.positives

    def build(self, given: Given) -> Source:
        return Spans(given, self)

    def min_tokens(self) -> int:
        """Returns the tokens that a document needs."""
        return 2 * self.anchors * self.shortest

    def spans(self, length: int, random: np.random.Generator) -> Iterator[list[tuple[int, int]]]:
        """Yields (begin, end) of each anchor and of its positives, in a document of `length` tokens."""
        longest = min(self.longest, length // (2 * self.anchors))
        parts = random.permutation(length // (2 * longest))[: self.anchors]
        for part in sorted(parts.tolist()):
            size = self._length(random.beta(4, 2), longest)
            begin = 2 * longest * part + int(random.integers(2 * longest - size + 1))
            found = [(begin, begin + size)]
            end = begin + size
            yield found + [self._near(begin, end, length, longest, random) for _ in range(self.positives)]

    def _near(
        self, begin: int, end: int, length: int, longest: int, random: np.random.Generator
    ) -> tuple[int, int]:
        """Draws one positive of the anchor from `begin` to `end`."""
        size = self._length(random.beta(2, 4), longest if self.near != "subsuming" else end - begin)
        if self.near == "adjacent":
            size = min(size, max(begin, length - end))
            places = [at for at in (begin - size, end) if 0 <= at <= length - size]
            at = places[int(random.integers(len(places)))]
            return at, at + size
        first, last = max(0, begin - size), min(end, length - size)
        if self.near == "subsuming":
            first, last = begin, end - size
        at = int(random.integers(first, last + 1))
        return at, at + size

    def _length(self, share: float, longest: int) -> int:
        return int(share * (longest - self.shortest) + self.shortest)
