"""Parquet files with documents and their vectors. Start at `VectorFile` to read, at `build_schema` to write.

A row is a document. `simile embed` writes a folder of such files, the parts, and `simile
import --vectors` reads it:

    id          string
    title       string                        empty: no title; absent with --no-text
    text        string                        absent with --no-text
    vector      float32 or float16, fixed     unit vector of the first passage
    vector_end  int32                         characters of the text in that passage; null: the whole text
    truncated   bool                          the passages leave out a part of the title or the text
    passages    list of start, end, vector    the other passages of a long text
    …           other columns of the input    `metadata` of JSON lines: a string with a JSON object

The schema's metadata describes the vectors (`Description`). A part carries checksums of its pages, and its
footer is written last, so a file that was cut off cannot be opened.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from models.errors import ModelError
from models.manifest import Manifest
from models.search.passages import learned_tokens

FORMAT = 1
JOB, DONE = "job.json", "done.json"  # What the job is, and the counts of a complete job.
OWN = ("id", "title", "text", "vector", "vector_end", "truncated", "passages")
METADATA = "metadata"  # The other fields of JSON lines, as a string with a JSON object.
UNSPLIT, DEFAULT = "none", "default"  # Values of `Description.passages`.
_PREFIX = "simile."
_CREDENTIALS = re.compile(r"://[^@]*:[^@]*@")
_ONE_SLASH = re.compile(r"[a-z][a-z0-9+.-]+:/(?!/)")
_LENGTH_ERROR = 0.01  # fp16 rounds each component by at most 2^-11 of its size.


class VectorFileError(ModelError):
    """Raised if a file does not hold the vectors that it should. The message names the file."""


@dataclass(frozen=True, slots=True)
class Description:
    """Describes how vectors were computed. Vectors are interchangeable if all but `version` are equal.

    Attributes:
        version: Name of the version.
        fingerprint: Fingerprint of the version.
        precision: Precision and engine, such as `fp32/onnxruntime`.
        dimension: Numbers in a vector.
        prompt: The prompt of documents.
        passages: Tokens of a passage that a collection learned, `default`, or `none` if long texts are not
            split.
    """

    version: str
    fingerprint: str
    precision: str
    dimension: int
    prompt: str
    passages: str

    @classmethod
    def of(cls, manifest: Manifest, precision: str, collection: str | None) -> Self:
        """Describes the vectors of a version.

        Args:
            manifest: The manifest of the version.
            precision: Precision and engine.
            collection: Collection whose learned length of passages applies; None if texts are not split.
        """
        if collection is None:
            passages = UNSPLIT
        else:
            passages = str(learned_tokens(manifest.search.get(collection)) or DEFAULT)
        return cls(
            manifest.version,
            manifest.fingerprint,
            precision,
            manifest.dimension,
            manifest.document_prompt,
            passages,
        )

    def metadata(self) -> dict[str, str]:
        """Returns the metadata of a part's schema."""
        found = {"format": str(FORMAT)} | {name: str(value) for name, value in asdict(self).items()}
        return {_PREFIX + name: value for name, value in found.items()}

    @classmethod
    def read(cls, metadata: Mapping[bytes, bytes] | None, file: str) -> Self:
        """Reads the metadata of a part's schema.

        Raises:
            VectorFileError: The file has another format, or a newer version of it.
        """
        found = {name.decode(): value.decode(errors="replace") for name, value in (metadata or {}).items()}
        number = found.get(f"{_PREFIX}format")
        if number is None:
            raise VectorFileError(
                f"{file} was not written by `simile embed`, so its vectors are of an unknown "
                "model. Import it without --vectors."
            )
        if number != str(FORMAT):
            raise VectorFileError(
                f"{file} has format {number[:20]}, and this release reads format {FORMAT}. Read it with the "
                "release that wrote it, or a newer one."
            )
        try:
            values = {name: found[_PREFIX + name] for name in cls.__dataclass_fields__}
            return cls(**values | {"dimension": int(values["dimension"])})  # type: ignore[arg-type]
        except (KeyError, ValueError) as error:
            raise VectorFileError(f"{file} is damaged: its metadata lacks or garbles {error}.") from error


def vector_type(dimension: int, *, half: bool) -> pa.DataType:
    """Returns the type of a vector: fp32, or fp16 if `half`."""
    number = pa.float16() if half else pa.float32()
    return pa.list_(pa.field("element", number, nullable=False), dimension)


def passages_type(vector: pa.DataType) -> pa.DataType:
    fields = [
        pa.field("start", pa.int32(), nullable=False),
        pa.field("end", pa.int32(), nullable=False),
        pa.field("vector", vector, nullable=False),
    ]
    return pa.list_(pa.field("element", pa.struct(fields), nullable=False))


