"""`simile import FILE…`: imports documents from files into a running service.

Start reading at `run`. The option --vectors is for import_vectors.py.

    files ─▶ rows ─▶ chunk, sized by the speed of the last one ─▶ POST /documents ─▶ Tally
                                    ▲      no answer in time: halves         │
                                    └──── busy or restarting: again, later ◀─┘

The size of a chunk is chosen so that a request takes a second or two. A chunk may be sent twice, because ids
identify documents, and unchanged documents are not embedded again. To continue an interrupted import, run the
same command again.
"""

import argparse
import contextlib
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import orjson

from models.manifest import ENGLISH, get_language
from models.messages import amount
from models.progress import Progress
from models.search.content import derived_id
from models.tokens.reading import MIN_WORDS, Count, count, count_english, foreign
from service.cli.commands import client
from service.cli.commands.client import (
    BUSY,
    Answer,
    NoAnswer,
    Remote,
    build_path,
    connect_to_collection,
    named_collection,
)
from service.errors import CommandError, Stopped
from service.files.columns import Placed, Seen
from service.files.conversion import TYPES
from service.files.detection import find_format
from service.files.parquet import ParquetReader, is_parquet
from service.files.preview import preview
from service.files.reader import FileReader, Options, Unpacked, build_options
from service.files.values import BadFile, BadRow, Format, Row, command_option, failed_in_words
from service.http.bodies import NDJSON

FORMATS = ("jsonl", "csv", "tsv", "text", "parquet")
PIECE_BYTES = 1 << 15  # The progress advances by this much.
TARGET_SECONDS = 1.5  # per chunk
FIRST_LINES, MAX_LINES = 16, 4096
FIRST_BYTES, MIN_BYTES, MAX_BYTES = 1 << 16, 1 << 14, 8 << 20
FACTOR = 4.0  # A chunk grows or shrinks at most by this factor.
MAX_TOLD, MAX_ALIKE = 100, 10  # failed rows that are printed, and those for one reason; others are counted
_VALUES = re.compile(r"(?!^)'[^']*'|\d+")  # what differs in the reasons of rows that fail alike
DEADLINE_PASSED = 504
AGAIN = BUSY | {DEADLINE_PASSED}
# The end of the service's error message. Its line numbers are those of the chunk, not of the file.
_STORED = re.compile(
    r" (?:Nothing of the import was stored\.|Before that (\d+) rows? (?:was|were) stored\b.*)", re.DOTALL
)
_SAMPLE, _SAMPLE_CHARACTERS = 16, 500  # documents and their characters that are tested for unknown tokens

clock = time.monotonic

Sent = list[tuple[Row, bytes]]  # rows of a file, each with its line of NDJSON


def describe(parser: argparse.ArgumentParser) -> None:
    """Declares the arguments of `import`."""
    parser.add_argument("files", nargs="+", metavar="FILE", help="`-` is stdin; .gz is unpacked")
    parser.add_argument("--format", choices=FORMATS, help="instead of the file's ending")
    parser.add_argument("--id", metavar="COLUMN", help="default: `id` or `_id`, else derived from the text")
    parser.add_argument("--title", metavar="COLUMN", help="default: `title` if it exists; '' for none")
    parser.add_argument(
        "--text", metavar="COLUMN,…", default="text", help="several are joined by blank lines (text)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--metadata", metavar="COLUMN,…", help="default for JSON: the object `metadata`")
    which.add_argument("--metadata-all", action="store_true", help="every other column")
    parser.add_argument("--encoding", metavar="NAME", help="such as cp1252; default: UTF-8 or UTF-16")
    parser.add_argument("--delimiter", metavar="CHARACTER", help="of csv: , ; tab or | (default: detected)")
    parser.add_argument(
        "--types", metavar="COLUMN=TYPE,…", help=f"metadata other than text: {', '.join(TYPES)}"
    )
    parser.add_argument("--html", choices=["strip"], help="remove tags from title and text")
    parser.add_argument("--per-file", action="store_true", help="each file is a document; its name is the id")
    parser.add_argument(
        "--vectors", action="store_true", help="load folders of `simile embed` into the store"
    )
    parser.add_argument("--data-dir", type=Path, help="of --vectors (default: SIMILE_DATA_DIR)")
    connect_to_collection(parser)


