"""`python -m service import | export`: files into a running service and out of it."""

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.__main__ import parser
from service.cli.commands import import_files
from service.errors import CommandError
from tests.parts.commands import run
from tests.service.keyed import KEYS, keys_file
from tests.service.process import Service, plain_environment
from tests.service.swapping import TEXTS

pytestmark = pytest.mark.usefixtures("_emptied")


def put(service: Service, *arguments: object, given: bytes | None = None) -> subprocess.CompletedProcess[str]:
    return run("import", *arguments, "--url", str(service.client.base_url), given=given)


def metadata(service: Service, id: str) -> dict[str, object]:
    found: dict[str, object] = service.client.get(f"/documents/{id}").json()["metadata"]
    return found


def test_json_lines_go_in_and_come_out_as_they_were_and_go_in_again(service: Service, tmp_path: Path) -> None:
    rows = [
        {"id": f"é/{at:04}", "text": TEXTS[at % 300], "metadata": {"n": at, "deep": {"a": [1, "x"]}}}
        for at in range(2500)
    ]
    rows[7] = {"id": "é/0007", "title": "é title", "text": "stone", "metadata": {"title": "other"}}
    file, out = tmp_path / "rows.jsonl.gz", tmp_path / "out.jsonl"
    file.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    done = put(service, file)
    assert (done.returncode, done.stdout) == (0, "2,500 documents are stored.\n"), done.stderr
    done = run("export", out, "--url", service.client.base_url)
    assert (done.returncode, done.stdout) == (0, f"2,500 documents are in {out}.\n"), done.stderr
    assert [json.loads(line) for line in out.read_bytes().splitlines()] == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.jsonl", "rows.jsonl.gz"]
    before = service.client.delete("/documents/nobody").json()["sequence"]
    assert put(service, out).returncode == 0
    assert service.client.delete("/documents/nobody").json()["sequence"] == before, "nothing had changed"


@pytest.mark.long
def test_an_export_of_the_store_itself_and_by_a_filter_is_the_same(service: Service, tmp_path: Path) -> None:
    rows = [{"id": f"{at:03}", "text": TEXTS[at], "metadata": {"n": at}} for at in range(50)]
    rows[7]["title"] = "é title"
    lines = "\n".join(map(json.dumps, rows)).encode()
    assert put(service, "-", "--format", "jsonl", given=lines).returncode == 0
    condition = ("--filter", '{"n": {"$lt": 20}}')
    first = run("export", "-", *condition, "--url", service.client.base_url)
    second = run("export", tmp_path / "out.gz", *condition, "--data-dir", service.folder / "data")
    assert second.returncode == 0, second.stderr
    assert gzip.decompress((tmp_path / "out.gz").read_bytes()).decode() == first.stdout
    assert {line["id"]: line.get("title") for line in map(json.loads, first.stdout.splitlines())} == {
        row["id"]: row.get("title") for row in rows[:20]
    }


SHELVES = {
    "default": {"a": "red river", "b": "blue stone"},
    "notes": {"a": "green garden"},
    "tickets": {"a": "reset the password", "count": "close my account"},
}


def fill_collections(service: Service) -> None:
    for name, texts in SHELVES.items():
        documents = [{"id": id, "text": text} for id, text in texts.items()]
        path = f"/collections/{name}/documents"
        service.client.post(path, json={"documents": documents}).raise_for_status()


def drop_collections(service: Service) -> None:
    for name in service.client.get("/collections").json()["collections"]:
        service.client.delete(f"/collections/{name['name']}").raise_for_status()


@pytest.fixture
def collections(service: Service, _emptied: None) -> Iterator[None]:
    fill_collections(service)
    yield
    drop_collections(service)


def shelves(lines: str) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for line in map(json.loads, lines.splitlines()):
        found.setdefault(line.get("collection", "?"), {})[line["id"]] = line["text"]
    return found


