"""Embeds batches of texts with all processors or a GPU, without a service. Start at `BulkEmbedder`.

The vectors are those that the service computes for the same documents: the same prompt, title, passages,
precision and engine. Each worker thread takes one chunk of documents, tokenizes it, and computes it in
batches of similar length. ONNX Runtime and the tokenizer release the interpreter lock.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from models import cpus
from models.bulk.vector_files import Description, passages_type, vector_type
from models.engines.form import FP32, parse_place
from models.engines.opening import form_for
from models.errors import BadInput, ModelError
from models.manifest import read_manifest, require_kind
from models.open_version import group_rows
from models.publishing.proof import check_golden
from models.search.content import Content
from models.search.passages import Span, learned_tokens, passage_tokens, split
from models.store import ModelStore, models_dir
from models.tokens.tokenizer import Tokens

MAX_TEXT_CHARACTERS = 1 << 24
CHUNK = 1024  # Documents that a worker thread takes at most. With 512, padding was 1.1 % more.
CHUNK_CHARACTERS = 1 << 20
AHEAD = 2  # Chunks that wait for a worker or for the writer, beyond one for each worker.
GPU_WORKERS = 4  # While two use the GPU, the others tokenize.
# Padded tokens of a batch, as in service/batching/planner.py.
BATCH_TOKENS, GPU_BATCH_TOKENS = 512, 16_384

Item = TypeVar("Item")


class Embedded(NamedTuple):
    """The vectors of n documents, m of whose passages are not the first ones.

    Attributes:
        vectors: Unit vectors of the first passages, shape (n, dimension). Undefined for `errors`.
        ends: Characters of the text in the first passage; None if it is the whole text.
        truncated: Whether the passages leave out a part of the title or the text.
        counts: Number of the other passages of each document.
        spans: The other passages of all documents.
        others: Their vectors, shape (m, dimension).
        errors: Reasons why documents cannot be embedded, by position.
    """

    vectors: NDArray[np.float32]
    ends: list[int | None]
    truncated: list[bool]
    counts: list[int]
    spans: list[Span]
    others: NDArray[np.float32]
    errors: dict[int, str]

    def columns(self, *, half: bool) -> dict[str, pa.Array]:
        """Returns columns as in vector_files.py, and `error`. Vectors of documents with an error are null."""
        kind = vector_type(self.vectors.shape[1], half=half)
        mask = np.zeros(len(self.vectors), bool)
        mask[[*self.errors]] = True
        starts, ends = zip(*self.spans, strict=True) if self.spans else ((), ())
        passages = passages_type(kind)
        inner = [pa.array(starts, pa.int32()), pa.array(ends, pa.int32()), _lists(self.others, kind)]
        return {
            "vector": _lists(self.vectors, kind, mask),
            "vector_end": pa.array(self.ends, pa.int32()),
            "truncated": pa.array(self.truncated, pa.bool_()),
            "passages": pa.ListArray.from_arrays(
                pa.array([0, *accumulate(self.counts)], pa.int32()),
                pa.StructArray.from_arrays(inner, fields=list(passages.value_type)),
                type=passages,
            ),
            "error": pa.array([self.errors.get(at) for at in range(len(self.vectors))], pa.string()),
        }


class BulkEmbedder:
    """Embeds with one version. Can be pickled: the copy opens the version again.

    Calls take a batch of columns and return its columns with `vector`, `vector_end`, `truncated`, `passages`
    and `error` after them (vector_files.py), as `map_batches` of Ray and `mapInArrow` of Spark need it.

    Args:
        version: Name of the version.
        models_dir: The models folder. None: SIMILE_MODELS_DIR, or SIMILE_DATA_DIR/models.
        precision: As SIMILE_PRECISION, but `auto` measures nothing: bf16 if possible, fp16 on a GPU.
        device: As SIMILE_DEVICE.
        deterministic: As SIMILE_DETERMINISTIC.
        collection: Collection whose learned length of passages applies. None: long texts are not split.
        workers: Worker threads. 0: one for each processor.
        half: Whether calls return vectors in fp16.
        text: Column of the text, for calls.
        title: Column of the title, for calls. It may be missing.

    Raises:
        ModelError: The version cannot be opened, or this machine does not support the precision or device.
    """

    def __init__(
        self,
        version: str,
        models_dir: Path | str | None = None,
        *,
        precision: str = "fp32",
        device: str = "cpu",
        deterministic: bool = False,
        collection: str | None = "default",
        workers: int = 0,
        half: bool = False,
        text: str = "text",
        title: str = "title",
    ) -> None:
        self._options = {name: value for name, value in locals().items() if name != "self"}
        self._half, self._text, self._title = half, text, title
        place = parse_place(device)
        on_gpu = place.device == "cuda"
        self.workers = workers or (GPU_WORKERS if on_gpu else cpus.available())
        self._batch_tokens = GPU_BATCH_TOKENS if on_gpu else BATCH_TOKENS
        store = ModelStore(_default_root() if models_dir is None else Path(models_dir))
        self._encoder = encoder = store.open(
            version,
            form=form_for(precision, place),
            callers=self.workers,
            deterministic=deterministic,
            place=place,
        )
        if encoder.form != FP32:  # The vectors of other engines depend on the machine.
            check_golden(encoder, store.folder(version))
        manifest = encoder.manifest
        self.description = Description.of(manifest, str(encoder.form), collection)
        self._prompt = manifest.document_prompt
        self._split_above = None if collection is None else passage_tokens(manifest, collection)
        self._passage_tokens = learned_tokens(manifest.search.get(collection or ""))
        self._pool = ThreadPoolExecutor(self.workers, thread_name_prefix="embed")

    @staticmethod
    def describe(
        version: str,
        models_dir: Path | str | None = None,
        *,
        precision: str = "fp32",
        device: str = "cpu",
        collection: str | None = "default",
        **_: Any,
    ) -> Description:
        """Returns what vectors an embedder of these arguments computes, without opening the version.

        Raises:
            ModelError: The version is missing or damaged, or is a reranker.
        """
        store = ModelStore(_default_root() if models_dir is None else Path(models_dir))
        manifest = require_kind(read_manifest(store.folder(version)), "encoder")
        return Description.of(manifest, str(form_for(precision, parse_place(device))), collection)

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._options,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._encoder.close()

    def __call__(self, batch: Mapping[str, Any] | pa.Table | pa.RecordBatch) -> pa.Table:
        """Embeds the rows of a batch.

        Args:
            batch: Columns as Arrow arrays, numpy arrays or lists.

        Returns:
            The batch with the columns of the vectors. `error` is null, or says why a row has no vector.

        Raises:
            ModelError: The column of the text is missing, or the engine fails.
        """
        table = _as_table(batch)
        if self._text not in table.column_names:
            raise ModelError(f"The batch has no column {self._text!r}; it has {table.column_names}.")
        texts = table[self._text].cast(pa.string()).to_pylist()
        titled = self._title in table.column_names
        titles = table[self._title].cast(pa.string()).to_pylist() if titled else [None] * len(texts)
        contents = [
            Content(text, title or "") if text else Content(title or "")  # A title alone becomes the text.
            for text, title in zip(texts, titles, strict=True)
        ]
        chunks = chunked(contents, min(CHUNK, -(-len(contents) // self.workers)))
        pieces = [embedded.columns(half=self._half) for _, embedded in self.map(chunks, list)]
        if not pieces:
            pieces = [self.embed([]).columns(half=self._half)]
        for name in pieces[0]:
            table = table.append_column(name, pa.chunked_array([piece[name] for piece in pieces]))
        return table

    def map(
        self, items: Iterable[Item], contents: Callable[[Item], Sequence[Content]]
    ) -> Iterator[tuple[Item, Embedded]]:
        """Yields each item with its vectors, in order. Reads few items ahead, so memory does not grow.

        Args:
            items: Chunks of documents, and whatever belongs to them.
            contents: Returns the documents of an item.
        """
        waiting: deque[tuple[Item, Future[Embedded]]] = deque()
        try:
            for item in items:
                waiting.append((item, self._pool.submit(self.embed, contents(item))))
                if len(waiting) >= self.workers + AHEAD:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()

    def embed(self, contents: Sequence[Content]) -> Embedded:
        """Embeds documents on the calling thread. Thread-safe.

        Raises:
            Exception: The engine fails on every text.
        """
        errors = {at: reason for at, content in enumerate(contents) if (reason := find_fault(content))}
        # The first passages of all documents come before the other passages.
        texts = [self._prompt + content.whole for content in contents]
        rows = self._tokenize(texts, errors)
        owners = [*range(len(contents))]
        ends: list[int | None] = [None] * len(contents)
        truncated = [row is not None and row.truncated for row in rows]
        counts, spans = [0] * len(contents), list[Span]()
        for at, row in enumerate(rows):
            above = self._split_above
            if row is None or above is None or not (row.truncated or len(row.ids) > above):
                continue
            content = contents[at]
            where = split(content, self._encoder, self._prompt, length=self._passage_tokens)
            if where is None:
                continue
            ends[at], truncated[at], counts[at] = where.head.end, not where.complete, len(where.others)
            spans += where.others
            owners += [at] * len(where.others)
            texts += [self._prompt + where.lead + content.text[slice(*span)] for span in where.others]
        rows += self._tokenize(texts[len(contents) :], errors, owners[len(contents) :])
        vectors = self._forward(rows, owners, errors)
        count = len(contents)
        return Embedded(vectors[:count], ends, truncated, counts, spans, vectors[count:], errors)

    def _tokenize(
        self, texts: Sequence[str], errors: dict[int, str], owners: Sequence[int] | None = None
    ) -> list[Tokens | None]:
        """Tokenizes texts. Adds reasons to `errors`, at the owner's position.

        Returns:
            The tokens of each text; None if its owner has an error.
        """
        owners = range(len(texts)) if owners is None else owners
        good = [at for at, owner in enumerate(owners) if owner not in errors]
        found: list[Tokens | None] = [None] * len(texts)
        try:
            tokens = self._encoder.tokenize([texts[at] for at in good])
        except Exception as error:  # noqa: BLE001  the tokenizers library raises nothing narrower
            if len(texts) == 1:
                errors[owners[0]] = _explain(error, "the tokenizer failed")
                return found
            for at in good:
                found[at] = self._tokenize([texts[at]], errors, [owners[at]])[0]
            return found
        for at, row in zip(good, tokens, strict=True):
            if row.ids:
                found[at] = row
            else:
                errors[owners[at]] = "the model's tokenizer finds no tokens in the text"
        return found

    def _forward(
        self, rows: Sequence[Tokens | None], owners: Sequence[int], errors: dict[int, str]
    ) -> NDArray[np.float32]:
        """Computes the vectors of rows, shape (rows, dimension). Adds reasons to `errors`."""
        vectors = np.zeros((len(rows), self._encoder.dimension), np.float32)
        ids = [row.ids if row is not None and owners[at] not in errors else () for at, row in enumerate(rows)]
        computed = [at for at, row in enumerate(ids) if row]
        for group in group_rows([len(ids[at]) for at in computed], self._batch_tokens):
            places = [computed[at] for at in group]
            try:
                vectors[places] = self._encoder.forward([ids[at] for at in places])
            except Exception:  # noqa: BLE001  a runtime may raise anything
                self._forward_singly(places, ids, vectors, owners, errors)
        for at in np.flatnonzero(~np.isfinite(vectors).all(axis=1)):
            errors[owners[int(at)]] = "the model gave a NaN or an infinity for the text"
        return vectors

    def _forward_singly(
        self,
        places: Sequence[int],
        ids: Sequence[Sequence[int]],
        vectors: NDArray[np.float32],
        owners: Sequence[int],
        errors: dict[int, str],
    ) -> None:
        """Computes the rows of a failed batch one by one. Raises the error of the last row if all fail."""
        failed = 0
        for at in places:
            try:
                vectors[at] = self._encoder.forward([ids[at]])[0]
            except Exception as error:
                failed += 1
                if failed == len(places):
                    raise
                errors[owners[at]] = _explain(error, "the model failed on the text")


def find_fault(content: Content) -> str:
    """Returns the reason why the service does not store a document, or an empty text."""
    if not content.text or content.text.isspace():
        return "the text is empty"
    if content.title.isspace():
        return "the title is white space only"
    if "\0" in content.text or "\0" in content.title:
        return "it holds a NUL character (U+0000). Take it out"
    if len(content.text) + len(content.title) > MAX_TEXT_CHARACTERS:
        return f"it has more than {MAX_TEXT_CHARACTERS:,} characters. Split the document"
    return ""


def chunked(contents: Iterable[Content], most: int) -> Iterator[list[Content]]:
    """Yields chunks of at most `most` documents that worker threads take."""
    chunk, characters = list[Content](), 0
    for content in contents:
        chunk.append(content)
        characters += len(content.text)
        if len(chunk) == most or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _explain(error: Exception, what: str) -> str:
    return str(error) if isinstance(error, BadInput) else f"{what}: {type(error).__name__}: {error}"


def _again(options: dict[str, Any]) -> BulkEmbedder:
    return BulkEmbedder(**options)


def _default_root() -> Path:
    return models_dir(os.environ)


def _as_table(batch: Mapping[str, Any] | pa.Table | pa.RecordBatch) -> pa.Table:
    if isinstance(batch, pa.Table):
        return batch
    if isinstance(batch, pa.RecordBatch):
        return pa.Table.from_batches([batch])
    return pa.table(dict(batch))


def _lists(
    vectors: NDArray[np.float32], kind: pa.DataType, mask: NDArray[np.bool_] | None = None
) -> pa.Array:
    numbers = np.ascontiguousarray(vectors, np.float16 if kind.value_type == pa.float16() else np.float32)
    masked = None if mask is None or not mask.any() else pa.array(mask)
    return pa.FixedSizeListArray.from_arrays(pa.array(numbers.ravel()), type=kind, mask=masked)
