"""Runs `embed IN OUT`: embeds the rows of files into parts, and continues after a kill. Start at `run`.

    OUT/job.json                        what the job is; another job is refused
    OUT/part-FILE-GROUP-PIECE.parquet   vectors of a row group, or of a piece of it (vector_files.py)
    OUT/part-….rejects.jsonl            rows that are not documents, with reasons
    OUT/done.json                       counts, written when every part is complete

A part is written under a temporary name, flushed to the disk and renamed, after its rejects. So a part exists
completely or not at all, and a restart computes only the missing ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from models.bulk.embedder import BulkEmbedder, Embedded
from models.bulk.inputs import Chunk, Input, Reading, Work, find_inputs, list_work, read
from models.bulk.vector_files import (
    DONE,
    FORMAT,
    JOB,
    Description,
    VectorFile,
    VectorFileError,
    absolute,
    build_schema,
    part_names,
    read_json,
    resolve,
    shown,
)
from models.errors import ModelError
from models.files.folders import lock
from models.files.fsync import sync
from models.messages import amount
from models.progress import Progress

GROUP_ROWS = 4096  # Rows of a row group in a part.
GROUP_BYTES = 32 << 20
OPENED_TOGETHER = 16  # Parts whose footers are read together at a restart.


class JobError(ModelError):
    """Raised if a job cannot start, or is another one than before."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job. Can be pickled, so that workers on other machines do a part of it.

    Attributes:
        source: The place of the inputs, local or as `s3://` or `gs://`.
        out: The folder of the results, likewise.
        embedder: Arguments of `BulkEmbedder`.
        description: The vectors that every worker must compute.
        inputs: The files to embed.
        reading: How they are read.
        half: Whether vectors are stored in fp16.
        with_text: Whether titles and texts are stored.
    """

    source: str
    out: str
    embedder: dict[str, Any]
    description: Description
    inputs: tuple[Input, ...]
    reading: Reading
    half: bool = False
    with_text: bool = True

    def specification(self) -> dict[str, Any]:
        """Returns everything that the parts depend on."""
        fields = asdict(self)
        options = {name: fields[name] for name in ("reading", "half", "with_text")}
        found = {"format": FORMAT, "vectors": fields["description"], "options": options}
        found |= {"inputs": fields["inputs"]}
        loaded: dict[str, Any] = json.loads(json.dumps(found))
        return loaded

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.specification(), sort_keys=True).encode()).hexdigest()[:16]

    def open_embedder(self, workers: int = 0) -> BulkEmbedder:
        """Opens the version. See `BulkEmbedder` for `workers`.

        Raises:
            JobError: This machine has another model under the same name, or another engine.
        """
        embedder = BulkEmbedder(**self.embedder, workers=workers)
        if embedder.description != self.description:
            raise JobError(f"This worker computes {embedder.description}, and the job {self.description}.")
        return embedder


class Finished(NamedTuple):
    """Counts of a complete part."""

    part: str
    documents: int
    rejected: int

    @property
    def rows(self) -> int:
        return self.documents + self.rejected


class Step(NamedTuple):
    """Progress of an engine: rows and units of work since the last step, and a part that is now complete."""

    rows: int
    work: int
    finished: Finished | None = None


Engine = Callable[[Job, list[Work], frozenset[str]], Iterator[Step]]


def run(job: Job, engine: Engine, say: Callable[[str], None]) -> dict[str, int]:
    """Embeds all rows that no complete part has. Returns the counts of done.json.

    Args:
        job: The job.
        engine: Embeds units of work, without the parts that are complete.
        say: Prints a message.

    Raises:
        ModelError: The folder has the results of another job, an input cannot be read, or the model fails.
        OSError: The folder cannot be written.
    """
    system, out = resolve(job.out)
    system.create_dir(out, recursive=True)
    with _locked(system, out):
        finished = {part.part: part for part in _start(job, system, out)}
        rows = sum(part.rows for part in finished.values())
        if finished:
            say(f"{amount(len(finished), 'part is', 'parts are')} complete and kept ({amount(rows, 'row')}).")
        work = [each for each in list_work([*job.inputs], job.reading) if not _is_done(each, finished)]
        total = sum(each.work for each in job.inputs)
        done = rows if all(each.kind == "parquet" for each in job.inputs) else 0
        with Progress("texts", total, "embedding", first=rows) as progress:
            for step in engine(job, work, frozenset(finished)):
                rows, done = rows + step.rows, done + step.work
                if step.finished is not None:
                    finished[step.finished.part] = step.finished
                progress.tell(rows, done)
        counts = {
            "format": FORMAT,
            "parts": len(finished),
            "documents": sum(part.documents for part in finished.values()),
            "rejected": sum(part.rejected for part in finished.values()),
        }
        _write_json(system, f"{out}/{DONE}", counts)
    return counts


def plan(
    out: str, source: str, embedder: dict[str, Any], reading: Reading, *, half: bool, with_text: bool
) -> Job:
    """Finds the inputs of a job.

    Raises:
        ModelError: The version or an input cannot be read.
    """
    source, out = absolute(source), absolute(out)  # Workers may run in other folders.
    (system, folder), (other, inside) = resolve(source), resolve(out)
    if system.equals(other) and f"{inside}/".startswith(f"{folder}/"):
        raise JobError(
            f"{shown(out)} is inside of {shown(source)}, so the results would be inputs of a restart. Name "
            "another folder."
        )
    inputs = find_inputs(source, reading.columns)
    description = BulkEmbedder.describe(**embedder)
    return Job(source, out, embedder, description, tuple(inputs), reading, half, with_text)


def embed_locally(job: Job, work: list[Work], complete: frozenset[str]) -> Iterator[Step]:
    """Embeds with the processors or the GPU of this machine. The engine of `--engine local`."""
    if not work:
        return
    with job.open_embedder() as embedder:
        yield from embed_with(embedder, job, work, complete)


def embed_with(
    embedder: BulkEmbedder, job: Job, work: list[Work], complete: frozenset[str]
) -> Iterator[Step]:
    """Embeds units of work with an open version, and writes their parts."""
    system, _ = resolve(job.source)
    skip = complete.__contains__
    chunks = chain.from_iterable(read(system, each, job.reading, skip) for each in work)
    with PartWriter(job) as writer:
        for chunk, embedded in embedder.map(chunks, lambda chunk: chunk.contents):
            finished = writer.add(chunk, embedded)
            yield Step(chunk.rows, chunk.work, finished)


class PartWriter:
    """Writes the parts of a job, one after the other."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._part: _Part | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._part is not None:
            self._part.abandon()

    def add(self, chunk: Chunk, embedded: Embedded) -> Finished | None:
        """Adds a chunk with its vectors. Returns the counts of its part if that is complete now."""
        if self._part is None:
            self._part = _Part(self._job, chunk.part)
        if not chunk.last:
            self._part.add(chunk, embedded)
            return None
        finished = self._part.finish()
        self._part = None
        return finished


