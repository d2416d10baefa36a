"""Every view of the page, with 5,000 documents, two versions and a refused candidate."""

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import QUERY, Service, corpus

VIEWS = [
    *("search", "search?q=bone+density", "compare?q=bone+density", "documents", "documents?add=1"),
    *("document?id=hostile-0", "versions", "health", "map?q=bone+density", "judge?q=bone+density"),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280, 2560])
def test_every_view_fits_and_is_accessible(
    browsing: Browsing, service: Service, width: int, scheme: str
) -> None:
    with browsing.page(service.url, width, scheme) as page:
        for view in VIEWS:
            page.open(view)
            expect(page.the("#status .version")).to_be_attached()
            page.page.wait_for_load_state("networkidle")
            page.check_fits()
            page.check_accessible()


def test_the_root_leads_to_the_page(page: Watched) -> None:
    page.page.goto(page.url)
    expect(page.page).to_have_url(re.compile(r"/ui/(#/search.*)?$"))
    expect(page.the("header .name")).to_have_text("Simile")


def test_a_search_begins_while_one_types_and_a_thumb_is_stored_until_it_is_taken_back(
    page: Watched, service: Service
) -> None:
    page.open("search")
    page.the("#q").press_sequentially(QUERY, delay=5)
    expect(page.the("li.hit")).to_have_count(10)
    expected = [hit["id"] for hit in service.get("/search", q=QUERY)["hits"]]
    expect(page.the(".summary")).to_contain_text("10 hits in")
    # Hits of a shorter query are shown while one types.
    page.page.wait_for_function(
        "ids => [...document.querySelectorAll('li.hit')].map(hit => hit.dataset.id).join() === ids.join()",
        arg=expected,
    )
    hit = page.the(f'li.hit[data-id="{expected[2]}"]')  # After the judgment it is the first hit.
    up = hit.get_by_role("button", name="Relevant", exact=True)
    up.click()
    expect(up).to_have_attribute("aria-pressed", "true")
    [stored] = service.get("/feedback")["feedback"]
    assert (stored["query"], stored["id"], stored["relevant"]) == (QUERY, expected[2], True)
    page.page.reload()
    expect(up).to_have_attribute("aria-pressed", "true")
    expect(page.the("li.hit").first).to_have_attribute("data-id", expected[2])
    up.click()
    expect(up).to_have_attribute("aria-pressed", "false")
    assert service.get("/feedback")["feedback"] == []


def test_a_chip_of_the_metadata_becomes_a_filter(page: Watched, service: Service) -> None:
    page.open("search?q=cells&mode=lexical")
    expect(page.the("li.hit mark").first).to_have_text(re.compile("cell", re.IGNORECASE))
    chip = page.the("li.hit .chip", has_text="kind").first
    kind = chip.inner_text().removeprefix("kind").strip()
    chip.click()
    expect(page.the(".chip.active")).to_have_count(1)
    expect(page.page).to_have_url(re.compile("filter="))
    expected = service.get("/search", q="cells", mode="lexical", filter=json.dumps({"kind": kind}))["hits"]
    expect(page.the("li.hit").last).to_have_attribute("data-id", expected[-1]["id"])
    page.button("Remove the condition on kind").click()
    expect(page.the(".chip.active")).to_have_count(0)


def test_documents_are_added_edited_and_deleted(page: Watched, service: Service, tmp_path: Path) -> None:
    before = service.get("/documents/count")["count"]
    table = tmp_path / "tickets.csv"
    table.write_text('id,body,"team, of"\nt-1,"Two\nlines, one text",red\nt-2,,blue\n', encoding="utf-8")
    page.open("documents")
    page.button("Add documents").click()
    page.the("#add-files").set_input_files(table)
    page.the("select[aria-label='Part of body']").select_option("text")
    page.button("Upload").click()
    expect(page.the(".add [role=status]")).to_contain_text("1 row stored; 1 line failed.")
    expect(page.the(".refused").first).to_contain_text("Line 4: ")
    stored = service.get("/documents/t-1")
    assert (stored["text"], stored["metadata"]) == ("Two\nlines, one text", {"team, of": "red"})
    page.open("document?id=t-1")
    page.button("Edit").click()
    page.the("#edit-text").fill("Another text")
    page.button("Store").click()
    expect(page.the(".fulltext")).to_have_text("Another text")
    page.button("Delete").click()
    page.the("dialog").get_by_role("button", name="Cancel").click()
    assert service.get("/documents/count")["count"] == before + 1
    page.button("Delete").click()
    page.the("dialog").get_by_role("button", name="Delete").click()
    expect(page.page).to_have_url(re.compile("#/documents"))
    assert service.get("/documents/count")["count"] == before


