"""The source of DeCLUTR, which draws spans of tokens from documents: anchors, and positives near them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from models.messages import amount
from training.errors import NothingToLearn, TrainingError
from training.methods.sources import DRAWN, Batch, Given, Rounds, RowSource, Source, build_shelf, draw_order
from training.text.corpus import TEXTS, Kind
from training.text.tokens import Shelf, build_tokens
from training.validation import Count


class Spans:
    """A source that draws new anchors and positives from documents in every step.

    Args:
        given: Corpus, tokenizer and settings of the run.
        recipe: Numbers and lengths of the spans.

    Raises:
        TrainingError: The maximum length of the base is below the length of the shortest span.
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
        said = [f"{amount(count, 'document')} {why} left out" for why, count in left_out.items() if count]
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
    """Returns `rows` without repeated documents, which would be negatives of each other."""
    first: dict[bytes, int] = {}
    for row in rows.tolist():
        first.setdefault(hashlib.sha256(shelf.document(row).tobytes()).digest(), row)
    return torch.tensor(list(first.values()), dtype=torch.int64)


@dataclass(frozen=True)
class DocumentSpans(RowSource):
    """Spans of long texts: `anchors` per document, and `positives` near each anchor.

    The method is from Giorgi et al. 2021 (DeCLUTR, section 3.1). Lengths of anchors are drawn from
    Beta(4, 2), which gives long spans. Lengths of positives are drawn from Beta(2, 4), which gives short
    spans. Anchors are in different parts of a document. Lengths are in tokens without special tokens. Short
    documents, or a base with a small maximum length, give shorter spans than `longest`.

    Attributes:
        near: Where the positives are. With "any", a positive is inside the anchor, overlaps the anchor or
            touches it. With "subsuming", it is inside. With "adjacent", it is directly before or after the
            anchor if possible (`sampling_strategy` in the code of the paper).

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
        """Returns the minimum number of tokens of a document."""
        return 2 * self.anchors * self.shortest

    def spans(self, length: int, random: np.random.Generator) -> Iterator[list[tuple[int, int]]]:
        """Draws spans in a document of `length` tokens. Yields a list (anchor, positives …) for each anchor.

        A span is a pair (begin, end).
        """
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
        """Draws one positive, as (begin, end), for the anchor from `begin` to `end`."""
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