class _Part:
    """A part that is being written, under a temporary name."""

    def __init__(self, job: Job, name: str) -> None:
        self._job, self._name = job, name
        self._system, self._out = resolve(job.out)
        mark = secrets.token_hex(4)
        self._temporary, self._temporary_rejects = (
            f"{self._out}/.{name}{ending}-{mark}" for ending in (_PART, _REJECTS)
        )
        self._waiting: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._rejects: Any = None
        self._documents = self._rejected = 0

    def add(self, chunk: Chunk, embedded: Embedded) -> None:
        good = [at for at in range(len(chunk.ids)) if at not in embedded.errors]
        columns = embedded.columns(half=self._job.half)
        del columns["error"]
        made: dict[str, pa.Array] = {"id": pa.array([chunk.ids[at] for at in good], pa.string())}
        if self._job.with_text:
            for name in ("title", "text"):
                texts = [getattr(chunk.contents[at], name) for at in good]
                made[name] = pa.array(texts, pa.string())
        taken = pa.array(good, pa.int64())
        made |= {name: column.take(taken) for name, column in (columns | chunk.others).items()}
        if good:
            others = [pa.field(name, column.type) for name, column in chunk.others.items()]
            self._waiting.append(pa.Table.from_arrays([*made.values()], schema=self._schema(others)))
            if (
                sum(table.num_rows for table in self._waiting) >= GROUP_ROWS
                or sum(table.nbytes for table in self._waiting) >= GROUP_BYTES
            ):
                self._flush()
        self._documents += len(good)
        for row, reason, start in chunk.rejects:
            self._reject({"row": row, "reason": reason, "start": start})
        for at, reason in sorted(embedded.errors.items()):
            start = chunk.contents[at].text[:200]
            self._reject({"row": chunk.places[at], "reason": reason, "start": start, "id": chunk.ids[at]})

    def _schema(self, others: list[pa.Field]) -> pa.Schema:
        job = self._job
        notes = {"job": job.digest, "part": self._name}
        return build_schema(
            job.description, half=job.half, with_text=job.with_text, others=others, notes=notes
        )

    def _flush(self) -> None:
        if self._writer is None:
            schema = self._waiting[0].schema if self._waiting else self._schema([])
            self._writer = pq.ParquetWriter(
                self._temporary,
                schema,
                filesystem=self._system,
                compression="zstd",
                use_dictionary=[name for name in schema.names if name not in {"id", "vector", "passages"}],
                write_page_checksum=True,
            )
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting = []

    def _reject(self, row: dict[str, Any]) -> None:
        if self._rejects is None:
            self._rejects = self._system.open_output_stream(self._temporary_rejects)
        self._rejects.write(json.dumps(row).encode() + b"\n")  # ASCII: the text may be no valid Unicode.
        self._rejected += 1

    def finish(self) -> Finished:
        self._flush()
        assert self._writer is not None  # noqa: S101  _flush opened it
        counts = {"simile.documents": str(self._documents), "simile.rejected": str(self._rejected)}
        self._writer.add_key_value_metadata(counts)
        self._writer.close()
        if self._rejects is not None:
            self._rejects.close()
            _publish(self._system, self._temporary_rejects, f"{self._out}/{self._name}{_REJECTS}")
        _publish(self._system, self._temporary, f"{self._out}/{self._name}{_PART}")
        return Finished(self._name, self._documents, self._rejected)

    def abandon(self) -> None:
        for stream in (self._writer, self._rejects):
            if stream is not None:
                with contextlib.suppress(Exception):
                    stream.close()
        for path in (self._temporary, self._temporary_rejects):
            with contextlib.suppress(OSError):
                self._system.delete_file(path)


