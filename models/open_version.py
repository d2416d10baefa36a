"""Opens a published version and computes batches of rows with it. Start at `OpenVersion.forward`.

An encoder (encoder.py) computes vectors of texts. A reranker (reranker.py) computes scores of pairs of texts.
They share the engine, the shapes of batches, and what the service's batcher reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from models.engines.form import CPU, FP32, Engine, Form, Place
from models.engines.onnx import OnnxEngine
from models.engines.opening import open_engine
from models.engines.shapes import FILLED_ROWS, STEPS, Shapes, stepped
from models.errors import Damaged
from models.files.bounded import parse_json
from models.graph.file import FINGERPRINT, read_metadata
from models.manifest import ONNX, Manifest
from models.tokens.texts import PROOF_TEXTS
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Tokenizer, Tokens, build_feed

GROUP_TOKENS = 2048  # Padded tokens of a batch. Larger batches exceed the second-level cache.


class How(TypedDict, total=False):
    """Keyword arguments of `Encoder` and `Reranker`, without `threads`."""

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


class OpenVersion:
    """Computes with one published version. Thread-safe.

    With threads=1, the engine `OnnxEngine` computes on the calling thread. Subclasses name the graph's
    outputs: `NORMALIZED` and `RAW`.
    """

    NORMALIZED: ClassVar[str]
    RAW: ClassVar[str]

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
            deterministic: If true, a row gets a bitwise equal result in every batch (engines/shapes.py).
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
        self._tokenizer = own = self._open_tokenizer(folder / TOKENIZER, config.get("vocab_size"))
        self.decode, self.room, self.vocabulary = own.decode, own.room, own.vocabulary
        if read_metadata(folder / ONNX).get(FINGERPRINT) != manifest.fingerprint:
            raise Damaged(manifest.version, "its ONNX file carries another fingerprint than its manifest")
        self._engine = open_engine(folder / ONNX, form, threads, callers, place, manifest.max_length)
        self.file_bytes = sum(graph_bytes(folder))
        self._single_text: Engine | None = None  # Computes single texts.
        self._closed = False
        self._changing = threading.Lock()  # Guards `_single_text` and `_closed`.
        self.deterministic = deterministic
        if deterministic:
            shapes = Shapes.of(self.max_length, packed=self.packs)
            ids = [id for row in own.tokenize(PROOF_TEXTS) for id in row.ids]
            self._shapes = shapes.tried(partial(self._run, self._engine, self.NORMALIZED), ids)

    def _open_tokenizer(self, file: Path, vocabulary: int | None) -> Tokenizer:
        return Tokenizer(file, self.max_length, vocabulary)

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
        """Precision and runtime. Together with the fingerprint, they determine the exact results."""
        return self._engine.form

    @property
    def providers(self) -> list[str]:
        """Names of the devices that compute, as the runtime reports them."""
        return self._engine.providers

    @classmethod
    def open(cls, folder: Path, threads: int = 1, **how: Unpack[How]) -> Self:
        """Opens a published folder without checking its files. Raises the errors of the class."""
        return cls(folder, Manifest.read(folder), threads=threads, **how)

    def tokenize(
        self,
        inputs: Sequence[Any],
        *,
        truncate: bool = True,
        left: bool = False,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Tokenizes texts or pairs of texts."""
        raise NotImplementedError

    def forward(
        self, ids: Sequence[Sequence[int]], *, normalize: bool = True, single_text: bool = False
    ) -> NDArray[np.float32]:
        """Pads a batch, and computes its results, shape (n, dimension).

        Args:
            ids: Token ids of each row, as `tokenize` returns them.
            normalize: Whether an encoder scales each vector to length 1, and a reranker applies the
                activation to each score.
            single_text: Whether to use the engine of `open_single_text`, if it is open. That engine is faster
                while no other call is in progress.
        """
        if not ids:
            return np.empty((0, self.dimension), dtype=np.float32)
        output = self.NORMALIZED if normalize else self.RAW
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

    def close(self) -> None:
        """Frees the memory. The version cannot be used afterwards."""
        with self._changing:
            self._closed = True
            self._single_text = None
        self._engine.close()


def group_rows(lengths: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yields groups of indices of rows with similar lengths.

    A group has at most `most` padded tokens, unless it is a single row.
    """
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > most:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
