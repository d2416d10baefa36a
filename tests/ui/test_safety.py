"""Hostile texts, API keys, requests of other origins, DNS rebinding, and restarts of the service."""

import json
import re
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import HOSTILE, KEYS, LONG_LINE, Service


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_query_stays_text(page: Watched, text: str) -> None:
    for view in ("search", "compare"):
        page.open(f"{view}?q={quote(text)}")
        expect(page.the("li.hit").first).to_be_visible()
        assert page.page.title() != "stolen"
        assert page.the("main script, main img, main [onerror], main a[href^='javascript']").count() == 0


@pytest.mark.parametrize("at", range(len(HOSTILE)))
def test_a_hostile_document_stays_text(page: Watched, at: int) -> None:
    page.open(f"document?id=hostile-{at}")
    expect(page.the(".fulltext")).to_have_text(HOSTILE[at])
    expect(page.the(".facts td")).to_have_text(HOSTILE[at])
    page.open(f"search?q={quote(HOSTILE[at])}&mode=lexical")
    expect(page.the(f"li.hit[data-id=hostile-{at}] .chip")).to_contain_text(HOSTILE[at][:20])
    assert page.page.title() == "Search · Simile"
    assert page.the("main script, main img, main [onerror], main a[href^='javascript']").count() == 0


def test_an_override_turns_no_letters_outside_its_own_text(page: Watched) -> None:
    page.open("document?id=hostile-3")
    style = page.the(".fulltext .foreign").evaluate("element => getComputedStyle(element).unicodeBidi")
    assert style == "isolate"


def test_a_line_of_a_megabyte_is_shown_in_part_and_then_whole(page: Watched) -> None:
    page.open("search?q=bone&mode=lexical&k=50")
    expect(page.the("li.hit").first).to_be_visible()
    page.check_fits()
    page.open("document?id=long-line")
    expect(page.the(".fulltext")).to_contain_text("bone bone")
    page.button("characters more").click()
    expect(page.button("characters more")).to_have_count(0)
    assert len(page.the(".fulltext .foreign").inner_text()) >= len(LONG_LINE) - 1
    page.check_fits()


def test_a_hostile_report_stays_text(page: Watched) -> None:
    page.open("versions")
    page.the(".version-card:has(.pill.refused) summary", has_text="The gate's report").click()
    page.the("summary", has_text="gained most").click()
    expect(page.the(".scrolling").first).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.the("main script, main img").count() == 0


def test_the_page_asks_for_a_key_and_shows_what_its_role_may_do(browsing: Browsing, keyed: Service) -> None:
    with browsing.page(keyed.url) as page:
        page.open("documents")
        expect(page.the("#key")).to_be_focused()
        expect(page.the("main code")).to_have_text("simile keys add NAME --role read")
        page.check_accessible()
        page.the("#key").fill("a wrong one")
        page.button("Use this key").click()
        expect(page.the(".problem")).to_contain_text("not known here")
        page.the("#key").fill(KEYS["rita"][1])
        page.button("Use this key").click()
        expect(page.the("li.document")).to_have_count(2)
        expect(page.button("Delete")).to_have_count(0)
        expect(page.button("Add documents")).to_have_count(0)
        page.open("search?q=river")
        expect(page.the("li.hit")).to_have_count(2)
        expect(page.the(".thumbs")).to_have_count(0)
        page.open("search")
        expect(page.the("main")).to_contain_text("Your last searches")
        expect(page.the("main")).not_to_contain_text("Most frequent queries")  # for admins
        page.open("search?q=river")
        assert page.page.context.cookies() == []
        assert KEYS["rita"][1] not in page.page.evaluate("JSON.stringify(localStorage) + location.href")
        page.button("rita (read): forget key").click()
        page.the("#key").fill(KEYS["ada"][1])
        page.button("Use this key").click()
        expect(page.the(".thumbs")).to_have_count(2)
        page.the(".thumb.up").first.click()
        expect(page.the(".thumb.up").first).to_have_attribute("aria-pressed", "true")
        [stored] = keyed.get("/feedback")["feedback"]
        assert stored["key"] == "ada"


def test_a_tenant_sees_the_collections_of_its_key_alone(browsing: Browsing, keyed: Service) -> None:
    document = {"id": "t", "text": "green river"}
    keyed.post("/collections/tess-notes/documents", {"documents": [document]})
    with browsing.page(keyed.url) as page:
        page.page.add_init_script(f"sessionStorage.setItem('simile-key', '{KEYS['tess'][1]}')")
        page.open("search?q=river")
        expect(page.the("#status")).to_contain_text("1 document")
        expect(page.the("li.hit")).to_have_count(1)
        page.open("documents")
        expect(page.the("li.document")).to_have_count(1)
        expect(page.the("#status")).not_to_contain_text("default")
    keyed.client.delete("/collections/tess-notes")


