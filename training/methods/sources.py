"""Sources: tokenize the rows of a corpus, and choose the rows of each training step.

    texts ─▶ one array with the token ids of all texts, and where each text begins ─▶ the batch of step k

A row is one or more texts that belong together. A batch depends only on the seed and the step, so a resumed
run continues exactly where it stopped. An epoch, called a round here, uses each row once. The last batch of a
round may be smaller. If the steps are fewer than a round, rows that are not in `Corpus.first` are left out
first. papers/ has sources that cut documents.
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
from models.tokens.pairs import Around
from models.tokens.tokenizer import Tokenizer
from training.methods.objectives import NO_TEXT
from training.text.corpus import LISTS, PAIRS, RELATIONS, SCORED, TEXTS, TRIPLES, Corpus, Kind
from training.text.text_pairs import join_pairs
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
        """Returns the number of different texts. Only different texts can be negatives of each other."""

    @property
    def remark(self) -> str:
        """A message for the user about the texts, such as how many are left out. Empty without a remark."""


class Given(NamedTuple):
    """Arguments for building a source."""

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
    pairs: Around | None = None  # special tokens of a pair, for a cross-encoder


class Rows:
    """A source that returns the rows of a corpus in random order.

    Args:
        given: Corpus, tokenizer and settings of the run.
        queries: True if the first text of each row is a query.

    """

    remark = ""

    def __init__(self, given: Given, *, queries: bool = False) -> None:
        corpus = given.corpus
        order = draw_order(given.seed, 0, len(corpus))
        chosen = np.argsort(order >= corpus.first, kind="stable")[: given.batch * given.steps]
        seen = order[np.sort(chosen)]
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
        """A number for each text. Texts with equal token ids after cutting have equal numbers.

        Empty texts that fill up a row have NO_TEXT.
        """
        first: dict[bytes, int] = {}
        ids, starts = self.shelf.ids, self.shelf.starts.tolist()
        spans = enumerate(itertools.pairwise(starts))
        numbers = torch.tensor([first.setdefault(ids[a:b].tobytes(), n) for n, (a, b) in spans])
        further = torch.arange(len(numbers)) % self._columns > _NEGATIVE
        return numbers.where((self.shelf.starts.diff() > self._special) | ~further, NO_TEXT)


class JoinedRows(Rows):
    """A source that joins the first text of each row with each other text, for a cross-encoder."""

    def __init__(self, given: Given, pairs: Around) -> None:
        super().__init__(given)
        self._pairs, self._max_length = pairs, given.tokenizer.max_length

    def batch(self, step: int) -> Batch:
        (first, *others), texts, labels = super().batch(step)
        columns = tuple(join_pairs(self._pairs, first, other, self._max_length) for other in others)
        return Batch(columns, texts[:, 1:], labels)


@dataclass(frozen=True)
class RowSource:
    """Base class of sources in a recipe, which read the rows of a corpus of one kind."""

    kind: ClassVar[Kind]
    whole: ClassVar[bool] = False  # True if texts are not cut at the training length

    @property
    def name(self) -> str:
        """Name of the source in recipes. Subclasses define it as a field."""
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
        return JoinedRows(given, given.pairs) if given.pairs else Rows(given, queries=self.searches)


@dataclass(frozen=True)
class Lines(RowSource):
    """Single texts."""

    name: Literal["lines"] = "lines"
    kind: ClassVar[Kind] = TEXTS


@dataclass(frozen=True)
class TextPairs(RowSource):
    """Pairs of texts with the same meaning. With `queries`, pairs of a query and a relevant document."""

    queries: Flag = False
    name: Literal["pairs"] = "pairs"
    kind: ClassVar[Kind] = PAIRS


@dataclass(frozen=True)
class Triples(RowSource):
    """Rows of a text, a text with the same meaning, and texts that only look alike (hard negatives).

    With `queries`, the first text of a row is a query.
    """

    queries: Flag = False
    name: Literal["triples"] = "triples"
    kind: ClassVar[Kind] = TRIPLES


@dataclass(frozen=True)
class LabelledPairs(RowSource):
    """Pairs of a premise and a hypothesis, labeled entailment, neutral or contradiction."""

    name: Literal["labelled_pairs"] = "labelled_pairs"
    kind: ClassVar[Kind] = RELATIONS


@dataclass(frozen=True)
class ScoredLists(RowSource):
    """Rows of a query and several documents, each with a score from a teacher (mining/teacher.py).

    A retraining makes the rows with `teacher`: hybrid search, or the active reranker.
    """

    teacher: Literal["search", "reranker"] = "search"
    name: Literal["lists"] = "lists"
    kind: ClassVar[Kind] = LISTS
    queries: ClassVar[bool] = True


@dataclass(frozen=True)
class ScoredPairs(RowSource):
    """Pairs of texts with a score of how similar their meanings are."""

    name: Literal["scored_pairs"] = "scored_pairs"
    kind: ClassVar[Kind] = SCORED


def steps_of_a_round(rows: int, batch: int) -> int:
    return -(-rows // batch)


class Rounds:
    """Chooses the rows of each step. A round is an epoch: it has all rows once, in a new random order."""

    def __init__(self, count: int, batch: int, seed: int) -> None:
        self.count, self.batch, self.seed = count, batch, seed
        self._number, self._order = 0, self.order(0)

    def rows(self, step: int) -> NDArray[np.int64]:
        number, within = divmod(step, steps_of_a_round(self.count, self.batch))
        if number != self._number:
            self._number, self._order = number, self.order(number)
        return self._order[within * self.batch : (within + 1) * self.batch]

    def order(self, number: int) -> NDArray[np.int64]:
        """Returns the order of the rows in a round. Rows are numbered by their order in the first round."""
        return draw_order(self.seed, number, self.count) if number else np.arange(self.count)


def draw_order(seed: int, number: int, count: int) -> NDArray[np.int64]:
    """Returns a random permutation of `count` numbers, which is the same on all machines."""
    return np.random.default_rng([seed, _ORDER, number]).permutation(count)


def build_shelf(given: Given, rows: NDArray[np.int64], first_prompt: str) -> Shelf:
    """Tokenizes rows of the corpus. Empty texts, which fill up short rows, get no prompt.

    Args:
        given: Corpus, tokenizer and settings of the run.
        rows: Numbers of the rows to tokenize.
        first_prompt: Prompt before the first text of each row. Other texts get `given.prompt`.

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
    """Splits a text after sentences. White space between two sentences stays at the beginning of the second.

    A sentence of less than MIN_BYTES bytes is joined with its neighbor.
    """
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
    """Returns a corpus of pieces: each whole text, and each of its sentences. The digest stays the same."""
    found = (piece.strip() for text in corpus.texts for piece in (text, *sentences(text)))
    return replace(Corpus.of(found, "the corpus"), digest=corpus.digest)


@dataclass(frozen=True)
class Pieces(RowSource):
    """Whole texts and their sentences, called pieces. Every second piece gets the prompt for queries."""

    name: Literal["pieces"] = "pieces"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        """Builds the source. `given.corpus` must be split by `split_pieces` already, as runs/loop.py does."""
        prompts = (given.prompt, given.search_prompt)
        texts = tuple(prompts[at % 2] + text for at, text in enumerate(given.corpus.texts))
        rows = Rows(given._replace(corpus=replace(given.corpus, texts=texts), prompt=""))
        rows.rounds = LikeLengths(rows.shelf.starts.diff().numpy(), given.batch, given.seed)
        return rows


class LikeLengths(Rounds):
    """Chooses batches of texts with similar lengths, because attention pads all texts to the longest one.

    Use it only for objectives whose loss of a text does not depend on the other texts of the batch.
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
        """Sorts rows into batches of similar length, in random order. An incomplete batch comes last."""
        rows = rows[np.argsort(self._lengths[rows], kind="stable")]
        whole = len(rows) - len(rows) % self.batch
        batches = rng.permutation(rows[:whole].reshape(-1, self.batch))
        return np.concatenate([batches.ravel(), rows[whole:]])
