"""The shelf: every text of a run as token ids, one after another, in a file that is mapped and not read.

    tokens.ids      uint16 or int32 ids of all texts, back to back
    tokens.starts   int64, where each begins, and the end; written last, so both are whole once it is there

A million sentences are about 45 MB on disk, and in memory only as far as they are used. Not here: order and
batches (sources.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.files.fsync import replace_bytes, sync
from models.tokens.tokenizer import Tokenizer
from training.text.tokens import Tokens, spans_of

IDS, STARTS = "tokens.ids", "tokens.starts"
_CHUNK = 2000  # texts that one thread tokenises at a time
_SMALL = 1 << 16  # a vocabulary below it fits two bytes


class Shelf(NamedTuple):
    ids: NDArray[Any]  # (all tokens,)
    starts: Tensor  # int64 (texts + 1,)

    def take(self, texts: Tensor) -> Tokens:
        """Some texts by their numbers, int64."""
        at, starts = spans_of(self.starts, texts)
        return Tokens(torch.from_numpy(self.ids[at.numpy()].astype(np.int64)), starts)

    def document(self, text: int) -> NDArray[Any]:
        """The ids of one."""
        return self.ids[self.starts[text] : self.starts[text + 1]]


def tokenise(
    texts: Iterable[str], tokenizer: Tokenizer, *, threads: int = 1, folder: Path | None = None
) -> Shelf:
    """All of `texts`, special ids included. folder: where the files are; found there, they are used again."""
    kind = np.dtype(np.uint16 if tokenizer.vocabulary <= _SMALL else np.int32)
    if folder is None:
        parts = list(_chunks(texts, tokenizer, kind, threads))
        return Shelf(np.concatenate([ids for ids, _ in parts]), _starts([sizes for _, sizes in parts]))
    if not (folder / STARTS).is_file():
        _write(folder, _chunks(texts, tokenizer, kind, threads))
    starts = torch.from_numpy(np.fromfile(folder / STARTS, np.int64))
    return Shelf(np.memmap(folder / IDS, kind, "r"), starts)


def clear(folder: Path) -> None:
    """Take away what `tokenise` left in `folder`."""
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
    """In order; a few chunks are under way at once, so a corpus of any size takes little memory."""

    def tokenise_chunk(chunk: list[str]) -> tuple[NDArray[Any], list[int]]:
        rows = [tokens.ids for tokens in tokenizer.tokenize(chunk)]
        return np.concatenate([np.asarray(row, dtype=kind) for row in rows]), [len(row) for row in rows]

    left = iter(texts)
    with ThreadPoolExecutor(threads) as pool:  # the tokenizer lets go of the interpreter while it works
        while group := [chunk for _ in range(4 * threads) if (chunk := list(itertools.islice(left, _CHUNK)))]:
            yield from pool.map(tokenise_chunk, group)
