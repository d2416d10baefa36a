"""`python -m service import FILE…`: documents out of files, into a running service.

Sent as NDJSON, a second or two of work at a time; what the service answered is stored. There is nothing to
resume from: to send everything again is safe by id, and what is stored unchanged is not embedded again.
"""

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import orjson

from models.progress import Progress
from service.cli.commands.client import Remote
from service.cli.commands.delivery import Delivery, Pace, Sent, Tally
from service.cli.commands.readability import Reading
from service.errors import CommandError
from service.files.columns import Columns, Placed
from service.files.conversion import TYPES, parse_types
from service.files.detection import format_of, refuse_name
from service.files.reader import FileReader, Options, Unpacked
from service.files.values import BadFile, BadRow, Row, command_option, split_names
from service.settings import own_url
from service.store.values import COLLECTION_NAME

FORMATS = ("jsonl", "csv", "tsv", "text")
PIECE_BYTES = 1 << 15  # the progress is told by what was read


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `import`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="`-` is stdin; .gz is unpacked")
    parser.add_argument("--format", choices=FORMATS, help="unless the file's name says it")
    parser.add_argument(
        "--id", metavar="COLUMN", help="`id` or `_id` where there is one; else made from the text"
    )
    parser.add_argument("--title", metavar="COLUMN", help="`title` where there is one; '' for none")
    parser.add_argument(
        "--text",
        metavar="COLUMN,…",
        default="text",
        help="several become one text, apart by blank lines (text)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--metadata", metavar="COLUMN,…", help="of JSON: the object `metadata` unless named")
    which.add_argument("--metadata-all", action="store_true", help="every other column")
    parser.add_argument(
        "--encoding", metavar="NAME", help="such as cp1252; unless the file is UTF-8 or UTF-16"
    )
    parser.add_argument(
        "--delimiter", metavar="CHARACTER", help="of csv: one of , ; tab | unless it is detected"
    )
    parser.add_argument(
        "--types",
        metavar="COLUMN=TYPE,…",
        help=f"metadata that is no text: {', '.join(TYPES)}",
    )
    parser.add_argument("--html", choices=["strip"], help="take tags off title and text")
    parser.add_argument("--per-file", action="store_true", help="each file is one document, its id its name")
    connect_to(parser)


def connect_to(parser: argparse.ArgumentParser) -> None:
    """Declare the service's address and key."""
    parser.add_argument("--url", default=own_url(), help="of the running service (%(default)s)")
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="holds a key of role write")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--collection", metavar="NAME", help="unless the default one, or that of --url")
    which.add_argument(
        "--all-collections", action="store_true", help="each line names its own in `collection`"
    )


def named_collection(arguments: argparse.Namespace, remote: Remote) -> str | None:
    """The collection that --collection names.

    Raises:
        CommandError: it is no name, or --url names a collection too.

    """
    name: str | None = arguments.collection
    if remote.scoped and (name is not None or arguments.all_collections):
        raise CommandError(f"--url {remote.url} names a collection already. Leave it out of one of the two.")
    if name is not None and not COLLECTION_NAME.fullmatch(name):
        raise CommandError(f"--collection {name!r}: no collection can have this name.")
    return name


def run(arguments: argparse.Namespace) -> str:
    """Do it; what to print.

    Raises:
        CommandError: some lines failed, or it could not go on. All that was answered is stored.

    """
    remote = Remote(arguments.url, arguments.key_file)
    collection = named_collection(arguments, remote)
    placed: Placed = "each" if arguments.all_collections else "one"
    if placed == "one" and collection is None and not remote.scoped:
        placed = "unsaid"
    read = {name: _options(name, arguments, placed) for name in arguments.files}
    if placed == "each" and any(options.format == "text" for options in read.values()):
        raise CommandError("--all-collections is for jsonl, csv and tsv: plain text names no collection.")
    sizes = [_size(name) for name in arguments.files]
    progress = Progress("documents", 0 if "-" in arguments.files else sum(sizes))
    tally = Tally(progress)
    delivery = Delivery(remote, tally, progress)
    reading = Reading(remote, progress)
    read_bytes = 0
    try:
        progress.tell(0)
        for name in arguments.files:
            with opened(name) as file:
                source = Source(file, name, read[name])
                for to, chunk in chunks(source.rows(), tally, delivery.pace):
                    delivery.send(to or collection, chunk)
                    reading.look(to or collection, chunk)
                    progress.tell(tally.stored, read_bytes + source.position)
                read_bytes += source.position
    except CommandError as error:
        if isinstance(error, CannotRead) and tally.untouched:
            raise
        raise CommandError(f"{error}\n{tally.so_far()}") from error
    except KeyboardInterrupt:
        raise CommandError(f"Stopped. {tally.so_far()}") from None
    finally:
        progress.end()
        remote.close()
    if tally.failed:
        raise CommandError(str(tally))
    return str(tally)


