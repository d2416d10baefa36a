"""Files of all kinds are read as intended, or rejected with a message that says what to do."""

import gzip
import time
import tracemalloc
from dataclasses import replace
from typing import Any

import orjson
import pytest

from service.files.columns import Columns, Seen
from service.files.conversion import plain_text, proposed
from service.files.detection import ENCODINGS, detect_encoding
from service.files.preview import MAX_BYTES, preview
from service.files.reader import FileReader, Options, Unpacked
from service.files.values import BadFile, BadRow, Row, query_parameter, split_names

UMLAUTS = "id,text\n1,größe\n2,ärger\n"


def read(content: bytes, name: str = "x.csv", *, step: int = 7, **options: Any) -> list[Row]:
    """Returns the rows of a file that arrives in pieces of `step` bytes."""
    unpacked, reader = Unpacked(), FileReader(name, Options(**options))
    found: list[Row] = []
    for at in range(0, len(content), step):
        for part in unpacked.feed(content[at : at + step]):
            found += reader.feed(part)
    for part in unpacked.finish():
        found += reader.feed(part)
    return [*found, *reader.finish()]


def texts(content: bytes, name: str = "x.csv", **options: Any) -> dict[str, str]:
    """Returns the texts by id. No row may fail."""
    rows = [row.content for row in read(content, name, **options) if row.content is not None]
    assert all(isinstance(row, dict) for row in rows), rows
    return {row["id"]: row["text"] for row in rows if isinstance(row, dict)}


def document(content: bytes, name: str = "x.csv", **options: Any) -> dict[str, Any]:
    """Returns the document of a file with one row."""
    [row] = read(content, name, **options)
    assert isinstance(row.content, dict), row
    return row.content


def failed(rows: list[Row]) -> list[tuple[int, int, str]]:
    return [(row.line, row.lines, str(row.content)) for row in rows if isinstance(row.content, BadRow)]


def refused(content: bytes, name: str = "x.csv", **options: Any) -> str:
    with pytest.raises(BadFile) as caught:
        read(content, name, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "bom-be"]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_what_the_bytes_say_is_read_without_an_option(encoding: str, end: str) -> None:
    text = UMLAUTS.replace("\n", end)
    content = b"\xfe\xff" + text.encode("utf-16-be") if encoding == "bom-be" else text.encode(encoding)
    assert texts(content) == {"1": "größe", "2": "ärger"}


@pytest.mark.parametrize(
    ("encoding", "text", "word"),
    [
        ("cp1252", "größe", "größe"),
        ("cp1252", "5 € „hier“ \u2013 \u2018so\u2019", "€"),
        ("latin-1", "café au lait", "café"),
        ("cp1252", "\u2019tis señor", "\u2019tis"),
        ("cp1251", "Москва", "Ìîñêâà"),
    ],
)
@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.txt"])
def test_a_guessed_encoding_is_shown_and_nothing_is_read_before_it_is_said(
    encoding: str, text: str, word: str, name: str
) -> None:
    head = {"x.csv": "id,text\n1,", "x.tsv": "id\ttext\n1\t", "x.txt": ""}[name]
    content = f"{head}{text}\n".encode(encoding)
    said = refused(content, name)
    assert "it is not UTF-8. It looks like cp1252" in said
    assert word in said
    assert "--encoding cp1252" in said
    assert "encoding=cp1252" in refused(content, name, spell=query_parameter)
    assert document(content, name, encoding=encoding)["text"] == text


