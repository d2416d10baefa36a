"""What a search shows: marks, snippets, counts, corrections, suggestions, reasons and synonyms."""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Locator, Route, expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import Service, prepared

SHOP = "/collections/shop"
TOPICS = {"printer": 12, "travel": 7, "garden": 5}
LONG = (
    "An 😀 introduction that no query asks for. " * 12
    + "The 🖨️ printer jams when the paper is damp. Dry paper helps. "
    + "A long end follows, with nothing to find. " * 12
)
HOSTILE = "<img src=x onerror=alert(1)> printer"


def documents() -> list[dict[str, Any]]:
    made = [
        {
            "id": f"{topic}-{at}",
            "title": f"About the {topic} number {at}",
            "text": f"A note about a {topic} and paper, written in year {2000 + at}.",
            "metadata": {"topic": topic, "year": 2000 + at, "draft": False},
        }
        for topic, count in TOPICS.items()
        for at in range(count)
    ]
    script = "\uff30rinter 😀 für die Prüfung: naïve façade, 打印机 пример ﬁles"
    return [
        *made,
        {"id": "long", "title": "😀😀 Jams of a 🖨️ printer", "text": LONG, "metadata": {"topic": "printer"}},
        {
            "id": "scripts",
            "title": script,
            "text": f"\U0001d49c\U0001d4b7 {script} 😀 {script}",
            "metadata": {"topic": HOSTILE},
        },
        {"id": "untitled", "text": "A text without a title, on the subject of umbrellas."},
    ]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, browsing: Browsing) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("shop")
    prepared(folder, "tiny")
    with Service(folder) as service:
        service.post(f"{SHOP}/documents", {"documents": documents()})
        yield service


@pytest.fixture
def shopping(page: Watched) -> Watched:
    choose(page)
    return page


def choose(page: Watched) -> None:
    page.page.add_init_script("sessionStorage.setItem('simile-collection', 'shop')")


def search(page: Watched, query: str, **options: str) -> None:
    page.open(
        f"search?q={quote(query)}" + "".join(f"&{name}={quote(value)}" for name, value in options.items())
    )
    expect(page.the("[aria-busy=false]")).to_be_attached()


def hit(page: Watched, id: str) -> Locator:
    return page.the(f'li.hit[data-id="{id}"]')


def value(page: Watched, topic: str) -> Locator:
    return page.the(".facets button.value", has_text=topic)


@pytest.mark.parametrize(
    "query", ["printer jam", "prufung FACADE", "打印机", "пример files", "naive", "number paper"]
)
def test_marks_are_where_the_service_counts_code_points(
    shopping: Watched, service: Service, query: str
) -> None:
    """Python counts code points. JavaScript counts UTF-16 units, so the page converts."""
    search(shopping, query, mode="lexical", k="50")
    found = service.get(f"{SHOP}/search", q=query, mode="lexical", k=50, highlight="true")["hits"]
    assert found
    for one in found:
        card = hit(shopping, one["id"])
        cut = [one["title"][start:end] for start, end in one["highlights"]["title"]]
        expect(card.locator("h2 mark")).to_have_text(cut)
        start, end = one["snippet"]["start"], one["snippet"]["end"]
        inside = [pair for pair in one["highlights"]["text"] if pair[0] >= start and pair[1] <= end]
        assert inside or cut
        expect(card.locator(".text mark")).to_have_text([one["text"][first:last] for first, last in inside])


def test_a_hit_shows_its_snippet_and_by_a_click_its_whole_text(shopping: Watched, service: Service) -> None:
    search(shopping, "damp paper", mode="lexical")
    [found, *_] = service.get(f"{SHOP}/search", q="damp paper", mode="lexical", highlight="true")["hits"]
    assert found["id"] == "long"
    assert 0 < found["snippet"]["start"] < found["snippet"]["end"] < len(LONG)
    text = hit(shopping, "long").locator(".text")
    snippet = f"… {found['snippet']['text']} …"
    expect(text).to_have_text(snippet)
    whole = hit(shopping, "long").get_by_role("button", name="whole text")
    whole.click()
    expect(text).to_have_text(LONG.strip())
    expect(whole).to_have_attribute("aria-expanded", "true")
    whole.press("Enter")
    expect(text).to_have_text(snippet)