class CannotRead(CommandError):
    """A file, or the rest of one, is not read."""


def _options(name: str, arguments: argparse.Namespace, placed: Placed) -> Options:
    """How the file `name` is read.

    Raises:
        CommandError: An option, or the file's name, says that it cannot be.

    """
    kind = "file" if arguments.per_file else arguments.format or format_of(name)
    try:
        if arguments.format is None:
            refuse_name(name)
        columns = Columns(
            arguments.id or None,
            arguments.title,
            split_names(arguments.text) or ("",),
            None if arguments.metadata is None else split_names(arguments.metadata),
            arguments.metadata_all,
            placed,
        )
        types = parse_types(split_names(arguments.types or ""), command_option)
    except BadFile as error:
        raise CommandError(f"{name}: {error}") from error
    if kind is None:
        raise CommandError(f"{name}: is it jsonl, csv, tsv or text? Say so with --format.")
    html = arguments.html == "strip"
    return Options(kind, arguments.encoding, arguments.delimiter, columns, types, html=html)


def _size(name: str) -> int:
    """Bytes of a file, 0 of a stream. Raises CommandError before anything is sent if it is not there."""
    try:
        return 0 if name == "-" else Path(name).stat().st_size
    except OSError as error:
        raise CannotRead(f"{name} cannot be read ({error.strerror}).") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """The file's bytes.

    Raises:
        CannotRead: It cannot be read.

    """
    if name == "-":
        yield sys.stdin.buffer
        return
    try:
        with Path(name).open("rb") as file:
            yield file
    except OSError as error:
        raise CannotRead(f"{name} cannot be read ({error.strerror or error}).") from error


class Source:
    """A file that is read."""

    def __init__(self, file: BinaryIO, name: str, options: Options) -> None:
        self._file, self._name, self._options = file, name, options
        self._reader = FileReader(name, options)

    def rows(self) -> Iterator[Row]:
        """Every row of the file, in its order.

        Raises:
            CannotRead: Nothing of it can be read, from some line on.

        """
        unpacked, reader = Unpacked(), self._reader
        try:
            for piece in iter(lambda: self._file.read(PIECE_BYTES), b""):
                for part in unpacked.feed(piece):
                    yield from reader.feed(part)
            for part in unpacked.finish():
                yield from reader.feed(part)
            yield from reader.finish()
        except BadFile as error:
            if self._options.format == "file":
                yield Row(self._name, 1, BadRow(str(error)))
                return
            place = self._name if error.line is None else f"{self._name}:{error.line}"
            raise CannotRead(f"{place}: {error}") from error

    @property
    def position(self) -> int:
        """Bytes of the file whose rows have come out; 0 of a stream."""
        return round(self._file.tell() * self._reader.share) if self._file.seekable() else 0


def chunks(found: Iterable[Row], tally: Tally, pace: Pace) -> Iterator[tuple[str | None, Sent]]:
    """The documents of `found` as lines to send, as many at a time as `pace` says; `tally` takes the rest.

    Each chunk comes with the collection that its lines name, None where they name none.
    """
    chunk: dict[str | None, Sent] = {}
    lines = size = 0
    for row in found:
        if row.note:
            tally.note(row)
        if row.content is None:
            continue
        if isinstance(row.content, BadRow):
            tally.fail(row, str(row.content))
            continue
        document = dict(row.content)
        to = document.pop("collection", None)
        try:
            content = orjson.dumps(document) + b"\n"
        except orjson.JSONEncodeError as error:  # nested deeper than orjson writes
            tally.fail(row, f"it cannot be sent as JSON ({error})")
            continue
        chunk.setdefault(to, []).append((row, content))
        lines += 1
        size += len(content)
        if lines >= pace.lines or size >= pace.bytes:
            yield from chunk.items()
            chunk, lines, size = {}, 0, 0
    yield from chunk.items()
