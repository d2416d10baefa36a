"""Sources: texts as token ids, and the texts of each step.

    texts ─▶ ids of all texts in one row, and the beginning of each ─▶ the batch of step k

A batch depends only on the seed and the step, so a resumed run continues exactly where it stopped. Every row
is seen once before any row is seen again. The last batch of such a round may be smaller. papers/ has sources
that cut documents.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.progress import counted
from models.search.passages import sentence_ends
from models.tokens.tokenizer import Tokenizer
from training.methods.objectives import NO_TEXT
from training.text.corpus import LISTS, PAIRS, RELATIONS, SCORED, TEXTS, TRIPLES, Corpus, Kind
from training.text.tokens import Shelf, Tokens, tokenize
from training.validation import Flag

_NEGATIVE = 2  # the first column of negatives
_ORDER, DRAWN = 0, 2  # added to the seed, so that no other use of it draws the same numbers


class Batch(NamedTuple):
    columns: tuple[Tokens, ...]  # N texts each
    texts: Tensor  # int64 (N, columns): texts with equal tokens have equal numbers; NO_TEXT fills up a row
    labels: Tensor | None = None  # int64 (N,), or scores, float32 (N, columns - 1)


class Source(Protocol):
    def batch(self, step: int) -> Batch:
        """Returns the batch of a step, counted from 0."""

    def distinct(self) -> int:
        """Returns the number of texts that differ, and so could be negatives of each other."""

    @property
    def remark(self) -> str:
        """A remark for the user about these texts, such as how many are left out; may be empty."""


class Given(NamedTuple):
    """Materials of every source."""

    corpus: Corpus
    tokenizer: Tokenizer  # cuts at the training length
    batch: int
    steps: int  # only rows that these steps see are tokenized
    seed: int
    prompt: str = ""  # before every text except a query, as in the published model
    search_prompt: str = ""  # before a query
    threads: int = 1
    folder: Path | None = None  # keeps the tokens on disk: saves memory, and time of a resumed run
    longest: int = 1 << 20  # tokens of a row that is drawn from a whole document, including special tokens


class Rows:
    """Independent rows in a random order.

    Args:
        given: Materials of the run.
        queries: The first text of a row is a query.

    """

    remark = ""

    def __init__(self, given: Given, *, queries: bool = False) -> None:
        corpus = given.corpus
        seen = draw_order(given.seed, 0, len(corpus))[: given.batch * given.steps]
        self._columns = corpus.columns
        self._special = sum(map(len, given.tokenizer.affixes))
        self.rounds = Rounds(len(seen), given.batch, given.seed)
        self.shelf = build_shelf(given, seen, given.search_prompt if queries else given.prompt)
        self._labels = None if corpus.labels is None else torch.tensor(corpus.labels)[torch.from_numpy(seen)]

    def distinct(self) -> int:
        return len(set(self._numbers.tolist()) - {NO_TEXT})

    def batch(self, step: int) -> Batch:
        rows = torch.from_numpy(self.rounds.rows(step))
        texts_NC = rows[:, None] * self._columns + torch.arange(self._columns)
        columns = tuple(self.shelf.take(column) for column in texts_NC.T)
        return Batch(columns, self._numbers[texts_NC], None if self._labels is None else self._labels[rows])

    @cached_property
    def _numbers(self) -> Tensor:
        """For each text the number of the first text with the same ids, since texts are cut."""
        first: dict[bytes, int] = {}
        ids, starts = self.shelf.ids, self.shelf.starts.tolist()
        spans = enumerate(itertools.pairwise(starts))
        numbers = torch.tensor([first.setdefault(ids[a:b].tobytes(), n) for n, (a, b) in spans])
        further = torch.arange(len(numbers)) % self._columns > _NEGATIVE
        return numbers.where((self.shelf.starts.diff() > self._special) | ~further, NO_TEXT)


@dataclass(frozen=True)
class RowSource:
    """Rows of a corpus of its kind."""

    kind: ClassVar[Kind]
    whole: ClassVar[bool] = False  # True if texts are not cut at the training length

    @property
    def name(self) -> str:
        """The name that recipes use; a field of each source."""
        raise NotImplementedError

    @property
    def columns(self) -> int:
        """The number of texts in a row."""
        return len(self.kind.columns)

    @property
    def searches(self) -> bool:
        """True if the first text of a row is a query and the second answers it."""
        return bool(getattr(self, "queries", False))

    def build(self, given: Given) -> Source:
        return Rows(given, queries=self.searches)


@dataclass(frozen=True)
class Lines(RowSource):
    """Single texts."""

    name: Literal["lines"] = "lines"
    kind: ClassVar[Kind] = TEXTS


@dataclass(frozen=True)
class TextPairs(RowSource):
    """Two texts with the same meaning, or with `queries` a query and a document that answers it."""

    queries: Flag = False
    name: Literal["pairs"] = "pairs"
    kind: ClassVar[Kind] = PAIRS


@dataclass(frozen=True)
class Triples(RowSource):
    """A text, a text with the same meaning, and texts that only look alike; `queries` as in pairs."""

    queries: Flag = False
    name: Literal["triples"] = "triples"
    kind: ClassVar[Kind] = TRIPLES


@dataclass(frozen=True)
class LabelledPairs(RowSource):
    """A premise and a hypothesis with their relation: entailment, neutral or contradiction."""

    name: Literal["labelled_pairs"] = "labelled_pairs"
    kind: ClassVar[Kind] = RELATIONS


@dataclass(frozen=True)
class ScoredLists(RowSource):
    """A query and documents, each with a teacher's score (mining/teacher.py)."""

    name: Literal["lists"] = "lists"
    kind: ClassVar[Kind] = LISTS
    queries: ClassVar[bool] = True


