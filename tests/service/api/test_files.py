"""Uploads of files: the preview matches the stored rows, and the counts are correct."""

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.service.keyed import KEYS, bearer, keys_file
from tests.service.process import Service
from tests.service.raw import Wire, chunked

RAW = {"Content-Type": "application/octet-stream"}
NAMED = {"name": "rows.csv"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("files")
    with Service(
        folder, tiny_models_dir, SIMILE_MAX_BODY_MB="1", SIMILE_API_KEYS_FILE=str(keys_file(folder))
    ) as service:
        service.client.headers.update(bearer(KEYS["writer"]))
        yield service
        assert "Traceback" not in service.log.read_text()


pytestmark = pytest.mark.usefixtures("_emptied")


def sent(service: Service, content: bytes, path: str = "/files", **query: str) -> httpx2.Response:
    return service.client.post(path, content=content, params=NAMED | query, headers=RAW)


def stored(service: Service, content: bytes, **query: str) -> dict[str, Any]:
    answer = sent(service, content, **query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def document(service: Service, id: str) -> dict[str, Any]:
    found: dict[str, Any] = service.client.get(f"/documents/{id}").json()
    return found


def test_rows_are_stored_with_true_counts(service: Service) -> None:
    rows = [
        b"id,text,colour",
        *(b"%d,red river %d,red" % (at, at) for at in range(1000, 1009)),
        b"1003,green garden,green",
    ]
    first = stored(service, b"\n".join(rows), metadata="colour")
    assert first.pop("sequence") > 0
    assert first == {
        "summary": "10 rows stored as 9 documents (id 1003 came twice).",
        "rows": 10,
        "documents": 9,
        "created": 9,
        "replaced": 0,
        "failed": 0,
        "errors": [],
        "notes": [],
        "truncated": 0,
        "unknown": 0,
    }
    assert document(service, "1003")["metadata"] == {"colour": "green"}
    again = stored(service, b"id,text\n1000,red river 1000\nnew,stone\n,no id\nx,\n")
    assert (again["rows"], again["created"], again["replaced"], again["failed"]) == (3, 2, 1, 1)
    assert again["errors"] == [
        {"line": 5, "last_line": 5, "error": "text is empty, or white space only. Leave the document out."}
    ]
    assert again["summary"] == "3 rows stored; 1 of them had been stored before; 1 line failed."


def test_a_stray_quote_is_noted(service: Service) -> None:
    rows = [b"id,text", b'1,"he said', *(b"%d,red" % at for at in range(300)), b'9,closing"']
    found = stored(service, b"\n".join(rows))
    assert (found["rows"], found["failed"]) == (1, 0)
    note = "lines 2 to 303 are one row of 302 lines. If that is a mistake, correct the quote in line 2."
    assert found["notes"] == [{"line": 2, "note": note}]


def test_a_large_file_needs_no_room_for_all_of_it_and_comes_in_pieces(service: Service) -> None:
    """Sends a file of twice the maximum body size in chunks, plain and compressed."""
    content = b"id;text\n" + b"".join(b"d%d;stone %s\n" % (at % 400, b"x" * 4000) for at in range(600))
    assert len(content) > 2 << 20
    for body in (content, gzip.compress(content)):
        with Wire(service) as wire:
            head = b"POST /files?name=x.csv HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
            head += b"Content-Type: application/octet-stream\r\n"
            head += f"Authorization: {bearer(KEYS['writer'])['Authorization']}\r\n\r\n".encode()
            pieces = [body[at : at + 50_001] for at in range(0, len(body), 50_001)]
            answer = wire.send(head, chunked(pieces)).answer()
        assert answer.status == 200, answer.body
        assert b"600 rows stored as 400 documents" in answer.body
    assert len(service.stored()) == 400


@pytest.mark.parametrize(
    ("content", "query", "status", "words"),
    [
        (b"id,text\n1,gr\xf6\xdfe\n", {}, 422, "rows.csv: it is not UTF-8. It looks like cp1252: 'größe'"),
        (
            b"id,Text\n1,a\n",
            {},
            422,
            "rows.csv, line 1: the column 'text' is missing; the file has id",
        ),
        (b"id,text\n", {}, 400, "The file has no row to store."),
        (b"id,text\n1,a\n", {"types": "a=numbr", "metadata": "*"}, 422, "Did you mean number?"),
        (b"id,text\n1,a\n", {"delimeter": ","}, 422, "Did you mean delimiter?"),
        (b"id,text\n1,a\n", {"html": "keep"}, 422, "html must be 'strip'"),
    ],
)
def test_what_cannot_be_read_stores_nothing(
    service: Service, content: bytes, query: dict[str, str], status: int, words: str
) -> None:
    answer = sent(service, content, **query)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True), answer.text
    assert service.stored() == {}


def test_what_breaks_off_says_what_was_stored(service: Service) -> None:
    content = b"id,text\n" + b"".join(b"%d,red river %d\n" % (at, at * 7919) for at in range(20_000))
    packed = gzip.compress(content)
    answer = sent(service, packed[: len(packed) // 2], name="x.csv.gz")
    assert answer.status_code == 422
    assert "the gzip data is cut off. Before that " in answer.json()["error"]
    assert f"Before that {len(service.stored())} rows were stored" in answer.json()["error"]


def test_columns_types_and_html_are_as_they_were_asked_for(service: Service) -> None:
    content = 'Nr;Frage;Antwort;"team, of";Preis;Datum\n'
    content += '1;<b>Wie?</b>;"<p>So &amp; so</p>";rot;1.234,50;31.01.2026\n'
    query = {
        "id": "Nr",
        "title": "",
        "text": "Frage,Antwort",
        "metadata": '"team, of",Preis,Datum',
        "types": "Preis=decimal_comma,Datum=date",
        "html": "strip",
    }
    assert stored(service, content.encode("cp1252"), encoding="cp1252", delimiter=";", **query)["rows"] == 1
    assert document(service, "1") == {
        "id": "1",
        "text": "Wie?\n\nSo & so",
        "metadata": {"team, of": "rot", "Preis": 1234.5, "Datum": "2026-01-31"},
    }
    assert stored(service, "a größer text\nand more".encode(), name="notes.log")["created"] == 1
    assert document(service, "notes.log")["text"] == "a größer text\nand more"
    assert document(service, "notes.log")["title"] == "notes.log"
    assert stored(service, b"one\n\ntwo\n", name="notes.txt")["rows"] == 2
    lines = b'{"id": 7, "text": "a", "post": 1234567890123456789}\n'
    lines += b'{"id": 8, "text": "b", "metadata": {"c": [1]}}\n'
    assert stored(service, lines, name="x.jsonl", metadata="*")["rows"] == 2
    assert document(service, "7")["metadata"] == {"post": 1234567890123456789}
    assert document(service, "8")["metadata"] == {"c": [1]}


def test_a_preview_shows_how_it_reads_and_stores_nothing(service: Service) -> None:
    content = "ID;Titel;Text;Preis\n1;T;größe;1,50\n2;T;b\n3;T;c;2,5\n".encode("cp1252")
    answer = sent(service, content, "/files/preview", whole="true")
    assert answer.status_code == 200, answer.text
    assert answer.json() == {
        "format": "csv",
        "encoding": "cp1252",
        "certain": False,
        "sample": "größe",
        "delimiter": ";",
        "columns": ["ID", "Titel", "Text", "Preis"],
        "rows": [["1", "T", "größe", "1,50"], ["3", "T", "c", "2,5"]],
        "lines": [2, 4],
        "id": "ID",
        "title": "Titel",
        "text": ["Text"],
        "metadata": ["Preis"],
        "types": {"Preis": "decimal_comma"},
        "html": False,
        "problems": ["Line 3: it has 3 cells, not 4."],
    }
    assert service.stored() == {}
    wrong = sent(service, b"PK\x03\x04 xl/", "/files/preview")
    said = "rows.csv: this is an Excel file; save it as CSV."
    assert (wrong.status_code, wrong.json()["error"]) == (422, said)
    assert sent(service, b"id,text\n" * 200_000, "/files/preview").status_code == 413


@pytest.mark.parametrize(
    ("content", "query", "rows", "problem"),
    [
        ("ß\nb".encode() + b"\xf6\n", {"name": "x.txt"}, ["ß", "b\ufffd"], "Line 2: it is not utf-8."),
        (b"\xf6\xdf", {"name": "x.txt", "encoding": "utf-8"}, ["\ufffd\ufffd"], "Line 1: it is not utf-8."),
        (b"\x81", {"name": "x.txt", "encoding": "shift_jis"}, ["\ufffd"], "Line 1: it is not shift_jis."),
        (b"\xff\xfea\0b", {"name": "notes.log"}, ["a\ufffd"], "Line 1: it is not utf-16."),
        (b"id,text\n1,\xf6\n", {"encoding": "utf-8"}, [], "Line 2: it is not utf-8."),
        (b'{"a": "\xf6"}\n{"a": "b"}\n', {"name": "x.jsonl"}, ["b"], "Line 1: it is not valid JSON"),
        (b'{"a": "\\ud800"}\n{"a": "b"}\n', {"name": "x.jsonl"}, ["b"], "Line 1: it is not valid JSON"),
        (b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}\n", {"name": "x.jsonl"}, ["…"], None),
        (b'{"a": ' + b'{"b":' * 300 + b"1" + b"}" * 300 + b"}\n", {"name": "x.jsonl"}, ["…"], None),
    ],
)  # fmt: skip
def test_a_preview_of_what_no_json_has_is_shown_with_its_problem(
    service: Service, content: bytes, query: dict[str, str], rows: list[str], problem: str | None
) -> None:
    answer = sent(service, content, "/files/preview", whole="true", **query)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [cells[-1] for cells in found["rows"]] == rows
    assert [line.partition(" (")[0] for line in found["problems"]] == ([problem] if problem else [])


def test_a_collection_a_role_and_a_media_type(service: Service) -> None:
    answer = sent(service, b"id,text\n1,a\n", "/collections/other/files")
    assert answer.json()["created"] == 1
    assert service.client.get("/collections/other/documents/1").status_code == 200
    assert service.client.delete("/collections/other").status_code == 200
    reader = RAW | bearer(KEYS["reader"])
    for path in ("/files", "/files/preview"):
        assert (
            service.client.post(path, content=b"id,text\n1,a\n", params=NAMED, headers=reader).status_code
            == 403
        )
        answer = service.client.post(path, json={}, params=NAMED)
        assert answer.status_code == 415
        assert "application/octet-stream" in answer.json()["error"]
    line = b'{"collection": "other", "id": "1", "text": "a"}\n'
    told = stored(service, line, name="all.jsonl")
    assert "send it to /collections/other/files" in told["errors"][0]["error"]
    assert sent(service, line, "/embed").status_code == 415, "a body without a bound is for files alone"
