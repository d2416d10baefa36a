"""Encoder: a published folder, opened. Text in, vectors out: tokenizer.json, and an engine for the graph.

    texts ─▶ tokenize ─▶ ids ─▶ forward (one padded batch) ─▶ float32 (n, dimension)

`encode` does both for offline use. Not here: whether the folder is whole and unchanged (store.py), batching
of concurrent callers, prompts, cutting to fewer dimensions.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from models.engines.deterministic import Shapes
from models.engines.engine import Engine
from models.engines.form import FP32, Form
from models.engines.onnx import OnnxEngine
from models.engines.opening import INT8, INT8_NAME, open_engine
from models.engines.place import CPU, Place
from models.engines.shapes import STEPS, stepped
from models.errors import BadInput, BadText, BadTokens, Damaged, TooLong
from models.files.bounded import parse_json
from models.graph.file import FINGERPRINT, read_metadata
from models.manifest import QUERIES, Manifest
from models.tokens.texts import PROOF_TEXTS
from models.tokens.tokenizer import FILE_NAME as TOKENIZER
from models.tokens.tokenizer import Piece, Tokenizer, Tokens

__all__ = ["BadInput", "BadText", "BadTokens", "Encoded", "Encoder", "Piece", "Tokens", "TooLong", "Turned"]

ONNX = "onnx/model.onnx"
_GROUP_TOKENS = 2048  # padded tokens of one forward: larger batches fall out of the second-level cache
_NORMALISED, _POOLED = "sentence_embedding", "pooled_embedding"


class Encoded(NamedTuple):
    vectors: NDArray[np.float32]  # (n, dimension), of length 1 when normalised
    tokens: list[int]  # of each text, special ones included
    truncated: list[bool]


class Turned(NamedTuple):
    """Cosines of an encoder's vectors to those that the version was published with, which are fp32's."""

    texts: int
    mean: float
    least: float


class How(TypedDict, total=False):
    """Options of an `Encoder` beside its threads; its constructor has their meaning and defaults."""

    form: Form
    callers: int
    deterministic: bool
    place: Place


def graph_bytes(folder: Path) -> tuple[int, int]:
    """Bytes of a version's graph, and of the weights that lie in a file of their own. Raise OSError."""
    onnx = folder / ONNX
    sizes = {file.name: file.stat().st_size for file in onnx.parent.glob(onnx.name + "*")}
    inside = sizes.pop(onnx.name, 0)
    return inside, sum(sizes.values())


