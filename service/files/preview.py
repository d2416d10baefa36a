"""Shows how a file would be read: the encoding, the separator, three rows, and the likely use of each column.

Nothing is stored. The user confirms or corrects the result, and passes the choices to the import as options.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, filterfalse
from typing import Any

import orjson

from models.files.lines import MARK, Records, TextLine, TextLines, is_blank, note_on
from models.messages import amount
from service.files.columns import IDS, repeated
from service.files.conversion import looks_like_html, proposed
from service.files.reader import (
    STEP_BYTES,
    Layout,
    Options,
    Unpacked,
    detect_layout,
    parse_header,
    refuse_arrays,
)
from service.files.values import BadFile, BadRow

SHOWN_ROWS = 3
SHOWN_CHARACTERS = 300  # per cell
MAX_BYTES = 1 << 20  # uncompressed bytes that are read
MAX_COLUMNS = 1000
MAX_PROBLEMS = 20
_TEXT_NAMES = (
    "text",
    "body",
    "content",
    "description",
    "question",
    "message",
    "abstract",
    "beschreibung",
    "inhalt",
)
_TITLES = ("title", "headline", "subject", "name", "titel", "betreff")
# Names of columns that identify a row, alone or as the end of a name such as Ticket-Nr or orderNumber.
_IDENTIFIERS = re.compile(
    r"(?:^|[\W_]|(?<=[a-z])(?=[A-Z]))"
    r"(?i:u?u?id|key|no|nr|num|number|nummer|schlüssel|sku|isbn|ticket|ticket-?(?:id|nr|nummer)|\w{3,}nummer)"
    r"\W*$"
)
_CODE = re.compile(r"\S{1,64}")
_TOO_LONG = "the line is longer than 1 MiB"
_JSON_OWN = {*IDS, "title", "text", "metadata"}


@dataclass(slots=True)
class Guess:
    id: str | None = None
    title: str | None = None
    text: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    types: dict[str, str] = field(default_factory=dict)  # types of metadata that fit every value
    html: bool = False  # The text contains tags.


@dataclass(slots=True)
class Preview:
    layout: Layout
    columns: list[str] = field(default_factory=list)  # empty if each line, or the file, is a text
    rows: list[list[str]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    guess: Guess = field(default_factory=Guess)
    problems: list[str] = field(default_factory=list)  # problems that an import would report


def preview(content: bytes, name: str, options: Options, *, whole: bool) -> Preview:
    """Shows how a file would be read.

    Args:
        content: The start of the file, or the whole file.
        name: Name of the file.
        options: Options that replace automatic detection.
        whole: Whether `content` is the whole file. Otherwise the last line may be incomplete.

    Raises:
        BadFile: The file cannot be read at all.

    """
    head, whole = _unpacked(content, whole=whole)
    layout = detect_layout(head, name, options, complete=whole)
    refuse_arrays(head, layout)
    found = Preview(layout)
    lines = TextLines(layout.encoding).feed(head, final=whole)
    if layout.separator:
        _table(found, lines, options, whole=whole)
    elif layout.format == "jsonl":
        _objects(found, lines)
    else:
        _texts(found, lines)
    if not found.rows and not found.problems:
        problem = "The file has no rows." if whole else "The part that was read has no complete row."
        found.problems.append(problem)
    return found


def _unpacked(content: bytes, *, whole: bool) -> tuple[bytes, bool]:
    unpacked, head = Unpacked(), bytearray()
    for at in range(0, len(content), STEP_BYTES):
        for part in unpacked.feed(content[at : at + STEP_BYTES]):
            head += part
            if len(head) > MAX_BYTES:
                return bytes(head[:MAX_BYTES]), False
    if whole:
        head += b"".join(unpacked.finish())
    return bytes(head), whole


def _table(found: Preview, lines: Iterable[TextLine], options: Options, *, whole: bool) -> None:
    records = Records(found.layout.separator)
    cells: list[list[str]] = []
    rest = records.finish() if whole else ()  # runs after the lines
    for record in filterfalse(is_blank, chain(chain.from_iterable(map(records.take, lines)), rest)):
        if not found.columns:
            found.columns = parse_header(record, found.layout, options, checked=False)
            if len(found.columns) > MAX_COLUMNS:
                raise BadFile(
                    f"it has {len(found.columns)} columns; at most {MAX_COLUMNS} can be chosen from.", 1
                )
            for name in repeated(found.columns):
                _problem(found, 1, f"two columns are named {name[:80]!r}. Give each a name of its own")
            continue
        row = record.cells
        if isinstance(row, BadRow):
            _problem(found, record.line, str(row))
        elif len(row) != len(found.columns):
            _problem(found, record.line, f"it has {amount(len(row), 'cell')}, not {len(found.columns)}")
        elif any(MARK in cell for cell in row):
            _problem(found, record.line, f"it is not {found.layout.encoding}")
        else:
            cells.append(row)
            if note := note_on(record):
                _problem(found, record.line, note)
            if len(found.rows) < SHOWN_ROWS:
                _show(found, record.line, row)
    columns = {name: [row[at] for row in cells] for at, name in enumerate(found.columns) if name}
    found.guess = _guess(columns, len(cells))


def _texts(found: Preview, lines: Iterable[TextLine]) -> None:
    for number, text, _ in lines:
        if text is None:
            _problem(found, number, _TOO_LONG)
            continue
        if MARK in text:
            _problem(found, number, f"it is not {found.layout.encoding}")
        if text.strip() and len(found.rows) < SHOWN_ROWS:
            _show(found, number, [text.strip()])


def _objects(found: Preview, lines: Iterable[TextLine]) -> None:
    objects: list[tuple[int, dict[str, Any]]] = []
    for number, text, _ in lines:
        if text is None:
            _problem(found, number, _TOO_LONG)
            continue
        if not text.strip():
            continue
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            _problem(found, number, f"it is not valid JSON ({error})")
            continue
        if isinstance(value, dict):
            objects.append((number, value))
        else:
            _problem(found, number, "it is not a JSON object")
    names = list(dict.fromkeys(name for _, value in objects for name in value))[:MAX_COLUMNS]
    found.columns = names
    for number, value in objects[:SHOWN_ROWS]:
        _show(found, number, [_shown(value.get(name)) for name in names])
    found.guess = _guess(_strings(names, objects), len(objects))
    if not set(names) - _JSON_OWN:  # In our export format, metadata is an object.
        found.guess.metadata = []
    found.guess.types = {}


def _strings(names: list[str], objects: Sequence[tuple[int, dict[str, Any]]]) -> dict[str, list[str]]:
    strings: dict[str, list[str]] = {name: [] for name in names}
    for _, value in objects:
        for name, each in value.items():
            if name in strings and isinstance(each, str | int) and not isinstance(each, bool):
                strings[name].append(str(each))
    return strings


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # The value is nested too deeply.
        return "…"


def _guess(columns: Mapping[str, Sequence[str]], rows: int) -> Guess:
    """Guesses the use of each column.

    Args:
        columns: The values by name. A field that some JSON lines lack has fewer values.
        rows: Number of rows.
    """
    by_small = {name.lower(): name for name in reversed([*columns])}
    guess = Guess(id=next((by_small[name] for name in IDS if name in by_small), None))
    guess.title = next((by_small[name] for name in _TITLES[:1] if name in by_small), None)
    text = next((by_small[name] for name in _TEXT_NAMES if name in by_small), None)
    if text is None:  # The column with the longest values is probably the text.
        left = [name for name in columns if name not in {guess.id, guess.title}] or [*columns]
        text = max(left, key=lambda name: sum(map(len, columns[name])), default=None)
    if guess.title is None:
        guess.title = next(
            (by_small[name] for name in _TITLES if name in by_small and by_small[name] != text), None
        )
    if guess.id is None:
        left = [name for name in columns if name not in {guess.title, text}]
        first = [name for name in left if name == next(iter(columns)) and not _is_measure(columns[name])]
        named = [name for name in left if _IDENTIFIERS.search(name)]
        guess.id = next((name for name in named + first if _identifies(columns[name], rows)), None)
    guess.text = [] if text is None else [text]
    guess.metadata = [name for name in columns if name not in {guess.id, guess.title, text}]
    guess.types = {name: kind for name in guess.metadata if (kind := proposed(columns[name]))}
    guess.html = text is not None and looks_like_html(columns[text])
    return guess


def _identifies(values: Sequence[str], rows: int) -> bool:
    """Returns whether each row has a value of its own. A single row does not tell."""
    return len({*values}) == rows > 1 and all(map(_CODE.fullmatch, values))


def _is_measure(values: Sequence[str]) -> bool:
    """Returns whether a column has dates or decimal numbers, which are unique by chance only."""
    kind = proposed(values)
    return kind is not None and (kind != "number" or any("." in value for value in values))


def _problem(found: Preview, line: int, what: str) -> None:
    if len(found.problems) < MAX_PROBLEMS:
        found.problems.append(f"Line {line}: {what.removesuffix('.')}.")


def _show(found: Preview, line: int, cells: Sequence[str]) -> None:
    cells = [cell.replace(MARK, "\ufffd") for cell in cells]  # JSON cannot contain MARK.
    found.lines.append(line)
    found.rows.append(
        [cell if len(cell) <= SHOWN_CHARACTERS else f"{cell[:SHOWN_CHARACTERS]} …" for cell in cells]
    )