def test_bytes_that_no_guess_fits_are_a_failure_of_their_line_and_of_no_other() -> None:
    late = f"id,text\n1,größe\n2,ärger\n3,é{'x' * 70_000}\n4,".encode() + b"gr\xf6\xdfe\n5,five"
    [(line, lines, why)] = failed(found := read(late, step=5000))
    assert (line, lines) == (5, 1)
    assert why.startswith("it is not UTF-8 (character 3). --encoding names another")
    assert [row.content["id"] for row in found if isinstance(row.content, dict)] == ["1", "2", "3", "5"]
    assert failed(read("id,text\n1,größe\n2,a".encode() + b"\xc3"))[0][0] == 3
    assert failed(read("id,text\n1,größe\n2,a".encode("utf-16") + b"\n", encoding="utf-16"))[0][0] == 3
    assert failed(read(b'{"text": "a"}\n{"text": "\xf6"}\n', "x.jsonl"))[0][0] == 2


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("name", ["x.csv", "x.jsonl", "x.txt", "x.log"])
@pytest.mark.parametrize("content", [UMLAUTS.encode(), UMLAUTS.encode("utf-16-le"), b"\xff"])
def test_an_encoding_that_needs_a_byte_order_mark_is_refused_without_it(
    encoding: str, name: str, content: bytes
) -> None:
    kind: dict[str, Any] = {"format": "file"} if name == "x.log" else {}
    said = refused(content, name, encoding=encoding, **kind)
    assert f"it has no byte order mark, so it is not {encoding.upper()}. --encoding names another" in said
    with pytest.raises(BadFile, match=f"such as {encoding}-le"):
        preview(content, name, Options(encoding=encoding, **kind), whole=True)
    assert read(b"", name, encoding=encoding, **kind)[0].note == "the file is empty."
    assert texts(UMLAUTS.encode(f"{encoding}-le"), encoding=f"{encoding}-le") == texts(UMLAUTS.encode())


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_that_is_named_can_be_read(encoding: str) -> None:
    assert texts(b"".join([UMLAUTS.replace("ö", "o").replace("ß", "s").replace("ä", "a").encode(encoding)]),
                 encoding=encoding) == {"1": "grose", "2": "arger"}  # fmt: skip


@pytest.mark.parametrize("encoding", ["base64", "zlib", "rot13", "idna", "utf8x", "", "cp 9", "utf-7"])
def test_what_is_no_encoding_of_text_is_refused(encoding: str) -> None:
    assert f"unknown encoding {encoding!r}" in refused(b"id,text\n", encoding=encoding)
    assert "Did you mean shift_jis?" in refused(b"id,text\n", encoding="shift-jiss")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("id,text\n1,a\n2,b\n", {"1": "a", "2": "b"}),
        ("id;text\n1;3,5 mm\n2;b\n", {"1": "3,5 mm", "2": "b"}),
        ("id\ttext\n1\ta, b; c\n", {"1": "a, b; c"}),
        ("id|text\n1|a;b,c\n", {"1": "a;b,c"}),
        ("sep=;\nid;text\n1;a,b\n", {"1": "a,b"}),
        ('"sep=|"\r\nid|text\r\n1|a,b\r\n', {"1": "a,b"}),
        ('id;text\n1;"a;b, ""c""|d"\n', {"1": 'a;b, "c"|d'}),
        ('"id","text"\n"1","a;b;c;d"\n', {"1": "a;b;c;d"}),
        ("id, text \n1,a\n", {"1": "a"}),
        ("id,text,,\n1,a,,\n", {"1": "a"}),  # Columns without a name are not stored.
        ('id,text\n1,"two\r\nlines"\n', {"1": "two\r\nlines"}),
        ('id,text\n\n1,"a\n\nb"\n\n', {"1": "a\n\nb"}),
        ('id,text\n1,he said "so", ok\n'.replace(", ok", ""), {"1": 'he said "so"'}),
    ],
)
def test_the_separator_is_the_one_that_makes_a_table(content: str, expected: dict[str, str]) -> None:
    assert texts(content.encode()) == expected
    assert texts(content.encode(), step=1) == expected


def test_several_columns_are_one_text() -> None:
    rows = read(
        b'id\tq\ta\n1\twhy?\t"because,\nand so"\n2\thow?\t \n', "x.tsv", columns=Columns(text=("q", "a"))
    )
    found = [row.content["text"] for row in rows if isinstance(row.content, dict)]
    assert found == ["why?\n\nbecause,\nand so", "how?"]


def test_beir_needs_no_option_and_a_field_title_of_another_type_is_none() -> None:
    line = b'{"_id": 2, "title": {"a": 1}, "text": "red"}\n'
    assert document(line, "x.jsonl") == {"id": "2", "text": "red", "metadata": {}}
    told = failed(read(line, "x.jsonl", columns=Columns(title="title")))
    assert "'title' is not a text (--title)" in told[0][2]


def test_a_table_of_one_column_and_a_named_separator() -> None:
    assert document(b'text\n"a, b"\n') == {"text": "a, b", "metadata": {}}
    assert texts(b"id:text\n1:a,b\n", delimiter=":") == {"1": "a,b"}
    assert texts(b"id\ttext\n1\ta\n", delimiter="tab") == {"1": "a"}
    said = refused(b"id;text\n1;a\n", delimiter=",")
    assert "it looks as if ';' separates its columns (--delimiter)" in said
    for wrong in ('"', "ab", "", "x", "\n"):
        assert "cannot separate columns" in refused(b"id,text\n", delimiter=wrong)


