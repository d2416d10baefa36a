"""Scores pairs of texts, or single texts, with a published cross-encoder. Start at `Reranker.score`.

    pairs ─▶ tokenize ─▶ ids of both texts ─▶ forward (one padded batch) ─▶ float32 (n, outputs)

`ModelStore.open_reranker` checks the version's folder first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from models.files.bounded import parse_json
from models.graph.file import LOGITS, SCORES
from models.manifest import Manifest
from models.open_version import GROUP_TOKENS, How, OpenVersion, group_rows
from models.tokens.pairs import INPUT_NAMES, TOKENIZER_CONFIG, Pair, PairTokenizer
from models.tokens.tokenizer import TYPES, Tokens

__all__ = ["Pair", "Reranker", "Shifted", "Tokens"]


class Shifted(NamedTuple):
    """Differences between a reranker's scores and the published fp32 scores."""

    pairs: int
    mean: float
    most: float


class Reranker(OpenVersion):
    """Scores pairs of texts with one published cross-encoder. Thread-safe.

    Each pair has `dimension` scores: one, or one for each of the manifest's labels.
    """

    NORMALIZED, RAW = SCORES, LOGITS
    _tokenizer: PairTokenizer

    def __init__(self, folder: Path, manifest: Manifest, *, threads: int = 1, **how: Unpack[How]) -> None:
        """Opens the folder of a version that is already checked. See `OpenVersion`."""
        super().__init__(folder, manifest, threads=threads, **how)
        self.labels = manifest.labels
        self.turned: Shifted | None = None  # `check_golden` sets it in precisions below fp32.

    def _open_tokenizer(self, file: Path, vocabulary: int | None) -> PairTokenizer:
        config = parse_json((self.folder / TOKENIZER_CONFIG).read_bytes())
        typed = TYPES in config[INPUT_NAMES]
        return PairTokenizer(file, self.max_length, vocabulary, typed=typed)

    @property
    def opens_single_text(self) -> bool:
        return False

    def tokenize(
        self,
        pairs: Sequence[Pair] | Sequence[str],
        *,
        truncate: bool = True,
        left: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokenizes pairs, with the model's default prompt before each query, or single texts.

        See `PairTokenizer.tokenize_pairs` and `Tokenizer.tokenize`.
        """
        texts = [text for text in pairs if isinstance(text, str)]
        if texts:
            return self._tokenizer.singles.tokenize(texts, truncate, left, is_needed)
        prompt = self.manifest.default_prompt or ""
        prompted = [Pair(prompt + pair.query, pair.text) for pair in pairs if isinstance(pair, Pair)]
        return self._tokenizer.tokenize_pairs(prompted, truncate, left, is_needed)

    def score(
        self, pairs: Sequence[Pair] | Sequence[str], *, truncate: bool = True, normalize: bool = True
    ) -> NDArray[np.float32]:
        """Scores pairs, or single texts, in groups of similar length.

        Returns scores, or raw logits, shape (n, dimension).

        Args:
            truncate: If true, pairs with too many tokens are truncated.
            normalize: If true, the activation is applied. Otherwise the scores are raw logits.

        Raises:
            BadText: A text cannot be tokenized.
            TooLong: A pair has too many tokens, and `truncate` is false.
        """
        rows = [row.ids for row in self.tokenize(pairs, truncate=truncate)]
        scores = np.empty((len(rows), self.dimension), dtype=np.float32)
        for group in group_rows([len(row) for row in rows], GROUP_TOKENS):
            scores[group] = self.forward([rows[i] for i in group], normalize=normalize)
        return scores
