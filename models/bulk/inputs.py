"""Reads Parquet, JSON lines and CSV in chunks of documents. Start at `find_inputs` and `read`.

    Parquet      a part for each row group; large row groups are cut into several
    JSON lines   a part for each `part_rows` rows of the file
    CSV, TSV     the same; every column is text

Files are local, or in `s3://` or `gs://`. A name may end with .gz, .bz2 or .zst. A row that is not a document
becomes a reject with a reason, so every row of the input is in a part or in its rejects.
"""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE, lookup
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, filterfalse, islice
from typing import Any, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from models.bulk.embedder import CHUNK, CHUNK_CHARACTERS, find_fault
from models.bulk.vector_files import METADATA, OWN, VectorFileError, resolve, shown
from models.errors import ModelError
from models.files import exact_json
from models.files.lines import MARK, MAX_LINE_BYTES, BadRow, Record, Records, TextLine, TextLines, is_blank
from models.messages import amount, did_you_mean
from models.search.content import Content, derived_id

MAX_ID_CHARACTERS = 512  # As in service/api/openapi.py.
_IDS = ("id", "_id")  # As in service/files/columns.py.
_TITLE = "title"
_EXPORTED = {"id", "title", "text", "metadata", "collection"}  # Fields of a line of an export.
_KINDS = {".parquet": "parquet", ".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".tsv": "tsv"}
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_READ_BYTES = 1 << 16
_BUFFER_BYTES = 1 << 20
_OPENED_TOGETHER = 16
_SHOWN_CHARACTERS = 200
_UTF16 = (BOM_UTF16_LE, BOM_UTF16_BE)


class InputError(ModelError):
    """Raised if an input cannot be read. The message names the file."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are read.

    Attributes:
        text: Column of the text.
        title: Column of the title. None: `title`, if it exists. Empty: no title.
        id: Column of the id. None: `id` or `_id`, if one exists. Empty: ids are derived from the text.
        others: Other columns to keep. None: all. Empty: of JSON lines, the object `metadata`.
    """

    text: str = "text"
    title: str | None = None
    id: str | None = None
    others: tuple[str, ...] | None = ()

    def id_column(self, names: Collection[str]) -> str:
        return next((name for name in _IDS if name in names), "") if self.id is None else self.id

    def title_column(self, names: Collection[str]) -> str:
        if self.title is not None:
            return self.title
        return _TITLE if _TITLE in names and self.text != _TITLE else ""

    def kept(self, names: Collection[str]) -> list[str]:
        """Returns the names of the other columns to keep, in their order."""
        used = {self.text, self.title_column(names), self.id_column(names)}
        return [name for name in names if name not in used and (self.others is None or name in self.others)]

    def check(self, names: Collection[str], file: str) -> None:
        """Checks the columns of a table.

        Raises:
            InputError: A column is missing, or has the name of a column of the results.
        """
        for name in filter(None, (self.text, self.title, self.id, *(self.others or ()))):
            if name not in names:
                raise InputError(
                    f"{file} has no column {name!r}; it has {', '.join(map(str, names))[:500]}."
                    f"{did_you_mean(name, names)} Choose with --text, --title, --id and --columns."
                )
        for name in self.kept(names):
            if name in OWN:
                raise InputError(
                    f"{file}: the column {name!r} would collide with a column of the results. Rename it, or "
                    "choose the columns to keep with --columns."
                )


@dataclass(frozen=True, slots=True)
class Input:
    """A file to embed.

    Attributes:
        number: Number of the file, which names its parts.
        path: The file in the file system of the inputs.
        kind: parquet, jsonl, csv or tsv.
        size: Size in bytes.
        changed: Time of the last change in nanoseconds.
        groups: Rows of each row group of a Parquet file.
    """

    number: int
    path: str
    kind: str
    size: int
    changed: int
    groups: tuple[int, ...] = ()

    @property
    def work(self) -> int:
        """Units of work, as in `Chunk`."""
        return sum(self.groups) if self.kind == "parquet" else self.size


@dataclass(frozen=True, slots=True)
class Reading:
    """How inputs are read.

    Attributes:
        columns: The columns.
        part_rows: Largest number of rows in a part.
        encoding: Encoding of text files.
        delimiter: Separator of CSV. Empty: a comma, or a tab in TSV.
    """

    columns: Columns = field(default_factory=Columns)
    part_rows: int = 100_000
    encoding: str = "utf-8"
    delimiter: str = ""


class Reject(NamedTuple):
    """A row that is not a document. `row` counts from 1, or is the number of a line in a text file."""

    row: int
    reason: str
    start: str  # The start of the row, or empty.


@dataclass(slots=True)
class Chunk:
    """Some documents of a part, in order.

    Attributes:
        part: Name of the part.
        ids: Ids of the documents.
        contents: Titles and texts.
        places: Rows of the documents, as in `Reject`.
        others: Kept columns of the documents, by name.
        rejects: Rows that are not documents.
        last: Whether the part ends here. Such a chunk is empty.
        work: Finished units of work: rows of Parquet, or bytes of a text file.
    """

    part: str
    ids: list[str] = field(default_factory=list)
    contents: list[Content] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    others: dict[str, pa.Array] = field(default_factory=dict)
    rejects: list[Reject] = field(default_factory=list)
    last: bool = False
    work: int = 0

    @property
    def rows(self) -> int:
        return len(self.ids) + len(self.rejects)


class Work(NamedTuple):
    """A unit that one worker reads: a piece of a row group, or a whole text file."""

    input: Input
    group: int = 0
    piece: int = 0

    @property
    def part(self) -> str | None:
        """Name of its part, or None for a text file, whose parts are known after reading it."""
        known = self.input.kind == "parquet"
        return part_name(self.input.number, self.group, self.piece) if known else None


Skip: TypeAlias = Callable[[str], bool]  # Whether a part is complete.


def find_inputs(place: str, columns: Columns) -> list[Input]:
    """Lists the files of a place: one file, or all files in a folder and its subfolders, sorted by path.

    Raises:
        InputError: There is no file, or one of them cannot be read.
    """
    try:
        system, path = resolve(place)
    except VectorFileError as error:
        raise InputError(str(error)) from error
    info = system.get_file_info(path)
    if info.type == fs.FileType.NotFound:
        raise InputError(f"{shown(place)} does not exist.")
    if info.type == fs.FileType.File:
        infos, kinds = [info], [_kind(path)]
        if not kinds[0]:
            raise InputError(f"{shown(place)} is not {', '.join(_KINDS)}. Convert it, or rename it.")
    else:
        found = system.get_file_info(fs.FileSelector(path, recursive=True))
        infos = sorted(
            (each for each in found if each.type == fs.FileType.File and _kind(each.path)),
            key=lambda each: each.path,
        )
        if not infos:
            raise InputError(f"{shown(place)} has no file that ends with {', '.join(_KINDS)}.")
    with ThreadPoolExecutor(_OPENED_TOGETHER) as pool:  # A bucket answers each request slowly.
        return list(pool.map(partial(_describe, system, columns), *zip(*enumerate(infos), strict=True)))


def _describe(system: fs.FileSystem, columns: Columns, number: int, info: fs.FileInfo) -> Input:
    kind, groups = _kind(info.path), ()
    if kind == "parquet":
        file = _open_parquet(system, info.path)
        groups = tuple(file.metadata.row_group(at).num_rows for at in range(file.num_row_groups))
        check_types(file.schema_arrow, columns, info.path)
    return Input(number, info.path, kind, info.size, info.mtime_ns or 0, groups)


def check_types(schema: pa.Schema, columns: Columns, file: str) -> None:
    """Checks the columns of a Parquet file.

    Raises:
        InputError: A column is missing, has the wrong type, or collides with a column of the results.
    """
    columns.check(schema.names, file)
    texts = {columns.text, columns.title_column(schema.names), columns.id_column(schema.names)} - {""}
    for name in (*texts, *columns.kept(schema.names)):
        if schema.names.count(name) > 1:
            raise InputError(f"{file}: two columns have the name {name!r}. Rename one.")
    for name in texts:
        kind = schema.field(name).type
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_text = pa.types.is_string(inner) or pa.types.is_large_string(inner) or inner == pa.string_view()
        if not is_text and not (name != columns.text and pa.types.is_integer(inner)):
            raise InputError(f"{file}: the column {name!r} has the type {kind}, and must be text.")


def list_work(inputs: list[Input], reading: Reading) -> list[Work]:
    """Returns units of work that can be done in any order, on any machine."""
    found = []
    for each in inputs:
        if each.kind != "parquet":
            found.append(Work(each))
            continue
        for group, rows in enumerate(each.groups):
            pieces = max(1, -(-rows // reading.part_rows))
            found += [Work(each, group, piece) for piece in range(pieces)]
    return found


def part_name(number: int, group: int, piece: int) -> str:
    """Names a part by the number of its file, its row group, and the piece of the group."""
    return f"part-{number:05}-{group:05}-{piece:05}"


def read(system: fs.FileSystem, work: Work, reading: Reading, skip: Skip) -> Iterator[Chunk]:
    """Yields the documents of a unit of work, without the parts to skip.

    Args:
        system: The file system of the inputs.
        work: The unit.
        reading: How it is read.
        skip: Returns whether a part is complete.

    Raises:
        InputError: The file cannot be read, or a column is missing.
    """
    try:
        if work.input.kind == "parquet":
            yield from _read_parquet(system, work, reading, skip)
        else:
            yield from _read_text(system, work, reading, skip)
    except (OSError, pa.ArrowInvalid, LookupError) as error:
        raise InputError(f"{work.input.path} cannot be read: {str(error).splitlines()[0]}") from error


def _read_parquet(system: fs.FileSystem, work: Work, reading: Reading, skip: Skip) -> Iterator[Chunk]:
    part = part_name(work.input.number, work.group, work.piece)
    if skip(part):
        return
    file, columns = _open_parquet(system, work.input.path), reading.columns
    names = file.schema_arrow.names
    title, id, kept = columns.title_column(names), columns.id_column(names), columns.kept(names)
    selected = list(dict.fromkeys(filter(None, (columns.text, title, id, *kept))))
    first = work.piece * reading.part_rows
    row = sum(work.input.groups[: work.group]) + first
    for batch in _slices(file.iter_batches(CHUNK, [work.group], selected), first, reading.part_rows):
        chunk, good = Chunk(part), list[int]()
        given = [_texts(batch, name) for name in (columns.text, title, id)]
        for at, (text, titled, named) in enumerate(zip(*given, strict=True)):
            row += 1
            if _add(chunk, row, columns, named, titled, text):
                good.append(at)
        chunk.others = {name: batch[name].take(pa.array(good, pa.int64())) for name in kept}
        chunk.work = batch.num_rows
        yield chunk
    yield Chunk(part, last=True)


def _slices(batches: Iterator[pa.RecordBatch], skipped: int, count: int) -> Iterator[pa.RecordBatch]:
    """Yields `count` rows of `batches` after the first `skipped` rows."""
    for batch in batches:
        found = batch.slice(skipped, max(0, count)) if skipped < batch.num_rows else batch.slice(0, 0)
        skipped = max(0, skipped - batch.num_rows)
        count -= found.num_rows
        if found.num_rows:
            yield found
        if count <= 0:
            return


def _texts(batch: pa.RecordBatch, name: str) -> list[str | None]:
    """Returns a column as texts. Bytes that are not UTF-8 become surrogates, which are rejected later."""
    if not name:
        return [None] * batch.num_rows
    column = batch[name].cast(pa.string())
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        found = column.cast(pa.binary()).to_pylist()
        return [None if each is None else each.decode(errors="surrogateescape") for each in found]


def _read_text(system: fs.FileSystem, work: Work, reading: Reading, skip: Skip) -> Iterator[Chunk]:
    """Reads a text file from its start. Every part but the last has `part_rows` rows, rejects included."""
    lines = _Lines(system, work.input.path, reading.encoding)
    rows = _json_rows(lines) if work.input.kind == "jsonl" else _table_rows(lines, work, reading)
    done, next_row = 0, next(rows, None)
    for piece in count():
        part = part_name(work.input.number, 0, piece)
        taken = islice(rows, reading.part_rows - 1)
        mine = chain([] if next_row is None else [next_row], taken)
        if skip(part):
            deque(mine, maxlen=0)
        else:
            for chunk in _chunks(part, mine, work.input.kind, reading.columns):
                chunk.work, done = lines.read - done, lines.read
                yield chunk
            yield Chunk(part, last=True)
        next_row = next(rows, None)
        if next_row is None:
            return


def _chunks(part: str, rows: Iterator[TextRow], kind: str, columns: Columns) -> Iterator[Chunk]:
    chunk, kept, characters = Chunk(part), list[dict[str, Any]](), 0
    for row in rows:
        if chunk.rows == CHUNK or characters >= CHUNK_CHARACTERS:
            chunk.others = _kept_columns(kept, kind)
            yield chunk
            chunk, kept, characters = Chunk(part), [], 0
        if isinstance(row, Reject):
            chunk.rejects.append(row)
            continue
        fields, text = row.fields, row.fields.get(columns.text)
        try:
            others = _select(fields, columns, kind)
        except BadRow as error:
            chunk.rejects.append(Reject(row.number, str(error), _start(text)))
            continue
        id, title = columns.id_column(fields), columns.title_column(fields)
        if _add(chunk, row.number, columns, fields.get(id), fields.get(title), text):
            kept.append(others)
            characters += len(chunk.contents[-1].text)
    if chunk.rows:
        chunk.others = _kept_columns(kept, kind)
        yield chunk


def _select(fields: dict[str, Any], columns: Columns, kind: str) -> dict[str, Any]:
    """Returns the other fields of a row to keep.

    Raises:
        BadRow: A chosen field is missing, or the line cannot be kept as it is.
    """
    if kind == "jsonl":
        _refuse_collections(fields, columns)
    if kind == "jsonl" and columns.others == ():
        given = fields.get(METADATA)
        if not isinstance(given, dict | None):
            raise BadRow(f"the field {METADATA!r} is not an object")
        return given or {}
    if missing := [name for name in columns.others or () if name not in fields]:
        raise BadRow(f"the field {missing[0]!r} (--columns) is missing")
    kept = {name: fields[name] for name in columns.kept(fields)}
    return _merged(kept) if kind == "jsonl" else kept


def _refuse_collections(fields: dict[str, Any], columns: Columns) -> None:
    """Rejects a line of an export of several collections, in which equal ids would collide."""
    chosen = "collection" in (columns.text, columns.title, columns.id, *(columns.others or ()))
    if not chosen and fields.keys() <= _EXPORTED and isinstance(fields.get("collection"), str):
        raise BadRow(
            f"it belongs to the collection {fields['collection'][:64]!r}. Export one collection to embed it"
        )


def _kept_columns(rows: list[dict[str, Any]], kind: str) -> dict[str, pa.Array]:
    """Returns the other columns of text files: text columns of a table, or one of JSON objects."""
    if kind != "jsonl":
        return {
            name: pa.array([row[name] for row in rows], pa.string()) for name in (rows[0] if rows else ())
        }
    return {METADATA: pa.array([orjson.dumps(row).decode() for row in rows], pa.string())}


def _merged(fields: dict[str, Any]) -> dict[str, Any]:
    """Merges the object `metadata` of a line with the other fields.

    Raises:
        BadRow: A name occurs in both.
    """
    inner = fields.get(METADATA)
    if not isinstance(inner, dict):
        return fields
    others = {name: value for name, value in fields.items() if name != METADATA}
    if twice := [name for name in inner if name in others]:
        raise BadRow(f"{twice[0]!r} is a field of the line and of its metadata. Rename one of the two")
    return others | inner


def _add(chunk: Chunk, row: int, columns: Columns, id: Any, title: Any, text: Any) -> bool:
    """Adds a document to a chunk, or a reject. Returns whether it is a document.

    Numbers become texts. A title alone becomes the text, as in `simile import`.
    """
    try:
        content = _build_content(columns, title, text)
        name = _build_id(columns, id, content)
    except BadRow as error:
        chunk.rejects.append(Reject(row, str(error), _start(text)))
        return False
    chunk.ids.append(name)
    chunk.contents.append(content)
    chunk.places.append(row)
    return True


def _build_id(columns: Columns, id: Any, content: Content) -> str:
    name = _as_text(id)
    if name is None or name == "":
        if columns.id:
            raise BadRow(f"the field {columns.id!r} has no id")
        return derived_id(content.title, content.text)
    if not isinstance(name, str) or "\0" in name or not is_unicode(name):
        raise BadRow("the id is not a text or a whole number")
    if len(name) > MAX_ID_CHARACTERS:
        raise BadRow(f"the id has {len(name)} characters, and at most {MAX_ID_CHARACTERS} are allowed")
    return name


def _build_content(columns: Columns, title: Any, text: Any) -> Content:
    text, title = _as_text(text), _as_text(title)
    if text is None:
        raise BadRow(f"the field {columns.text!r} is missing or null")
    if not isinstance(text, str):
        raise BadRow(f"the field {columns.text!r} is not a text")
    if not isinstance(title, str | None):
        if columns.title:
            raise BadRow(f"the field {columns.title!r} is not a text")
        title = ""
    content = Content(text, title or "") if text else Content(title or "")
    if fault := find_fault(content):
        raise BadRow(fault)
    return content


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _start(text: object) -> str:
    return text[:_SHOWN_CHARACTERS] if isinstance(text, str) else ""


class Fields(NamedTuple):
    """A row of a text file: the number of its first line, and its values by name."""

    number: int
    fields: dict[str, Any]


TextRow: TypeAlias = Fields | Reject


class _Lines:
    """The lines of a text file. `read` is the number of bytes that were read from the file."""

    def __init__(self, system: fs.FileSystem, path: str, encoding: str) -> None:
        self.read = 0
        self._system, self._path, self._encoding = system, path, encoding

    def __iter__(self) -> Iterator[TextLine]:
        lines, codec = TextLines(self._encoding), _compression(self._path)
        with self._system.open_input_file(self._path) as file:
            stream = pa.CompressedInputStream(file, codec) if codec else file
            while piece := stream.read(_READ_BYTES):
                if not self.read and piece.startswith(_UTF16) and lookup(self._encoding).name == "utf-8":
                    raise InputError(f"{self._path} is UTF-16, not UTF-8. Choose it with --encoding utf-16.")
                self.read = file.tell()
                yield from lines.feed(piece)
        yield from lines.feed(b"", final=True)


def _json_rows(lines: _Lines) -> Iterator[TextRow]:
    for number, text, _ in lines:
        if text is None:
            yield Reject(number, f"the line is longer than {MAX_LINE_BYTES >> 20} MiB", "")
        elif text.strip():
            try:
                yield Fields(number, _parse(text))
            except BadRow as error:
                yield Reject(number, str(error), _start(text))


def _parse(text: str) -> dict[str, Any]:
    if MARK in text:
        raise BadRow("the line has bytes that are not in the encoding (--encoding)")
    try:
        value = exact_json.loads(text.encode())
    except exact_json.Inexact as error:
        raise BadRow(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise BadRow(f"it is not valid JSON ({error.msg}, column {error.colno})") from error
    if not isinstance(value, dict):
        raise BadRow("it is not a JSON object")
    return value


def _table_rows(lines: _Lines, work: Work, reading: Reading) -> Iterator[TextRow]:
    records = Records(reading.delimiter or ("\t" if work.input.kind == "tsv" else ","))
    names: list[str] | None = None
    taken = chain.from_iterable(map(records.take, lines))
    for record in filterfalse(is_blank, chain(taken, _finish(records))):
        cells = record.cells
        if names is None:
            if isinstance(cells, BadRow):
                raise InputError(f"{work.input.path}: {cells}. The first line names the columns.")
            names = [cell.strip() for cell in cells]
            if len({*names}) < len(names):
                raise InputError(f"{work.input.path}: two columns have the same name. Rename one.")
            reading.columns.check(names, work.input.path)
        elif isinstance(cells, BadRow):
            yield Reject(record.line, str(cells), "")
        elif len(cells) != len(names):
            named = amount(len(names), "column")
            reason = f"it has {amount(len(cells), 'cell')}, and the first line names {named}"
            yield Reject(record.line, reason, _start(cells[0]))
        elif any(MARK in cell for cell in cells):
            yield Reject(record.line, "it has bytes that are not in the encoding (--encoding)", "")
        else:
            yield Fields(record.line, dict(zip(names, cells, strict=True)))


def _finish(records: Records) -> Iterator[Record]:
    yield from records.finish()  # After the last line.


def _open_parquet(system: fs.FileSystem, path: str) -> pq.ParquetFile:
    try:
        # A buffer, because otherwise the columns of a whole row group would be in memory.
        return pq.ParquetFile(path, filesystem=system, buffer_size=_BUFFER_BYTES)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InputError(f"{path} is not a whole Parquet file.") from error


def _kind(path: str) -> str:
    """Returns the kind of a file by its name, or an empty text."""
    name, packed = path.lower(), _compression(path)
    if packed:
        name = name.rpartition(".")[0]
    kind = next((kind for end, kind in _KINDS.items() if name.endswith(end)), "")
    return "" if packed and kind == "parquet" else kind


def _compression(path: str) -> str | None:
    return next((codec for end, codec in _COMPRESSED.items() if path.lower().endswith(end)), None)