_PART, _REJECTS = ".parquet", ".rejects.jsonl"
_TEMPORARY = (".part-", f".{JOB}-", f".{DONE}-")


@contextlib.contextmanager
def _locked(system: fs.FileSystem, out: str) -> Iterator[None]:
    """Locks a local folder. A second process would delete the unfinished parts of the first.

    Raises:
        JobError: Another process has locked it.
    """
    if not isinstance(system, fs.LocalFileSystem):
        yield
        return
    if (descriptor := lock(Path(out))) is None:
        raise JobError(f"Another process embeds into {out}. Wait for it, or name another folder.")
    try:
        yield
    finally:
        os.close(descriptor)


def _start(job: Job, system: fs.FileSystem, out: str) -> list[Finished]:
    """Begins a job in a folder or continues it. Returns its complete parts.

    Raises:
        JobError: The folder belongs to another job, or contains other files.
    """
    specification = job.specification()
    before = read_json(system, f"{out}/{JOB}")
    found = system.get_file_info(fs.FileSelector(out))
    left = [info for info in found if info.base_name.startswith(_TEMPORARY)]  # A killed run left them.
    if before is None:
        if len(found) > len(left):
            raise JobError(
                f"{shown(job.out)} has files that are not of this job. Name an empty or new folder."
            )
        _write_json(system, f"{out}/{JOB}", specification)
    elif before != specification:
        raise JobError(
            f"{shown(job.out)} has the results of another job: "
            f"{_difference(before, specification)}. Run the same command as before to continue it, or name "
            "another folder."
        )
    for info in left:
        system.delete_file(info.path)
    with ThreadPoolExecutor(OPENED_TOGETHER) as pool:
        names = part_names(system, out)
        return list(pool.map(lambda name: _read_finished(job, system, out, name), names))


def _read_finished(job: Job, system: fs.FileSystem, out: str, name: str) -> Finished:
    try:
        part = VectorFile(f"{out}/{name}", system)
    except VectorFileError as error:
        raise JobError(f"{error} Delete the file, then run the same command again.") from error
    if part.note("job") != job.digest:
        raise JobError(f"{name} belongs to another job. Name another folder.")
    counts = [int(part.note(count) or 0) for count in ("documents", "rejected")]
    return Finished(name.removesuffix(_PART), *counts)


def _difference(before: Any, now: Any, place: str = "") -> str:
    """Names the first value that differs between two jobs."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in (*before, *now):
            if before.get(name) != now.get(name):
                return _difference(before.get(name), now.get(name), name)
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        for one, other in zip(before, now, strict=True):
            if one != other:
                return _difference(one, other, place)
    shown = [
        f"{len(value)} items" if isinstance(value, list) else repr(value)[:80] for value in (before, now)
    ]
    return f"{place or 'format'} was {shown[0]}, and is {shown[1]} now"


def _is_done(work: Work, finished: dict[str, Finished]) -> bool:
    return work.part is not None and work.part in finished


def _publish(system: fs.FileSystem, temporary: str, path: str) -> None:
    """Renames a complete file. On a local disk, it then survives a power cut."""
    if isinstance(system, fs.LocalFileSystem):
        sync(Path(temporary))
        Path(temporary).replace(path)
        sync(Path(path).parent)
    else:
        system.move(temporary, path)


def _write_json(system: fs.FileSystem, path: str, content: Any) -> None:
    folder, _, name = path.rpartition("/")
    temporary = f"{folder}/.{name}-{secrets.token_hex(4)}"
    with system.open_output_stream(temporary) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")
    _publish(system, temporary, path)