def build_schema(
    description: Description,
    *,
    half: bool = False,
    with_text: bool = True,
    others: Sequence[pa.Field] = (),
    notes: Mapping[str, str] | None = None,
) -> pa.Schema:
    """Returns the schema of a part.

    Args:
        description: How its vectors are computed.
        half: Whether vectors are stored in fp16.
        with_text: Whether titles and texts are stored.
        others: Other columns.
        notes: Metadata of the job, without the prefix.
    """
    vector = vector_type(description.dimension, half=half)
    fields = [
        pa.field("id", pa.string(), nullable=False),
        *([pa.field(name, pa.string(), nullable=False) for name in ("title", "text")] if with_text else []),
        pa.field("vector", vector, nullable=False),
        pa.field("vector_end", pa.int32()),
        pa.field("truncated", pa.bool_(), nullable=False),
        pa.field("passages", passages_type(vector), nullable=False),
        *others,
    ]
    noted = {_PREFIX + name: value for name, value in (notes or {}).items()}
    return pa.schema(fields, metadata=description.metadata() | noted)


class Rows(NamedTuple):
    """Some documents of a file. Vectors are float32 unit vectors.

    Attributes:
        vectors: Vectors of the first passages, shape (n, dimension).
        ends: Characters of the text in each first passage; None if it is the whole text.
        offsets: Document i has the other passages `offsets[i]` to `offsets[i + 1]`, shape (n + 1).
        spans: Start and end of the other passages of all documents in characters, shape (m, 2).
        other_vectors: Their vectors, shape (m, dimension).
        others: Other columns, as a table of n rows.
    """

    ids: list[str]
    titles: list[str]
    texts: list[str]
    vectors: NDArray[np.float32]
    ends: list[int | None]
    truncated: list[bool]
    offsets: NDArray[np.int64]
    spans: NDArray[np.int64]
    other_vectors: NDArray[np.float32]
    others: pa.RecordBatch


