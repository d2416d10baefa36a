"""Token ids of texts, without padding: `Tokens` for a batch, and `Shelf` for all texts of a run.

    [11, 12, 13 | 21, 22]        ids of two texts, with starts = [0, 3, 5]

`Tokens` are in memory. A `Shelf` may be memory-mapped from two files, which `tokenize` writes:

    tokens.ids      uint16 or int32, the ids of all texts one after another
    tokens.starts   int64, the beginning of each text and the end; written last, when both are complete

A million sentences take about 45 MB on disk.
"""

# ruff: noqa: N806  shapes live in names
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  its usual name
from numpy.typing import NDArray
from torch import Tensor

from models.files.fsync import replace_bytes, sync
from models.tokens.tokenizer import Tokenizer

NOT_A_TARGET = -100  # as cross_entropy's ignore_index


@dataclass(frozen=True)
class Tokens:
    """Token ids of R texts, including special tokens. Text r has the ids[starts[r]:starts[r + 1]].

    All tensors are on the CPU.
    """

    ids: Tensor  # int64 (all tokens,)
    starts: Tensor  # int64 (R + 1,)
    targets: Tensor | None = None  # int64 (all tokens,): the id to predict, or NOT_A_TARGET
    positions: Tensor | None = None  # int64 (all tokens,), unless they are 0, 1, 2 … in each text
    cutoff: Tensor | None = None  # (R, 2): shares of each text's tokens and features to zero
    # int64 (R,): where the tokens of type 1 begin, if the rows are pairs of texts for a cross-encoder
    second: Tensor | None = None

    def __len__(self) -> int:
        """Returns the number of texts."""
        return self.starts.shape[0] - 1

    @property
    def lengths(self) -> Tensor:
        """The number of tokens of each text, int64, shape (R,)."""
        return self.starts.diff()

    def rows(self) -> Tensor:
        """Returns the index of each token's text, int64, shape (all tokens,)."""
        return torch.repeat_interleave(torch.arange(len(self)), self.lengths)

    def places(self) -> Tensor:
        """Returns the position of each token in its text, from 0, int64, shape (all tokens,)."""
        return torch.arange(len(self.ids)) - self.starts[self.rows()]

    def select(self, rows: Tensor) -> Tokens:
        """Returns the texts with the indices `rows`, int64, in this order."""
        at, starts = find_spans(self.starts, rows)
        targets, positions = (None if x is None else x[at] for x in (self.targets, self.positions))
        cutoff, second = (None if x is None else x[rows] for x in (self.cutoff, self.second))
        return Tokens(self.ids[at], starts, targets, positions, cutoff, second)

    def keep(self, kept: Tensor) -> Tokens:
        """Keeps only the tokens where `kept`, bool, shape (all tokens,), is True.

        The result has no `positions` and no `cutoff`.
        """
        starts = F.pad(kept.long().cumsum(0), (1, 0))[self.starts]
        return Tokens(self.ids[kept], starts, None if self.targets is None else self.targets[kept])

    def padded(self, pad_id: int) -> tuple[Tensor, Tensor]:
        """Pads the texts to the longest length T.

        Returns:
            The ids and the attention mask, which is 1 on tokens and 0 on padding; int64, shape (R, T) each.

        """
        places_T = torch.arange(int(self.lengths.max()))
        mask_RT = places_T < self.lengths[:, None]
        ids_RT = self.ids[(self.starts[:-1, None] + places_T).clamp(max=len(self.ids) - 1)]
        return ids_RT.where(mask_RT, pad_id), mask_RT.long()


