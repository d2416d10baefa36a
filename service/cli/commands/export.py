"""`simile export FILE`: exports all documents, or those that match a filter, as JSON lines.

The command reads pages from a running service. With --data-dir it reads a snapshot of the store instead, and
no service needs to run. It exports one collection, or all collections with a field `collection` on each line.
If an export fails, no file remains.
"""

import argparse
import contextlib
import gzip
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, TypeAlias
from urllib.parse import urlencode

import orjson

from models.files.fsync import replaced
from models.messages import amount
from models.progress import Progress
from service.cli.commands.client import Remote, build_path, connect_to_collection, named_collection, sent_text
from service.errors import CommandError, unwritable
from service.store.filters.grammar import FilterError, parse_filter
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.offline import reading
from service.store.values import DEFAULT_COLLECTION, Record

Bytes: TypeAlias = IO[bytes] | gzip.GzipFile
Pages: TypeAlias = Iterator[tuple[list[dict[str, Any]], int]]  # documents of a page, and number of all
PAGE = 1000
PAGE_BYTES = 16 << 20  # size of a page that is read directly from the store


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `export`."""
    parser.add_argument("file", metavar="FILE", help="`-` is stdout; a name that ends in .gz is compressed")
    parser.add_argument(
        "--filter", type=sent_text, metavar="JSON", help="only matching documents, as in GET /documents"
    )
    parser.add_argument("--data-dir", type=Path, help="read this store instead of a running service")
    connect_to_collection(parser)


def run(arguments: argparse.Namespace) -> str:
    """Exports the documents. Returns the text to print.

    Raises:
        CommandError: The documents cannot be read, or the file cannot be written. No file remains.

    """
    remote = Remote(arguments.url, arguments.key_file)
    collection, every = named_collection(arguments, remote), arguments.all_collections
    if arguments.data_dir is None:
        found = _from_service(remote, arguments.filter, collection, every=every)
    else:
        found = _from_store(arguments.data_dir, arguments.filter, collection, every=every)
    number, progress = 0, None
    try:
        with written(arguments.file) as out:
            for documents, total in found:
                progress = progress or Progress("documents", total)
                out.writelines(orjson.dumps(document) + b"\n" for document in documents)
                number += len(documents)
                progress.tell(number, number)
    except OSError as error:
        raise CommandError(unwritable(arguments.file, error, "No file was left behind.")) from error
    finally:
        if progress is not None:
            progress.end()
    return (
        ""
        if arguments.file == "-"
        else f"{amount(number, 'document is', 'documents are')} in {arguments.file}."
    )


@contextlib.contextmanager
def written(name: str) -> Iterator[Bytes]:
    """Opens a file, or stdout for `-`. The file gets its name only if the block ends without an error."""
    if name == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    with replaced(Path(name)) as raw:
        if name.endswith(".gz"):
            with gzip.open(raw, "wb", compresslevel=6) as out:
                yield out
        else:
            yield raw


def _from_service(remote: Remote, condition: str | None, collection: str | None, *, every: bool) -> Pages:
    requested = {} if condition is None else {"filter": condition}
    with contextlib.closing(remote):
        names = [collection]
        if every:
            names = [found["name"] for found in _requested(remote, "/collections", {}, "collections")]
        paths = {name: f"{build_path(name)}/documents" for name in names}
        total = sum(_requested(remote, f"{path}/count", requested, "count") for path in paths.values())
        for name, path in paths.items():
            mark = {"collection": name} if every else {}
            after: str | None = ""
            while after is not None:
                parameters = requested | {"after": after, "limit": str(PAGE)}
                documents, after = _requested(remote, path, parameters, "documents", "next")
                yield [mark | document for document in documents], total


def _requested(remote: Remote, path: str, parameters: dict[str, str], *names: str) -> Any:
    """Returns one field of an answer, or a list of several."""
    answer = remote.get(f"{path}?{urlencode(parameters)}" if parameters else path)
    if answer.status != 200:
        raise CommandError(f"{remote.url} refused: {answer.error}")
    fields = [answer.field(name) for name in names]
    return fields if len(fields) > 1 else fields[0]


def _from_store(data_dir: Path, condition: str | None, collection: str | None, *, every: bool) -> Pages:
    try:
        where = None if condition is None else compile_filter(parse_filter(condition))
    except FilterError as error:
        raise CommandError(f"--filter: {error}") from error
    with reading(data_dir) as store:
        there = store.collections()
        if collection is not None and collection not in there:
            raise CommandError(f"{data_dir} has no collection {collection!r}; there are {', '.join(there)}.")
        names = there if every else [collection or DEFAULT_COLLECTION]
        total = sum(store.count(where, name) for name in names)
        for name in names:
            mark = {"collection": name} if every else {}
            after, more = "", True
            while more:
                part, more = store.page(after, PAGE, where, PAGE_BYTES, name)
                yield [mark | _document(record) for record in part], total
                after = part[-1].id if part else after


def _document(record: Record) -> dict[str, Any]:
    """Returns a document as an object for orjson. Title, text and metadata are inserted as stored JSON."""
    title = {"title": orjson.Fragment(record.title_json)} if record.title_json else {}
    text, metadata = orjson.Fragment(record.text_json), orjson.Fragment(record.metadata_json)
    return {"id": record.id, **title, "text": text, "metadata": metadata}