def test_a_filter_selects_documents_and_they_are_downloaded(page: Watched, service: Service) -> None:
    page.open('documents?filter={"year":1999,"kind":"trial"}')
    count = service.get("/documents/count", filter='{"year":1999,"kind":"trial"}')["count"]
    expect(page.the("main")).to_contain_text(f"{count} documents match the filter")
    with page.page.expect_download() as waiting:
        page.button("Download as JSON lines").click()
    lines = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert len(lines) == count
    assert all(json.loads(line)["metadata"]["year"] == 1999 for line in lines)


def test_versions_say_what_became_of_them(page: Watched, service: Service) -> None:
    page.open("versions")
    expect(page.the(".version-card")).to_have_count(3)
    expect(page.the(".pill.active")).to_have_count(1)
    refused = page.the(".version-card:has(.pill.refused)")
    expect(refused.locator(".reason")).to_contain_text("fell by 6.1 points")
    expect(refused).to_contain_text(
        "Recipe pairs. Questions as they come: +2.2 points, between -0.3 and +4.7."
    )
    name = re.compile(r"^v[12] · made-for-tests-source-[01] · (today|yesterday) \d\d:\d\d$")
    expect(page.the("#status .version")).to_have_text(name)
    expect(page.the(".version-card:has(.pill.active) h2 .version")).to_have_text(name)
    expect(refused).to_contain_text(re.compile(r"Trained from v1 · made-for-tests-source-0 · "))
    refused.locator("summary", has_text="The gate's report").click()
    expect(refused.locator(".lead")).to_contain_text("Questions as they come: 0.322 → 0.344")
    expect(refused.locator(".lead + p")).to_have_text("Refused.")
    expect(refused.locator("svg .interval")).to_have_count(3)
    page.page.wait_for_timeout(2500)  # Meanwhile the page draws the report again. It must stay open.
    expect(refused.locator("svg .interval")).to_have_count(3)
    expect(refused.locator("svg.curve")).to_have_count(2)
    refused.locator("summary", has_text="Both answers to each query").click()
    expect(refused.locator("details details[open] tbody tr")).to_have_count(2)
    right = refused.locator("tr .right").first
    expect(right).to_have_text("Money back within 30 days.")
    expect(right).to_have_js_property("value", 7)
    expect(refused.locator(".report tbody td").nth(1)).to_have_text("none → 7")
    refused.locator("summary", has_text="Geometry").click()
    expect(refused.locator("[aria-label=Geometry] tbody tr")).to_have_text(
        ["alignment0.21000.2100", "uniformity-3.8000-3.1000"]
    )
    expect(refused).to_contain_text("Of 1,406 pairs and 15,487 sentences of STS-B.")
    page.check_accessible()


def test_the_id_of_a_version_is_copied(page: Watched, service: Service) -> None:
    page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.open("versions")
    for version in [one["version"] for one in service.get("/models")["models"]]:
        page.button(f"Copy the id {version}").click()
        expect(page.the("#said")).to_have_text("Copied.")
        page.page.wait_for_function(
            "id => navigator.clipboard.readText().then(text => text === id)", arg=version
        )


def test_without_a_clipboard_the_id_is_shown(page: Watched, service: Service) -> None:
    """Browsers have no clipboard on a page that comes over plain HTTP from another machine."""
    page.page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    page.open("versions")
    ids = sorted(one["version"] for one in service.get("/models")["models"])
    expect(page.the(".version-card h2 code")).to_have_count(len(ids))
    assert sorted(page.the(".version-card h2 code").all_inner_texts()) == ids


