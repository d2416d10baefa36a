"""Detects the format of a file by its name, and the encoding and the separator by the first bytes.

If the encoding is only a guess, the result says so, and the caller asks the user.
"""

import codecs
import csv
import io
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePath
from typing import NamedTuple

from models.files.lines import MARK, MAX_LINE_BYTES, decoded, parse_separator, said_separator
from models.messages import did_you_mean
from service.files.values import BadFile, Format, Spelling

HEAD_BYTES = 1 << 16  # bytes that detection reads
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
ENCODINGS = (
    "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
    "cp1252", "iso-8859-1", "iso-8859-2", "iso-8859-9", "iso-8859-15", "mac-roman",
    "cp437", "cp850", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "koi8-r",
    "shift_jis", "cp932", "euc_jp", "gb18030", "big5", "euc_kr", "cp949",
)  # fmt: skip
_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".tab": "tsv",
    ".txt": "text",
    ".md": "text",
}
_EXCEL = "this is an Excel file; save it as CSV."
_PARQUET = "this is a Parquet file; `simile import` reads it. Here, send CSV or JSON lines."
_SHEET = "this is an OpenDocument spreadsheet; save it as CSV."
_ARCHIVE = "this is an archive; unpack it and import the files in it."
_ZIP = (
    "this is an archive or an Excel file; save the table as CSV, or unpack the archive and import the files "
    "in it."
)
_OPEN_XML = (b"xl/", b"[Content_Types].xml", b"docProps/", b"_rels/.rels")
_TAKEN = "import reads JSON lines, CSV, TSV and plain text."
_BYTES = f"this is a binary file; {_TAKEN}"
_OTHER = f"this is a document of another program; save it as plain text. I{_TAKEN[1:]}"
_REFUSED_ENDINGS = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".xlsb", ".xltx"), _EXCEL),
    **dict.fromkeys((".parquet", ".pq"), _PARQUET),
    ".ods": _SHEET,
    ".numbers": "this is a Numbers spreadsheet; export it as CSV.",
    **dict.fromkeys((".feather", ".arrow", ".avro", ".orc"), _BYTES),
    **dict.fromkeys((".pdf", ".docx", ".doc", ".odt", ".pptx", ".rtf", ".epub"), _OTHER),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar", ".zst", ".bz2", ".xz"), _ARCHIVE),
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".sqlite", ".db", ".exe"), _BYTES),
}  # fmt: skip
_MAGIC = {
    _EXCEL: (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",),
    _PARQUET: (b"PAR1",),
    _ARCHIVE: (b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\0", b"7z\xbc\xaf", b"Rar!", b"\x1f\x8b"),
    _OTHER: (b"%PDF", b"{\\rtf"),
    _BYTES: (b"SQLite format 3\0", b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"ARROW1\0", b"Obj\x01", b"\x7fELF"),
}
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\f\x1a\x1b"))
_FOREIGN = re.compile(rf"[^\s,;|\"]{{0,20}}[^\x00-\x7f{MARK}][^\s,;|\"]{{0,20}}")
_TRIED_ROWS = 50


class Encoding(NamedTuple):
    """A detected encoding.

    If `certain` is False, the encoding is a guess, and `sample` is a word that shows if the guess is right.
    """

    name: str
    certain: bool
    sample: str = ""


def refuse_name(name: str) -> None:
    """Rejects a file whose name belongs to a binary format.

    Raises:
        BadFile: The extension belongs to a binary format.

    """
    endings = PurePath(name).suffixes
    for ending in endings[-2:] if endings[-1:] == [".gz"] else endings[-1:]:
        if reason := _REFUSED_ENDINGS.get(ending.lower()):
            raise BadFile(reason)


def find_format(name: str) -> Format | None:
    """Returns the format that the extension of a file name stands for, or None.

    The extension `.gz` is ignored.
    """
    endings = [ending.lower() for ending in PurePath(name).suffixes if ending.lower() != ".gz"]
    return _ENDINGS.get(endings[-1]) if endings else None


def refuse_content(head: bytes) -> None:
    """Rejects a file in a binary format. `head` is the uncompressed start of the file.

    Raises:
        BadFile: The first bytes belong to a binary format.

    """
    if head.startswith(b"PK\x03\x04"):
        if b"word/" in head or b"ppt/" in head:
            raise BadFile(_OTHER)
        excel = any(name in head for name in _OPEN_XML)
        raise BadFile(_EXCEL if excel else _SHEET if b"opendocument.spreadsheet" in head else _ZIP)
    for reason, marks in _MAGIC.items():
        if head.startswith(marks):
            raise BadFile(reason)


def detect_encoding(head: bytes, *, complete: bool) -> Encoding:
    """Detects the encoding of a file.

    Args:
        head: The uncompressed start of the file.
        complete: Whether `head` is the whole file.

    Raises:
        BadFile: The file is binary.

    """
    for mark, name in _BOMS:
        if head.startswith(mark):
            return Encoding(name, certain=True)
    if wide := _wide(head):
        return Encoding(wide, certain=True)
    text = decoded(head, "utf-8", final=complete)
    bad = text.count(MARK)
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if controls > len(head) * (0.05 if bad else 0.2):
        raise BadFile(_BYTES)
    # Other encodings are hardly ever valid UTF-8 by chance. A few bad bytes are a damaged line.
    if bad <= sum(character > "\x7f" and character != MARK for character in text) if bad else True:
        return Encoding("utf-8", certain=True)
    legacy = "cp1252" if MARK not in decoded(head, "cp1252", final=True) else "iso-8859-1"
    found = _FOREIGN.search(decoded(head, legacy, final=True))
    return Encoding(legacy, certain=False, sample=found[0] if found else "")


def _wide(head: bytes) -> str | None:
    """Detects UTF-16 without a byte order mark. Returns None for other encodings.

    In UTF-16, every second byte of Latin text is zero.
    """
    even, odd = head[::2].count(0), head[1::2].count(0)
    name = "utf-16-be" if even > odd else "utf-16-le"
    if len(head) < 8 or max(even, odd) < len(head) * 0.2 or min(even, odd) > max(even, odd) * 0.1:
        return None
    text = decoded(head[:4096], name, final=False)
    strange = sum(character < " " and character not in "\t\n\r" for character in text) + text.count(MARK)
    return name if strange <= len(text) * 0.05 else None


def checked_encoding(name: str, spell: Spelling) -> str:
    """Returns the canonical name of an encoding that the user chose.

    Raises:
        BadFile: The encoding is not in the list of supported encodings. Other codecs of Python are rejected,
            because some of them decompress data.

    """
    try:
        found = codecs.lookup(name.strip()).name
    except (LookupError, ValueError, UnicodeError):
        found = ""
    known = {codecs.lookup(each).name: each for each in ENCODINGS}
    known |= {"utf-8-sig": "utf-8", "ascii": "utf-8"}
    if found not in known:
        hint = did_you_mean(name, ENCODINGS) or f" Known are {', '.join(ENCODINGS)}."
        raise BadFile(f"unknown encoding {name[:40]!r} ({spell('encoding')}).{hint}")
    return known[found]


def require_mark(head: bytes, encoding: str, spell: Spelling) -> None:
    """Checks that a file has a byte order mark, if the chosen encoding needs one.

    Args:
        head: The uncompressed start of the file.
        encoding: Canonical name of the encoding.
        spell: Returns the caller's spelling of an option, for messages.

    Raises:
        BadFile: The byte order mark is missing.

    """
    marks = tuple(mark for mark, name in _BOMS if name == encoding != "utf-8")
    if head and marks and not head.startswith(marks):
        raise BadFile(
            f"it has no byte order mark, so it is not {encoding.upper()}. "
            f"{spell('encoding')} names another encoding, such as {encoding}-le."
        )


def checked_separator(mark: str, spell: Spelling) -> str:
    """Returns the separator that the user chose. `mark` is one character, or a name such as `tab`.

    Raises:
        BadFile: The character cannot be a separator.

    """
    if not (found := parse_separator(mark)):
        raise BadFile(f"{mark[:20]!r} cannot separate columns ({spell('delimiter')}). Use one of , ; tab |.")
    return found


def detect_separator(text: str, kind: Format, *, complete: bool) -> str:
    """Detects the character that separates columns.

    A first line such as `sep=;` names the separator. Otherwise a good separator splits the first row into
    several cells, and most other rows into the same number of cells.

    Args:
        text: The start of the file.
        kind: Format of the file. For `tsv`, the tab is tried first.
        complete: Whether `text` is the whole file.

    """
    if named := said_separator(text):
        return named
    csv.field_size_limit(MAX_LINE_BYTES)
    tried = sorted(SEPARATORS, key=lambda mark: mark != "\t") if kind == "tsv" else [*SEPARATORS]
    best, best_score = tried[0], (0.0, 0)
    for mark in tried:
        rows = _tried(text, mark, complete=complete)
        if rows and (width := len(rows[0])) > 1:
            score = sum(len(row) == width for row in rows) / len(rows), width
            if score > best_score:
                best, best_score = mark, score
    return best


def _tried(text: str, mark: str, *, complete: bool) -> Sequence[list[str]]:
    try:
        rows = list(islice(csv.reader(io.StringIO(text, newline=""), delimiter=mark), _TRIED_ROWS + 1))
    except csv.Error:
        return []
    if len(rows) > 1 and (not complete or len(rows) > _TRIED_ROWS):
        rows.pop()  # The last row may continue after the head.
    return [row for row in rows if row]