@pytest.mark.parametrize(
    ("header", "options", "words"),
    [
        ("ID,Text", {}, "the column 'text' is missing; the file has ID, Text. Did you mean Text?"),
        ("Beschreibung", {"text": ("beschreibung",)}, "Did you mean Beschreibung?"),
        ("id,text", {"id": "ident"}, "the column 'ident' is missing"),
        ("id,text,text", {}, "two columns are named 'text'"),
        ("id,text, text ", {}, "two columns are named 'text'"),
        ("id,text,", {"all_metadata": True}, "column 3 has no name"),
        ("id,,text", {"all_metadata": True}, "column 2 has no name"),
        ('id,"text\n', {}, "never ends"),
    ],
)
def test_a_header_that_cannot_be_right_is_refused(header: str, options: dict[str, Any], words: str) -> None:
    assert words in refused(f"{header}\n1,a\n".encode(), columns=Columns(**options))


def test_a_header_of_very_many_columns_takes_linear_time() -> None:
    def header(number: int) -> list[str]:
        return ["id", "text", *(f"c{at}" for at in range(number - 2))]

    began = time.process_time()
    long = header(120_000)
    every = Columns(all_metadata=True)
    assert "it has 120000 columns; at most 10000 are read" in refused(",".join(long).encode(), columns=every)
    widest = ",".join(header(10_000))
    assert failed(read(widest.encode(), step=1 << 16, columns=every, types={"c9997": "number"})) == []
    assert "two columns are named 'c9996'" in refused(f"{widest[:-6]},c9996".encode())
    assert "the column 'c9998' is missing" in refused(widest.encode(), columns=Columns(metadata=("c9998",)))
    line = orjson.dumps(dict.fromkeys(long[2:50_000], ""))
    assert "the field 'text' for the text" in failed(read(line, "x.jsonl", step=1 << 16))[0][2]
    assert time.process_time() - began < 6


@pytest.mark.parametrize(
    ("title", "column"), [("", "title"), ("other", "title"), (None, "other"), ("title", "other")]
)
def test_a_column_that_is_no_title_is_stored_and_may_have_a_type(title: str | None, column: str) -> None:
    columns = Columns(title=title, all_metadata=True)
    found = document(b"id,text,title,other\n1,x,12,12\n", columns=columns, types={column: "number"})
    assert found["metadata"][column] == 12


def test_a_name_that_is_nearly_id_is_noted() -> None:
    rows = read(b"ID,Text\n7,a\n", columns=Columns(text=("Text",)))
    assert rows[0].note == "no column is named id, so ids are made from the text. Is it 'ID' (--id)?"
    assert texts(b"ID,Text\n7,a\n", columns=Columns(id="ID", text=("Text",))) == {"7": "a"}


def table(**changed: str) -> bytes:
    """Returns a CSV file of 1,000 rows. Row N is `changed["rowN"]` if that is given."""
    rows = [changed.get(f"row{at}", f"{at},text {at},en") for at in range(1, 1001)]
    return "\n".join(["id,text,lang", *rows, ""]).encode()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"row400": '400,"he said enough'},
            [(401, 601, "lines 401 to 1001 are one row, its quote never ends")],
        ),
        ({"row1000": '1000,"open,en'}, [(1001, 1, "its quote never ends")]),
        (
            {"row400": '400,"he said', "row700": '700,so" he,en'},
            [(401, 301, "lines 401 to 701 are one row, which is not valid. (',' expected after '\"')")],
        ),
        ({"row5": '5,"a"b,en'}, [(6, 1, "it is not a valid row (',' expected after '\"')")]),
        ({"row5": "5,short"}, [(6, 1, "it has 2 cells, and the first line names 3 columns")]),
        ({"row5": "5,a,en,long"}, [(6, 1, "it has 4 cells, and the first line names 3 columns")]),
        (
            {"row5": '5,"two', "row6": 'lines"'},
            [(6, 2, "lines 6 to 7 are one row of 2 cells, and the first line names 3 columns")],
        ),
        ({"row5": "5,a\0b,en"}, [(6, 1, "it holds a NUL character (U+0000). Take it out")]),
        ({"row5": ",a,"}, [(6, 1, "'id' has no id (--id)")]),
    ],
)
def test_a_row_that_is_lost_is_told_with_all_of_its_lines(
    changed: dict[str, str], expected: list[tuple[int, int, str]]
) -> None:
    rows = read(table(**changed), step=4096, columns=Columns(id="id"))
    assert failed(rows) == expected
    stored = sum(isinstance(row.content, dict) for row in rows)
    assert stored + sum(lines for _, lines, _ in expected) == 1000