class VectorFile:
    """An opened part.

    Args:
        path: Path in `system`.
        system: File system; None for local files.

    Raises:
        VectorFileError: The file was cut off, is damaged, or has another format.
    """

    def __init__(self, path: str, system: fs.FileSystem | None = None) -> None:
        self.path = path
        try:
            self._file = pq.ParquetFile(path, filesystem=system, page_checksum_verification=True)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise VectorFileError(f"{path} is not a whole Parquet file ({_first(error)}).") from error
        self.schema = self._file.schema_arrow
        self.description = Description.read(self.schema.metadata, path)
        self.rows: int = self._file.metadata.num_rows
        dimension = self.description.dimension
        vector = self._type("vector")
        if vector not in {vector_type(dimension, half=half) for half in (False, True)}:
            raise VectorFileError(
                f"{path}: the column vector has the type {vector}, and the metadata say {dimension} numbers."
            )
        if self._type("passages") != passages_type(vector):
            raise VectorFileError(f"{path}: the column passages has the type {self._type('passages')}.")
        self.half = vector.value_type == pa.float16()

    @property
    def has_text(self) -> bool:
        return "text" in self.schema.names

    @property
    def others(self) -> list[str]:
        """Names of the other columns."""
        return [name for name in self.schema.names if name not in OWN]

    def note(self, name: str) -> str | None:
        """Returns the job's metadata of this name."""
        found: bytes | None = self._file.metadata.metadata.get((_PREFIX + name).encode())
        return None if found is None else found.decode()

    def check(self) -> None:
        """Reads all vectors, without the other columns.

        Raises:
            VectorFileError: A page is damaged, or a vector is not finite or has another length than 1.
        """
        for batch in self._batches(4096, ["id", "vector", "passages"]):
            self._check(_numbers(batch["vector"]), batch["id"])
            inner = batch["passages"].flatten()
            self._check(_numbers(inner.field("vector")), None)

    def batches(self, size: int = 1024) -> Iterator[Rows]:
        """Yields the documents in order, at most `size` together.

        Raises:
            VectorFileError: As `check`, or the file has no texts.
        """
        if not self.has_text:
            raise VectorFileError(
                f"{self.path} has no texts. Embed again without --no-text to import the documents."
            )
        at = 0
        for batch in self._batches(size):
            passages = batch["passages"]
            inner = passages.flatten()
            offsets = np.asarray(passages.offsets, np.int64)
            spans = [np.asarray(inner.field(name), np.int64) for name in ("start", "end")]
            rows = Rows(
                batch["id"].to_pylist(),
                batch["title"].to_pylist(),
                batch["text"].to_pylist(),
                _numbers(batch["vector"]),
                batch["vector_end"].to_pylist(),
                batch["truncated"].to_pylist(),
                offsets - offsets[0],
                np.stack(spans, axis=1),
                _numbers(inner.field("vector")),
                batch.select(self.others),
            )
            self._check(rows.vectors, batch["id"])
            self._check(rows.other_vectors, None)
            at += len(rows.ids)
            yield rows

    def _batches(self, size: int, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._file.iter_batches(size, columns=columns)
        except (OSError, pa.ArrowInvalid) as error:  # Arrow reports a wrong checksum as an OSError.
            raise VectorFileError(f"{self.path} is damaged ({_first(error)}).") from error

    def _check(self, vectors: NDArray[np.float32], ids: pa.Array | None) -> None:
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
        wrong = ~(np.abs(lengths - 1) <= _LENGTH_ERROR)  # NaN is wrong, too.
        if wrong.any():
            at = int(np.argmax(wrong))
            where = "a passage" if ids is None else f"the document {ids[at].as_py()[:80]!r}"
            what = f"has length {lengths[at]:.3g}" if np.isfinite(lengths[at]) else "is not finite"
            raise VectorFileError(f"{self.path}: the vector of {where} {what}, and must have length 1.")

    def _type(self, name: str) -> pa.DataType:
        try:
            return self.schema.field(name).type
        except KeyError:
            raise VectorFileError(f"{self.path} has no column {name}.") from None


def open_folder(place: str) -> list[VectorFile]:
    """Opens the parts of a complete job in the order of the input, or a single part.

    Args:
        place: A folder or a file, local or as `s3://` or `gs://`.

    Raises:
        VectorFileError: The job is not complete, or a part is missing, damaged or of other vectors.
    """
    system, path = resolve(place)
    found = system.get_file_info(path)
    if found.type == fs.FileType.NotFound:
        raise VectorFileError(f"{shown(place)} does not exist.")
    if found.type == fs.FileType.File:
        return [VectorFile(path, system)]
    done = read_json(system, f"{path}/{DONE}")
    if done is None:
        raise VectorFileError(
            f"{shown(place)} is not complete: it has no {DONE}. Run the command `simile embed` "
            "again, which continues the job."
        )
    parts = [VectorFile(f"{path}/{name}", system) for name in part_names(system, path)]
    counted = {"parts": len(parts), "documents": sum(part.rows for part in parts)}
    said = {name: done.get(name) for name in counted} if isinstance(done, dict) else {}
    if counted != said:
        raise VectorFileError(
            f"{shown(place)} has {counted}, and its {DONE} says {said}. Embed again into an empty folder."
        )
    for part in parts[1:]:
        if part.description != parts[0].description:
            raise VectorFileError(f"{part.path} has vectors of another model than {parts[0].path}.")
        if part.note("job") != parts[0].note("job"):
            raise VectorFileError(
                f"{part.path} is of another job than {parts[0].path}. Embed again into an empty folder."
            )
    return parts


def resolve(place: str) -> tuple[fs.FileSystem, str]:
    """Returns the file system of a place, and the path in it. Places without a scheme are local.

    Raises:
        VectorFileError: The scheme is unknown.
    """
    if "://" not in place:
        return fs.LocalFileSystem(), absolute(place)
    try:
        system, path = fs.FileSystem.from_uri(place)
    except pa.ArrowInvalid as error:
        raise VectorFileError(f"{shown(place)}: {shown(_first(error))}.") from error
    return system, path.rstrip("/")


def absolute(place: str) -> str:
    """Returns a place that is the same in every folder.

    Raises:
        VectorFileError: A slash of the scheme is missing, as in `s3:/bucket`.
    """
    if _ONE_SLASH.match(place):
        raise VectorFileError(
            f"A place has one slash after its scheme. Write {shown(place.replace(':/', '://', 1))}"
        )
    return place if "://" in place else str(Path(place).expanduser().resolve())


def shown(place: str) -> str:
    """Returns a place for messages, without credentials such as `s3://KEY:SECRET@bucket`."""
    return _CREDENTIALS.sub("://", place)


def part_names(system: fs.FileSystem, folder: str) -> list[str]:
    """Returns the names of the finished parts in a folder, in the order of the input."""
    found = system.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return sorted(
        info.base_name
        for info in found
        if info.base_name.startswith("part-") and info.base_name.endswith(".parquet")
    )


def read_json(system: fs.FileSystem, path: str) -> Any:
    """Reads a small JSON file. Returns None if it does not exist.

    Raises:
        VectorFileError: The file is damaged.
    """
    if system.get_file_info(path).type != fs.FileType.File:
        return None
    with system.open_input_stream(path) as stream:
        content = stream.read()
    try:
        return json.loads(content)
    except ValueError as error:
        raise VectorFileError(f"{path} is damaged. Embed again into an empty folder.") from error


def _numbers(vectors: pa.Array) -> NDArray[np.float32]:
    """Returns fixed-size lists as an array of shape (n, dimension)."""
    numbers: NDArray[np.float32] = vectors.flatten().to_numpy(zero_copy_only=False).astype(np.float32)
    return numbers.reshape(-1, vectors.type.list_size)


def _first(error: BaseException) -> str:
    return str(error).split("\n", 1)[0].rstrip(".")[:200]
