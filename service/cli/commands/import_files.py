"""`python -m service import FILE…`: documents out of files, into a running service.

Sent as NDJSON, a second or two of work at a time; what the service answered is stored. There is nothing to
resume from: to send everything again is safe by id, and what is stored unchanged is not embedded again.
"""

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from models.words.progress import Progress
from service.cli.commands.client import Remote
from service.cli.commands.columns import BadRow, Columns, Placed
from service.cli.commands.delivery import Delivery, Pace, Sent, Tally
from service.cli.commands.file_formats import FORMATS, Row, format_of, opened, rows
from service.cli.commands.readability import Reading
from service.errors import CommandError
from service.settings import own_url
from service.store.values import COLLECTION_NAME


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
    named = None if arguments.metadata is None else tuple(arguments.metadata.split(","))
    remote = Remote(arguments.url, arguments.key_file)
    collection = named_collection(arguments, remote)
    placed: Placed = "each" if arguments.all_collections else "one"
    if placed == "one" and collection is None and not remote.scoped:
        placed = "unsaid"
    text = tuple(arguments.text.split(","))
    columns = Columns(arguments.id, arguments.title, text, named, arguments.metadata_all, placed)
    kinds = [
        arguments.format or ("text" if arguments.per_file else format_of(name)) for name in arguments.files
    ]
    if placed == "each" and "text" in kinds:
        raise CommandError("--all-collections is for jsonl, csv and tsv: plain text names no collection.")
    sizes = [Path(name).stat().st_size for name in arguments.files if Path(name).is_file()]
    progress = Progress("documents", 0 if "-" in arguments.files else sum(sizes))
    tally = Tally(progress)
    delivery = Delivery(remote, tally, progress)
    reading = Reading(remote, progress)
    read_bytes = 0
    try:
        progress.tell(0)
        for name, kind in zip(arguments.files, kinds, strict=True):
            with opened(name) as (file, raw):
                found = rows(file, name, kind, columns, per_file=arguments.per_file)
                for to, chunk in chunks(found, tally, delivery.pace):
                    delivery.send(to or collection, chunk)
                    reading.look(to or collection, chunk)
                    progress.tell(tally.stored, read_bytes + (raw.tell() if raw.seekable() else 0))
                read_bytes += raw.tell() if raw.seekable() else 0
    except CommandError as error:
        raise CommandError(f"{error}\n{tally.so_far()}") from error
    except KeyboardInterrupt:
        raise CommandError(f"Stopped. {tally.so_far()}") from None
    finally:
        progress.end()
        remote.close()
    if tally.failed:
        raise CommandError(str(tally))
    return str(tally)


def chunks(found: Iterable[Row], tally: Tally, pace: Pace) -> Iterator[tuple[str | None, Sent]]:
    """The documents of `found` as lines to send, as many at a time as `pace` says; `tally` takes the rest.

    Each chunk comes with the collection that its lines name, None where they name none.
    """
    chunk: dict[str | None, Sent] = {}
    lines = size = 0
    for row in found:
        if isinstance(row.content, BadRow):
            tally.fail(row.file, row.line, str(row.content))
            continue
        document = dict(row.content)
        to = document.pop("collection", None)
        try:
            content = orjson.dumps(document) + b"\n"
        except orjson.JSONEncodeError as error:  # nested deeper than orjson writes
            tally.fail(row.file, row.line, f"it cannot be sent as JSON ({error})")
            continue
        chunk.setdefault(to, []).append((row, content))
        lines += 1
        size += len(content)
        if lines >= pace.lines or size >= pace.bytes:
            yield from chunk.items()
            chunk, lines, size = {}, 0, 0
    yield from chunk.items()