class Encoder:
    """Thread safe: with threads=1 each call computes on the thread that makes it, in fp32."""

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
        """Open what was checked.

        Args:
            folder: a published version.
            manifest: of it.
            threads: how many compute one call together.
            form: in which precision, by which runtime.
            callers: how many threads will compute at once without waiting for each other.
            deterministic: the same text gives the same bits in any batch (deterministic.py).
            place: which GPU, for a form of one.

        Raises:
            Damaged: its ONNX file is of another space.
            FormUnavailable: this machine cannot compute the form.
            DeviceUnavailable: there is no such GPU, or it is too small.

        """
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
        self.turned: Turned | None = None  # until proof.py has looked at a form of less precision than fp32
        self.file_bytes = sum(graph_bytes(folder))
        self.queries: Encoder | None = None  # of a pair: the student that encodes its queries
        if manifest.query_encoder is not None:
            form = _form_of_queries(folder / QUERIES, form)
            how = How(form=form, callers=callers, deterministic=deterministic, place=place)
            self.queries = Encoder.open(folder / QUERIES, threads, **how)
        self._alone: Engine | None = None  # for one text at a time
        self._closed = False
        self._changing = threading.Lock()  # guards these two
        self.deterministic = deterministic
        if deterministic:
            shapes = Shapes.of(self.max_length, packed=self.packs)
            ids = [id for row in self.tokenize(PROOF_TEXTS) for id in row.ids]
            self._shapes = shapes.tried(partial(self._run, self._engine, _NORMALISED), ids)

    @property
    def for_queries(self) -> Encoder:
        """The encoder of what a search looks for: of a pair the student's, else this one."""
        return self.queries or self

    @property
    def packs(self) -> bool:
        """True if texts of any lengths may share a batch: padding costs attention only."""
        return self.manifest.packed and self.form.runtime != "onnxruntime-cuda"

    @property
    def step(self) -> int:
        """Batches are padded to lengths that are multiples of this."""
        return STEPS.get(self.form.runtime, 1) if self.packs else 1

    @property
    def opens_alone(self) -> bool:
        """True if `open_alone` does anything."""
        return isinstance(self._engine, OnnxEngine) and not self.deterministic

    @property
    def has_alone(self) -> bool:
        """True if `open_alone` has been done, and nothing dropped it since."""
        return self._alone is not None

    def open_alone(self, threads: int) -> None:
        """Open the graph once more, for `forward(…, alone=True)`, which `threads` then compute together.

        It takes as much memory as the graph without its vocabulary. Any thread may call it, at any time.
        """
        if not isinstance(self._engine, OnnxEngine) or self.deterministic:
            return
        engine = self._engine.again(threads)
        with self._changing:
            if not self._closed and self._alone is None:
                self._alone = engine

    def drop_alone(self) -> bool:
        """Free what `open_alone` has opened, if it has; whether it had. Calls in it end as they would."""
        with self._changing:
            engine, self._alone = self._alone, None
        return engine is not None

    @property
    def form(self) -> Form:
        """Beside the fingerprint: which numbers exactly these vectors are."""
        return self._engine.form

    @property
    def providers(self) -> list[str]:
        """The devices that compute, in the runtime's own words."""
        return self._engine.providers

    @classmethod
    def open(cls, folder: Path, threads: int = 1, **how: Unpack[How]) -> Encoder:
        """Open a published folder as it is; `Store.open` checks it first."""
        return cls(folder, Manifest.read(folder), threads=threads, **how)

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        truncate: bool = True,
        left: bool = False,
        wanted: Callable[[], bool] = lambda: True,
    ) -> list[Tokens]:
        """Raise BadText, or TooLong when `truncate` is false and a text has more than `max_length` tokens.

        left: drop tokens from the start of a long text rather than from its end.
        wanted: asked before each piece of a long text; once it is false the answer means nothing.
        """
        return self._tokenizer.tokenize(texts, truncate, left, wanted)

    def forward(
        self, ids: Sequence[Sequence[int]], *, normalize: bool = True, alone: bool = False
    ) -> NDArray[np.float32]:
        """Compute a batch, padded to its longest row -> (n, dimension); of fixed shapes where deterministic.

        alone: nothing else is computed meanwhile, so take the threads that `open_alone` was given.
        """
        if not ids:
            return np.empty((0, self.dimension), dtype=np.float32)
        output = _NORMALISED if normalize else _POOLED
        engine = (alone and self._alone) or self._engine
        if self.deterministic:
            return self._shapes.run(ids, partial(self._run, engine, output))
        return self._run(engine, output, ids, max(len(row) for row in ids))

    def _run(
        self, engine: Engine, output: str, ids: Sequence[Sequence[int]], length: int
    ) -> NDArray[np.float32]:
        return engine.run(self._feed(ids, length), output)

    def _feed(self, ids: Sequence[Sequence[int]], length: int) -> dict[str, NDArray[np.int64]]:
        """The graph's inputs: rows padded to `length`, or to the next that is a multiple of `step`."""
        shape = (len(ids), stepped(length, self.step, self.max_length))
        padded = np.full(shape, self._pad_id, dtype=np.int64)
        mask = np.zeros(shape, dtype=np.int64)
        for row, row_ids in enumerate(ids):
            padded[row, : len(row_ids)] = row_ids
            mask[row, : len(row_ids)] = 1
        feed = {"input_ids": padded, "attention_mask": mask}
        if "token_type_ids" in self._engine.inputs:
            feed["token_type_ids"] = np.zeros(shape, dtype=np.int64)
        return feed

    def encode(self, texts: Sequence[str], *, truncate: bool = True) -> Encoded:
        """Vectors in the order of `texts`; computed in groups of similar length, so little is padding."""
        rows = self.tokenize(texts, truncate=truncate)
        vectors = np.empty((len(rows), self.dimension), dtype=np.float32)
        for group in _groups([len(row.ids) for row in rows]):
            vectors[group] = self.forward([rows[i].ids for i in group])
        return Encoded(vectors, [len(row.ids) for row in rows], [row.truncated for row in rows])

    def close(self) -> None:
        """Free the engine's memory; the encoder cannot be used afterwards."""
        with self._changing:
            self._closed = True
            self._alone = None
        self._engine.close()
        if self.queries is not None:
            self.queries.close()


def _form_of_queries(folder: Path, form: Form) -> Form:
    """Return `form`, or fp32 where that is int8 and the student has none: a table of tokens loses nothing."""
    return FP32 if form == INT8 and not (folder / ONNX).with_name(INT8_NAME).is_file() else form


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indices sorted by length, in groups whose padded size stays within the budget."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > _GROUP_TOKENS:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
