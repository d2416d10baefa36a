"""Endless lines, rows and documents of files are reported, and take bounded memory."""

import io
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from models.files.lines import MAX_LINE_BYTES
from models.progress import Progress
from service.api.bulk_import import Lines
from service.cli.commands.import_files import Pace, Source, Tally, chunks, opened
from service.errors import CommandError
from service.files.reader import Options
from service.files.values import Format, Row

MEBIBYTE = 1 << 20
LONG = 200 * MEBIBYTE
LIMIT = 24 * MEBIBYTE  # memory limit of a reader


def read(name: str | Path, kind: Format) -> Iterator[Row]:
    with opened(str(name)) as file:
        yield from Source(file, str(name), Options(kind, "utf-8")).rows()


def told(found: Iterator[Row]) -> list[tuple[int, str]]:
    """Returns the line number of each row, with the row's text or error."""
    return [
        (row.line, row.content["text"] if isinstance(row.content, dict) else str(row.content))
        for row in found
        if row.content is not None
    ]


def taken(file: Path, kind: Format) -> tuple[list[tuple[int, str]], int]:
    """Reads the file. Returns its rows as `told` does, and the peak memory in bytes."""
    tracemalloc.start()
    try:
        found = told(read(file, kind))
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def with_a_long_line(file: Path, head: bytes, tail: bytes) -> None:
    """Writes `head`, a line of 200 MiB, and `tail`. The line is a hole of a sparse file, read as zeros."""
    with file.open("wb") as out:
        out.write(head)
        out.truncate(len(head) + LONG)
        out.seek(0, os.SEEK_END)
        out.write(tail)