def run(arguments: argparse.Namespace) -> str:
    """Imports the files. Returns the text to print.

    Raises:
        CommandError: Some lines failed, or the import ended early. Lines that the service acknowledged are
            stored.

    """
    remote = Remote(arguments.url, arguments.key_file)
    collection = named_collection(arguments, remote)
    placed: Placed = "each" if arguments.all_collections else "one"
    if placed == "one" and collection is None and not remote.scoped:
        placed = "unsaid"
    chosen = {name: _options(name, arguments, placed) for name in arguments.files}
    if placed == "each" and any(options.format == "text" for options in chosen.values()):
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
                source_type = ParquetSource if _is_parquet(name, arguments) else Source
                source = source_type(file, name, chosen[name])
                for to, chunk in chunks(source.rows(), tally, delivery.pace):
                    delivery.send(to or collection, chunk)
                    reading.look(to or collection, chunk)
                    progress.tell(tally.stored, read_bytes + source.position)
                read_bytes += source.position
    except CommandError as error:
        if isinstance(error, CannotRead | NoAnswer) and tally.untouched:
            raise
        raise CommandError(f"{error}\n{tally.so_far()}") from error
    except KeyboardInterrupt:
        raise Stopped(f"Stopped. {tally.so_far()}") from None
    finally:
        progress.end()
        remote.close()
    if tally.failed:
        raise CommandError(str(tally))
    return str(tally)


class CannotRead(CommandError):
    """Raised if a file, or the rest of a file, cannot be read."""


def _options(name: str, arguments: argparse.Namespace, placed: Placed) -> Options:
    """Returns the options for reading the file `name`.

    Raises:
        CommandError: An option or the name of the file is wrong.

    """
    if arguments.data_dir is not None:
        raise CommandError("--data-dir is for --vectors. Other files are imported into a running service.")
    if Path(name).is_dir():
        raise CommandError(f"{name} is a folder. Name the files in it, such as {Path(name) / '*.csv'}.")
    if _is_parquet(name, arguments):
        if name == "-":
            raise CommandError("Parquet cannot be read from stdin. Name the file.")
        arguments = argparse.Namespace(**{**vars(arguments), "format": "parquet"})
        kind: Format | None = "file"  # Not used.
    else:
        kind = "file" if arguments.per_file else arguments.format or find_format(name)
    try:
        id, every = arguments.id or None, arguments.metadata_all
        options = build_options(arguments, name, kind, id, arguments.metadata, placed, every=every)
    except BadFile as error:
        raise CommandError(f"{name}: {error}") from error
    if kind is None:
        raise CommandError(f"{name}: is it jsonl, csv, tsv or text? Say so with --format.")
    return options


def _is_parquet(name: str, arguments: argparse.Namespace) -> bool:
    return arguments.format == "parquet" or (arguments.format is None and is_parquet(name))


def _size(name: str) -> int:
    """Returns the size of a file in bytes, or 0 for stdin.

    Raises:
        CannotRead: The file is missing or cannot be accessed.

    """
    try:
        return 0 if name == "-" else Path(name).stat().st_size
    except OSError as error:
        raise CannotRead(f"{name} cannot be read ({error.strerror}).") from error


