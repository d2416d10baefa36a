"""Lines out of pieces: the same however they are cut."""

import pytest

from service.api.bulk_import import Line, Lines
from service.files.lines import MAX_LINE_BYTES


def lines(body: bytes, size: int) -> list[Line]:
    splitter = Lines()
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    return [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.finish())


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_lines_are_the_same_however_the_body_is_cut(size: int) -> None:
    body = b"one\r\n\n  \t\ntwo \xc3\xa9\n\nthree"
    assert lines(body, size) == [(1, b"one\r"), (4, b"two \xc3\xa9"), (6, b"three")]


def test_a_line_feed_at_the_end_begins_no_line() -> None:
    assert lines(b"one\n", 100) == [(1, b"one")]
    assert lines(b"", 100) == []


def test_a_byte_order_mark_is_no_part_of_the_first_line_alone() -> None:
    assert lines(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", 2) == [(1, b"one"), (2, b"\xef\xbb\xbftwo")]


@pytest.mark.parametrize("size", [1000, 1 << 16, 1 << 23])
def test_a_line_is_at_most_a_mebibyte_and_the_next_one_is_whole(size: int) -> None:
    longest = b"a" * MAX_LINE_BYTES
    body = longest + b"\n" + longest + b"b\nshort\n" + longest * 3
    assert lines(body, size) == [(1, longest), (2, None), (3, b"short"), (4, None)]


def test_a_line_without_end_is_not_kept() -> None:
    splitter = Lines()
    for _ in range(64):
        assert list(splitter.feed(b"a" * (1 << 16))) == []
    assert len(splitter._rest) <= MAX_LINE_BYTES