def find_spans(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Finds the tokens of some texts.

    Args:
        starts: Where each text begins among all tokens, and the end.
        rows: Indices of the texts.

    Returns:
        The indices of these texts' tokens among all tokens, and where each text begins in the result; int64.

    """
    lengths = starts[rows + 1] - starts[rows]
    begins = F.pad(lengths.cumsum(0), (1, 0))
    shift = torch.repeat_interleave(starts[rows] - begins[:-1], lengths)
    return shift + torch.arange(int(begins[-1])), begins


def build_tokens(rows: Sequence[Sequence[int]]) -> Tokens:
    """Creates `Tokens` from a list of token ids for each text."""
    starts = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Tokens(torch.tensor([id for row in rows for id in row], dtype=torch.int64), starts)


def join(parts: Sequence[Tokens]) -> Tokens:
    """Concatenates the texts of several `Tokens`."""
    if len(parts) == 1:
        return parts[0]
    lengths = torch.cat([part.lengths for part in parts])

    def joined(name: str, missing: Callable[[Tokens], Tensor]) -> Tensor | None:
        found = [getattr(part, name) for part in parts]
        if all(each is None for each in found):
            return None
        return torch.cat([missing(p) if each is None else each for p, each in zip(parts, found, strict=True)])

    return Tokens(
        torch.cat([part.ids for part in parts]),
        F.pad(lengths.cumsum(0), (1, 0)),
        joined("targets", lambda part: torch.full_like(part.ids, NOT_A_TARGET)),
        joined("positions", Tokens.places),
        joined("cutoff", lambda part: torch.zeros(len(part), 2)),
        joined("second", lambda part: part.lengths),
    )


IDS, STARTS = "tokens.ids", "tokens.starts"
_CHUNK = 2000  # texts that one thread tokenizes at a time
_SMALL = 1 << 16  # ids of a vocabulary up to this size fit two bytes


class Shelf(NamedTuple):
    ids: NDArray[Any]  # (all tokens,)
    starts: Tensor  # int64 (texts + 1,)

    def take(self, texts: Tensor) -> Tokens:
        """Returns the texts with the indices `texts`, int64."""
        at, starts = find_spans(self.starts, texts)
        return Tokens(torch.from_numpy(self.ids[at.numpy()].astype(np.int64)), starts)

    def document(self, text: int) -> NDArray[Any]:
        """Returns the token ids of one text."""
        return self.ids[self.starts[text] : self.starts[text + 1]]


def tokenize(
    texts: Iterable[str], tokenizer: Tokenizer, *, threads: int = 1, folder: Path | None = None
) -> Shelf:
    """Tokenizes texts. The result includes special tokens.

    Args:
        texts: Texts to tokenize. They are read only if the folder has no complete files yet.
        tokenizer: Tokenizer, which also cuts the texts.
        threads: Number of threads.
        folder: Folder of the two files. None keeps the ids in memory.

    """
    kind = np.dtype(np.uint16 if tokenizer.vocabulary <= _SMALL else np.int32)
    if folder is None:
        parts = list(_chunks(texts, tokenizer, kind, threads))
        return Shelf(np.concatenate([ids for ids, _ in parts]), _starts([sizes for _, sizes in parts]))
    if not (folder / STARTS).is_file():
        _write(folder, _chunks(texts, tokenizer, kind, threads))
    starts = torch.from_numpy(np.fromfile(folder / STARTS, np.int64))
    return Shelf(np.memmap(folder / IDS, kind, "r"), starts)


def clear(folder: Path) -> None:
    """Removes the files that `tokenize` has written from `folder`."""
    for name in (STARTS, IDS):
        (folder / name).unlink(missing_ok=True)


def _write(folder: Path, chunks: Iterator[tuple[NDArray[Any], list[int]]]) -> None:
    sizes: list[list[int]] = []
    with (folder / IDS).open("wb") as stream:
        for ids, lengths in chunks:
            stream.write(ids.tobytes())
            sizes.append(lengths)
    sync(folder / IDS)
    replace_bytes(folder / STARTS, _starts(sizes).numpy().tobytes())


def _starts(sizes: list[list[int]]) -> Tensor:
    lengths = np.fromiter(itertools.chain.from_iterable(sizes), np.int64)
    return torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int64))


def _chunks(
    texts: Iterable[str], tokenizer: Tokenizer, kind: np.dtype[Any], threads: int
) -> Iterator[tuple[NDArray[Any], list[int]]]:
    """Tokenizes texts in chunks. Yields the ids of a chunk, and the length of each text in it.

    Only a few chunks are in memory at a time.
    """

    def tokenize_chunk(chunk: list[str]) -> tuple[NDArray[Any], list[int]]:
        rows = [tokens.ids for tokens in tokenizer.tokenize(chunk)]
        return np.concatenate([np.asarray(row, dtype=kind) for row in rows]), [len(row) for row in rows]

    left = iter(texts)
    with ThreadPoolExecutor(threads) as pool:  # the tokenizer releases the GIL
        while group := [chunk for _ in range(4 * threads) if (chunk := list(itertools.islice(left, _CHUNK)))]:
            yield from pool.map(tokenize_chunk, group)