@contextlib.contextmanager
def opened(name: str) -> Iterator[BinaryIO]:
    """Opens a file, or stdin if the name is `-`.

    Raises:
        CannotRead: The file cannot be read.

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
    """Reads the rows of a file."""

    def __init__(self, file: BinaryIO, name: str, options: Options) -> None:
        self._file, self._name, self._options = file, name, options
        self._reader = FileReader(name, options)

    def rows(self) -> Iterator[Row]:
        """Yields every row of the file, in order.

        Raises:
            CannotRead: The rest of the file cannot be read.

        """
        unpacked, reader = Unpacked(), self._reader
        begun = False
        try:
            for piece in iter(lambda: self._file.read(PIECE_BYTES), b""):
                if not begun and (hint := self._hint_types(piece)):
                    yield Row(self._name, 1, None, note=hint)
                begun = True
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

    def _hint_types(self, start: bytes) -> str:
        """Returns a note on metadata that looks like numbers or dates but has no type, or an empty text."""
        try:
            found = preview(start, self._name, self._options, whole=len(start) < PIECE_BYTES)
        except BadFile:
            return ""  # Reading the file says why.
        stored = self._options.columns.stored(found.columns) - self._options.types.keys()
        types = [f"{name}={kind}" for name, kind in found.guess.types.items() if name in stored]
        if not types:
            return ""
        return (
            "some columns look like numbers or dates, and without types filters compare them as texts. "
            f"Is it {command_option('types')} {shlex.quote(','.join(types))}?"
        )

    @property
    def position(self) -> int:
        """Number of bytes whose rows were already yielded. 0 for a stream."""
        return round(self._file.tell() * self._reader.share) if self._file.seekable() else 0


class ParquetSource:
    """Reads the rows of a Parquet file. Messages name rows instead of lines."""

    def __init__(self, file: BinaryIO, name: str, options: Options) -> None:
        self._size, self._name = _size(name), name
        self._reader = ParquetReader(file, name, options)

    def rows(self) -> Iterator[Row]:
        """Yields every row of the file, in order.

        Raises:
            CannotRead: The rest of the file cannot be read.

        """
        try:
            yield from self._reader.rows()
        except BadFile as error:
            place = self._name if error.line is None else f"{self._name}, after row {error.line}"
            raise CannotRead(f"{place}: {error}") from error

    @property
    def position(self) -> int:
        """Number of bytes whose rows were already yielded."""
        return round(self._size * self._reader.share)


class Tally:
    """Counts the stored and failed lines of an import.

    Attributes:
        unsettled: Lines that were sent, but may or may not be stored.

    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self.stored = self.truncated = self.unknown = 0  # rows
        self.failed = self._failed_rows = 0  # lines, rows
        self.unsettled: Sent = []
        self._told: Counter[str] = Counter()  # failed rows that were printed, by kind of reason
        self._noted = 0
        self._seen = Seen()
        self._created: int | None = 0  # new ids; None if an answer did not tell
        self._ids_known = True  # False if an answer did not tell which rows are stored.

    @property
    def untouched(self) -> bool:
        """True if no line was sent and no line has failed."""
        return not (self.stored or self.failed or self.unsettled)

    def add(self, chunk: Sent, answer: Answer, *, again: bool = False) -> None:
        """Counts the rows of a chunk after the service has answered.

        Args:
            chunk: The rows of the request, which are the first rows of `unsettled`.
            answer: The answer to the request.
            again: Whether the chunk was sent before, so that some of its rows may have been stored then.

        """
        upserted = answer.field("upserted")
        self.unsettled = self.unsettled[len(chunk) :]
        self.stored += upserted
        self.truncated += answer.value["truncated"]
        self.unknown += answer.value.get("unknown", 0)
        created = None if again else answer.value.get("created")
        self._created = None if self._created is None or created is None else self._created + created
        told = {problem["line"] - 1: problem["error"] for problem in answer.value["errors"]}
        untold = answer.value["failed"] - len(told)
        self.failed, self._failed_rows = self.failed + untold, self._failed_rows + untold
        self._ids_known = self._ids_known and answer.value["failed"] == len(told)
        for at, (row, _) in enumerate(chunk):
            if at in told:
                self.fail(row, told[at])
                continue
            content = row.content if isinstance(row.content, dict) else {}
            title, text = content.get("title"), str(content.get("text"))
            title = title if isinstance(title, str) else ""
            id = str(content.get("id") or derived_id(title, text))
            self._seen.add(id, title, text, str(content.get("collection", "")))

    def add_some(self, stored: int) -> None:
        """Counts rows that the service stored before it rejected the rest of the chunk."""
        self.stored += stored
        self._ids_known = False

    def fail(self, row: Row, reason: str) -> None:
        """Counts a row that cannot be stored, and prints the reason unless many rows failed alike."""
        self.failed += row.lines
        self._failed_rows += 1
        kind = _VALUES.sub("", reason)
        if self._told.total() < MAX_TOLD and self._told[kind] < MAX_ALIKE:
            self._told[kind] += 1
            self._print(row, reason)

    def note(self, row: Row) -> None:
        """Prints the note of a row that is unusual, but is stored."""
        self._noted += 1
        if self._noted <= MAX_TOLD:
            self._print(row, row.note)

    def _print(self, row: Row, message: str) -> None:
        self._progress.end()
        print(f"{row.file}:{row.line}: {message}", file=sys.stderr)  # noqa: T201

    def __str__(self) -> str:
        """Returns the sentence that ends the output of the command."""
        cut = f", {self.truncated} of them longer than the model sees" if self.truncated else ""
        cut += f", {self.unknown} of them with words that the model does not know" if self.unknown else ""
        documents = self._seen.distinct if self._ids_known else self.stored
        replaced = 0 if self._created is None or not self._ids_known else documents - self._created
        earlier = f"; {replaced} of them had been stored before" if replaced > 0 else ""
        said = f"{amount(documents, 'document is', 'documents are')} stored"
        if documents != self.stored:
            rows = amount(self.stored, "row is", "rows are")
            said = f"{rows} stored as {amount(documents, 'document')} ({self._seen.sentence()})"
        told = self._told.total()
        hidden = f" (the first {told} are told above)" if told < self._failed_rows else ""
        failed = f"{failed_in_words(self._failed_rows, self.failed)}{hidden}; " if self.failed else ""
        return f"{failed}{said}{cut}{earlier}."

    def so_far(self) -> str:
        """Returns a message about an import that ends early, with advice how to continue."""
        doubt = f" Of {_lines(self.unsettled)} it is not known which are stored." if self.unsettled else ""
        return (
            f"{self}{doubt}\nRun the same command again to continue: unchanged documents are skipped without "
            "being embedded again, and the sentence at its end counts them all."
        )