def test_without_a_title_the_snippet_is_the_heading(shopping: Watched) -> None:
    search(shopping, "umbrella", mode="lexical")
    card = hit(shopping, "untitled")
    expect(card.locator("h2")).to_have_text("A text without a title, on the subject of umbrellas.")
    expect(card.locator("h2 mark")).to_have_text("umbrellas")
    expect(card.locator(".text")).to_be_hidden()


def test_counts_become_filters_and_are_removed(shopping: Watched, service: Service) -> None:
    search(shopping, "note", mode="lexical", k="50")
    expect(shopping.the(".facets .note")).to_have_text("Counts of documents with a word of the query")
    for topic, count in TOPICS.items():
        expect(value(shopping, topic).locator(".number")).to_have_text(str(count))
    expect(shopping.the(".facets h2", has_text="draft")).to_have_count(0)  # All have the same.
    value(shopping, "travel").focus()
    shopping.page.keyboard.press("Enter")
    expect(shopping.the("li.hit")).to_have_count(TOPICS["travel"])
    expect(value(shopping, "travel")).to_have_attribute("aria-pressed", "true")
    expect(value(shopping, "travel")).to_be_focused()
    expect(shopping.page).to_have_url(re.compile("filter="))
    # Other values remain, as alternatives.
    expect(value(shopping, "garden").locator(".number")).to_have_text(str(TOPICS["garden"]))
    value(shopping, "garden").click()
    expect(shopping.the("li.hit")).to_have_count(TOPICS["travel"] + TOPICS["garden"])
    expect(shopping.the(".chip.active")).to_have_text("topic is one of travel, garden")
    value(shopping, "travel").click()
    expect(shopping.the("li.hit")).to_have_count(TOPICS["garden"])
    shopping.button("Remove the condition on topic").click()
    expect(shopping.the("li.hit")).to_have_count(sum(TOPICS.values()))
    expect(shopping.the(".facets [aria-pressed=true]")).to_have_count(0)


def test_a_range_of_numbers_becomes_a_filter(shopping: Watched, service: Service) -> None:
    search(shopping, "note", mode="lexical", k="50")
    years = shopping.the(".facets section", has=shopping.page.locator("h2", has_text="year")).locator(
        ".value"
    )
    expect(years.first).to_contain_text("\u2013")
    count = int(years.first.locator(".number").inner_text())
    years.first.click()
    expect(shopping.the("li.hit")).to_have_count(count)
    expect(shopping.the(".chip.active")).to_have_text(re.compile(r"year ≥ \d+ and year < \d+"))
    expect(years.first).to_have_attribute("aria-pressed", "true")
    second = int(years.nth(1).locator(".number").inner_text())
    years.nth(1).click()
    expect(shopping.the("li.hit")).to_have_count(second)
    expect(shopping.the(".chip.active")).to_have_count(1)


def test_the_page_says_when_all_documents_are_counted(shopping: Watched, service: Service) -> None:
    search(shopping, "printer", mode="hybrid")
    expect(shopping.the(".facets .note")).to_have_text("Counts of all documents")
    count = service.get(f"{SHOP}/documents/count", filter='{"topic":"garden"}')["count"]
    expect(value(shopping, "garden").locator(".number")).to_have_text(str(count))


def test_more_values_are_shown_by_a_click(page: Watched, service: Service) -> None:
    many = [{"id": f"{at}", "text": "a word", "metadata": {"color": f"color {at % 12}"}} for at in range(36)]
    service.post("/collections/shop-of-colors/documents", {"documents": many})
    page.page.add_init_script("sessionStorage.setItem('simile-collection', 'shop-of-colors')")
    page.open("search?q=word&mode=lexical")
    expect(page.the("button.value")).to_have_count(8)
    page.button("more of color").click()
    expect(page.the("button.value")).to_have_count(12)
    expect(page.button("more of color")).to_have_count(0)
    service.client.delete("/collections/shop-of-colors")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 390, 1280])
def test_counts_fold_on_a_phone_and_all_is_accessible(
    browsing: Browsing, service: Service, width: int, scheme: str
) -> None:
    with browsing.page(service.url, width, scheme) as page:
        choose(page)
        search(page, "printer jam", filter='{"topic": "printer"}')
        if width < 960:
            expect(value(page, "travel")).to_be_hidden()
            page.the(".filter summary").click()
        expect(value(page, "travel")).to_be_visible()
        for name in ("why this place?", "whole text"):
            hit(page, "long").get_by_role("button", name=name).click()
        expect(page.the(".why table").first).to_be_visible()
        page.check_fits()
        page.check_accessible()
        page.the("#q").press_sequentially(" ")
        page.the("#q").fill("pri")
        expect(page.the("[role=option]").first).to_be_visible()
        page.the("#q").press("ArrowDown")
        page.check_fits()
        page.check_accessible()


