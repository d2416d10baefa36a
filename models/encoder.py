"""Encodes texts to vectors with a published version. Start at `Encoder.encode`.

    texts ─▶ tokenize ─▶ ids ─▶ forward (one padded batch) ─▶ float32 (n, dimension)

Callers add the prompts to the texts, and truncate the vectors to fewer dimensions. `ModelStore.open` checks
the version's folder first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Unpack

import numpy as np
from numpy.typing import NDArray

from models.engines.form import FP32, Form
from models.engines.onnx import OnnxEngine
from models.engines.opening import INT8, INT8_NAME
from models.errors import BadInput, BadText, BadTokens, TooLong
from models.files.bounded import parse_json
from models.graph.file import HIDDEN, POOLED, SENTENCE
from models.manifest import GOLDEN, ONNX, QUERIES, Manifest
from models.open_version import GROUP_TOKENS, How, OpenVersion, group_rows
from models.tokens.late import DIMENSIONS, READ, compress
from models.tokens.late import Tokens as TokenVectors
from models.tokens.tokenizer import Piece, Tokens

__all__ = ["BadInput", "BadText", "BadTokens", "Encoded", "Encoder", "Piece", "Tokens", "TooLong", "Turned"]


class Encoded(NamedTuple):
    vectors: NDArray[np.float32]  # Unit vectors, (n, dimension).
    tokens: list[int]  # Tokens of each text, with special tokens.
    truncated: list[bool]


class Turned(NamedTuple):
    """Cosines between an encoder's vectors and the published fp32 vectors."""

    texts: int
    mean: float
    least: float


def _read_unrelated(golden: Path) -> float:
    """Returns the mean cosine of unrelated texts, or 1 for a version that is not published yet.

    The texts of golden.json are about different things, in different languages and scripts.
    """
    if not golden.exists():
        return 1.0
    vectors = np.array(parse_json(golden.read_bytes())["vectors"])
    return float(np.mean((vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]))


class Encoder(OpenVersion):
    """Encodes texts with one published version. Thread-safe."""

    NORMALIZED, RAW = SENTENCE, POOLED

    def __init__(self, folder: Path, manifest: Manifest, *, threads: int = 1, **how: Unpack[How]) -> None:
        """Opens the folder of a version that was checked before. See `OpenVersion`."""
        super().__init__(folder, manifest, threads=threads, **how)
        own = self._tokenizer
        self.check_ids, self.pieces, self.spans = own.check_ids, own.pieces, own.spans
        self.is_word = own.is_word
        self.unrelated = _read_unrelated(folder / GOLDEN)
        self.turned: Turned | None = None  # Set by `check_golden` in precisions below fp32.
        self.queries: Encoder | None = None  # The student of a pair.
        if manifest.query_encoder is not None:
            how["form"] = _form_of_queries(folder / QUERIES, how.get("form", FP32))
            self.queries = Encoder.open(folder / QUERIES, threads, **how)

    @property
    def for_queries(self) -> Encoder:
        """The encoder of search queries: the student if this version is a pair, else this encoder."""
        return self.queries or self

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        truncate: bool = True,
        left: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokenizes texts. See `Tokenizer.tokenize`."""
        return self._tokenizer.tokenize(texts, truncate, left, is_needed)

    def encode(self, texts: Sequence[str], *, truncate: bool = True) -> Encoded:
        """Encodes texts in groups of similar length, which saves padding.

        Raises:
            BadText: A text cannot be tokenized.
            TooLong: A text has too many tokens, and `truncate` is false.
        """
        rows = self.tokenize(texts, truncate=truncate)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for group in group_rows([len(row.ids) for row in rows], GROUP_TOKENS):
            vectors[group] = self.forward([rows[i].ids for i in group])
        return Encoded(vectors, [len(row.ids) for row in rows], [row.truncated for row in rows])

    @property
    def has_tokens(self) -> bool:
        """True if `encode_tokens` works: the graph outputs token vectors, and this version is no pair."""
        engine = self._engine
        return isinstance(engine, OnnxEngine) and HIDDEN in engine.outputs and self.queries is None

    def encode_tokens(self, texts: Sequence[str]) -> list[NDArray[np.float32]]:
        """Computes the vectors of the first READ tokens of each text, as `forward_tokens`."""
        rows = [tokens.ids for tokens in self.tokenize(texts)]
        found = [np.empty((0, 0), np.float32)] * len(rows)
        for group in group_rows([min(len(row), READ) for row in rows], GROUP_TOKENS):
            for at, vectors in zip(group, self.forward_tokens([rows[at] for at in group]), strict=True):
                found[at] = vectors
        return found

    def forward_tokens(self, ids: Sequence[Sequence[int]]) -> Iterator[NDArray[np.float32]]:
        """Yields the vectors of the first READ tokens of each text of a batch, before pooling.

        Vectors have length 1, shape (tokens, width). Special tokens are included. The vectors depend on the
        batch by rounding, even if the encoder is deterministic.
        """
        ids = [row[:READ] for row in ids]
        hidden = self._run(self._engine, HIDDEN, ids, max(map(len, ids)))
        for row, tokens in zip(hidden, ids, strict=True):
            vectors = row[: len(tokens)]
            lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
            yield vectors / np.maximum(lengths, np.finfo(np.float32).tiny)

    def close(self) -> None:
        super().close()
        if self.queries is not None:
            self.queries.close()


class TokenEncoder(Encoder):
    """A view of an encoder for the batcher: `forward` computes compressed token vectors (tokens/late.py).

    Each row has the number of tokens, then their vectors, then zeros. `unpack` reads it.
    """

    @property
    def opens_single_text(self) -> bool:
        return False

    def __init__(self, encoder: Encoder, projection: NDArray[np.float32]) -> None:
        self.__dict__.update(encoder.__dict__)
        self._single_text = None
        self._projection = projection
        self.dimension = 1 + READ * DIMENSIONS

    def forward(
        self,
        ids: Sequence[Sequence[int]],
        *,
        normalize: bool = True,  # noqa: ARG002  token vectors always have length 1
        single_text: bool = False,  # noqa: ARG002  there is one engine
    ) -> NDArray[np.float32]:
        rows = np.zeros((len(ids), self.dimension), np.float32)
        for row, vectors in zip(rows, self.forward_tokens(ids), strict=True):
            if not np.isfinite(vectors).all():
                row[:] = np.nan  # The batcher reports it.
                continue
            found = compress(vectors, self._projection)
            row[0] = len(found)
            row[1 : 1 + found.size] = found.ravel()
        return rows

    @staticmethod
    def unpack(row: NDArray[np.float32]) -> TokenVectors:
        """Returns the token vectors of a row of `forward`."""
        return row[1 : 1 + int(row[0]) * DIMENSIONS].reshape(-1, DIMENSIONS).astype(np.int8)


def _form_of_queries(folder: Path, form: Form) -> Form:
    """Returns the form of a pair's query encoder: `form`, or fp32 if `folder` lacks an int8 graph."""
    return FP32 if form == INT8 and not (folder / ONNX).with_name(INT8_NAME).is_file() else form
