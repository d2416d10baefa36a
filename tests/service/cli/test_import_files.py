"""`python -m service import`: its final counts, and one sentence for an unreadable file."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.__main__ import parser
from service.cli.commands import import_files
from service.errors import CommandError
from tests.service.process import Service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    with Service(tmp_path_factory.mktemp("import-files"), tiny_models_dir) as service:
        yield service


@pytest.fixture(autouse=True)
def _empty_at_first(service: Service) -> None:
    everything = {"filter": '{"nothing": {"$exists": false}}'}
    service.client.delete("/documents", params=everything).raise_for_status()


def put(service: Service, *arguments: object) -> str:
    """The output of the command, or its error."""
    given = parser().parse_args(["import", *map(str, arguments), "--url", str(service.client.base_url)])
    try:
        return import_files.run(given)
    except CommandError as error:
        return f"Error: {error}"


def written(folder: Path, content: bytes, name: str = "rows.csv") -> Path:
    file = folder / name
    file.write_bytes(content)
    return file


def test_rows_and_documents_are_counted_apart(service: Service, tmp_path: Path) -> None:
    rows = (
        b"id,text\n" + b"".join(b"%d,red river %d\n" % (at, at) for at in range(1000, 1009)) + b"1003,green\n"
    )
    file = written(tmp_path, rows)
    assert put(service, file) == "10 rows are stored as 9 documents (id 1003 came twice)."
    assert service.client.get("/documents/count").json()["count"] == 9
    said = put(service, file)
    assert said == "10 rows are stored as 9 documents (id 1003 came twice); 9 of them had been stored before."
    more = written(tmp_path, b"id,text\n1000,red river 1000\nnew,a\n", "more.csv")
    assert put(service, more) == "2 documents are stored; 1 of them had been stored before."
    # Without an id of its own, the text is the id: equal rows are one document.
    same = written(tmp_path, b"text\na\nb\na\na\n", "same.csv")
    said = put(service, same)
    assert said == "4 rows are stored as 2 documents (the text 'a' came 3 times)."
    two = [written(tmp_path, b"id,text\nx,a\ny,b\nz,c\nw,d\n", f"{at}.csv") for at in range(2)]
    said = put(service, *two)
    assert said.startswith("8 rows are stored as 4 documents (id x came twice, id y came twice, id z came")
    assert said.endswith("came twice, and others more than once).")


def test_a_stray_quote_is_told_with_its_lines_and_two_are_noted(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [b"id,text,lang", *(b"%d,text %d,en" % (at, at) for at in range(1, 1001))]
    rows[400] = b'400,"he said enough'
    file = written(tmp_path, b"\n".join(rows))
    assert put(service, file) == "Error: 601 lines failed; 399 documents are stored."
    assert f"{file}:401: lines 401 to 1001 are one row, its quote never ends\n" in capsys.readouterr().err
    rows[400] = b'400,"opening,en'
    rows[420] = b'420,closing",en'
    file = written(tmp_path, b"\n".join(rows))
    assert put(service, file) == "980 documents are stored; 399 of them had been stored before."
    assert f"{file}:401: lines 401 to 421 are one row of 21 lines." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("a.csv", b"id,text\n1,gr\xf6\xdfe\n", (), "cp1252: 'größe'. Run it again with --encoding cp1252"),
        ("a.csv", b"Beschreibung\nx\n", ("--text", "beschreibung"), ". Did you mean Beschreibung? The first"),
        ("a.xlsx", b"x", (), "this is an Excel file; save it as CSV."),
        ("a.csv", b"PK\x03\x04 xl/", (), "this is an Excel file; save it as CSV."),
        ("a.parquet", b"PAR1", (), "this is a Parquet file"),
        ("a.json", b'[{"text": "a"}]', (), ":1: it is an array. Write one JSON object on a line"),
        ("a.csv", b"id,text,\n1,a,b\n", ("--metadata-all",), ":1: column 3 has no name"),
        ("a.csv", b"id,text\n1,a\n", ("--encoding", "base64"), "unknown encoding 'base64' (--encoding)"),
        ("a.csv", b"id,text\n1,a\n", ("--delimiter", "xx"), "'xx' cannot separate columns (--delimiter)"),
        ("a.csv", b"id,text\n1,a\n", ("--types", "a=nmber"), "Did you mean number?"),
        ("a.csv", b"id,text\n1,a\n", ("--types", "a=number"), "which is not stored as metadata"),
        ("a.csv", b"a,b\n1,2\n", (), "the column 'text' is missing"),
        ("a.dat", b"x", (), "Say so with --format."),
        ("missing.csv", None, (), "cannot be read (No such file or directory)."),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_is_one_sentence(
    service: Service, tmp_path: Path, name: str, content: bytes | None, options: tuple[str, ...], words: str
) -> None:
    file = tmp_path / name
    if content is not None:
        file.write_bytes(content)
    said = put(service, file, *options)
    assert said.startswith(f"Error: {file}")
    assert words in said
    assert "\n" not in said, "nothing was sent, so nothing is to be gone on with"
    assert service.stored() == {}


def test_a_torn_archive_is_named(service: Service, tmp_path: Path) -> None:
    file = written(tmp_path, gzip.compress(b'{"text": "a"}\n' * 50_000)[:200], "torn.jsonl.gz")
    said = put(service, file)
    assert str(file) in said
    assert "cannot be read" in said


def test_options_read_what_detection_cannot(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "id;text;price;created\n1;<p>größe</p>;9,50;31.01.2026\n"
    options = ("--metadata-all", "--types", "price=decimal_comma,created=date", "--html", "strip")
    for encoding, more in (("cp1252", ("--encoding", "cp1252", "--delimiter", ";")), ("utf-16", ())):
        assert "1 documents are stored" in put(
            service, written(tmp_path, content.encode(encoding)), *options, *more
        )
        found = service.client.get("/documents/1").json()
        assert found == {"id": "1", "text": "größe", "metadata": {"price": 9.5, "created": "2026-01-31"}}
    assert "it is read as UTF-16, cells separated by semicolons." in capsys.readouterr().err


def test_of_whole_files_only_the_bad_one_fails(service: Service, tmp_path: Path) -> None:
    good, bad = written(tmp_path, b"red", "a.txt"), written(tmp_path, b"gr\xf6\xdfe", "b.txt")
    assert put(service, good, bad, "--per-file") == "Error: 1 lines failed; 1 documents are stored."
    assert put(service, bad, "--per-file", "--encoding", "cp1252") == "1 documents are stored."
    assert service.stored() == {str(good): "red", str(bad): "größe"}