def test_the_retraining_in_hand_and_the_last_ones_are_told(page: Watched) -> None:
    page.open("versions")
    told = page.page.get_by_role("region", name="Retraining")
    expect(told).to_contain_text("Phase 4 of 9: training, step 300 of 490, about 6 min left.")
    expect(told.locator("svg.curve path")).to_have_count(2)
    last = told.locator("summary", has_text="Last run: refused, 20 Nov 2026")
    expect(last).to_contain_text("after 31 min")
    expect(told).to_contain_text("The last run ended 20 Nov 2026")
    expect(told).to_contain_text("No candidate was better, so nothing changed.")
    last.click()
    expect(told.locator("pre")).to_contain_text("Refused: search for a text by its title fell")
    told.locator("summary", has_text="Earlier runs").click()
    expect(told.locator("li")).to_have_count(1)
    page.page.wait_for_timeout(2500)  # Meanwhile the page draws the list again.
    expect(told.locator("pre")).to_be_visible()


def test_a_version_is_opened_to_be_compared(page: Watched, service: Service) -> None:
    refused = next(one["version"] for one in service.get("/models")["models"] if one["state"] == "refused")
    page.open("versions")
    card = page.the(".version-card", has=page.page.locator(f"h2 [title='{refused}']"))
    card.get_by_role("button", name="Open to compare …").click()
    expect(page.the("dialog")).to_contain_text("This does not activate it.")
    page.the("dialog").get_by_role("button", name="Open").click()
    card.get_by_role("link", name="Compare").click()
    expect(page.page).to_have_url(re.compile("#/compare"))
    expect(page.the("select[aria-label='Version B']")).to_have_value(refused)
    page.the("main input[type=search]").fill(QUERY)
    page.button("Search both").click()
    expect(page.the(".column.b li.hit")).to_have_count(10)
    assert service.get("/models")["active"] != refused
    service.post(f"/models/{refused}/keep?seconds=0")


def test_an_empty_service_begins_with_four_steps_and_the_examples(page: Watched, service: Service) -> None:
    """An empty collection shows the same as a new service. The examples are stored in it."""
    page.open("search")
    page.page.evaluate("sessionStorage.setItem('simile-collection', 'begun')")
    page.page.reload()
    expect(page.the("main")).to_contain_text("Nothing is stored yet")
    expect(page.the(".steps li")).to_have_count(4)
    expect(page.the(".steps .done")).to_have_text(["Retrain (done)"])  # by the refused version
    page.check_accessible()
    page.button("Load examples").click()
    expect(page.the("main")).to_contain_text("The next steps")
    expect(page.the(".steps .done")).to_have_count(2)
    assert service.get("/collections/begun/documents/count")["count"] == len(
        service.get("/examples")["documents"]
    )
    page.the("#q").fill("money back")
    expect(page.the("li.hit").first).to_be_visible()
    page.the("#q").fill("")
    expect(page.the(".steps .done")).to_have_count(3)
    service.client.delete("/collections/begun")


def test_four_queries_can_be_clicked(page: Watched, service: Service) -> None:
    """They are titles or beginnings of documents; of the examples, questions."""
    page.open("search")
    page.the("h2", has_text="Try one of these").wait_for()
    links = page.the("section", has_text="Try one of these").locator("a")
    for link, one in zip(links.all(), service.get("/documents", limit=4)["documents"], strict=True):
        assert one.get("title", one["text"]).startswith(link.inner_text())
    first = links.first.inner_text()
    links.first.click()
    expect(page.the("#q")).to_have_value(first)
    expect(page.the("li.hit").first).to_be_visible()
    service.post("/collections/begun/documents", {"documents": service.get("/examples")["documents"]})
    page.page.evaluate("sessionStorage.setItem('simile-collection', 'begun')")
    page.page.goto("about:blank")
    page.open("search")
    expect(links).to_have_count(4)
    for query in links.all_inner_texts():
        page.open("search")
        page.the("main a", has_text=query).first.click()
        expect(page.the("#q")).to_have_value(query)
        expect(page.the("li.hit")).to_have_count(10)
    service.client.delete("/collections/begun")