@dataclass(slots=True)
class Pace:
    """Limits of the next chunk, in lines and bytes.

    `took` adapts the limits after each request, so that the next request takes about TARGET_SECONDS.
    """

    lines: int = FIRST_LINES
    bytes: int = FIRST_BYTES

    def took(self, lines: int, size: int, seconds: float) -> None:
        factor = min(max(TARGET_SECONDS / max(seconds, 1e-3), 1 / FACTOR), FACTOR)
        self.lines = min(max(round(lines * factor), 1), MAX_LINES)
        self.bytes = min(max(round(size * factor), MIN_BYTES), MAX_BYTES)


def chunks(found: Iterable[Row], tally: Tally, pace: Pace) -> Iterator[tuple[str | None, Sent]]:
    """Groups rows into chunks of JSON lines. Yields each chunk with the name of its collection.

    If a row does not name a collection, the name is None, and the collection of the command applies.

    Args:
        found: The rows of a file.
        tally: Counts rows that cannot be sent.
        pace: Limits the lines that are collected before they are yielded.

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
        except orjson.JSONEncodeError as error:  # nested more deeply than orjson writes
            tally.fail(row, f"it cannot be sent as JSON ({error})")
            continue
        chunk.setdefault(to, []).append((row, content))
        lines += 1
        size += len(content)
        if lines >= pace.lines or size >= pace.bytes:
            yield from chunk.items()
            chunk, lines, size = {}, 0, 0
    yield from chunk.items()


class Delivery:
    """Sends chunks to a service."""

    def __init__(self, remote: Remote, tally: Tally, progress: Progress) -> None:
        self._remote, self._tally, self._progress = remote, tally, progress
        self._met = False  # The service has answered before.
        self.pace = Pace()

    def send(self, collection: str | None, chunk: Sent) -> None:
        """Sends a chunk, and repeats the request until each line is stored or has failed.

        Raises:
            CommandError: The service rejects the chunk, or does not answer any attempt.

        """
        began = clock()
        self._deliver(f"{build_path(collection)}/documents", chunk)
        self.pace.took(len(chunk), sum(len(line) for _, line in chunk), clock() - began)

    def _deliver(self, path: str, chunk: Sent, *, again: bool = False) -> None:
        body = b"".join(line for _, line in chunk)
        for attempt in range(client.PATIENCE + 1):
            before = self._tally.unsettled
            self._tally.unsettled = before or chunk
            try:
                answer = self._remote.send("POST", path, body, NDJSON)
            except NoAnswer as error:
                if not error.sent:
                    self._tally.unsettled = before
                if not (self._met or error.sent) or attempt == client.PATIENCE:
                    raise
                again = again or error.sent
                late, why, wait = error.late, str(error), min(2.0**attempt, client.LONGEST_WAIT_SECONDS)
            else:
                self._met = True
                if answer.status == 200:
                    return self._tally.add(chunk, answer, again=again)
                if answer.status not in AGAIN or attempt == client.PATIENCE:
                    raise self._refused(chunk, answer, before)
                stored = _STORED.search(answer.error)
                again = again or bool(stored and stored[1])
                late, why, wait = answer.status == DEADLINE_PASSED, answer.error, answer.wait_seconds
            if late and len(chunk) > 1:
                middle = len(chunk) // 2
                self._deliver(path, chunk[:middle], again=True)
                return self._deliver(path, chunk[middle:], again=True)
            self._progress.note(f"Waiting {wait:g} s to send {_lines(chunk)} again. {why}")
            client.pause(wait)
        raise AssertionError("the last attempt returns or raises")

    def _refused(self, chunk: Sent, answer: Answer, before: Sent) -> CommandError:
        """Returns the service's error for a rejected chunk, without line numbers that refer to the chunk.

        Also counts the rows that were stored before the error.

        Args:
            chunk: The rejected chunk.
            answer: The answer of the service.
            before: Rows that were unsettled before this attempt.

        """
        stored = _STORED.search(answer.error)
        if stored and stored[1]:
            self._tally.add_some(int(stored[1]))
        self._tally.unsettled = before or (chunk if stored and stored[1] else [])
        return CommandError(f"{_lines(chunk)} were refused: {_STORED.sub('', answer.error)}")


def _lines(chunk: Sent) -> str:
    first, last = chunk[0][0], chunk[-1][0]
    if first.file != last.file:
        return f"{first.file}, line {first.line} to {last.file}, line {last.line}"
    if first.line == last.line:
        return f"{first.file}, line {first.line}"
    return f"{first.file}, lines {first.line} to {last.line}"


class Reading:
    """Warns once per collection if the model's tokenizer does not know the words of the first documents."""

    def __init__(self, remote: Remote, progress: Progress) -> None:
        self._remote, self._progress = remote, progress
        self._counts: dict[str | None, Count] = {}
        self._english: dict[str | None, int] = {}

    def look(self, collection: str | None, chunk: Sent) -> None:
        known = self._counts.get(collection, Count())
        if known.words >= MIN_WORDS:
            return
        contents = [row.content for row, _ in chunk[:_SAMPLE] if isinstance(row.content, dict)]
        texts = [str(content.get("text"))[:_SAMPLE_CHARACTERS] for content in contents]
        found = self._counts[collection] = known + count(texts, self._tokenize)
        english = self._english[collection] = self._english.get(collection, 0) + count_english(texts)
        if found.words < MIN_WORDS:
            return
        if reason := found.unreadable() or (self._reads_english() and foreign(found, english)):
            self._progress.end()
            what = "these documents" if collection is None else f"the documents of {collection}"
            print(  # noqa: T201
                f"The model cannot read {what}: {reason}. Search by words (mode=lexical), import a model of "
                "their language (docs/MODELS.md), or teach it: `simile train adapt` "
                "(docs/RETRAINING.md).",
                file=sys.stderr,
            )

    def _reads_english(self) -> bool:
        """Returns whether the active model is known to read English only."""
        try:
            answer = self._remote.send("GET", "/info", whole=True)
        except CommandError:
            return False
        return answer.status == 200 and get_language(str(answer.value.get("model_id"))) == ENGLISH

    def _tokenize(self, inputs: list[str]) -> list[list[int]]:
        """Returns the token ids of each text. If the service does not return them, the lists are empty."""
        some = [text for text in inputs if text.strip()]  # The route rejects empty texts.
        body = orjson.dumps({"inputs": some, "add_special_tokens": False})
        try:
            answer = self._remote.send("POST", "/tokenize", body, "application/json", whole=True)
        except CommandError:
            return [[] for _ in inputs]
        if answer.status != 200:
            return [[] for _ in inputs]
        found = iter(answer.value)
        return [[token["id"] for token in next(found)] if text.strip() else [] for text in inputs]
