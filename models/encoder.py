"""Encodes texts to vectors with a published version. Start at `Encoder.encode`.

    texts ─▶ tokenize ─▶ ids ─▶ forward (one padded batch) ─▶ float32 (n, dimension)

Callers add the prompts to the texts, and truncate the vectors to fewer dimensions. `ModelStore.open` checks
the version's folder first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from models.engines.form import CPU, FP32, Engine, Form, Place
from models.engines.onnx import OnnxEngine
from models.engines.opening import INT8, INT8_NAME, open_engine
from models.engines.shapes import FILLED_ROWS, STEPS, Shapes, stepped
from models.errors import BadInput, BadText, BadTokens, Damaged, TooLong
from models.files.bounded import parse_json
from models.graph.file import FINGERPRINT, HIDDEN, read_metadata
from models.manifest import GOLDEN, QUERIES, Manifest
from models.tokens.late import DIMENSIONS, READ, compress
from models.tokens.late import Tokens as TokenVectors
from models.tokens.texts import PROOF_TEXTS
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Piece, Tokenizer, Tokens, build_feed

__all__ = ["BadInput", "BadText", "BadTokens", "Encoded", "Encoder", "Piece", "Tokens", "TooLong", "Turned"]

ONNX = "onnx/model.onnx"
_GROUP_TOKENS = 2048  # Padded tokens of a batch. Larger batches exceed the second-level cache.
_NORMALIZED, _POOLED = "sentence_embedding", "pooled_embedding"


class Encoded(NamedTuple):
    vectors: NDArray[np.float32]  # Unit vectors, (n, dimension).
    tokens: list[int]  # Tokens of each text, with special tokens.
    truncated: list[bool]


class Turned(NamedTuple):
    """Cosines between an encoder's vectors and the published fp32 vectors."""

    texts: int
    mean: float
    least: float


class How(TypedDict, total=False):
    """Keyword arguments of `Encoder`, without `threads`."""

    form: Form
    callers: int
    deterministic: bool
    place: Place


def graph_bytes(folder: Path) -> tuple[int, int]:
    """Returns the size of a version's graph file and the size of its external weights, both in bytes."""
    onnx = folder / ONNX
    sizes = {file.name: file.stat().st_size for file in onnx.parent.glob(onnx.name + "*")}
    inside = sizes.pop(onnx.name, 0)
    return inside, sum(sizes.values())


def _read_unrelated(golden: Path) -> float:
    """Returns the mean cosine of unrelated texts, or 1 for a version that is not published yet.

    The texts of golden.json are about different things, in different languages and scripts.
    """
    if not golden.exists():
        return 1.0
    vectors = np.array(parse_json(golden.read_bytes())["vectors"])
    return float(np.mean((vectors @ vectors.T)[np.triu_indices(len(vectors), 1)]))