def test_an_admin_sees_what_is_searched_and_what_is_not_found(page: Watched, service: Service) -> None:
    own = "/collections/own"
    service.post(f"{own}/documents", {"documents": [{"id": "a", "text": "red river"}]})
    for query in ("river", "river", "xqzzt"):
        service.get(f"{own}/search", q=query, mode="lexical")
    page.open("search")
    page.page.evaluate("sessionStorage.setItem('simile-collection', 'own')")
    page.page.reload()
    frequent = page.the("section:has(> h2:text('Most frequent queries')) li")
    expect(frequent).to_have_text(["river 2 searches"])
    expect(page.the("section:has(> h2:text('Queries without results')) li")).to_have_text(["xqzzt 1 search"])
    page.check_accessible()
    frequent.locator("a").click()
    expect(page.the("li.hit")).to_have_count(1)
    service.client.delete(own)


def test_the_mode_that_automatic_stands_for_is_told(page: Watched) -> None:
    page.open(f"search?q={QUERY}")
    expect(page.the("select[aria-label=Mode] option").first).to_have_text("automatic: hybrid")
    expect(page.the(".summary")).to_have_text(re.compile(r"^10 hits in \d+ ms, hybrid$"))
    expect(page.the("select[aria-label=Mode] option")).to_have_text(
        ["automatic: hybrid", "hybrid", "dense (meaning)", "keywords"]
    )


@pytest.mark.parametrize("width", [320, 360, 390, 640, 1280])
def test_every_view_of_the_menu_is_in_sight(browsing: Browsing, service: Service, width: int) -> None:
    with browsing.page(service.url, width) as page:
        page.open("health")
        expect(page.the("#views a")).to_have_count(7)
        for link in page.the("#views a").all():
            box = link.bounding_box()
            assert box is not None
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= width
        page.check_fits()


@pytest.mark.parametrize("wrong", ["{", "year = 1999", "[1]", '{"year": }', "1"])
def test_a_filter_that_is_no_json_stays_in_sight(page: Watched, wrong: str) -> None:
    page.open(f"search?q={QUERY}")
    expect(page.the("li.hit").first).to_be_visible()
    page.the("#filter-json").fill(wrong)
    page.the("#filter-json").press("Enter")
    expect(page.the("main .problem")).to_be_visible()
    expect(page.the("#filter-json")).to_be_visible()
    expect(page.the("#filter-json")).to_have_value(wrong)


@pytest.mark.parametrize(("width", "below"), [(360, True), (390, True), (1280, False)])
def test_compare_has_one_column_on_a_phone(
    browsing: Browsing, service: Service, width: int, below: bool
) -> None:
    with browsing.page(service.url, width) as page:
        page.open(f"compare?q={QUERY}")
        expect(page.the(".column li.hit")).to_have_count(20)
        first, second = (page.the(".column").nth(at).bounding_box() for at in (0, 1))
        assert first is not None
        assert second is not None
        assert (second["y"] >= first["y"] + first["height"], first["x"] == second["x"]) == (below, below)
        page.check_fits()


@pytest.mark.parametrize(
    ("message", "codes"),
    [
        ("While it is active, `simile map` makes one.", ["simile map"]),
        ("`one` and `two`", ["one", "two"]),
        ("no code", []),
        ("a single ` stays", []),
        ("`<img src=x onerror=alert(1)>`", ["<img src=x onerror=alert(1)>"]),
        ("an empty `` stays", []),
    ],
)
def test_backticks_in_a_message_become_code(page: Watched, message: str, codes: list[str]) -> None:
    page.page.route("**/map", lambda route: route.fulfill(status=404, json={"error": message}))
    page.page.route("**/search?*", lambda route: route.fulfill(status=422, json={"error": message}))
    for view, place in (("map", "main .card p"), ("search?q=a", "main .problem")):
        page.open(view)
        expect(page.the(place)).to_have_text(re.sub("`([^`]+)`", r"\1", message))
        expect(page.the(f"{place} code")).to_have_text(codes)


def test_an_admin_rolls_back_and_activates_again(page: Watched, service: Service) -> None:
    active = service.get("/models")["active"]
    page.open("versions")
    page.button("Roll back …").click()
    expect(page.the("dialog")).to_contain_text("The version before")
    page.the("dialog").get_by_role("button", name="Roll back").click()
    expect(page.the(f".version-card:has(.pill.active) .version:not([title='{active}'])")).to_be_visible()
    again = page.the(".version-card", has=page.page.locator(f"h2 [title='{active}']"))
    again.get_by_role("button", name="Activate …").click()
    expect(page.the("dialog")).to_contain_text("first pages")
    page.the("dialog").get_by_role("button", name="Activate").click()
    expect(again.locator(".pill")).to_have_text("active")