LONG_ROW, LONG_LINE = "the row is longer than 1 MiB", "the line is longer than 1 MiB"
LINES = [(1, "one"), (2, LONG_LINE), (3, "three")]
CASES: dict[Format, tuple[bytes, bytes, list[tuple[int, str]]]] = {
    "csv": (b"id,text\na,one\n", b"\nc,three\n", [(2, "one"), (3, LONG_ROW), (4, "three")]),
    "jsonl": (b'{"text": "one"}\n', b'\n{"text": "three"}\n', LINES),
    "text": (b"one\n", b"\nthree\n", LINES),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_line_without_end_takes_no_memory_and_is_named(tmp_path: Path, kind: Format) -> None:
    head, tail, expected = CASES[kind]
    with_a_long_line(tmp_path / "file", head, tail)
    found, most = taken(tmp_path / "file", kind)
    assert found == expected
    assert most < LIMIT


def test_a_document_of_a_whole_file_is_bounded(tmp_path: Path) -> None:
    with_a_long_line(tmp_path / "file", b"one", b"")
    found, most = taken(tmp_path / "file", "file")
    assert found == [(1, "a document has at most 1 MiB")]
    assert most < LIMIT


def csv_rows(content: bytes) -> list[tuple[int, str]]:
    return told(Source(io.BytesIO(content), "x.csv", Options("csv")).rows())


def test_a_row_of_many_lines_is_bounded_and_reading_goes_on_behind_it() -> None:
    lost = 1 + MAX_LINE_BYTES // len("b,another\n")
    found = csv_rows(b'id,text\na,"one\n' + b"b,another\n" * (lost + 3))
    lines = f"lines 2 to {1 + lost} are one row"
    assert found[0] == (2, f"{lines}, which is longer than 1 MiB. Its quote may never end")
    assert [text for _, text in found[1:]] == ["another"] * (len(found) - 1)
    assert found[-1][0] == 2 + lost + 3


def test_a_row_of_the_longest_length_is_read_and_one_character_more_is_not() -> None:
    text = "a" * (MAX_LINE_BYTES - len("a,\n"))
    assert csv_rows(f"id,text\na,{text}\nb,two\n".encode()) == [(2, text), (3, "two")]
    assert csv_rows(f"id,text\na,{text}a\nb,two\n".encode()) == [(2, LONG_ROW), (3, "two")]


def test_the_lines_of_rows_are_counted_over_cells_of_several_lines() -> None:
    content = b'id,text\r\na,"one\ntwo"\r\nb\r\n\r\nc,"three"x\r\nd,four\r\n'
    found = csv_rows(content)
    assert [line for line, _ in found] == [2, 4, 6, 7]
    assert (found[0][1], found[-1][1]) == ("one\ntwo", "four")


def test_a_first_line_without_end_is_refused_with_its_number(tmp_path: Path) -> None:
    with_a_long_line(tmp_path / "x.csv", b"id,", b"\na,b\n")
    with pytest.raises(CommandError, match=r"x\.csv:1: the row is longer than 1 MiB"):
        list(read(tmp_path / "x.csv", "csv"))


def test_metadata_nested_deeper_than_it_can_be_sent_fails_its_own_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    deep = '{"text": "a", "metadata": {"a": ' + "[" * 600 + "]" * 600 + "}}"
    lines = [deep, json.dumps({"text": "b"})]
    file = io.BytesIO("\n".join(lines).encode())
    tally = Tally(Progress("documents", 0))
    found = Source(file, "x.jsonl", Options("jsonl")).rows()
    [(collection, chunk)] = chunks(found, tally, Pace())
    assert collection is None
    assert [row.content["text"] for row, _ in chunk if isinstance(row.content, dict)] == ["b"]
    assert tally.failed == 1
    assert "x.jsonl:1: it cannot be sent as JSON" in capsys.readouterr().err


def test_lines_of_json_are_sent_unchanged_or_say_which_field_cannot_be(tmp_path: Path) -> None:
    documents = [
        {"id": " x", "title": " t ", "text": " a\r\n", "metadata": {"z": 1, "a": -0.0, "n": 2**64 - 1}},
        {"id": "e\u0301", "text": "\ufeffb", "metadata": {}},
    ]
    refused = [
        b'{"text":"t","metadata":{"a":18446744073709551616}}',
        b'{"text":"t","text":"u"}',
        b'{"text":"t","metadata":{"a":"\\ud800"}}',
    ]
    file = tmp_path / "all.jsonl"
    file.write_bytes(b"\n".join([*map(orjson.dumps, documents), *refused]))
    with opened(str(file)) as stream:
        found = [row.content for row in Source(stream, "all", Options("jsonl")).rows()]
    assert [orjson.dumps(row, option=orjson.OPT_SORT_KEYS) for row in found[:2]] == [
        orjson.dumps(document, option=orjson.OPT_SORT_KEYS) for document in documents
    ]
    said = [str(row) for row in found[2:]]
    assert said[0].startswith("metadata.a is 18446744073709551616. Whole numbers are stored from")
    assert said[1:] == [
        "text comes twice in one object. Send each name once.",
        "metadata.a has half of a surrogate pair (U+D800). Leave it out.",
    ]


def lines(body: bytes, size: int) -> list[tuple[int, bytes | None]]:
    splitter = Lines()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.finish())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_are_the_same_however_the_body_is_cut(size: int) -> None:
    body = b"one\r\n\n  \t\ntwo \xc3\xa9\n\nthree"
    assert lines(body, size) == [(1, b"one\r"), (4, b"two \xc3\xa9"), (6, b"three")]


def test_a_line_feed_at_the_end_begins_no_line_and_a_line_without_end_is_not_kept() -> None:
    assert lines(b"one\n", 100) == [(1, b"one")]
    assert lines(b"", 100) == []
    assert lines(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", 2) == [(1, b"one"), (2, b"\xef\xbb\xbftwo")]
    splitter = Lines()
    for _ in range(64):
        assert list(splitter.feed(b"a" * (1 << 16))) == []
    assert len(splitter._rest) <= MAX_LINE_BYTES


@pytest.mark.parametrize("size", [1000, 1 << 16, 1 << 23])
def test_a_line_is_at_most_a_mebibyte_and_the_next_one_is_whole(size: int) -> None:
    longest = b"a" * MAX_LINE_BYTES
    body = longest + b"\n" + longest + b"b\nshort\n" + longest * 3
    assert lines(body, size) == [(1, longest), (2, None), (3, b"short"), (4, None)]