def test_two_strays_that_pair_up_are_noted_and_a_text_of_two_lines_is_not() -> None:
    rows = read(table(row40='40,"opening,en', row60='60,row closing",en'), step=4096)
    assert [row.note for row in rows if row.note] == [
        "lines 41 to 61 are one row of 21 lines. If that is a mistake, correct the quote in line 41."
    ]
    assert not any(row.note for row in read(table(row40='40,"Dear all,\nyours, me",en'), step=4096))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", b"PK\x03\x04....xl/workbook.xml", "this is an Excel file; save it as CSV"),
        ("x.csv", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1old", "this is an Excel file; save it as CSV"),
        ("x.csv", b"PAR1....", "this is a Parquet file"),
        ("x.txt", b"%PDF-1.7", "save it as plain text"),
        ("x.csv", b"PK\x03\x04....a.txt", "this is an archive or an Excel file; save the table as CSV"),
        ("x.csv", b"PK\x03\x04....docProps/app.xml", "this is an Excel file; save it as CSV"),
        ("x.csv", b"PK\x03\x04...._rels/.rels", "this is an Excel file; save it as CSV"),
        ("x.tsv", b"PK\x03\x04....[Content_Types].xml", "this is an Excel file; save it as CSV"),
        ("x.csv", b"PK\x03\x04....[Content_Types].xml..word/document.xml", "a document of another program"),
        ("x.txt", bytes(range(256)) * 40, "this is a binary file"),
        ("x.jsonl", b"\x89PNG\r\n\x1a\n", "this is a binary file"),
        ("x.json", b'[{"id": "1", "text": "a"}]', "it is an array. Write one JSON object on a line"),
        ("x.jsonl", b'\n[\n  {"id": "1"}\n]\n', "it is an array. Write one JSON object on a line"),
        ("x.json", b'{\n  "id": "1"\n}\n', "an object over several lines"),
        ("x.dat", b"id,text\n", "is it jsonl, csv, tsv or text?"),
        ("x.csv.gz", gzip.compress(table())[:500], "the gzip data is cut off"),
        ("x.csv.gz", gzip.compress(table())[:500] + b"\0" * 9999, "it cannot be read as gzip"),
    ],
)
def test_what_is_no_text_is_refused_by_what_it_is(name: str, content: bytes, words: str) -> None:
    assert words in refused(content, name)


@pytest.mark.parametrize(
    "content", [gzip.compress(table()), b"".join(map(gzip.compress, (b"id,text,lang\n", table()[13:])))]
)
def test_gzip_is_unpacked_whatever_the_name_and_in_several_members(content: bytes) -> None:
    assert len(texts(content, "x.csv", step=100)) == 1000


@pytest.mark.parametrize("size", [0, 1, (1 << 16) - 1, 1 << 16, (1 << 16) + 1, (3 << 16) + 258])
@pytest.mark.parametrize("step", [1 << 20, 13])
def test_gzip_is_unpacked_to_its_last_byte(size: int, step: int) -> None:
    packed = gzip.compress(b"a" * size) + gzip.compress(b"b" * size) + bytes(20)
    unpacked = Unpacked()
    pieces = [packed[at : at + step] for at in range(0, len(packed), step)]
    out = b"".join(part for piece in pieces for part in unpacked.feed(piece)) + b"".join(unpacked.finish())
    assert out == b"a" * size + b"b" * size


def test_a_gzip_bomb_is_unpacked_in_small_steps() -> None:
    bomb = gzip.compress(b"id,text\n1," + b"\0" * (8 << 20))
    unpacked = Unpacked()
    assert max(map(len, unpacked.feed(bomb))) <= 1 << 16


@pytest.mark.parametrize(
    ("content", "note"),
    [
        (b"", "the file is empty."),
        (b"\xef\xbb\xbf", "the file is empty."),
        (b"\n\r\n", "the file is empty."),
        (b"id,text", "the file has no row after the line that names its columns."),
        (b"id,text\r\n\r\n", "the file has no row after the line that names its columns."),
    ],
)
def test_a_file_without_a_row_says_so(content: bytes, note: str) -> None:
    assert [(row.content, row.note) for row in read(content)] == [(None, note)]