def test_two_versions_answer_side_by_side(page: Watched, service: Service) -> None:
    models = service.get("/models")
    page.open(f"compare?q={QUERY}")
    expect(page.the(".column")).to_have_count(2)
    expect(page.the(".column li.hit")).to_have_count(20)
    expected = {}
    for name, version in (("a", models["active"]), ("b", page.the("select").nth(2).input_value())):
        found = service.client.get(
            "/search", params={"q": QUERY}, headers={"x-model-version": version}
        ).json()
        expected[name] = [hit["id"] for hit in found["hits"]]
        shown = page.the(f".column.{name} li.hit")
        assert [one.get_attribute("data-id") for one in shown.all()] == expected[name]
    common = set(expected["a"]) & set(expected["b"])
    expect(page.the("main > .row [role=status]")).to_have_text(f"{len(common)} of 10 answers are the same.")
    expect(page.the(".column.a .only")).to_have_count(10 - len(common))
    page.button("Find queries that differ").click()
    expect(page.the(".differing li").first).to_be_visible()
    shares = [int(text.split()[0]) for text in page.the(".differing .note").all_inner_texts()]
    assert shares == sorted(shares)
    assert len(shares) >= 50
    queries = page.the(".differing button").all_inner_texts()
    page.button("Next query").click()
    expect(page.the("main input[type=search]")).to_have_value(
        queries[(queries.index(QUERY) + 1) % len(queries)]
    )
    first = page.the(".differing button").first
    query = first.inner_text()
    first.click()
    expect(page.the("main input[type=search]")).to_have_value(query)


def test_the_next_query_needs_none_to_be_typed(page: Watched, service: Service) -> None:
    page.open("compare")
    box = page.the("main input[type=search]")
    expect(box).to_have_value("")
    seen: list[str] = []
    for _ in range(3):
        page.button("Next query").click()
        expect(box).not_to_have_value(seen[-1] if seen else "")
        seen.append(box.input_value())
        expect(page.the(".column li.hit")).to_have_count(20)
    assert len(set(seen)) == 3
    page.page.get_by_label("Blind:").check()
    page.button("Next query").click()
    expect(box).not_to_have_value(seen[-1])
    expect(page.the(".verdict")).to_contain_text("Which is better?")


def test_without_any_query_the_next_one_says_so(page: Watched) -> None:
    page.page.route("**/documents?limit=100", lambda route: route.fulfill(json={"documents": []}))
    page.open("compare")
    page.button("Next query").click()
    expect(page.the("main > .row [role=status]")).to_contain_text("No next query")


def test_blind_comparison_hides_names_until_it_is_judged(page: Watched) -> None:
    page.open(f"compare?q={QUERY}")
    expect(page.the(".column.a")).to_be_visible()
    page.page.get_by_label("Blind:").check()
    expect(page.the(".column.a")).to_have_count(0)
    expect(page.the(".sides")).to_be_hidden()
    assert "A" not in page.the(".column h2").all_inner_texts()
    page.button("First").click()
    expect(page.the(".verdict")).to_contain_text(re.compile(r"The first was [AB] \(v\d · .*You preferred"))
    expect(page.the(".verdict")).to_contain_text("So far: ")


def test_health_is_drawn_from_the_metrics(page: Watched, service: Service) -> None:
    page.open("health")
    expect(page.the(".verdicts")).to_contain_text("Healthy")
    expect(page.the(".verdicts")).to_contain_text("Ready")
    for _ in range(30):
        service.get("/search", q=QUERY)
    requests = page.the(".tile", has_text="Answered per second")
    expect(requests.locator(".figure")).to_have_text(re.compile(r"^[0-9.]+ /s"))
    expect(requests.locator("path")).to_have_attribute("d", re.compile("L"))
    memory = page.the(".tile", has_text="Of this process")
    expect(memory).to_contain_text(" % of ")


