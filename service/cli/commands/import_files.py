"""`python -m service import FILE…`: documents out of files, into a running service.

Sent as NDJSON, some thousand lines at a time; what the service answered is stored. There is nothing to resume
from: to send everything again is safe by id, and text that is stored unchanged is not embedded again.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import orjson

from models.tokens.reading import Count, count
from service.cli.commands.client import DEFAULT_URL, Remote, path_of
from service.cli.commands.file_formats import FORMATS, BadRow, Columns, Placed, Row, format_of, opened, rows
from service.cli.commands.progress_bar import Progress
from service.errors import CommandError
from service.http.body_budget import NDJSON
from service.store.values import COLLECTION_NAME

CHUNK_LINES = 4096
CHUNK_BYTES = 8 << 20
MAX_TOLD = 100  # lines that failed; the others are counted


def describe(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `import`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="`-` is stdin; .gz is unpacked")
    parser.add_argument("--format", choices=FORMATS, help="unless the file's name says it")
    parser.add_argument("--id", metavar="COLUMN", help="`id` where there is one; else made from the text")
    parser.add_argument("--text", metavar="COLUMN", default="text", help="(%(default)s)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--metadata", metavar="COLUMN,…", help="of JSON: the object `metadata` unless named")
    which.add_argument("--metadata-all", action="store_true", help="every other column")
    parser.add_argument("--per-file", action="store_true", help="each file is one document, its id its name")
    connect_to(parser)


def connect_to(parser: argparse.ArgumentParser) -> None:
    """Declare the service's address and key."""
    parser.add_argument("--url", default=DEFAULT_URL, help="of the running service (%(default)s)")
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


Sent = list[tuple[Row, bytes]]


class Tally:
    """Counts of the lines."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stored = self.failed = self.truncated = 0
        self._looked = False

    def look(self, remote: Remote, chunk: Sent) -> None:
        """Say after the first documents when the model cannot read them."""
        if self._looked or remote.scoped:  # such an address has no route of the tokenizer
            return
        self._looked = True
        texts = [str(row.content.get("text"))[:500] for row, _ in chunk[:16] if isinstance(row.content, dict)]
        if reason := _count(remote, texts).unreadable():
            self._progress.end()
            print(  # noqa: T201  for whoever called
                f"The model cannot read these documents: {reason}. Search by words (mode=lexical), or teach "
                "it: `python -m training train adapt` (docs/RETRAINING.md).",
                file=sys.stderr,
            )

    def fail(self, file: str, line: int, reason: str) -> None:
        """Count a line that is not stored."""
        self.failed += 1
        if self.failed <= MAX_TOLD:
            self._progress.end()
            print(f"{file}:{line}: {reason}", file=sys.stderr)  # noqa: T201  for whoever called


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
    columns = Columns(arguments.id, arguments.text, named, arguments.metadata_all, placed)
    kinds = [
        arguments.format or ("text" if arguments.per_file else format_of(name)) for name in arguments.files
    ]
    if placed == "each" and "text" in kinds:
        raise CommandError("--all-collections is for jsonl and csv: plain text names no collection.")
    sizes = [Path(name).stat().st_size for name in arguments.files if Path(name).is_file()]
    progress = Progress("documents", 0 if "-" in arguments.files else sum(sizes))
    tally = Tally(progress)
    read_bytes = 0
    try:
        for name, kind in zip(arguments.files, kinds, strict=True):
            with opened(name) as (file, raw):
                found = rows(file, name, kind, columns, per_file=arguments.per_file)
                for to, chunk in chunks(found, tally):
                    _send(remote, to or collection, chunk, tally)
                    tally.look(remote, chunk)
                    progress.tell(tally.stored, read_bytes + (raw.tell() if raw.seekable() else 0))
                read_bytes += raw.tell() if raw.seekable() else 0
    except CommandError as error:
        raise CommandError(
            f"{error}\n{tally.stored} documents were stored before that. Run it again: text that is stored "
            "is not embedded again."
        ) from error
    finally:
        progress.end()
        remote.close()
    cut = f", {tally.truncated} of them longer than the model sees" if tally.truncated else ""
    if tally.failed:
        raise CommandError(f"{tally.failed} lines failed; {tally.stored} documents are stored{cut}.")
    return f"{tally.stored} documents are stored{cut}."


def chunks(found: Iterable[Row], tally: Tally) -> Iterator[tuple[str | None, Sent]]:
    """The documents of `found` as lines to send, some thousand at a time; what is none goes to `tally`.

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
        if lines == CHUNK_LINES or size > CHUNK_BYTES:
            yield from chunk.items()
            chunk, lines, size = {}, 0, 0
    yield from chunk.items()


def _count(remote: Remote, texts: list[str]) -> Count:
    """How the model's vocabulary reads `texts`; of nothing where it does not say."""

    def tokenize(inputs: list[str]) -> list[list[int]]:
        some = [text for text in inputs if text.strip()]  # the route takes no other
        body = orjson.dumps({"inputs": some, "add_special_tokens": False})
        answer = remote.send("POST", "/tokenize", body, "application/json")
        if answer.status != 200:
            return [[] for _ in inputs]
        found = iter(answer.value)
        return [[token["id"] for token in next(found)] if text.strip() else [] for text in inputs]

    return count(texts, tokenize)


def _send(remote: Remote, collection: str | None, chunk: Sent, tally: Tally) -> None:
    body = b"".join(content for _, content in chunk)
    answer = remote.send("POST", f"{path_of(collection)}/documents", body, NDJSON)
    first, last = chunk[0][0], chunk[-1][0]
    if answer.status != 200:
        where = f"{first.file}, lines {first.line} to {last.line}"
        raise CommandError(f"{where} were refused: {answer.error}")
    tally.stored += answer.value["upserted"]
    tally.truncated += answer.value["truncated"]
    told = answer.value["errors"]
    for problem in told:
        row = chunk[problem["line"] - 1][0]
        tally.fail(row.file, row.line, problem["error"])
    tally.failed += answer.value["failed"] - len(told)
