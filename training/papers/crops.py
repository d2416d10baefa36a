"""Sources that split documents into sentences.

    crops      a row is two sequences of sentences from one document, which are similar
    cloze      a row is a sentence as query, and the passage around it as answer
    sentences  a batch is a sequence of consecutive sentences, so the neighbors of each sentence are known

    text ─▶ sentences ─▶ units of at most one row ─▶ drawn in each step ─▶ [before] prompt, sentences [after]

Sentences end where passages of the service may end. A sentence that is longer than a row is split into
several units, so texts without sentence ends can also be used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from models.messages import amount
from models.progress import counted
from training.errors import NothingToLearn, TrainingError
from training.methods.sources import DRAWN, Batch, Given, Rounds, RowSource, Source, draw_order, sentences
from training.text.corpus import TEXTS, Kind
from training.text.tokens import build_tokens, tokenize
from training.validation import Share

MIN_ROOM = 8  # tokens of a row besides the prompt and special tokens; the minimum of a passage in the service

Drawn = tuple[Sequence[int], Sequence[int]]  # the units of each of the two texts
Draw = Callable[[Sequence[int], tuple[int, int], np.random.Generator], Drawn]


def two_crops(lengths: Sequence[int], rooms: tuple[int, int], random: np.random.Generator) -> Drawn:
    """Draws two sequences of units. Each begins at a random unit and has a random length that fits.

    Args:
        lengths: Number of tokens of each unit, at most the smaller of `rooms`.
        rooms: Maximum number of tokens of the first and of the second text.
        random: Random generator.

    Returns:
        Two sequences, which may overlap. They differ if the document has more than one unit.

    """
    first, second = (_crop(lengths, room, random) for room in rooms)
    while first == second and len(lengths) > 1:
        second = _crop(lengths, rooms[1], random)
    return first, second


def _crop(lengths: Sequence[int], room: int, random: np.random.Generator) -> range:
    first = int(random.integers(len(lengths)))
    fit = _reach(lengths, first, 1, room) - first
    return range(first, first + 1 + int(random.integers(fit)))


def a_cloze(
    kept: float, lengths: Sequence[int], rooms: tuple[int, int], random: np.random.Generator
) -> Drawn:
    """Draws a unit as query, and a passage of as many units around it as fit.

    The passage includes the query itself with probability `kept`. In a long document, the query may be at any
    position of the passage.
    """
    unit = int(random.integers(len(lengths)))
    keep = bool(random.random() < kept)
    before = int(random.integers(rooms[1] + 1))  # maximum of tokens, unless the following units leave more
    rest = [*_around(lengths, unit, rooms[1] - lengths[unit] if keep else rooms[1], before)]
    if not keep or rest == [unit]:  # a passage that equals the sentence would teach nothing
        rest = [at for at in _around(lengths, unit, rooms[1], before) if at != unit]
    return [unit], rest


def _around(lengths: Sequence[int], unit: int, room: int, before: int) -> range:
    """Returns a range of units around `unit` that have at most `room` tokens, not counting `unit` itself."""
    first = _reach(lengths, unit - 1, -1, min(before, room)) + 1
    room -= sum(lengths[first:unit])
    end = _reach(lengths, unit + 1, 1, room)
    return range(_reach(lengths, first - 1, -1, room - sum(lengths[unit + 1 : end])) + 1, end)


def _reach(lengths: Sequence[int], at: int, step: int, room: int) -> int:
    """Returns the index, from `at` by `step`, at which the units exceed `room` tokens or end."""
    while 0 <= at < len(lengths) and lengths[at] <= room:
        room -= lengths[at]
        at += step
    return at


class Sentences:
    """A source that draws two texts of whole sentences from a document.

    Args:
        given: Corpus, tokenizer and settings of the run.
        prompts: Prompts before the first and before the second text.
        min_units: Minimum number of units of a document. Shorter documents are left out.
        draw: Function that chooses the units of both texts.

    Raises:
        TrainingError: A row is too short for the prompts.
        NothingToLearn: Fewer than two documents have enough units.

    """

    def __init__(self, given: Given, prompts: tuple[str, str], min_units: int, draw: Draw) -> None:
        special, self._after = given.tokenizer.affixes
        rows = given.tokenizer.tokenize(prompts)
        self._before = [row.ids[: len(row.ids) - len(self._after)] for row in rows]
        first, second = (given.longest - len(before) - len(self._after) for before in self._before)
        self._rooms = first, second
        if min(self._rooms) < MIN_ROOM:
            raise TrainingError(
                f"A row of {given.longest} tokens leaves {min(self._rooms)} for text beside the prompt and "
                f"the special ones, and {MIN_ROOM} are needed. Raise `max_length`."
            )
        self._seed, self._draw = given.seed, draw
        seen = draw_order(given.seed, 0, len(given.corpus))[: given.batch * given.steps]
        pieces = [sentences(given.corpus.texts[row]) for row in seen.tolist()]
        shelf = tokenize(
            (piece for each in counted(pieces, "texts", len(pieces), "tokenizing") for piece in each),
            given.tokenizer,
            threads=given.threads,
            folder=given.folder,
        )
        self._ids = shelf.ids
        starts = shelf.starts.numpy()
        begins, ends = starts[:-1] + len(special), starts[1:] - len(self._after)
        self._units, owners = _units(begins, ends, min(self._rooms))
        of_piece = np.repeat(np.arange(len(pieces)), [len(each) for each in pieces])
        counts = np.bincount(of_piece[owners], minlength=len(pieces))
        self._first = np.concatenate([[0], counts.cumsum()])
        self._usable = np.flatnonzero(counts >= min_units)
        left_out = len(pieces) - len(self._usable)
        if len(self._usable) < 2:
            raise NothingToLearn(
                f"{len(self._usable)} of {len(pieces)} texts have {min_units} sentences or more, and this "
                "recipe cuts texts where sentences end. Give longer texts, or take another recipe."
            )
        self.remark = f"{amount(left_out, 'text')} of a single sentence left out" if left_out else ""
        self._rounds = Rounds(len(self._usable), given.batch, given.seed)

    def distinct(self) -> int:
        return self._rounds.count

    def batch(self, step: int) -> Batch:
        random = np.random.default_rng([self._seed, DRAWN, step])
        columns: tuple[list[list[int]], list[list[int]]] = [], []
        for document in self._usable[self._rounds.rows(step)].tolist():
            units = self._units[self._first[document] : self._first[document + 1]]
            drawn = self._draw((units[:, 1] - units[:, 0]).tolist(), self._rooms, random)
            for column, before, chosen in zip(columns, self._before, drawn, strict=True):
                inner = np.concatenate([self._ids[begin:end] for begin, end in units[list(chosen)]])
                column.append([*before, *inner.tolist(), *self._after])
        first: dict[tuple[int, ...], int] = {}
        numbers = [[first.setdefault(tuple(row), len(first)) for row in column] for column in columns]
        return Batch(tuple(build_tokens(column) for column in columns), torch.tensor(numbers).T)


def _units(
    begins: NDArray[np.int64], ends: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Splits pieces of text into units of at most `room` tokens.

    Returns:
        The begin and end of each unit, shape (n, 2), and the index of the piece, shape (n,). An empty piece
        has no unit.

    """
    parts = -(-(ends - begins) // room)
    owners = np.repeat(np.arange(len(parts)), parts)
    within = np.arange(len(owners)) - np.repeat(parts.cumsum() - parts, parts)
    first = begins[owners] + room * within
    return np.stack([first, np.minimum(first + room, ends[owners])], axis=1), owners


@dataclass(frozen=True)
class TwoTexts(RowSource):
    """Base class of recipe sources that draw two texts from a document."""

    kind: ClassVar[Kind] = TEXTS
    whole: ClassVar[bool] = True
    queries: ClassVar[bool] = True

    @property
    def columns(self) -> int:
        return 2


@dataclass(frozen=True)
class Crops(TwoTexts):
    """Two crops of one or more sentences from a document, each up to the recipe's `max_length`.

    The method is from González-Márquez, Berens and Kobak 2025 (arXiv 2508.03453). Unlike in the paper, a crop
    begins at any sentence and has a random number of sentences. So a row may have a short and a long text, as
    in a search.
    """

    singles: Literal["leave_out", "twice"]  # a text of one sentence: left out, or itself under two dropouts
    name: Literal["crops"] = "crops"

    def build(self, given: Given) -> Source:
        min_units = 2 if self.singles == "leave_out" else 1
        return Sentences(given, (given.prompt, given.prompt), min_units, two_crops)


@dataclass(frozen=True)
class Cloze(TwoTexts):
    """Inverse cloze task: a sentence and the text around it (Lee, Chang and Toutanova 2019, section 4).

    `kept` is the probability that the text also contains the sentence, 0.1 in the paper. Such rows teach the
    model to find equal words as well.
    """

    kept: Share
    name: Literal["cloze"] = "cloze"

    def build(self, given: Given) -> Source:
        return Sentences(given, (given.search_prompt, given.prompt), 2, partial(a_cloze, self.kept))


class Runs:
    """A source of consecutive sentences, from documents in random order. Each step gets `batch` sentences.

    The label of a sentence is the number of its document.
    """

    remark = ""

    def __init__(self, given: Given) -> None:
        pieces: list[str] = []
        owners: list[int] = []
        for document in draw_order(given.seed, 0, len(given.corpus)).tolist():
            found = [given.prompt + piece.strip() for piece in sentences(given.corpus.texts[document])]
            pieces += found
            owners += [document] * len(found)
            if len(pieces) >= given.batch * given.steps:
                break
        if len(pieces) == len(set(owners)):
            raise NothingToLearn("No text has two sentences: give documents, whose sentences are neighbours.")
        self._shelf = tokenize(pieces, given.tokenizer, threads=given.threads, folder=given.folder)
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
    """Consecutive sentences without shuffling (Logeswaran and Lee 2018, QuickThoughts, section 3.1)."""

    name: Literal["sentences"] = "sentences"
    kind: ClassVar[Kind] = TEXTS

    def build(self, given: Given) -> Source:
        return Runs(given)