def test_the_map_lights_up_hits_and_a_line_becomes_a_list_and_a_filter(
    page: Watched, service: Service
) -> None:
    page.open("map")
    canvas = page.the("canvas")
    expect(page.the(".legend li")).to_have_count(16)
    page.the("main input[type=search]").fill(QUERY)
    page.the("main input[type=search]").press("Enter")
    hits = service.get("/search", q=QUERY, k=20)["hits"]
    on_map = [hit["id"] for hit in hits if not hit["id"].startswith(("hostile", "long"))]
    expect(page.the(".panel h2")).to_have_text(f"Hits of “{QUERY}” ({len(on_map)})")
    expect(page.the(".panel li").first).to_be_visible()
    page.button("Draw a line around documents").click()
    box = canvas.bounding_box()
    assert box is not None
    corners = [(0.02, 0.02), (0.98, 0.02), (0.98, 0.98), (0.02, 0.98)]
    mouse = page.page.mouse
    mouse.move(box["x"] + 5, box["y"] + 5)
    mouse.down()
    for across, down in corners:
        mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"], steps=3)
    mouse.up()
    expect(page.the(".panel h2")).to_have_text("Inside the line (5,000)")
    expect(page.the(".panel")).to_contain_text("Draw a smaller line")
    page.button("← groups").click()
    page.the("select[aria-label=Color]").select_option("kind")
    expect(page.the(".legend li")).to_have_count(3)
    page.the(".legend button", has_text="review").click()
    page.the(".panel a.chip", has_text="kind review: 100 %").click()
    expect(page.page).to_have_url(re.compile("#/search.*filter="))


def test_a_line_around_points_becomes_a_filter_by_their_ids(page: Watched, service: Service) -> None:
    page.open("map")
    expect(page.the(".legend li").first).to_be_visible()
    page.the(".panel button", has_text="Near no other document (3)").click()
    expect(page.the(".panel ol li")).to_have_count(3)
    page.the(".panel a.chip", has_text="Search among these").click()
    expect(page.the(".chip.active")).to_have_text(re.compile("3 chosen documents"))
    page.the("#q").fill(QUERY)
    expect(page.the("li.hit")).to_have_count(3)
    ids = [one["id"] for one in corpus()[:3]]
    found = service.get("/search", q=QUERY, filter=json.dumps({"$ids": ids}))["hits"]
    assert [one.get_attribute("data-id") for one in page.the("li.hit").all()] == [hit["id"] for hit in found]


def test_the_map_is_moved_by_keys_and_by_hand_and_names_what_is_under_the_pointer(page: Watched) -> None:
    page.open("map")
    canvas = page.the("canvas")
    expect(page.the(".legend li").first).to_be_visible()
    drawn = """canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)
        .data.reduce((sum, value, at) => sum + value * (at % 1009), 0)"""
    canvas.focus()
    seen = {canvas.evaluate(drawn)}
    for key in ("+", "+", "+", "ArrowLeft", "ArrowUp"):
        page.page.keyboard.press(key)
        page.page.evaluate("new Promise(requestAnimationFrame)")
        page.page.evaluate("new Promise(requestAnimationFrame)")
        seen.add(canvas.evaluate(drawn))
    assert len(seen) > 3
    page.button("Whole map").click()
    page.the("#between").fill("0")
    box = canvas.bounding_box()
    assert box is not None
    mouse = page.page.mouse
    tip = page.the(".tip")
    for step in range(200):  # until a point is under the pointer
        mouse.move(box["x"] + box["width"] * (0.3 + step * 0.002), box["y"] + box["height"] / 2)
        page.page.wait_for_timeout(150)
        if tip.is_visible():
            break
    expect(tip.locator(".id")).to_be_visible()


def test_a_query_is_judged_and_the_counter_follows(page: Watched, service: Service) -> None:
    page.open("judge")
    expect(page.the("main .card[role=status]")).to_contain_text(
        "About 135 judged queries would settle a gain of +2.2 points, as a retraining measured it with 106."
    )
    page.the("#queue").fill("first query\nsecond query")
    page.button("Next query").click()
    expect(page.the("main h2")).to_have_text("first query")
    page.the(".thumb.up").first.click()
    expect(page.the("main .card[role=status]")).to_contain_text("1 judgment of 1 different query, 1 with")
    page.button("Next query").click()
    expect(page.the("main h2")).to_have_text("second query")
    with page.page.expect_download() as waiting:
        page.button("Download judgments as TSV").click()
    header, line = waiting.value.path().read_text(encoding="utf-8").splitlines()
    assert line.startswith("first query\t")
    query, id, _ = line.split("\t")
    upload = f"{header}\n{query}\t{id}\t0\nthird query\tno such document\t1\n"
    page.the("#tsv").set_input_files({"name": "j.tsv", "mimeType": "text/plain", "buffer": upload.encode()})
    expect(page.the("main")).to_contain_text("1 judgment stored.")
    expect(page.the("main li.problem")).to_contain_text("Line 3: There is no document")
    [stored] = service.get("/feedback")["feedback"]
    assert (stored["id"], stored["relevant"]) == (id, False)
    service.client.delete("/feedback", params={"id": id})