@dataclass(frozen=True)
class ScoredPairs(RowSource):
    """Two texts with a score of how similar their meanings are."""

    name: Literal["scored_pairs"] = "scored_pairs"
    kind: ClassVar[Kind] = SCORED


def steps_of_a_round(rows: int, batch: int) -> int:
    return -(-rows // batch)


class Rounds:
    """The rows of each step. Every round has all rows once, in its own order."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self._number, self._order = 0, self.order(0)

    def rows(self, step: int) -> NDArray[np.int64]:
        number, within = divmod(step, steps_of_a_round(self.count, self.batch))
        if number != self._number:
            self._number, self._order = number, self.order(number)
        return self._order[within * self.batch : (within + 1) * self.batch]

    def order(self, number: int) -> NDArray[np.int64]:
        """Returns the rows of a round. The rows come in the order of the first round."""
        return draw_order(self.seed, number, self.count) if number else np.arange(self.count)


def draw_order(seed: int, number: int, count: int) -> NDArray[np.int64]:
    """Returns a permutation. numpy's generators give the same numbers in all releases, on all machines."""
    return np.random.default_rng([seed, _ORDER, number]).permutation(count)


def build_shelf(given: Given, rows: NDArray[np.int64], first_prompt: str) -> Shelf:
    """Tokenizes some rows. A text that only fills up a row stays empty.

    Args:
        given: Materials of the run.
        rows: Numbers of the rows.
        first_prompt: Prompt before the first text of a row.

    """
    corpus = given.corpus
    places = (rows[:, None] * corpus.columns + np.arange(corpus.columns)).ravel().tolist()
    prompts = (first_prompt, *[given.prompt] * (corpus.columns - 1))
    found = ((prompts[place % corpus.columns], corpus.texts[place]) for place in places)
    texts = counted((text and prompt + text for prompt, text in found), "texts", len(places), "tokenizing")
    return tokenize(texts, given.tokenizer, threads=given.threads, folder=given.folder)


MIN_BYTES = 24  # about four English words; a shorter piece, such as "Fig.", joins the next piece. Our choice
WINDOW = 32  # batches; rows are sorted by length within so many


def sentences(text: str) -> list[str]:
    """Cuts a text after sentences, without losing a character. White space belongs to the following piece."""
    pieces: list[str] = []
    begin = 0
    for end in (end for found in sentence_ends(text) for end in found):
        piece = text[begin:end].rstrip()
        if len(piece.strip().encode()) >= MIN_BYTES:
            pieces.append(piece)
            begin += len(piece)
    rest = text[begin:]
    if pieces and len(rest.strip().encode()) < MIN_BYTES:
        pieces[-1] += rest
    else:
        pieces.append(rest)
    return pieces


def split_pieces(corpus: Corpus) -> Corpus:
    """Returns the corpus in pieces, with the same digest."""
    found = (piece.strip() for text in corpus.texts for piece in (text, *sentences(text)))
    return replace(Corpus.of(found, "the corpus"), digest=corpus.digest)


@dataclass(frozen=True)
class Pieces(RowSource):
    """Whole texts and their sentences. Every second piece gets the query prompt, if the base has one."""

    name: Literal["pieces"] = "pieces"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        """`given` has the corpus in pieces already, since their number sets the steps (runs/loop.py)."""
        prompts = (given.prompt, given.search_prompt)
        texts = tuple(prompts[at % 2] + text for at, text in enumerate(given.corpus.texts))
        rows = Rows(given._replace(corpus=replace(given.corpus, texts=texts), prompt=""))
        rows.rounds = LikeLengths(rows.shelf.starts.diff().numpy(), given.batch, given.seed)
        return rows


class LikeLengths(Rounds):
    """Batches of texts of similar length, because attention is padded to the longest text of a batch.

    No loss depends on the other texts of a batch.
    """

    def __init__(self, lengths: NDArray[np.int64], batch: int, seed: int) -> None:
        self._lengths = lengths
        super().__init__(len(lengths), batch, seed)

    def order(self, number: int) -> NDArray[np.int64]:
        order, rng = super().order(number), np.random.default_rng([self.seed, number])
        return np.concatenate(
            [
                self._sorted(order[at : at + WINDOW * self.batch], rng)
                for at in range(0, self.count, WINDOW * self.batch)
            ]
        )

    def _sorted(self, rows: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """Returns batches of similar length in a random order; the remainder is the last."""
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        whole = len(rows) - len(rows) % self.batch
        batches = rng.permutation(rows[:whole].reshape(-1, self.batch))
        return np.concatenate([batches.ravel(), rows[whole:]])