def test_what_was_detected_is_noted_where_it_is_not_what_one_expects() -> None:
    for content, note in (
        (UMLAUTS.encode("utf-16"), "it is read as UTF-16, cells separated by commas."),
        (UMLAUTS.replace(",", ";").encode(), "it is read as UTF-8, cells separated by semicolons."),
        (UMLAUTS.encode("utf-8-sig"), ""),
    ):
        assert read(content)[0].note == note
    assert read(UMLAUTS.replace(",", ";").encode(), delimiter=";")[0].note == ""


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("number", "9.50", 9.5),
        ("number", "-12", -12),
        ("number", "1e3", 1000.0),
        ("number", "9007199254740993", 9007199254740993),
        ("number", "9,50", None),
        ("number", "1,234", None),
        ("number", "nan", None),
        ("number", "1e999", None),
        ("number", str(2**64 - 1), 2**64 - 1),
        ("number", str(2**64), None),
        ("number", str(-(2**63)), -(2**63)),
        ("number", str(-(2**63) - 1), None),
        ("number", "1e-400", None),
        ("number", "-0.5E-0400", None),
        ("number", f"0.{'0' * 350}1", None),
        ("number", "0e-400", 0.0),
        ("number", "0.000", 0.0),
        ("number", "5e-324", 5e-324),
        ("decimal_comma", "18.446.744.073.709.551.615", 2**64 - 1),
        ("decimal_comma", f"0,{'0' * 350}1", None),
        ("number", "٣", None),
        ("decimal_comma", "9,50", 9.5),
        ("decimal_comma", "1.234,5", 1234.5),
        ("decimal_comma", "1.234", 1234),
        ("decimal_comma", "9.50", None),
        ("date", "2026-01-31", "2026-01-31"),
        ("date", "31.01.2026", "2026-01-31"),
        ("date", "2026-01-31 14:30", "2026-01-31T14:30:00Z"),
        ("date", "2026-01-31T14:30:05.5+02:00", "2026-01-31T14:30:05.5+02:00"),
        ("date", "2026-01-31T14:30:05+0200", "2026-01-31T14:30:05+02:00"),
        ("date", "01/02/2026", None),
        ("date", "2026-02-30", None),
        ("date", "31.01.26", None),
        ("date", "2026-01-31 25:00", None),
        ("date_dmy", "01/02/2026", "2026-02-01"),
        ("date_mdy", "01/02/2026", "2026-01-02"),
    ],
)
def test_a_value_becomes_its_type_or_fails_its_row(kind: str, text: str, value: object) -> None:
    columns = Columns(metadata=("a",))
    [row] = read(f'id,text,a\n1,x,"{text}"\n'.encode(), columns=columns, types={"a": kind})
    if value is None:
        assert isinstance(row.content, BadRow)
        assert f"'a' is '{text[:40]}'" in str(row.content)
    else:
        assert isinstance(row.content, dict)
        assert row.content["metadata"] == {"a": value}
        assert type(row.content["metadata"]["a"]) is type(value)


def test_types_are_asked_for_and_an_empty_value_is_left_out() -> None:
    columns = Columns(all_metadata=True)
    content, types = b"id,text,a,b\n1,x,9.50,\n", {"a": "number", "b": "number"}
    assert document(content, columns=columns)["metadata"] == {"a": "9.50", "b": ""}
    assert document(content, columns=columns, types=types)["metadata"] == {"a": 9.5}
    for wrong in ({"c": "number"}, {"text": "number"}):
        assert "which is not stored as metadata" in refused(b"id,text\n1,x\n", columns=columns, types=wrong)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", ""], "number"),
        (["01069", "10115"], None),
        (["1,5", "2"], "decimal_comma"),
        (["1,234"], None),
        (["1.234", "2.345"], "number"),
        (["2026-01-31", "31.01.2026"], "date"),
        (["01/02/2026"], None),
        (["31/01/2026", "01/02/2026"], "date_dmy"),
        (["01/31/2026"], "date_mdy"),
        (["a", "1"], None),
        ([""], None),
    ],
)
def test_a_type_is_proposed_only_beyond_doubt(values: list[str], kind: str | None) -> None:
    assert proposed(values) == kind


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>One &amp; two</p><p>three</p>", "One & two\n\nthree"),
        ("a<br>b<br/>c", "a\nb\nc"),
        ("<b>bo</b>ld &lt;b&gt; &#8364;", "bold <b> €"),
        ("x<script>var a = '<p>no</p>';</script>y<STYLE>p{}</STYLE>z", "xyz"),
        ("a<!-- hidden <p> -->b<!DOCTYPE html>c", "abc"),
        ('<a title="a > b" href=x>link</a>', "link"),
        ("1 < 2 and 3 > 2 & so", "1 < 2 and 3 > 2 & so"),
        ("unclosed <a href='x", "unclosed <a href='x"),
        ("<td>a</td><td>b</td>", "a b"),
        ("no markup,\n  two lines", "no markup,\n  two lines"),
        (f"&#{'9' * 5000};", f"&#{'9' * 5000};"),
    ],
)
def test_tags_are_taken_off(markup: str, text: str) -> None:
    assert plain_text(markup) == text


