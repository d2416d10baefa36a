"""Lines of a corpus file, including unusual ones, and error messages."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from tests.training.corpora import write
from training.errors import TrainingError
from training.text.lines import LARGEST_LINE, Record, build_text, layout, read_records

TEXT = [("sentence", "text")]


def read(folder: Path, name: str, content: str | bytes) -> list[Record]:
    return list(read_records(write(folder, name, content), TEXT))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.jsonl", ".jsonl"),
        ("a.JSONL.GZ", ".jsonl"),
        ("a.tsv.gz", ".tsv"),
        ("a.txt", ""),
        ("a.jsonl.txt", ""),
        ("tsv", ""),
        ("a.gz", ""),
    ],
)
def test_the_end_of_a_file_s_name_says_how_it_is_laid_out(name: str, expected: str) -> None:
    assert layout(Path(name)) == expected


def test_lines_keep_everything_but_their_end(tmp_path: Path) -> None:
    odd = ["a\x0bb\x0cc\x1cd\x85e\u2028f\u2029g", " spaces ", "\x00", '{"text": "no JSON"}', "e\u0301 ﬁ"]
    records = read(tmp_path, "a.txt", "\r\n".join(odd))
    assert [record.fields["text"] for record in records] == odd
    assert records[2].at == f"{tmp_path / 'a.txt'}, line 3"


def test_a_blank_line_has_no_field_and_counts(tmp_path: Path) -> None:
    for name, line in (("a.txt", "x"), ("a.jsonl", '{"text": "x"}')):
        records = read(tmp_path, name, f"\n \t\n{line}\n")
        assert [dict(record.fields) for record in records] == [{}, {}, {"text": "x"}]
        assert records[2].at.endswith("line 3")


def test_a_table_is_split_at_tabs_and_nothing_is_quoted(tmp_path: Path) -> None:
    content = '\ufeffid\ttext\r\n1\t"a\r\n\t\r\n2\tb\u2028 "c"\r\n'
    records = read(tmp_path, "a.tsv", content)
    rows = [{"id": "1", "text": '"a'}, {"id": "", "text": ""}, {"id": "2", "text": 'b\u2028 "c"'}]
    assert [dict(record.fields) for record in records] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.tsv", "", "a.tsv has no column `sentence` or `text` in its first row."),
        ("a.tsv", "Text\nx\n", "a.tsv has no column `sentence` or `text` in its first row."),
        ("a.tsv", "text,n\nx,1\n", "a.tsv has no column `sentence` or `text` in its first row."),
        ("a.tsv", "text\tn\nx\t1\n\n", "a.tsv, line 3 has 1 field; the first row has 2."),
        ("a.tsv", "text\tn\nx\t1\t2\n", "a.tsv, line 2 has 3 fields; the first row has 2."),
        ("a.jsonl", '{"text": "a"}\n{"text": "b"}, \n', "a.jsonl, line 2 is not JSON."),
        ("a.jsonl", "[" * 100_000, "a.jsonl, line 1 is not JSON."),
        ("a.jsonl", '{"text": ' + "1" * 5000 + "}", "a.jsonl, line 1 is not JSON."),
        ("a.txt", "a\n".encode("utf-16"), "a.txt, line 1 is not UTF-8 (byte 1). Save the file as UTF-8."),
        (
            "a.txt",
            gzip.compress(b"a\n", mtime=0),
            "a.txt, line 1 is not UTF-8 (byte 2). Save the file as UTF-8.",
        ),
    ],
)
def test_what_is_wrong_is_said_with_the_file_and_the_line(
    tmp_path: Path, name: str, content: str | bytes, message: str
) -> None:
    with pytest.raises(TrainingError) as refused:
        read(tmp_path, name, content)
    assert str(refused.value) == f"{tmp_path}/{message}"


@pytest.mark.parametrize("value", ["{}", "[]", "null", '"x"', "3", "NaN", "true", '[{"text": "a"}]'])
def test_json_that_is_no_record_is_no_blank_line_either(tmp_path: Path, value: str) -> None:
    record = read(tmp_path, "a.jsonl", value)[0]
    assert record.fields  # so it is not taken for a blank line
    with pytest.raises(TrainingError, match="line 1 has no text under the name sentence or text"):
        build_text(record, TEXT[0])


def test_the_first_name_that_is_there_gives_the_text() -> None:
    record = Record({"b": "second", "a": "first", "c": 3}, "here")
    assert build_text(record, ["x", "a", "b"]) == "first"
    assert build_text(record, ["b", "a"]) == "second"
    with pytest.raises(TrainingError, match="here has no text under the name c or b"):
        build_text(record, ["c", "b"])  # not what another field has


def test_a_huge_line_is_refused_without_being_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.txt.gz"
    with gzip.open(file, "wb", compresslevel=1) as stream:
        stream.write(b"fine\n")
        for _ in range(64):
            stream.write(b"x" * LARGEST_LINE)
    records = read_records(file, TEXT)
    assert next(records).fields == {"text": "fine"}
    tracemalloc.start()
    try:
        with pytest.raises(TrainingError, match="line 2 is longer than 1 MiB"):
            next(records)
        assert tracemalloc.get_traced_memory()[1] < 8 * LARGEST_LINE  # of 64
    finally:
        tracemalloc.stop()