def test_a_correction_is_told_and_can_be_refused(shopping: Watched) -> None:
    search(shopping, "pritner paper", mode="lexical")
    said = shopping.the(".corrected")
    expect(said).to_have_text("Showing results for printer paper. Search instead for pritner paper")
    first = hit(shopping, "printer-0")
    expect(first.locator("h2 mark")).to_have_text("printer")
    first.get_by_role("button", name="why this place?").click()
    expect(first.locator(".why")).to_contain_text("printer (correction)")
    said.get_by_role("button").click()
    expect(said).to_have_count(0)
    expect(shopping.page).to_have_url(re.compile("typos=false"))
    expect(shopping.the("li.hit").first).to_be_visible()
    expect(shopping.the("h2 mark")).to_have_count(0)
    shopping.the("#q").fill("pritner")
    expect(said).to_contain_text("Showing results for printer.")


def test_a_part_without_a_feature_is_explained(shopping: Watched) -> None:
    """A learned ranking adds trees, which combine several features."""

    def learned(route: Route) -> None:
        found = route.fetch().json()
        found["hits"][0]["contributions"]["trees"] = 9.5
        route.fulfill(json=found)

    shopping.page.route("**/search?*", learned)
    search(shopping, "printer paper", mode="hybrid")
    card = shopping.the("li.hit").first
    card.get_by_role("button", name="why this place?").click()
    expect(card.locator(".reasons")).to_contain_text("has several signs of an answer at once")
    expect(card.locator("tr", has_text="trees")).to_contain_text("+9.500")


def test_quotes_and_minus_are_text_until_they_are_conditions(shopping: Watched) -> None:
    search(shopping, '"paper is damp" -umbrella', mode="lexical")
    expect(shopping.the("main")).to_contain_text("Quotes, minus and title: are read as plain text.")
    expect(hit(shopping, "printer-0")).to_be_visible()
    shopping.button("Use them as conditions").click()
    expect(shopping.the("li.hit")).to_have_count(1)
    expect(hit(shopping, "long")).to_be_visible()
    expect(shopping.page).to_have_url(re.compile("syntax=true"))
    shopping.the("#q").fill('"paper is damp')  # The second quote is not typed yet.
    shopping.the("#q").fill('"paper is damp" title:jams')
    expect(shopping.the("li.hit")).to_have_count(1)
    expect(shopping.the("main .problem")).to_have_count(0)
    shopping.button("Read all as plain text").click()
    expect(hit(shopping, "printer-0")).to_be_visible()


def test_suggestions_are_chosen_by_keys(shopping: Watched) -> None:
    shopping.open("search")
    box, options = shopping.the("#q"), shopping.the("[role=option]")
    expect(box).to_have_attribute("aria-expanded", "false")
    box.press_sequentially("about the tra")
    expect(options.first).to_contain_text("About the travel number")
    expect(box).to_have_attribute("aria-expanded", "true")
    count = options.count()
    box.press("ArrowDown")
    expect(options.first).to_have_attribute("aria-selected", "true")
    expect(box).to_have_attribute("aria-activedescendant", options.first.get_attribute("id") or "")
    expect(box).to_be_focused()
    box.press("ArrowUp")
    expect(shopping.the("[aria-selected=true]")).to_have_count(0)
    box.press("ArrowUp")
    expect(options.nth(count - 1)).to_have_attribute("aria-selected", "true")
    options.nth(1).hover()
    expect(shopping.the("[aria-selected=true]")).to_have_count(1)
    expect(options.nth(1)).to_have_attribute("aria-selected", "true")
    box.press("Escape")
    expect(options.first).to_be_hidden()
    expect(box).to_have_value("about the tra")  # Escape closes the list, and empties no box.
    box.press("ArrowDown")
    expect(options.first).to_be_visible()
    box.press("ArrowDown")
    chosen = options.first.locator(".foreign").inner_text()
    box.press("Enter")
    expect(box).to_have_value(chosen)
    expect(box).to_have_attribute("aria-expanded", "false")
    expect(shopping.the("li.hit").first.locator("h2")).to_have_text(chosen)
    box.fill("about the gar")
    expect(options.first).to_contain_text("garden")
    box.press("Enter")  # Without a choice, the typed text is searched.
    expect(options.first).to_be_hidden()
    expect(box).to_have_value("about the gar")
    box.fill("about the pri")
    options.first.click()
    expect(box).to_have_value(re.compile("^About the printer"))
    expect(box).to_be_focused()