@pytest.mark.parametrize(
    "part", ["<", "<!--", "<a ", "</", "<a b='", "<script>", "<!", "<?", "&", "<a \"'", '<a b="c"']
)
def test_markup_that_never_closes_takes_linear_time(part: str) -> None:
    def seconds(size: int) -> float:
        markup = (part * size)[:size]
        began = time.process_time()
        plain_text(markup)
        return time.process_time() - began

    assert seconds(1 << 18) < 64 * max(seconds(1 << 14), 0.002), "16 times the size; squared would be 256"


def test_html_is_stripped_of_title_and_text_and_of_nothing_else() -> None:
    content = b"id,title,text,a\n1,<b>T</b>,<p>x</p>,<i>y</i>\n"
    stripped = {"id": "1", "title": "T", "text": "x", "metadata": {"a": "<i>y</i>"}}
    assert document(content, columns=Columns(all_metadata=True), html=True) == stripped
    assert document(content) == {"id": "1", "title": "<b>T</b>", "text": "<p>x</p>", "metadata": {}}


def test_json_lines_keep_their_metadata_and_a_conflict_is_told() -> None:
    content = b'{"id": 1, "text": "a", "x": 2, "metadata": {"y": 12345678901234567890}}\n'
    found = document(content, "x.jsonl", columns=Columns(all_metadata=True))
    assert found["metadata"] == {"x": 2, "y": 12345678901234567890}
    both = b'{"text": "a", "x": 2, "metadata": {"x": 3}}\n[1]\n3\n{"txt": "a"}\n'
    told = [why for _, _, why in failed(read(both, "x.jsonl", columns=Columns(all_metadata=True)))]
    assert "'x' is a field of the line and of its metadata" in told[0]
    assert told[1] == "it is a JSON array. Write one JSON object on a line"
    assert told[2] == "it is not a JSON object"
    assert "Did you mean txt?" in told[3]


@pytest.mark.parametrize(
    ("line", "columns", "stored"),
    [
        ({}, Columns(), None),
        ({}, Columns(all_metadata=True), None),
        ({"metadata": {"a": 1}, "title": "t"}, Columns(all_metadata=True), None),
        ({"year": 1}, Columns(), None),
        ({"year": 1}, Columns(all_metadata=True), {"year": 1, "collection": "b"}),
        ({}, Columns(metadata=("collection",)), {"collection": "b"}),
    ],
)
def test_a_line_of_an_export_of_all_collections_is_refused_until_a_collection_was_said(
    line: dict[str, Any], columns: Columns, stored: dict[str, Any] | None
) -> None:
    content = orjson.dumps({"id": "1", "text": "a", "collection": "b"} | line)
    unsaid = replace(columns, placed="unsaid")
    if stored is None:
        [row] = read(content, "x.jsonl", columns=unsaid)
        assert "it belongs to the collection 'b': --all-collections puts it there" in str(row.content)
    else:
        assert document(content, "x.jsonl", columns=unsaid)["metadata"] == stored
    assert document(content, "x.jsonl", columns=replace(columns, placed="one"))


@pytest.mark.parametrize(
    "row", [";;", ";", "; ;", '"";"";""', ";;;;;;;", '" "; ;\t', "\n", " "], ids=range(8)
)
@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_row_of_empty_cells_is_skipped_like_an_empty_line(row: str, at: int) -> None:
    """Excel ends most exports with such rows. They are stored nowhere and fail nowhere."""
    lines = ["Nummer;body;Team", "1;eins;a", "2;zwei;"]
    lines.insert(at, row)
    content = "\n".join([*lines, ""]).encode()
    columns = Columns(id="Nummer", text=("body",), all_metadata=True)
    assert texts(content, columns=columns, delimiter=";") == {"1": "eins", "2": "zwei"}
    found = preview(content, "x.csv", Options(delimiter=";"), whole=True)
    assert (found.rows, found.problems) == ([["1", "eins", "a"], ["2", "zwei", ""]], [])
    assert found.guess.id == "Nummer"


