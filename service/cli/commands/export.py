"""`python -m service export FILE`: every document, or those that pass a filter, as JSON lines.

From a running service, a page at a time; or with --data-dir straight from the store, at one moment, whether a
service runs there or not. Of the default collection, of another one, or of all; then each line names its own.
The file appears whole or not at all.
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
from models.progress import Progress
from service.cli.commands.client import Remote, path_of
from service.cli.commands.import_files import connect_to, named_collection
from service.errors import CommandError, unwritable
from service.store.filters.grammar import FilterError, Predicate, parse_filter
from service.store.sqlite.filters import compile_filter
from service.store.sqlite.offline import reading
from service.store.values import DEFAULT_COLLECTION, Record

Bytes: TypeAlias = IO[bytes] | gzip.GzipFile
PAGE = 1000
PAGE_BYTES = 16 << 20  # of a page that is read straight from the store


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    parser.add_argument("file", metavar="FILE", help="`-` is stdout; a name that ends in .gz is packed")
    parser.add_argument("--filter", metavar="JSON", help="only documents that pass, as in GET /documents")
    parser.add_argument("--data-dir", type=Path, help="read the store there, and ask no service")
    connect_to(parser)


def run(arguments: argparse.Namespace) -> str:
    """Do it; what to print.

    Raises:
        CommandError: it cannot be read or written. Nothing was left behind.

    """
    remote = Remote(arguments.url, arguments.key_file)
    collection = named_collection(arguments, remote)
    if arguments.data_dir is None:
        found = _from_service(remote, arguments.filter, collection, every=arguments.all_collections)
    else:
        found = _from_store(arguments.data_dir, arguments.filter, collection, every=arguments.all_collections)
    try:
        with written(arguments.file) as out:
            number = _write(found, out)
    except OSError as error:
        raise CommandError(unwritable(arguments.file, error, "No file was left behind.")) from error
    return "" if arguments.file == "-" else f"{number} documents are in {arguments.file}."


def _write(pages: Iterator[tuple[list[dict[str, Any]], int]], out: Bytes) -> int:
    number, progress = 0, None
    try:
        for documents, total in pages:
            progress = progress or Progress("documents", total)
            out.writelines(orjson.dumps(document) + b"\n" for document in documents)
            number += len(documents)
            progress.tell(number, number)
    finally:
        if progress is not None:
            progress.end()
    return number


@contextlib.contextmanager
def written(name: str) -> Iterator[Bytes]:
    """A file that is written aside and renamed at the end; after an error there is none."""
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


def _from_service(
    remote: Remote, condition: str | None, collection: str | None, *, every: bool
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Pages of documents, each with the number of documents in all."""
    asked = {} if condition is None else {"filter": condition}
    with contextlib.closing(remote):
        names = [collection]
        if every:
            names = [found["name"] for found in _asked(remote, "/collections", {})["collections"]]
        paths = {name: f"{path_of(name)}/documents" for name in names}
        total = sum(_asked(remote, f"{path}/count", asked)["count"] for path in paths.values())
        for name, path in paths.items():
            mark = {"collection": name} if every else {}
            after: str | None = ""
            while after is not None:
                part = _asked(remote, path, asked | {"after": after, "limit": str(PAGE)})
                yield [mark | document for document in part["documents"]], total
                after = part["next"]


def _asked(remote: Remote, path: str, parameters: dict[str, str]) -> dict[str, Any]:
    answer = remote.get(f"{path}?{urlencode(parameters)}" if parameters else path)
    if answer.status != 200:
        raise CommandError(f"{remote.url} refused: {answer.error}")
    found: dict[str, Any] = answer.value
    return found


def _from_store(
    data_dir: Path, condition: str | None, collection: str | None, *, every: bool
) -> Iterator[tuple[list[dict[str, Any]], int]]:
    """Pages of documents, each with the number of documents in all."""
    where = _compiled(condition)
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
                yield [mark | _raw(record) for record in part], total
                after = part[-1].id if part else after


def _raw(record: Record) -> dict[str, Any]:
    """A document with title, text and metadata as the JSON that they are read as."""
    title = {"title": orjson.Fragment(record.title_json)} if record.title_json else {}
    text, metadata = orjson.Fragment(record.text_json), orjson.Fragment(record.metadata_json)
    return {"id": record.id, **title, "text": text, "metadata": metadata}


def _compiled(condition: str | None) -> Predicate | None:
    try:
        return None if condition is None else compile_filter(parse_filter(condition))
    except FilterError as error:
        raise CommandError(f"--filter: {error}") from error