def test_an_admin_requests_a_retraining_and_reads_how_it_ended(browsing: Browsing, keyed: Service) -> None:
    """No schedule runs. The test changes the files that a schedule would write."""
    models = keyed.folder / "models"
    schedule, progress, request = (models / f"{name}.json" for name in ("schedule", "progress", "retrain"))
    told = json.loads(progress.read_bytes())
    progress.unlink()
    schedule.touch()
    refused = next(one for one in keyed.get("/models")["models"] if one["gate"] == "on")
    region = {"name": "Retraining"}
    for name, buttons in (("rita", 0), ("ada", 1)):
        with browsing.page(keyed.url) as page:
            page.page.add_init_script(f"sessionStorage.setItem('simile-key', '{KEYS[name][1]}')")
            page.open("versions")
            said = page.page.get_by_role("region", **region)
            expect(said).to_contain_text("The next retraining begins 1 Jan 2099")
            expect(page.button("Retrain …")).to_have_count(buttons)
            if not buttons:
                continue
            page.check_accessible()
            page.button("Retrain …").click()
            expect(page.the("dialog")).to_contain_text("A new version becomes active only if it is better.")
            page.the("dialog").get_by_role("button", name="Retrain").click()
            expect(said).to_contain_text("A retraining was requested, and begins within seconds.")
            expect(page.button("Retrain …")).to_have_count(0)
            assert request.exists()
            request.unlink()
            progress.write_text(json.dumps(told | {"doing": "searching 60 judged queries of default"}))
            expect(said).to_contain_text("A retraining is running.")
            expect(said).to_contain_text("searching 60 judged queries of default")
            runs = json.loads(schedule.read_bytes())
            last = {"started": refused["created"], "ended": refused["created"], "why": "request"}
            last |= {"outcome": "refused", "reason": "Nothing became better."}
            schedule.write_text(json.dumps(runs | {"last_run": last, "ends": [last]}))
            progress.unlink()
            expect(said).to_contain_text(
                "No candidate was better, so nothing changed. Nothing became better."
            )
            page.button("Read its report").click()
            expect(page.the(".version-card .lead")).to_be_in_viewport()
    progress.write_text(json.dumps(told))


def test_a_page_of_another_origin_and_a_rebound_name_get_nothing(
    browsing: Browsing, service: Service
) -> None:
    ask = """async ([url, method]) => {
        const answer = await fetch(url, {method, body: method === "GET" ? undefined : "{}"});
        return `${answer.status} ${await answer.text()}`;
    }"""
    port = service.url.rpartition(":")[2]
    other = browsing.another_origin()
    for path, method in (("/documents", "GET"), ("/me", "GET"), ("/models/rollback", "POST")):
        with pytest.raises(Exception, match="Failed to fetch"):
            other.evaluate(ask, [f"{service.url}{path}", method])
    assert other.evaluate(
        "url => new Promise(done => { const frame = document.createElement('iframe');"
        "frame.src = url; frame.onload = () => done(frame.contentDocument === null);"
        "document.body.append(frame); })",
        f"{service.url}/ui/",
    )
    rebound = service.client.get("/ui/", headers={"host": f"evil.example:{port}"})
    assert rebound.status_code == 421
    assert service.client.get("/ui/").headers["content-security-policy"].endswith("frame-ancestors 'none'")


def test_a_dead_service_is_told_of_and_found_again(browsing: Browsing, keyed: Service) -> None:
    with browsing.page(keyed.url) as page:
        page.page.add_init_script(f"sessionStorage.setItem('simile-key', '{KEYS['ada'][1]}')")
        page.open("search?q=river")
        expect(page.the("li.hit")).to_have_count(2)
        keyed.stop()
        page.the("#q").fill("blue")
        expect(page.the("#banner")).to_contain_text("does not answer")
        keyed.start()
        expect(page.the("#banner")).to_be_hidden()
        expect(page.the("li.hit")).to_have_count(2)
        expect(page.page).to_have_url(re.compile("q=blue"))


def test_keys_reach_everything(page: Watched) -> None:
    """The first Tab reaches the skip link. Further ones reach the views and controls."""
    page.open("documents")
    expect(page.the("li.document").first).to_be_visible()
    page.page.evaluate("document.activeElement.blur()")
    page.page.keyboard.press("Tab")
    expect(page.the(".skip")).to_be_focused()
    names = []
    for _ in range(16):
        page.page.keyboard.press("Tab")
        names.append(page.page.evaluate("document.activeElement.textContent.trim()"))
    for name in ("Search", "Versions", "Add documents", "Filter"):
        assert name in names
