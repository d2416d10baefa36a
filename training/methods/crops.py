"""Sources that cut documents where their sentences end, and draw anew in every step.

    crops     two runs of sentences of one document are alike
    cloze     a sentence asks for the passage that it was taken out of

    text ─▶ sentences ─▶ units of at most a row ─▶ drawn in each step ─▶ [before] prompt, sentences [after]

Sentences end where the service ends its passages. One that is longer than a row is cut into several units, so
a text without any border is read to its end as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from models.tokens.sentences import sentence_ends
from models.words.progress import counted
from training.errors import NothingToLearn, TrainingError
from training.methods.ranges import Share
from training.methods.sources import DRAWN, Batch, Given, Rounds, Source, order_of
from training.text.corpus import TEXTS, Kind
from training.text.token_file import tokenise
from training.text.tokens import tokens_of

SHORTEST = 24  # bytes, about four English words; a shorter piece, as "Fig.", goes with the next. Chosen by us
LEAST_ROOM = 8  # tokens of a row beside prompt and special ones, as the service asks of a passage

Drawn = tuple[Sequence[int], Sequence[int]]  # the units of each of the two texts
Draw = Callable[[Sequence[int], tuple[int, int], np.random.Generator], Drawn]


def sentences(text: str) -> list[str]:
    """All of the text in pieces that end where sentences do; white space goes with what follows it."""
    pieces: list[str] = []
    begin = 0
    for end in (end for found in sentence_ends(text) for end in found):
        piece = text[begin:end].rstrip()
        if len(piece.strip().encode()) >= SHORTEST:
            pieces.append(piece)
            begin += len(piece)
    rest = text[begin:]
    if pieces and len(rest.strip().encode()) < SHORTEST:
        pieces[-1] += rest
    else:
        pieces.append(rest)
    return pieces


def two_crops(lengths: Sequence[int], rooms: tuple[int, int], random: np.random.Generator) -> Drawn:
    """Two runs of units, each from any unit on, of as many as a draw says among those that fit.

    lengths: of the units in tokens, none above `rooms`. They may overlap, and differ if there are two units.
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
    """A unit, and those around it that fit: without it, or with it in a share `kept` of the draws.

    Of a long document the passage begins at random, so that the unit stands anywhere in it.
    """
    unit = int(random.integers(len(lengths)))
    keep = bool(random.random() < kept)
    before = int(random.integers(rooms[1] + 1))  # tokens at most, unless those behind leave more
    rest = [*_around(lengths, unit, rooms[1] - lengths[unit] if keep else rooms[1], before)]
    if not keep or rest == [unit]:  # a passage that is the sentence itself would ask for nothing
        rest = [at for at in _around(lengths, unit, rooms[1], before) if at != unit]
    return [unit], rest


def _around(lengths: Sequence[int], unit: int, room: int, before: int) -> range:
    """The unit and its neighbours, which have at most `room` tokens without it."""
    first = _reach(lengths, unit - 1, -1, min(before, room)) + 1
    room -= sum(lengths[first:unit])
    end = _reach(lengths, unit + 1, 1, room)
    return range(_reach(lengths, first - 1, -1, room - sum(lengths[unit + 1 : end])) + 1, end)


def _reach(lengths: Sequence[int], at: int, step: int, room: int) -> int:
    """The first unit from `at` on, in steps of 1 or -1, that does not fit `room` any more."""
    while 0 <= at < len(lengths) and lengths[at] <= room:
        room -= lengths[at]
        at += step
    return at


class Sentences:
    """Two texts of each document in every step, of whole sentences."""

    def __init__(self, given: Given, prompts: tuple[str, str], least: int, draw: Draw) -> None:
        """prompts: before the first text and before the second. least: units that a document needs."""
        special, self._after = given.tokenizer.affixes
        rows = given.tokenizer.tokenize(prompts)
        self._before = [row.ids[: len(row.ids) - len(self._after)] for row in rows]
        first, second = (given.longest - len(before) - len(self._after) for before in self._before)
        self._rooms = first, second
        if min(self._rooms) < LEAST_ROOM:
            raise TrainingError(
                f"A row of {given.longest} tokens leaves {min(self._rooms)} for text beside the prompt and "
                f"the special ones, and {LEAST_ROOM} are needed. Raise `max_length`."
            )
        self._seed, self._draw = given.seed, draw
        seen = order_of(given.seed, 0, len(given.corpus))[: given.batch * given.steps]
        pieces = [sentences(given.corpus.texts[row]) for row in seen.tolist()]
        shelf = tokenise(
            (piece for each in counted(pieces, "texts", len(pieces), "tokenising") for piece in each),
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
        self._usable = np.flatnonzero(counts >= least)
        left_out = len(pieces) - len(self._usable)
        if len(self._usable) < 2:
            raise NothingToLearn(
                f"{len(self._usable)} of {len(pieces)} texts have {least} sentences or more, and this recipe "
                "cuts texts where sentences end. Give longer texts, or take another recipe."
            )
        self.remark = f"{left_out:,} texts of a single sentence are left out" if left_out else ""
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
        return Batch(tuple(tokens_of(column) for column in columns), torch.tensor(numbers).T)


def _units(
    begins: NDArray[np.int64], ends: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """(begin, end) of each unit, (n, 2), and the piece that it comes from: none of an empty one."""
    parts = -(-(ends - begins) // room)
    owners = np.repeat(np.arange(len(parts)), parts)
    within = np.arange(len(owners)) - np.repeat(parts.cumsum() - parts, parts)
    first = begins[owners] + room * within
    return np.stack([first, np.minimum(first + room, ends[owners])], axis=1), owners


@dataclass(frozen=True)
class Crops:
    """Two crops of each document, from one sentence or more, each up to the recipe's `max_length`.

    González-Márquez, Berens and Kobak 2025 (arXiv 2508.03453). The draw is ours: any sentence begins a crop,
    and any number of those that fit may follow it, so that short texts meet long ones as in a search.
    """

    singles: Literal["leave_out", "twice"]  # a text of one sentence: left out, or itself under two dropouts
    name: Literal["crops"] = "crops"

    kind: ClassVar[Kind] = TEXTS
    whole: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    columns: ClassVar[int] = 2

    def build(self, given: Given) -> Source:
        least = 2 if self.singles == "leave_out" else 1
        return Sentences(given, (given.prompt, given.prompt), least, two_crops)


@dataclass(frozen=True)
class Cloze:
    """Inverse cloze task: a sentence and the rest of its document. Lee, Chang and Toutanova 2019, section 4.

    kept: the share of the draws in which the rest has the sentence as well. Theirs is 0.1, so that a search
    learns to find equal words, too.
    """

    kept: Share
    name: Literal["cloze"] = "cloze"

    kind: ClassVar[Kind] = TEXTS
    whole: ClassVar[bool] = True
    searches: ClassVar[bool] = True
    columns: ClassVar[int] = 2

    def build(self, given: Given) -> Source:
        def draw(lengths: Sequence[int], rooms: tuple[int, int], random: np.random.Generator) -> Drawn:
            return a_cloze(self.kept, lengths, rooms, random)

        return Sentences(given, (given.search_prompt, given.prompt), 2, draw)
