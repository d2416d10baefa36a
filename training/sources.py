"""Sources: texts as token ids, and which of them each step sees.

    texts ─▶ ids of all of them in one row, and where each begins ─▶ the batch of step k

A batch is a function of the seed and its step, and of nothing else: a run that is resumed goes on exactly
where it stopped. All texts are seen once before any is seen again; the last batch of such a round is as
small as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.tokenizer import Tokenizer
from training.views import Tokens

_CHUNK = 2000  # texts that one thread tokenises at a time
_ORDER = 0  # beside the seed, so that no other use of it draws the same numbers


class Batch(NamedTuple):
    tokens: Tokens
    texts: Tensor  # int64 (N,); equal numbers are texts of equal tokens


class Lines:
    """Texts that have nothing to do with each other, in a random order."""

    def __init__(
        self,
        texts: Sequence[str],
        tokenizer: Tokenizer,
        *,
        batch: int,
        steps: int,
        seed: int,
        threads: int = 1,
    ) -> None:
        """tokenizer: cuts at the training length. Only what the `steps` will see is tokenised."""
        self._batch = batch
        self._seed = seed
        seen = _order(seed, 0, len(texts))[: batch * steps]
        self._ids, self._starts = _tokenise([texts[i] for i in seen], tokenizer, threads)
        self._round, self._rows = 0, np.arange(len(seen))  # the first round has its order already

    def __len__(self) -> int:
        return len(self._starts) - 1

    def distinct(self) -> int:
        """How many texts differ within the training length."""
        return len(set(self._numbers.tolist()))

    def batch(self, step: int) -> Batch:
        """step: counted from 0."""
        number, within = divmod(step, steps_of_a_round(len(self), self._batch))
        if number != self._round:
            order = np.arange(len(self)) if number == 0 else _order(self._seed, number, len(self))
            self._round, self._rows = number, order
        rows = torch.from_numpy(self._rows[within * self._batch : (within + 1) * self._batch])
        return Batch(self._tokens(rows), self._numbers[rows])

    def _tokens(self, rows: Tensor) -> Tokens:
        lengths = self._starts[rows + 1] - self._starts[rows]
        starts = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        shift = torch.repeat_interleave(self._starts[rows] - starts[:-1], lengths)
        return Tokens(self._ids[shift + torch.arange(int(starts[-1]))].long(), starts)

    @cached_property
    def _numbers(self) -> Tensor:
        """Of each text the first row with the same ids: texts that differ beyond the training length."""
        ids = self._ids.numpy()
        first: dict[bytes, int] = {}
        spans = zip(self._starts[:-1].tolist(), self._starts[1:].tolist(), strict=True)
        return torch.tensor([first.setdefault(ids[a:b].tobytes(), n) for n, (a, b) in enumerate(spans)])


SOURCES = {"lines": Lines}


def steps_of_a_round(texts: int, batch: int) -> int:
    return -(-texts // batch)


def _order(seed: int, number: int, count: int) -> NDArray[np.int64]:
    """numpy's, since its generators give the same numbers in every release and on every machine."""
    return np.random.default_rng([seed, _ORDER, number]).permutation(count)


def _tokenise(texts: Sequence[str], tokenizer: Tokenizer, threads: int) -> tuple[Tensor, Tensor]:
    """int32 ids of all texts, and int64 starts, one more than texts."""

    def tokenise(chunk: Sequence[str]) -> tuple[NDArray[np.int32], list[int]]:
        rows = [tokens.ids for tokens in tokenizer.tokenize(chunk)]
        return np.concatenate([np.asarray(row, dtype=np.int32) for row in rows]), [len(row) for row in rows]

    chunks = [texts[at : at + _CHUNK] for at in range(0, len(texts), _CHUNK)]
    with ThreadPoolExecutor(threads) as pool:  # the tokenizer lets go of the interpreter while it works
        done = list(pool.map(tokenise, chunks))
    lengths = np.concatenate([lengths for _, lengths in done])
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    return torch.from_numpy(np.concatenate([ids for ids, _ in done])), torch.from_numpy(starts)