@pytest.mark.long
@pytest.mark.usefixtures("collections")
@pytest.mark.parametrize("source", ["service", "store"])
def test_an_export_is_of_one_collection_or_of_all(service: Service, source: str) -> None:
    where = (
        ("--url", service.client.base_url) if source == "service" else ("--data-dir", service.folder / "data")
    )
    assert shelves(run("export", "-", *where).stdout) == {"?": SHELVES["default"]}
    assert shelves(run("export", "-", *where, "--collection", "tickets").stdout) == {"?": SHELVES["tickets"]}
    assert shelves(run("export", "-", *where, "--all-collections").stdout) == SHELVES
    unknown = run("export", "-", *where, "--collection", "nowhere")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "'nowhere'" in unknown.stderr
    assert run("export", "-", *where, "--collection", "../x").returncode == 1
    assert run("export", "-", *where, "--collection", "notes", "--all-collections").returncode == 2


@pytest.mark.long
@pytest.mark.usefixtures("collections")
def test_all_collections_go_in_again_each_into_its_own(service: Service, tmp_path: Path) -> None:
    out = tmp_path / "all.jsonl"
    url = ("--url", service.client.base_url)
    done = run("export", out, *url, "--all-collections")
    assert done.stdout == f"5 documents are in {out}.\n"
    drop_collections(service)
    mixed = put(service, out)
    assert mixed.returncode == 1
    assert "--all-collections puts it there" in mixed.stderr
    assert service.client.get("/documents/count").json() == {"count": 0}
    done = put(service, out, "--all-collections")
    assert (done.returncode, done.stdout) == (0, "5 documents are stored.\n"), done.stderr
    assert shelves(run("export", "-", *url, "--all-collections").stdout) == SHELVES
    drop_collections(service)
    done = put(service, out, "--collection", "one", "--id", "text")
    assert done.returncode == 0, done.stderr
    assert service.client.get("/collections/one/documents/count").json() == {"count": 5}
    bad = put(service, "-", "--format", "jsonl", "--all-collections", given=b'{"id": "x", "text": "red"}\n')
    assert bad.returncode == 1
    assert "-:1: 'collection' is not the name of a collection" in bad.stderr
    notes = f"http://127.0.0.1:{service.port}/collections/notes"
    twice = run("import", out, "--url", notes, "--collection", "tickets")
    assert twice.returncode == 1
    assert "names a collection already" in twice.stderr


@pytest.mark.usefixtures("collections")
def test_a_check_of_the_data_says_what_each_collection_holds(service: Service) -> None:
    judgment = {"query": "q", "id": "count", "relevant": True}
    service.client.post("/collections/tickets/feedback", json=judgment).raise_for_status()
    clicked = {"search_id": "s", "query": "q", "id": "count", "type": "click"}
    service.client.post("/collections/tickets/events", json=clicked).raise_for_status()
    data, models = str(service.folder / "data"), str(service.folder / "models")
    done = run("check", "--data", SIMILE_DATA_DIR=data, SIMILE_MODELS_DIR=models)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "\ndefault: 2 documents, 0 judgments, 0 events\n" in done.stdout
    assert "\ntickets: 2 documents, 1 judgment, 1 event\n" in done.stdout


