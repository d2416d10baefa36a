"""The page beside an active reranker, which is a version but answers no search by itself."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import Service, prepared
from tests.waiting import until


class Reranked:
    """A service with one encoder and two rerankers, of which the first is active."""

    def __init__(self, service: Service, second: str) -> None:
        self.service, self.second = service, second
        until(lambda: self.state["active"])
        self.first = self.state["active"]

    @property
    def state(self) -> dict[str, str]:
        found: dict[str, str] = self.service.get("/models")["reranker"]
        return found

    def activate(self, version: str) -> None:
        self.service.post(f"/models/{version}/activate")
        until(lambda: self.state["active"] == version)


@pytest.fixture(scope="module")
def reranked(tmp_path_factory: pytest.TempPathFactory, browsing: Browsing) -> Iterator[Reranked]:
    folder = tmp_path_factory.mktemp("reranked")
    second = prepared(folder, "rerankers")
    with Service(folder, SIMILE_RERANK_SECONDS="30") as service:
        service.put([{"id": f"{at}", "text": f"the red river {at}"} for at in range(20)])
        yield Reranked(service, second)


@pytest.fixture
def page(browsing: Browsing, reranked: Reranked) -> Iterator[Watched]:
    with browsing.page(reranked.service.url) as page:
        yield page


def test_the_modes_of_the_only_encoder_are_compared(page: Watched, reranked: Reranked) -> None:
    page.open("compare?q=red+river")
    expect(page.the(".column li.hit")).to_have_count(20)
    expect(page.the(".problem")).to_have_count(0)
    active = reranked.service.get("/models")["active"]
    for at in (0, 2):
        expect(page.the("select").nth(at).locator("option")).to_have_count(1)
        assert page.the("select").nth(at).input_value() == active
    assert [page.the("select").nth(at).input_value() for at in (1, 3)] == ["dense", "hybrid"]
    page.button("Find queries that differ").click()
    expect(page.the(".differing li").first).to_be_visible()


def test_a_hit_shows_its_place_before_reranking(page: Watched, reranked: Reranked) -> None:
    found = reranked.service.get("/search", q="red river", rerank="true", k=10)
    page.open("search?q=red+river&rerank=true")
    expect(page.the(".summary")).to_contain_text("reranked by")
    for at, hit in enumerate(found["hits"]):
        place = f"place {hit['search_place']} before reranking"
        expect(page.the("ol.hits > li").nth(at)).to_contain_text(place)
    page.the("select[aria-label=Rerank]").select_option("false")
    expect(page.the(".summary")).not_to_contain_text("reranked by")
    expect(page.the("main").get_by_text("before reranking")).to_have_count(0)


def test_judging_asks_no_reranker_to_search(page: Watched, reranked: Reranked) -> None:
    named = list[str | None]()
    page.page.on("request", lambda request: named.append(request.headers.get("x-model-version")))
    page.open("judge?q=red+river")
    expect(page.the("li.hit").first).to_be_visible()
    assert reranked.service.get("/models")["active"] in named
    assert not {reranked.first, reranked.second} & set(named)


def test_a_reranker_is_activated_and_rolled_back_by_itself(page: Watched, reranked: Reranked) -> None:
    first, second = reranked.first, reranked.second
    active = reranked.service.get("/models")["active"]
    page.open("versions")
    cards = {
        version: page.the(".version-card", has=page.page.locator(f"h2 [title='{version}']"))
        for version in (first, second, active)
    }
    expect(cards[first].locator(".pill")).to_have_text("active reranker")
    expect(cards[second].locator(".pill")).to_have_text("published reranker")
    expect(cards[active].locator(".pill")).to_have_text("active")
    expect(cards[first].get_by_role("button", name="Activate …", exact=True)).to_have_count(0)
    expect(page.the(".version-card").get_by_text("ompare")).to_have_count(0)
    expect(page.the("button.danger")).to_have_count(0)
    page.check_accessible()
    cards[second].get_by_role("button", name="Activate …").click()
    expect(page.the("dialog")).to_contain_text("replaces the active reranker")
    page.the("dialog").get_by_role("button", name="Activate").click()
    expect(cards[second].locator(".pill")).to_have_text("active reranker")
    expect(cards[first].locator(".pill")).to_have_text("retired reranker")
    expect(page.the("button.danger")).to_have_count(1)
    page.button("Roll back the reranker …").click()
    expect(page.the("dialog")).to_contain_text("The active version stays.")
    page.the("dialog").get_by_role("button", name="Roll back").click()
    expect(cards[first].locator(".pill")).to_have_text("active reranker")
    assert reranked.state["active"] == first
    cards[first].get_by_role("button", name="Deactivate …").click()
    expect(page.the("dialog")).to_contain_text("Searches are no longer reranked.")
    page.the("dialog").get_by_role("button", name="Deactivate").click()
    expect(cards[first].locator(".pill")).to_have_text("retired reranker")
    expect(page.button("Deactivate …")).to_have_count(0)
    assert reranked.state["active"] is None
    page.button("Roll back the reranker …").click()
    page.the("dialog").get_by_role("button", name="Roll back").click()
    expect(cards[first].locator(".pill")).to_have_text("active reranker")
    assert reranked.service.get("/models")["active"] == active


def test_the_page_says_why_the_wanted_reranker_is_not_active(page: Watched, reranked: Reranked) -> None:
    file = reranked.service.folder / "models" / "reranker.json"
    before = file.read_text(encoding="utf-8")
    file.write_text("{", encoding="utf-8")
    try:
        page.open("versions")
        expect(page.the("main > div > .problem")).to_contain_text("request for a reranker is damaged")
    finally:
        file.write_text(before, encoding="utf-8")
    expect(page.the("main > div > .problem")).to_have_count(0)