class Encoder:
    """Encodes texts with one published version. Thread-safe.

    With threads=1, the engine `OnnxEngine` computes on the calling thread.
    """

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        *,
        threads: int = 1,
        form: Form = FP32,
        callers: int = 1,
        deterministic: bool = False,
        place: Place = CPU,
    ) -> None:
        """Opens the folder of a version that was checked before.

        Args:
            folder: The folder of the version.
            manifest: The manifest of that folder.
            threads: Threads that share one call.
            form: Precision and runtime of the engine.
            callers: Number of concurrent calls that run without waiting for each other.
            deterministic: If true, a text gets a bitwise equal vector in every batch (engines/shapes.py).
            place: The CPU or a GPU.

        Raises:
            Damaged: The ONNX file has another fingerprint than the manifest.
            FormUnavailable: This machine cannot compute the form.
            DeviceUnavailable: The GPU is missing or too small.
            Unsupported: The graph cannot be computed on a GPU in this precision.
        """
        self.folder = folder
        self.manifest = manifest
        self.threads = threads
        self.dimension = manifest.dimension
        self.max_length = manifest.max_length
        self.fingerprint = manifest.fingerprint
        config = parse_json((folder / "config.json").read_bytes())
        self._pad_id = int(config.get("pad_token_id") or 0)
        self._tokenizer = own = Tokenizer(folder / TOKENIZER, manifest.max_length, config.get("vocab_size"))
        self.check_ids, self.decode = own.check_ids, own.decode
        self.pieces, self.spans = own.pieces, own.spans
        self.room, self.vocabulary = own.room, own.vocabulary
        if read_metadata(folder / ONNX).get(FINGERPRINT) != manifest.fingerprint:
            raise Damaged(manifest.version, "its ONNX file carries another fingerprint than its manifest")
        self._engine = open_engine(folder / ONNX, form, threads, callers, place, manifest.max_length)
        self.unrelated = _read_unrelated(folder / GOLDEN)
        self.turned: Turned | None = None  # Set by `check_golden` in precisions below fp32.
        self.file_bytes = sum(graph_bytes(folder))
        self.queries: Encoder | None = None  # The student of a pair.
        if manifest.query_encoder is not None:
            form = _form_of_queries(folder / QUERIES, form)
            how = How(form=form, callers=callers, deterministic=deterministic, place=place)
            self.queries = Encoder.open(folder / QUERIES, threads, **how)
        self._single_text: Engine | None = None  # Computes single texts.
        self._closed = False
        self._changing = threading.Lock()  # Guards `_single_text` and `_closed`.
        self.deterministic = deterministic
        if deterministic:
            shapes = Shapes.of(self.max_length, packed=self.packs)
            ids = [id for row in self.tokenize(PROOF_TEXTS) for id in row.ids]
            self._shapes = shapes.tried(partial(self._run, self._engine, _NORMALIZED), ids)

    @property
    def for_queries(self) -> Encoder:
        """The encoder of search queries: the student if this version is a pair, else this encoder."""
        return self.queries or self

    @property
    def packs(self) -> bool:
        """True if all layers except attention skip padding tokens.

        Padding is then cheap, so a batch can contain texts of any length.
        """
        return self.manifest.packed and self.form.runtime != "onnxruntime-cuda"

    @property
    def step(self) -> int:
        """Rows are padded to a multiple of this number of tokens, but not above `max_length`."""
        return STEPS.get(self.form.runtime, 1) if self.packs else 1

    @property
    def opens_single_text(self) -> bool:
        """True if `open_single_text` opens a second engine. Otherwise, that method does nothing."""
        return isinstance(self._engine, OnnxEngine) and not self.deterministic

    @property
    def has_single_text(self) -> bool:
        """True if the engine of `open_single_text` is open."""
        return self._single_text is not None

    def open_single_text(self, threads: int) -> None:
        """Opens a second engine for the same graph, used by `forward(…, single_text=True)`.

        The second engine takes as much memory as the graph without its word table.

        Args:
            threads: Threads that share each call.
        """
        if not isinstance(self._engine, OnnxEngine) or self.deterministic:
            return
        engine = self._engine.again(threads)
        with self._changing:
            if not self._closed and self._single_text is None:
                self._single_text = engine

    def drop_single_text(self) -> bool:
        """Drops the engine for single texts. Calls in progress finish. Returns False if it was not open."""
        with self._changing:
            engine, self._single_text = self._single_text, None
        return engine is not None

    @property
    def form(self) -> Form:
        """Precision and runtime. Together with the fingerprint, they determine the exact vectors."""
        return self._engine.form

    @property
    def providers(self) -> list[str]:
        """Names of the devices that compute, as the runtime reports them."""
        return self._engine.providers

    @classmethod
    def open(cls, folder: Path, threads: int = 1, **how: Unpack[How]) -> Encoder:
        """Opens a published folder without checking its files. Raises the errors of `Encoder`."""
        return cls(folder, Manifest.read(folder), threads=threads, **how)

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

    def forward(
        self, ids: Sequence[Sequence[int]], *, normalize: bool = True, single_text: bool = False
    ) -> NDArray[np.float32]:
        """Pads a batch, and computes its vectors, shape (n, dimension).

        Args:
            ids: Token ids of each text.
            normalize: If true, each vector is scaled to length 1.
            single_text: Whether to use the engine of `open_single_text`, if it is open. That engine is faster
                while no other call is in progress.
        """
        if not ids:
            return np.empty((0, self.dimension), dtype=np.float32)
        output = _NORMALIZED if normalize else _POOLED
        engine = (single_text and self._single_text) or self._engine
        if self.deterministic:
            return self._shapes.run(ids, partial(self._run, engine, output))
        return self._run(engine, output, ids, max(len(row) for row in ids))

    def _run(
        self, engine: Engine, output: str, ids: Sequence[Sequence[int]], length: int
    ) -> NDArray[np.float32]:
        return engine.run(self._feed(ids, length), output)[: len(ids)]

    def _feed(self, ids: Sequence[Sequence[int]], length: int) -> dict[str, NDArray[np.int64]]:
        """Builds the graph's inputs from rows of token ids.

        Rows are padded to the next multiple of `step`. In a large batch, an additional row may fill up the
        total number of tokens to such a multiple (`FILLED_ROWS`).
        """
        columns = stepped(length, self.step, self.max_length)
        missing = -sum(map(len, ids)) % self.step
        if len(ids) >= FILLED_ROWS and 0 < missing <= columns and not self.deterministic:
            ids = [*ids, [self._pad_id] * missing]
        return build_feed(ids, self._engine.inputs, columns, self._pad_id)

    def encode(self, texts: Sequence[str], *, truncate: bool = True) -> Encoded:
        """Encodes texts in groups of similar length, which saves padding.

        Raises:
            BadText: A text cannot be tokenized.
            TooLong: A text has too many tokens, and `truncate` is false.
        """
        rows = self.tokenize(texts, truncate=truncate)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for group in group_rows([len(row.ids) for row in rows], _GROUP_TOKENS):
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
        for group in group_rows([min(len(row), READ) for row in rows], _GROUP_TOKENS):
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
        """Frees the memory. The encoder cannot be used afterwards."""
        with self._changing:
            self._closed = True
            self._single_text = None
        self._engine.close()
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


def group_rows(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields groups of indices of texts with similar lengths.

    A group has at most `most` padded tokens, unless it is a single text.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > most:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
