"""The page stores input unchanged, and shows the reason if an action is refused."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import KEYS, Service

LARGE = 1234567890123456789  # JavaScript rounds it to …800


@pytest.fixture
def admin(browsing: Browsing, keyed: Service) -> Iterator[Watched]:
    with browsing.page(keyed.url) as page:
        page.page.add_init_script(f"sessionStorage.setItem('simile-key', '{KEYS['ada'][1]}')")
        yield page


def test_large_whole_numbers_are_neither_rounded_nor_taken_for_each_other(
    admin: Watched, keyed: Service, tmp_path: Path
) -> None:
    rows = [{"id": LARGE + at, "text": f"a stone {at}", "post": LARGE + at} for at in range(2)]
    file = tmp_path / "posts.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    admin.open("documents?add=1")
    admin.the("#add-files").set_input_files(file)
    admin.button("Upload").click()
    expect(admin.the(".add [role=status]")).to_contain_text("2 rows stored.")
    for row in rows:
        stored = keyed.get(f"/documents/{row['id']}")
        assert stored["metadata"] == {"post": row["post"]}
    admin.open(f"document?id={LARGE}")
    expect(admin.the(".facts td")).to_have_text(str(LARGE))
    admin.button("Edit").click()
    admin.the("#edit-title").fill("A title")
    admin.button("Store").click()
    expect(admin.the("h2").first).to_have_text("A title")
    assert keyed.get(f"/documents/{LARGE}")["metadata"] == {"post": LARGE}
    admin.open("documents")
    with admin.page.expect_download() as waiting:
        admin.button("Download as JSON lines").click()
    saved = [json.loads(line) for line in waiting.value.path().read_text(encoding="utf-8").splitlines()]
    assert {"post": LARGE} in [one["metadata"] for one in saved]
    for row in rows:
        keyed.client.delete(f"/documents/{row['id']}")


def test_a_column_named_metadata_is_kept_and_line_breaks_stay(
    admin: Watched, keyed: Service, tmp_path: Path
) -> None:
    file = tmp_path / "notes.csv"
    file.write_text("id,text,metadata\nn,one,from a table\n", encoding="utf-8")
    admin.open("documents?add=1")
    admin.the("#add-files").set_input_files(file)
    admin.button("Upload").click()
    expect(admin.the(".add [role=status]")).to_contain_text("1 row stored.")
    assert keyed.get("/documents/n")["metadata"] == {"metadata": "from a table"}
    keyed.put([{"id": "n", "text": "one\r\ntwo"}])
    admin.open("document?id=n")
    admin.button("Edit").click()
    admin.the("#edit-title").fill("A title")
    admin.button("Store").click()
    expect(admin.the("h2").first).to_have_text("A title")
    assert keyed.get("/documents/n")["text"] == "one\r\ntwo"
    keyed.client.delete("/documents/n")


def test_a_file_is_shown_as_it_reads_before_anything_is_stored(
    admin: Watched, keyed: Service, tmp_path: Path
) -> None:
    """The table has semicolons, cp1252, decimal commas and a short row. The second file is an Excel file."""
    table = tmp_path / "preise.csv"
    text = "Nr;Ware;Preis;Rest\nk-1;<b>größer</b> Stein;9,50;x\nk-2;blauer Fluss;12,25;y\nk-3;Brücke\n"
    table.write_bytes(text.encode("cp1252"))
    sheet = tmp_path / "table.xlsx"
    sheet.write_bytes(b"PK\x03\x04")
    admin.open("documents?add=1")
    admin.the("#add-files").set_input_files(table)
    expect(admin.the(".preview .reason")).to_contain_text("It looks like cp1252: ")
    expect(admin.the(".preview tbody tr")).to_have_count(2)
    expect(admin.the(".preview tbody tr").first).to_contain_text("größer")
    expect(admin.the(".preview .problem").first).to_be_visible()
    expect(admin.the(".preview")).to_contain_text("Line 4: it has 2 cells, not 4.")
    assert keyed.client.get("/documents/k-1").status_code == 404
    admin.check_accessible()
    admin.check_fits()
    # Another separator gives another table.
    admin.the("select[aria-label='Cells are separated by']").select_option(",")
    expect(admin.the(".preview thead th")).to_have_count(1)
    admin.the("select[aria-label='Cells are separated by']").select_option(";")
    expect(admin.the(".preview thead th")).to_have_count(4)
    chosen = [one.input_value() for one in admin.the(".preview th select").all()]
    assert chosen == ["id", "text", "=decimal_comma", "metadata"]
    for column, part in (("Ware", "metadata"), ("Rest", "")):
        admin.the(f"select[aria-label='Part of {column}']").select_option(part)
    admin.button("Upload").click()
    expect(admin.the(".preview [role=alert]")).to_have_text("Which column is the text?")
    admin.the("select[aria-label='Part of Ware']").select_option("text")
    admin.the("#strip-html").check()
    admin.button("Upload").click()
    expect(admin.the(".add [role=status]")).to_contain_text("2 rows stored; 1 line failed.")
    expect(admin.the(".refused")).to_contain_text(["Line 4: it has 2 cells"])
    stored = keyed.get("/documents/k-1")
    assert stored == {"id": "k-1", "text": "größer Stein", "metadata": {"Preis": 9.5}}
    admin.the("#add-files").set_input_files(sheet)
    expect(admin.the(".add")).to_contain_text("table.xlsx: this is an Excel file; save it as CSV.")
    admin.the("#add-files").set_input_files(table)
    admin.button("Cancel").click()
    expect(admin.the(".preview")).to_have_count(0)
    for id in ("k-1", "k-2"):
        keyed.client.delete(f"/documents/{id}")


def test_a_table_of_judgments_is_read_strictly(admin: Watched, keyed: Service) -> None:
    """Without a header, the first row counts. Only 1 and 0 are valid judgments."""
    table = "river\ta\t1\nbridge\tb\tyes\n\nstone\tb\t0\nbridge\tnone\t1\n"
    admin.open("judge")
    admin.the("#tsv").set_input_files({"name": "j.tsv", "mimeType": "text/plain", "buffer": table.encode()})
    expect(admin.the("main")).to_contain_text("2 judgments stored.")
    expect(admin.the("main li.problem")).to_have_text(
        [re.compile("^Line 2: The third column must be 1"), re.compile("^Line 5: There is no document")]
    )
    stored = {one["query"]: one["relevant"] for one in keyed.get("/feedback")["feedback"]}
    assert stored == {"river": True, "stone": False}
    for id in ("a", "b"):
        keyed.client.delete("/feedback", params={"id": id})


def test_a_refusal_of_what_was_pressed_is_told(admin: Watched) -> None:
    admin.page.route("**/documents/a", lambda route: route.fulfill(status=503, body='{"error": "Not now."}'))
    admin.open("documents")
    admin.button("Delete a").click()
    admin.the("dialog").get_by_role("button", name="Delete").click()
    expect(admin.the("main > .problem")).to_have_text("Not now.")


def test_a_key_that_no_header_can_carry_is_refused_at_once(browsing: Browsing, keyed: Service) -> None:
    with browsing.page(keyed.url) as page:
        page.open("documents")
        page.the("#key").fill("“quoted”")
        page.button("Use this key").click()
        expect(page.the(".problem")).to_contain_text("only ASCII")
        expect(page.the("#banner")).to_be_hidden()