def test_a_refused_export_leaves_the_file_as_it_was(service: Service, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    for more in (["--url", service.client.base_url], ["--data-dir", service.folder / "data"]):
        done = run("export", out, "--filter", '{"a": {"$like": 1}}', *more)
        assert done.returncode == 1
        assert "$like" in done.stderr
        assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
        assert out.read_text() == "before"


def test_csv_columns_become_id_text_and_metadata(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_bytes(
        b"\xef\xbb\xbfkey,body,colour,size\r\n"
        b'1,"red, ""quoted""\nriver",red,10\r\n'
        b"2,short\r\n"
        b"3,\xff\xfe,red,1\r\n"
        b",no key,red,1\r\n"
        b"4,green garden,green,20\r\n"
    )
    done = put(service, file, "--id", "key", "--text", "body", "--metadata", "colour")
    assert done.returncode == 1
    said = done.stderr.splitlines()
    assert [line.removeprefix(f"{file}:").split(":")[0] for line in said[:3]] == ["4", "5", "6"]
    assert "2 cells" in said[0]
    assert "UTF-8" in said[1]
    assert "'key' has no id" in said[2]
    assert said[3] == "3 lines failed; 2 documents are stored."
    assert service.stored() == {"1": 'red, "quoted"\nriver', "4": "green garden"}
    assert metadata(service, "1") == {"colour": "red"}
    put(service, file, "--id", "key", "--text", "body", "--metadata-all")
    assert metadata(service, "4") == {"colour": "green", "size": "20"}


def document(service: Service, id: str) -> dict[str, object]:
    found: dict[str, object] = service.client.get(f"/documents/{id}").json()
    return found


@pytest.mark.long
def test_a_column_title_is_the_title_and_another_one_can_be_named(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id,title,text,subject\n1,red river,stone,S\n2,,green,\n3,only a title,,\n")
    assert put(service, file).stdout == "3 documents are stored.\n"
    assert document(service, "1") == {"id": "1", "title": "red river", "text": "stone", "metadata": {}}
    assert document(service, "2") == {"id": "2", "text": "green", "metadata": {}}
    assert document(service, "3") == {"id": "3", "text": "only a title", "metadata": {}}
    assert put(service, file, "--metadata", "title").returncode == 0
    both = {"id": "1", "title": "red river", "text": "stone", "metadata": {"title": "red river"}}
    assert document(service, "1") == both
    assert put(service, file, "--metadata-all").returncode == 0
    assert metadata(service, "1") == {"subject": "S"}
    assert put(service, file, "--title", "subject").returncode == 1, "the third has neither subject nor text"
    assert document(service, "1")["title"] == "S"
    put(service, file, "--title", "")
    assert "title" not in document(service, "1")
    assert "the column 'headline' is missing" in put(service, file, "--title", "headline").stderr


def test_fields_of_json_lines_can_be_named_and_what_fails_is_told_with_file_and_line(
    service: Service, tmp_path: Path
) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.ndjson"
    good.write_text('{"doc": 7, "body": "red river", "year": 1999, "tag": null}\n')
    bad.write_bytes(b'\n{"doc": "b", "body": ""}\n{"doc": "c"}\n[]\n\xff\n{"doc": "d", "body": "stone"}')
    done = put(service, good, bad, "--id", "doc", "--text", "body", "--metadata", "year")
    assert done.returncode == 1
    told = [line.removeprefix(f"{bad}:") for line in done.stderr.splitlines()]
    assert [line.split(":")[0] for line in told[:5]] == ["2", "3", "4", "5", "6"]
    assert "the field 'body' for the text (--text) is missing" in told[1]
    assert "'year'" in told[4]
    assert service.stored() == {"7": "red river"}
    assert metadata(service, "7") == {"year": 1999}
    done = put(service, bad, "--id", "doc", "--text", "body")
    assert f"{bad}:2: text is empty" in done.stderr
    assert service.stored() == {"7": "red river", "d": "stone"}


def test_text_is_a_document_per_line_or_per_file(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("red river\n\n  stone  \nred river\n")
    said = "3 rows are stored as 2 documents (the text 'red river' came twice).\n"
    assert put(service, file).stdout == said
    assert sorted(service.stored().values()) == ["  stone  ", "red river"]
    assert put(service, file, "--per-file").returncode == 0
    assert service.client.get(f"/documents/{file!s}").status_code == 200
    assert service.stored()[str(file)] == file.read_text()


def test_a_key_is_read_from_a_file_and_one_that_may_not_write_is_refused(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_API_KEYS_FILE=str(keys_file(tmp_path))) as service:
        for who, words in (("reader", "role write"), ("writer", "1 document is stored")):
            (tmp_path / who).write_text(KEYS[who] + "\n")
            done = put(service, "-", "--format", "text", "--key-file", tmp_path / who, given=b"red river")
            assert words in done.stdout + done.stderr
            assert done.returncode == (0 if who == "writer" else 1)


def test_unreadable_documents_are_told_of_each_collection(service: Service, tmp_path: Path) -> None:
    """The warning comes once per collection, even if the import has several chunks."""
    told = "The model cannot read"
    korean, both = tmp_path / "korean.jsonl", tmp_path / "both.jsonl"
    korean.write_text(
        "\n".join(json.dumps({"id": str(at), "text": "한국어 문장 " * 15}) for at in range(5000))
    )
    done = run("import", korean, "--url", f"{service.client.base_url}/collections/tickets")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"{told} these documents: 100.0%") == 1
    of_english, of_korean = (
        [{"id": str(at), "collection": name, "text": text * 15} for at in range(40)]
        for name, text in (("notes", "the red river runs "), ("tickets", "한국어 문장 "))
    )
    both.write_text("\n".join(map(json.dumps, [*of_english, *of_korean])))
    done = put(service, both, "--all-collections")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(told) == done.stderr.count(f"{told} the documents of tickets: 100.0%") == 1
    for name in ("notes", "tickets"):
        service.client.delete(f"/collections/{name}").raise_for_status()


def test_check_lists_settings_for_people_and_programs(tmp_path: Path) -> None:
    text, answer = (
        run("check", *options, SIMILE_DATA_DIR=str(tmp_path), SIMILE_PORT="8123").stdout
        for options in ((), ("--json",))
    )
    listed, facts = text.split("\n\n")
    found = json.loads(answer)
    rows = {row["name"]: (row["value"], row["source"]) for row in found["settings"]}
    assert [*rows] == [line.split()[0] for line in listed.splitlines()]
    assert rows["SIMILE_PORT"] == (8123, "environment")
    assert rows["SIMILE_DATABASE"] == (None, "default")
    assert [line[:31].strip() for line in facts.splitlines()] == [*found["would_run"]]
    assert run("check", "--data", "--json").returncode == 2


@pytest.mark.long
def test_a_reader_that_leaves_ends_a_command_without_a_word(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "service", "check"],
        env=plain_environment(SIMILE_DATA_DIR=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as command:
        assert command.stdout
        assert command.stderr
        command.stdout.close()  # as `| head` does
        assert command.stderr.read() == b""
        assert command.wait() == 1


def imported(service: Service, *arguments: object) -> str:
    """Runs an import. Returns its output, or "Error: " and the CommandError."""
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
    assert imported(service, file) == "10 rows are stored as 9 documents (id 1003 came twice)."
    assert service.client.get("/documents/count").json()["count"] == 9
    said = imported(service, file)
    assert said == "10 rows are stored as 9 documents (id 1003 came twice); 9 of them had been stored before."
    more = written(tmp_path, b"id,text\n1000,red river 1000\nnew,a\n", "more.csv")
    assert imported(service, more) == "2 documents are stored; 1 of them had been stored before."
    # A row without an id gets one from its text, so equal rows are one document.
    same = written(tmp_path, b"text\na\nb\na\na\n", "same.csv")
    said = imported(service, same)
    assert said == "4 rows are stored as 2 documents (the text 'a' came 3 times)."
    two = [written(tmp_path, b"id,text\nx,a\ny,b\nz,c\nw,d\n", f"{at}.csv") for at in range(2)]
    said = imported(service, *two)
    assert said.startswith("8 rows are stored as 4 documents (id x came twice, id y came twice, id z came")
    assert said.endswith("came twice, and others more than once).")


@pytest.mark.parametrize(
    ("name", "content", "options", "words"),
    [
        ("a.csv", b"id,text\n1,gr\xf6\xdfe\n", (), "cp1252: 'größe'. Run it again with --encoding cp1252"),
        ("a.csv", b"Beschreibung\nx\n", ("--text", "beschreibung"), ". Did you mean Beschreibung? The first"),
        ("a.csv", b"id,text\n1,a\n", ("--delimiter", "xx"), "'xx' cannot separate columns (--delimiter)"),
        ("a.csv", b"id,text\n1,a\n", ("--types", "a=nmber"), "Did you mean number?"),
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
    said = imported(service, file, *options)
    assert said.startswith(f"Error: {file}")
    assert words in said
    assert "\n" not in said, "nothing was sent, so nothing is to be gone on with"
    assert service.stored() == {}


def test_every_line_of_a_row_that_fails_is_counted(service: Service, tmp_path: Path) -> None:
    file = written(tmp_path, b'id,text\n1,a\n2,"he said\n3,b\n')
    assert imported(service, file) == "Error: 1 row (2 lines) failed; 1 document is stored."


@pytest.mark.parametrize("options", [(), ("--format", "csv"), ("--per-file",), ("--format", "text")])
@pytest.mark.parametrize("name", ["tickets", "tickets.csv"])
def test_a_folder_is_not_a_file(
    service: Service, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    said = imported(service, folder, *options)
    assert said == f"Error: {folder} is a folder. Name the files in it, such as {folder}/*.csv."


def test_rows_that_fail_alike_are_told_ten_times_and_counted_as_rows(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong type fails every row. The rows have two lines each, and differ in the value only."""
    rows = "".join(f'{at};"one\ntwo";{at},5\n' for at in range(60))
    file = written(tmp_path, f"id;text;cost\n{rows}60;short\n;;\n".encode())
    said = imported(service, file, "--metadata-all", "--types", "cost=number")
    assert said == "Error: 61 rows (121 lines) failed (the first 11 are told above); 0 documents are stored."
    told = [line for line in capsys.readouterr().err.splitlines() if "'cost' is" in line]
    assert len(told) == 10
    assert "'cost' is '9,5': not a number" in told[-1]


@pytest.mark.parametrize(
    ("header", "row", "options", "hint"),
    [
        ("id;text;cost", "1;a;1,86", (), "cost=decimal_comma"),
        ("id;text;made", "1;a;27.11.2026", (), "made=date"),
        ("id;text;size", "1;a;10", (), "size=number"),
        ("id;text;cost;made", "1;a;1,86;2026-01-31", (), "cost=decimal_comma,made=date"),
        ("id;text;my cost", "1;a;1,86", (), "'my cost=decimal_comma'"),
        ("id;text;cost;made", "1;a;1,86;2026-01-31", ("--types", "cost=decimal_comma"), "made=date"),
        ("id;text;cost", "1;a;1,86", ("--types", "cost=decimal_comma"), ""),
        ("id;text;zip", "1;a;01069", (), ""),
        ("id;text;team", "1;a;red", (), ""),
    ],
)
def test_metadata_that_looks_like_numbers_or_dates_is_noted(
    service: Service,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    header: str,
    row: str,
    options: tuple[str, ...],
    hint: str,
) -> None:
    file = written(tmp_path, f"{header}\n{row}\n".encode())
    assert "1 document is stored" in imported(service, file, "--metadata-all", *options)
    said = capsys.readouterr().err
    assert said.count("look like numbers or dates") == bool(hint)
    assert f"Is it --types {hint}?" in said or not hint
    imported(service, file)
    assert "look like" not in capsys.readouterr().err, "no metadata is stored"


def test_options_read_what_detection_cannot(
    service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = "id;text;price;created\n1;<p>größe</p>;9,50;31.01.2026\n"
    options = ("--metadata-all", "--types", "price=decimal_comma,created=date", "--html", "strip")
    for encoding, more in (("cp1252", ("--encoding", "cp1252", "--delimiter", ";")), ("utf-16", ())):
        assert "1 document is stored" in imported(
            service, written(tmp_path, content.encode(encoding)), *options, *more
        )
        found = service.client.get("/documents/1").json()
        assert found == {"id": "1", "text": "größe", "metadata": {"price": 9.5, "created": "2026-01-31"}}
    assert "it is read as UTF-16, cells separated by semicolons." in capsys.readouterr().err


def test_of_whole_files_only_the_bad_one_fails(service: Service, tmp_path: Path) -> None:
    good, bad = written(tmp_path, b"red", "a.txt"), written(tmp_path, b"gr\xf6\xdfe", "b.txt")
    assert imported(service, good, bad, "--per-file") == "Error: 1 line failed; 1 document is stored."
    said = "1 document is stored, 1 of them with words that the model does not know."
    assert imported(service, bad, "--per-file", "--encoding", "cp1252") == said
    assert service.stored() == {str(good): "red", str(bad): "größe"}