def test_a_table_of_empty_rows_is_empty() -> None:
    [note] = read(b";;\n;;\n", delimiter=";")
    assert (note.content, note.note) == (None, "the file is empty.")


@pytest.mark.parametrize(
    ("header", "rows", "id"),
    [
        # The name says it, wherever the column is.
        ("body;Nummer", "ein Text;1\nnoch einer;2", "Nummer"),
        ("body;Ticket", "ein Text;T-1\nnoch einer;T-2", "Ticket"),
        ("body;Ticket-Nr.", "ein Text;T-1\nnoch einer;T-2", "Ticket-Nr."),
        ("body;SKU", "ein Text;a\nnoch einer;b", "SKU"),
        ("body;order_no", "ein Text;a\nnoch einer;b", "order_no"),
        ("body;orderNumber", "ein Text;a\nnoch einer;b", "orderNumber"),
        ("body;Artikelnummer", "ein Text;a\nnoch einer;b", "Artikelnummer"),
        ("body;KEY", "ein Text;a\nnoch einer;b", "KEY"),
        # The first column, if each row has a value of its own there.
        ("Vorgang;body", "V-1;ein Text\nV-2;noch einer", "Vorgang"),
        ("A;body;Number", "x;ein Text;7\ny;noch einer;8", "Number"),
        # No column: it repeats, has gaps, is not first, is a date, a price, a text, or there is one row.
        ("Nummer;body", "1;ein Text\n1;noch einer", None),
        ("Nummer;body", "1;ein Text\n;noch einer", None),
        ("body;Vorgang", "ein Text;V-1\nnoch einer;V-2", None),
        ("Datum;body", "01.02.2026;ein Text\n13.02.2026;noch einer", None),
        ("Preis;body", "1,50;ein Text\n2,50;noch einer", None),
        ("Kunde;body", "Anna Muster;ein Text\nBert Muster;noch einer", None),
        ("Piano;body", "a;ein Text\na;noch einer", None),
        ("Nummer;body", "1;ein Text", None),
        # An exact id wins.
        ("Nummer;body;ID", "1;ein Text;a\n2;noch einer;b", "ID"),
    ],
)
def test_a_preview_proposes_a_column_as_id(header: str, rows: str, id: str | None) -> None:
    guess = preview(f"{header}\n{rows}\n".encode(), "x.csv", Options(), whole=True).guess
    assert (guess.id, guess.text) == (id, ["body"])
    assert id not in guess.metadata


@pytest.mark.parametrize(
    ("lines", "id"),
    [
        ('{"ticket": 7, "body": "a"}\n{"ticket": 8, "body": "b"}\n', "ticket"),
        ('{"case": 7, "body": "a"}\n{"case": 8, "body": "b"}\n', "case"),
        ('{"ticket": 7, "body": "a"}\n{"body": "b"}\n', None),
        ('{"ticket": true, "body": "a"}\n{"ticket": 1, "body": "b"}\n', None),
    ],
)
def test_a_preview_proposes_a_field_of_json_as_id(lines: str, id: str | None) -> None:
    assert preview(lines.encode(), "x.jsonl", Options(), whole=True).guess.id == id


def test_a_preview_shows_three_rows_and_guesses_the_columns() -> None:
    content = "ID;Titel;Beschreibung;Preis;Datum;PLZ\n" + "".join(
        f"{at};T{at};<p>Größe {at}</p>;{at},50;31.01.2026;0{at}069\n" for at in range(1, 6)
    )
    found = preview(content.encode("cp1252"), "x.csv", Options(), whole=True)
    assert (found.layout.encoding, found.layout.certain, found.layout.separator) == ("cp1252", False, ";")
    assert "Größe" in found.layout.sample
    assert found.columns == ["ID", "Titel", "Beschreibung", "Preis", "Datum", "PLZ"]
    assert found.lines == [2, 3, 4]
    assert found.rows[0] == ["1", "T1", "<p>Größe 1</p>", "1,50", "31.01.2026", "01069"]
    guess = found.guess
    assert (guess.id, guess.title, guess.text) == ("ID", "Titel", ["Beschreibung"])
    assert guess.metadata == ["Preis", "Datum", "PLZ"]
    assert guess.types == {"Preis": "decimal_comma", "Datum": "date"}
    assert guess.html