def test_an_older_answer_replaces_no_newer_suggestions(shopping: Watched) -> None:
    held = list[Route]()

    def hold(route: Route) -> None:
        if "q=about+the+tra" in route.request.url:
            held.append(route)
        else:
            route.fallback()

    shopping.page.route("**/suggest?*", hold)
    shopping.open("search")
    box, options = shopping.the("#q"), shopping.the("[role=option]")
    with shopping.page.expect_request("**/suggest?*about+the+tra*"):
        box.fill("about the tra")
    box.fill("about the gar")
    expect(options.first).to_contain_text("garden")
    for route in held:
        route.fulfill(json={"suggestions": [{"text": "about the travels", "kind": "term"}]})
    shopping.page.wait_for_load_state("networkidle")
    expect(options.first).to_contain_text("garden")


def test_suggestions_keep_to_the_filter(shopping: Watched) -> None:
    search(shopping, "note", filter='{"topic": "garden"}')
    shopping.the("#q").fill("about the")
    options = shopping.the("[role=option]")
    expect(options.first).to_be_visible()
    assert all("garden" in text for text in options.all_inner_texts())


@pytest.mark.parametrize("mode", ["lexical", "hybrid", "dense"])
def test_a_hit_explains_its_place(shopping: Watched, service: Service, mode: str) -> None:
    search(shopping, "printer jam", mode=mode)
    options = {"q": "printer jam", "mode": mode, "explain": "true"}
    [found, *_] = service.get(f"{SHOP}/search", **options)["hits"]
    card = shopping.the("li.hit").first
    expect(card).to_have_attribute("data-id", found["id"])
    why = card.get_by_role("button", name="why this place?")
    why.click()
    terms = found["explanation"]["terms"]
    rows = card.locator("table", has_text="Words of the query").locator("tbody tr")
    expect(rows).to_have_text([re.compile(f"^{term['term']}{term['idf']:.2f}") for term in terms])
    rankings = card.locator("table", has_text="Both rankings").locator("tbody tr")
    if mode == "hybrid":
        fusion = found["explanation"]["fusion"]
        expect(rankings).to_have_text(
            [re.compile(f"{fusion[name]['share']:.3f}$") for name in ("dense", "lexical")]
        )
        expect(card.locator(".reasons")).to_have_text(re.compile(r"^It .*\.$"))
        parts = [part for part in found["contributions"].values() if part]
        expect(card.locator("table", has_text="Features").locator("tbody tr")).to_have_count(len(parts))
    else:
        expect(rankings).to_have_count(0)
    why.click()
    expect(card.locator(".why")).to_be_hidden()


def test_synonyms_are_edited_and_searched(shopping: Watched, service: Service) -> None:
    shopping.open("search")
    shopping.the("summary", has_text="Synonyms").click()
    field = shopping.the("#synonyms")
    field.fill("printer, plotter\ntrip => travel, journey")
    shopping.check_accessible()
    shopping.button("Store synonyms").click()
    expect(shopping.the("main")).to_contain_text("Stored as version 1.")
    stored = service.get(f"{SHOP}/synonyms")
    assert stored["groups"] == [["printer", "plotter"]]
    assert stored["one_way"] == [{"from": "trip", "to": ["travel", "journey"]}]
    search(shopping, "trip", mode="lexical")
    expect(hit(shopping, "travel-0")).to_be_visible()
    shopping.open("search")
    shopping.the("summary", has_text="Synonyms").click()
    expect(field).to_have_value("printer, plotter\ntrip => travel, journey")
    service.client.delete(f"{SHOP}/synonyms")  # By another person meanwhile.
    field.fill("printer, plotter")
    shopping.button("Store synonyms").click()
    expect(shopping.the("main form [role=status]")).to_contain_text("version")
    assert service.get(f"{SHOP}/synonyms")["groups"] == []


def test_the_search_is_copied_with_its_options(shopping: Watched) -> None:
    search(shopping, "printer", mode="lexical", syntax="true", typos="false")
    shopping.the(".snippets summary").click()
    curl, python = shopping.the(".snippet pre").all_inner_texts()
    assert {"syntax=true", "typos=false"} <= set(re.split(r"[?&'\" ]", curl))
    assert "typos=False, syntax=True" in python
    assert "facets" not in curl
