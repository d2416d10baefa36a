"""A live test on the page: started, followed and stopped where the versions are listed."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, expect

from tests.ui.browsing import Browsing, Watched
from tests.ui.service import Service, prepared

QUERY = "red river"


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory, browsing: Browsing) -> Iterator[tuple[Service, str]]:
    """A service with a version and a copy of it with another ranking, and the name of the copy."""
    folder = tmp_path_factory.mktemp("tested")
    candidate = prepared(folder, "rankings")
    with Service(folder, keys=True, SIMILE_LIVE_TEST="1") as service:
        texts = [f"{QUERY} {'stone ' * at}" for at in range(20)]
        service.put([{"id": f"{at}", "text": text} for at, text in enumerate(texts)])
        yield service, candidate


@pytest.fixture
def page(browsing: Browsing, tested: tuple[Service, str]) -> Iterator[Watched]:
    with browsing.page(tested[0].url) as page:
        yield page


def enter(page: Watched, key: str) -> None:
    page.open("versions")
    page.the("#key").fill(key)
    page.button("Use this key").click()


def agree(page: Watched, card: Locator, button: str, explained: str, answer: str) -> None:
    card.get_by_role("button", name=button).click()
    expect(page.the("dialog")).to_contain_text(explained)
    page.the("dialog").get_by_role("button", name=answer).click()


def test_a_test_is_started_followed_and_stopped(page: Watched, tested: tuple[Service, str]) -> None:
    service, candidate = tested
    enter(page, "for-tests-an-admin")
    cards = page.the(".version-card")
    card = page.the(".version-card", has=page.page.locator(f"h2 [title='{candidate}']"))
    expect(cards).to_have_count(2)
    expect(page.button("Start test …")).to_have_count(1)
    agree(page, card, "Start test …", "100 % of the searches show hits of v", "Start")
    expect(card).to_contain_text("Live test since today")
    expect(card).to_contain_text("The candidate wins 0 of 0 decided searches; so far, nothing shows")
    expect(page.button("Start test …")).to_have_count(0)
    page.check_accessible()
    for visitor in range(9):
        found = service.get("/search", q=QUERY, user=f"{visitor}")
        longest = max(found["hits"], key=lambda hit: len(hit["text"]))
        judgment = {"query": QUERY, "id": longest["id"], "relevant": True, "user": f"{visitor}"}
        service.post("/feedback", judgment | {"search_id": found["search_id"]})
    state = service.get(f"/models/{candidate}/test")
    wins = f"{state['wins']} of {state['decided']} decided search"
    assert state["decided"] > 0
    expect(card).to_contain_text(f"The candidate wins {wins}")
    page.check_fits()
    agree(page, card, "Stop test …", "is not activated", "Stop")
    expect(card).to_contain_text("Live test, ended today")
    expect(card).to_contain_text(f"The candidate won {wins}")
    expect(card).to_contain_text("and was not judged. An operator stopped it.")
    expect(page.button("Start test …")).to_have_count(1)


def test_a_reader_sees_the_test_but_no_button(page: Watched, tested: tuple[Service, str]) -> None:
    service, candidate = tested
    service.post(f"/models/{candidate}/test")
    enter(page, "for-tests-a-reader")
    expect(page.the(".version-card", has_text="Live test since today")).to_have_count(1)
    expect(page.the(".version-card .row .row button")).to_have_count(0)
    service.client.delete(f"/models/{candidate}/test").raise_for_status()
    expect(page.the(".version-card", has_text="An operator stopped it.")).to_have_count(1)