@pytest.mark.parametrize(
    ("gains", "said"),
    [
        ([], "The first retraining will show how many judged queries are enough"),
        ([{"enough": 90, "shown": True}], "106 judged queries were enough to see"),
        ([{"enough": None, "least": 0.031}], "no gain on 106 judged queries. A gain of +3.1 points would"),
        ([{"enough": None, "least": None}], "no gain on 106 judged queries."),
    ],
)
def test_the_counter_says_what_the_newest_report_knows(
    page: Watched, gains: list[dict[str, object]], said: str
) -> None:
    judged = {"name": "own questions as they come", "queries": 106, "difference": 0.022, "shown": False}
    report = {"gains": [judged | gain for gain in gains]}
    page.page.route("**/report", lambda route: route.fulfill(json=report))
    page.open("judge")
    expect(page.the("main .card[role=status] .note")).to_contain_text(said)


def test_the_counter_knows_a_refused_ranking(page: Watched) -> None:
    gain = {
        "name": "own questions as they come of default",
        "queries": 40,
        "difference": 0.01,
        "shown": False,
    }
    page.page.route("**/report", lambda route: route.fulfill(json={"gains": []}))
    page.page.route("**/retraining", lambda route: route.fulfill(json={"gains": [gain | {"enough": 90}]}))
    page.open("judge")
    expect(page.the("main .card[role=status] .note")).to_contain_text(
        "About 90 judged queries would settle a gain of +1.0 points, as a retraining measured it with 40."
    )


@pytest.mark.parametrize("coming", ["default", "another"])
def test_the_counter_remembers_the_newest_report_that_knows(
    page: Watched, service: Service, coming: str
) -> None:
    """The page skips a newer report that has no gain to settle, or is about another collection."""
    found = service.get("/models")
    refused = next(one for one in found["models"] if one["gate"] == "on")
    newer = "29990101T000000-made-ranking-00000000"
    found["models"].append(refused | {"version": newer, "created": "2999-01-01T00:00:00+00:00"})
    gain = {"name": f"own questions as they come of {coming}", "queries": 60, "difference": -0.01}
    gain |= {"shown": False, "enough": None, "least": 0.05}
    page.page.route("**/models", lambda route: route.fulfill(json=found))
    page.page.route(f"**/{newer}/report", lambda route: route.fulfill(json={"gains": [gain]}))
    page.open("judge")
    note = page.the("main .card[role=status] .note")
    expect(note).to_contain_text("About 135 judged queries would settle a gain of +2.2 points")
    gain |= {"name": "own questions as they come of default", "difference": 0.01, "enough": 120}
    page.page.reload()
    expect(note).to_contain_text("About 120 judged queries would settle a gain of +1.0 points")
    expect(note).to_contain_text("measured it with 60.")


def test_a_hit_gives_its_reasons(page: Watched, service: Service) -> None:
    page.open(f"search?q={QUERY}&mode=hybrid")
    [hit] = service.get("/search", q=QUERY, mode="hybrid", k=1, explain="true")["hits"]
    assert hit["contributions"]
    page.button("why this place?").first.click()
    expect(page.the("li.hit .reasons")).to_have_text(re.compile(r"^It (is|has|was|resembles) .*\.$"))


def test_another_view_begins_at_its_top(page: Watched) -> None:
    page.open("documents")
    expect(page.the("li.document")).to_have_count(50)
    page.the("li.document").last.scroll_into_view_if_needed()
    assert page.page.evaluate("scrollY") > 0
    page.the("nav a", has_text="Health").click()
    expect(page.the(".verdict-line").first).to_be_visible()
    assert page.page.evaluate("scrollY") == 0