def test_a_preview_of_a_beginning_takes_no_half_row_and_names_bad_ones() -> None:
    content = b'id,body\n1,one\n2,"two\nlines"\n3\n4,"x"y\n5,fi'
    found = preview(content, "x.csv", Options(), whole=False)
    assert found.rows == [["1", "one"], ["2", "two\nlines"]]
    assert found.problems == [
        "Line 5: it has 1 cell, not 2.",
        "Line 6: it is not a valid row (',' expected after '\"').",
    ]
    packed = gzip.compress(b"id,body\n" + b"1,one\n" * 50_000)
    assert preview(packed[:100], "x.csv.gz", Options(), whole=False).columns == ["id", "body"]
    lines = preview(b'{"id": 1, "text": "a", "year": 2}\n{"id": 2', "x.jsonl", Options(), whole=False)
    assert (lines.columns, lines.rows) == (["id", "text", "year"], [["1", "a", "2"]])
    assert lines.guess.metadata == ["year"]
    export = preview(b'{"id": "1", "text": "a", "metadata": {"a": 1}}\n', "x.jsonl", Options(), whole=True)
    assert (export.guess.metadata, export.guess.id, export.guess.text) == ([], "id", ["text"])


def test_encodings_are_told_apart_by_their_bytes() -> None:
    assert detect_encoding("größe".encode() * 9 + b"\xf6", complete=True).name == "utf-8"
    assert detect_encoding("größe".encode()[:3], complete=False) == detect_encoding(b"abc", complete=True)
    assert detect_encoding(b"a\x81\x8d", complete=True).name == "iso-8859-1"


def test_ids_are_counted_once_each_also_by_the_hundred_thousand() -> None:
    seen = Seen()
    for at in range(20_000):
        seen.add(f"id-{at}", "", "a")
    assert (seen.distinct, seen.sentence()) == (20_000, "")
    for id in ("id-3", "id-19999", "id-3"):
        seen.add(id, "", "a")
    assert (seen.distinct, seen.sentence()) == (20_000, "id id-3 came 3 times, id id-19999 came twice")
    seen.add("id-3", "", "a", within="another collection")
    assert seen.distinct == 20_001


def test_names_with_a_comma_are_in_quotes() -> None:
    assert split_names('"team, of",colour') == ("team, of", "colour")
    assert split_names("") == ()
    with pytest.raises(BadFile, match="stray double quote"):
        split_names('"team')


def test_a_preview_of_a_gzip_bomb_looks_at_its_first_mebibyte() -> None:
    row = b"red river " * 102 + b"gray\n"
    packed = gzip.compress(row * 40_000)  # 40 MiB
    tracemalloc.start()
    found = preview(packed, "x.txt.gz", Options(), whole=True)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(found.rows), found.problems) == (3, [])
    assert most < 16 << 20
    cut = gzip.compress(row * (MAX_BYTES // len(row)))
    assert preview(cut, "x.txt.gz", Options(), whole=True).rows == found.rows
    with pytest.raises(BadFile, match="the gzip data is cut off"):
        preview(cut[:-4], "x.txt.gz", Options(), whole=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [("x.csv", b"id,text\n1,"), ("x.jsonl", b'{"text": "'), ("x.txt", b""), ("x.log", b" ")],
)
def test_a_preview_without_a_row_says_whether_it_saw_the_whole_file(name: str, content: bytes) -> None:
    content += b" " * 100
    options = Options("file") if name == "x.log" else Options()
    part = preview(content, name, options, whole=False)
    assert part.problems == ["The part that was read has no complete row."]
    packed = preview(gzip.compress(content + b" " * MAX_BYTES), name, options, whole=True)
    assert packed.problems == part.problems
    assert preview(b"\n", name, options, whole=True).problems == ["The file has no rows."]


def test_a_preview_takes_linear_time_whatever_the_names() -> None:
    content = b"".join(b'{"a%d": "x"}\n' % at for at in range(60_000))
    began = time.process_time()
    found = preview(content, "x.jsonl", Options(), whole=True)
    assert time.process_time() - began < 3
    assert (len(found.columns), found.columns[999]) == (1000, "a999")
