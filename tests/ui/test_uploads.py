"""The page reads and refuses files as the command `import` does, and names the rows that are missing."""

import gzip
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.parts.served import PYTHON, ROOT
from tests.ui.browsing import Browsing, Watched
from tests.ui.service import KEYS, Service

ROWS = [f"{at},a text" for at in range(1, 1001)]
STRAY = "\n".join(["id,text", *ROWS[:399], '400,"he said enough', *ROWS[400:], ""])
ENDLESS = "lines 401 to 1001 are one row, its quote never ends"
EXCEL = b"PK\x03\x04" + bytes(100)
QUOTE = "it is not a valid row (',' expected after '\"')"
# name, content, number of stored documents, what the page and the command say
FILES = [
    ("stray.csv", STRAY, 399, ["1 row (601 lines) failed", ENDLESS]),
    ("ragged.csv", "id,text,lang\n1,a\n2,b,en,more\n3,c,en\n", 1, ["it has 2 cells", "it has 4 cells"]),
    ("twice.csv", "id,text,text\n1,a,b\n", 0, ["two columns are named 'text'"]),
    ("returns.csv", "id,text\r1,one\r2,two\r", 2, []),
    ("quote.csv", 'id,text\n1,"a"b\n2,c\n', 1, [QUOTE]),
    ("array.json", '[{"id": "1", "text": "a"}]', 0, ["Write one JSON object on a line"]),
    ("pretty.json", '[\n {"id": "1",\n  "text": "a"}\n]\n', 0, ["Write one JSON object on a line"]),
    ("table.xlsx", EXCEL, 0, ["this is an Excel file; save it as CSV"]),
    ("renamed.csv", EXCEL, 0, ["this is an archive or an Excel file"]),
    ("packed.csv.gz", gzip.compress(b"id,text\n1,a\n2,b\n"), 2, []),
    ("zeros.txt", "a\0b\0c\n", 0, ["this is a binary file"]),
    ("latin.jsonl", '{"id": "1", "text": "größe"}\n'.encode("cp1252"), 0, ["it is not UTF-8 (character 24)"]),
]  # fmt: skip


@pytest.fixture
def emptied(browsing: Browsing, keyed: Service) -> Iterator[Watched]:
    """A page on the form for files, in a collection without documents."""
    with browsing.page(keyed.url) as page:
        page.page.add_init_script(
            f"sessionStorage.setItem('simile-key', '{KEYS['ada'][1]}');"
            "sessionStorage.setItem('simile-collection', 'uploads')"
        )
        page.open("search")
        yield page
    for name in ("uploads", "imports"):
        keyed.client.delete(f"/collections/{name}")


def stored(service: Service, collection: str) -> list[tuple[str, str]]:
    """Returns ids and texts. The page also keeps other columns, the command only with --metadata-all."""
    answer = service.client.get(f"/collections/{collection}/documents", params={"limit": 1000})
    return [(one["id"], one["text"]) for one in answer.json().get("documents", [])]


def imported(service: Service, file: Path, *options: str) -> str:
    """Returns what the command says about a file, which it stores in the collection `imports`."""
    key = service.folder / "ada.key"
    key.write_text(KEYS["ada"][1], encoding="utf-8")
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "service",
        "import",
        file,
        "--collection",
        "imports",
        "--key-file",
        key,
        *options,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=service.environment, capture_output=True, text=True, check=False
    )
    return str(done.stderr)


@pytest.mark.parametrize(("name", "content", "count", "words"), FILES, ids=[name for name, *_ in FILES])
def test_a_file_is_read_or_refused_as_by_the_command(
    emptied: Watched,
    keyed: Service,
    tmp_path: Path,
    name: str,
    content: str | bytes,
    count: int,
    words: list[str],
) -> None:
    file = tmp_path / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    emptied.the("#add-files").set_input_files(file)
    upload = emptied.the(".upload")
    upload.locator("form, > .problem").first.wait_for()
    if upload.locator("form").count():
        emptied.button("Upload").click()
        upload.locator("form").wait_for(state="detached")
    expect(upload).to_contain_text(f"{name}")
    if count:
        expect(upload).to_contain_text(f"{count} row{'s' * (count != 1)} stored")
    said = imported(keyed, file)
    for word in words:
        expect(upload).to_contain_text(word)
        assert word in said
    assert len(stored(keyed, "uploads")) == count
    assert stored(keyed, "uploads") == stored(keyed, "imports")


EIGHT = "Nummer;Titel;Text;Abteilung;Ort;Kosten;Datum;Status"


@pytest.mark.parametrize(("width", "scrolls"), [(1280, False), (390, True)])
def test_a_table_is_in_sight_or_scrolls(
    browsing: Browsing, keyed: Service, tmp_path: Path, width: int, scrolls: bool
) -> None:
    """Eight columns fit into a window of 1280 pixels. A phone shows a shadow where the table goes on."""
    cells = f"Rechnung falsch;{'ein langer Text ' * 20};Einkauf;Köln;12,88;01.09.2026;offen"
    rows = [f"T-{at};{cells}" for at in (1, 2)]
    file = tmp_path / "tickets.csv"
    file.write_text("\n".join([EIGHT, *rows, ";;;;;;;", ""]), encoding="utf-8")
    with browsing.page(keyed.url, width) as page:
        page.page.add_init_script(f"sessionStorage.setItem('simile-key', '{KEYS['ada'][1]}')")
        page.open("documents?add=1")
        page.the("#add-files").set_input_files(file)
        expect(page.the(".preview th")).to_have_count(8)
        chosen = [one.input_value() for one in page.the(".preview th select").all()]
        assert chosen[:3] == ["id", "title", "text"]
        assert chosen[3:] == ["metadata", "metadata", "=decimal_comma", "=date", "metadata"]
        box = page.the(".preview .scrolling")
        assert box.evaluate("box => box.scrollWidth > box.clientWidth") == scrolls
        shadow = box.evaluate("box => getComputedStyle(box).backgroundAttachment")
        assert shadow == "local, scroll", "the cover of the shadow scrolls away with the last column"
        page.check_fits()


def test_a_guessed_encoding_is_asked_about(emptied: Watched, keyed: Service, tmp_path: Path) -> None:
    """The command asks for --encoding. The page shows a word and asks, before it stores anything."""
    file = tmp_path / "cp1252.csv"
    file.write_bytes("id,text\n1,größe\n".encode("cp1252"))
    assert "It looks like cp1252: 'größe'." in imported(keyed, file)
    emptied.the("#add-files").set_input_files(file)
    expect(emptied.the(".preview .reason")).to_have_text(
        "The encoding of the file is uncertain. It looks like cp1252: größe. Is that right?"
    )
    assert stored(keyed, "uploads") == []
    emptied.button("Upload").click()
    expect(emptied.the(".upload")).to_contain_text("1 row stored.")
    imported(keyed, file, "--encoding", "cp1252")
    assert stored(keyed, "uploads") == stored(keyed, "imports") == [("1", "größe")]
