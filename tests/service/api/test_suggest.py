"""Suggestions over HTTP: where they come from, and what they must not show."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from service.api.suggest import MAX_CHARACTERS, MAX_SUGGESTIONS
from service.corpus import suggestions
from tests.service.conftest import new_settings, serving
from tests.service.keyed import bearer, keys_file, line
from tests.waiting import until

VISITORS = 5


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    """A service that reads new candidates only when a test lets it. The tests add collections."""
    folder = tmp_path_factory.mktemp("suggest")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suggestions, "LOOK_SECONDS", 0.01)
        patch.setattr(suggestions, "RENEW_SECONDS", 1e9)
        with serving(new_settings(folder, tiny_models_dir)) as client:
            yield client


@pytest.fixture
def _renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the service read new candidates after each request."""
    monkeypatch.setattr(suggestions, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(suggestions, "RENEW_SHARE", 0)


def put(client: TestClient, collection: str, *documents: dict[str, Any]) -> None:
    given = [{"id": f"{at:05}", "text": "x", **each} for at, each in enumerate(documents)]
    answer = client.post(f"/collections/{collection}/documents", json={"documents": given})
    assert answer.status_code == 200, answer.text


def titled(*titles: str) -> list[dict[str, Any]]:
    return [{"title": title} for title in titles]


def suggest(client: TestClient, collection: str, q: str, **options: Any) -> list[tuple[str, str]]:
    answer = client.get(f"/collections/{collection}/suggest", params={"q": q, **options})
    assert answer.status_code == 200, answer.text
    return [(each["text"], each["kind"]) for each in answer.json()["suggestions"]]


def titles(client: TestClient, collection: str, q: str, **options: Any) -> list[str]:
    return [text for text, kind in suggest(client, collection, q, **options) if kind == "title"]


def test_titles_are_completed_from_their_beginning_and_from_a_word(service: TestClient) -> None:
    put(
        service,
        "titles",
        *titled("Printer jam", "Paper in the printer", "Print", "A printed page of ink", "Ink"),
    )
    assert titles(service, "titles", "PRIN") == [
        "Print",
        "Printer jam",
        "Paper in the printer",
        "A printed page of ink",
    ]
    assert titles(service, "titles", "printer ") == ["Printer jam", "Paper in the printer"]
    assert titles(service, "titles", "paper  IN") == ["Paper in the printer"]
    assert titles(service, "titles", "print") == [
        "Printer jam",
        "Paper in the printer",
        "A printed page of ink",
    ]
    assert suggest(service, "titles", "prin", k=1) == [("Print", "title")]
    assert titles(service, "titles", "rinter") == []
    assert titles(service, "titles", "Printer jam") == []


@pytest.mark.parametrize(
    ("title", "typed"),
    [
        ("Łódź by train", "lodz b"),
        ("Lodz by train", "Łó"),
        ("Crème brûlée", "creme bru"),
        ("Creme", "cre\u0300"),
        ("ЁЛКА и снег", "ёл"),
        ("東京の天気", "東京"),
        ("서울 지도", "서"),
        ("مُحَمَّد", "محم"),
        ("हिन्दी भाषा", "हिन्"),
        ("Straße nach Süden", "STRASSE"),
        ("C++ for all", "c+"),
        ("ﬁnal report", "fi"),
    ],
)
def test_letters_are_folded_as_in_keyword_search(service: TestClient, title: str, typed: str) -> None:
    collection = f"folded{abs(hash(title))}"
    put(service, collection, *titled(title, "Other"))
    assert titles(service, collection, typed) == [title]


def test_terms_come_from_frequent_words(service: TestClient) -> None:
    jam = "The printer has a paper jam. Priority: high. Łódź"
    put(service, "terms", *[{"text": jam}] * 3, {"text": "Printers of Priority and a private note, Łódź"})
    assert suggest(service, "terms", "pri") == [("Priority", "term"), ("printer", "term")]
    assert suggest(service, "terms", "lo") == [("Łódź", "term")]
    assert suggest(service, "terms", "a paper ja") == [("a paper jam", "term")]
    assert suggest(service, "terms", "Private ja") == []  # No document has both.
    assert suggest(service, "terms", "th") == []  # A function word.
    assert suggest(service, "terms", "unknown ja") == []


def test_terms_of_languages_without_spaces_are_pairs(service: TestClient) -> None:
    put(service, "pairs", *[{"text": "東京の天気"}] * 2)
    assert suggest(service, "pairs", "東") == [("東京", "term")]


def test_a_deleted_or_changed_document_is_not_suggested(service: TestClient) -> None:
    both = {"title": "Secret plan", "text": "confidential"}
    put(service, "gone", both, both, {"title": "Secret garden", "text": "confidential"})
    assert titles(service, "gone", "sec") == ["Secret plan", "Secret garden"]
    assert suggest(service, "gone", "conf") == [("confidential", "term")]
    service.delete("/collections/gone/documents/00000").raise_for_status()
    put(service, "gone", {}, {"title": "Open plan"})
    assert titles(service, "gone", "sec") == ["Secret garden"]
    service.delete("/collections/gone/documents/00002").raise_for_status()
    assert suggest(service, "gone", "sec") == suggest(service, "gone", "conf") == []


@pytest.mark.usefixtures("_renewed")
def test_a_new_document_is_suggested_soon(service: TestClient) -> None:
    put(service, "new", *titled("Alpha"))
    assert titles(service, "new", "b") == []
    put(service, "new", *titled("Alpha", "Beta"))
    until(lambda: titles(service, "new", "b") == ["Beta"])


def test_a_sample_suggests_terms_of_matching_documents(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suggestions, "SAMPLED", 20)
    put(
        service, "sampled", *({"text": f"river{at % 3} words", "metadata": {"n": at % 3}} for at in range(70))
    )
    found = suggest(service, "sampled", "river", filter='{"n": 1}')
    assert found == [("river1", "term")]
    assert {text for text, _ in suggest(service, "sampled", "river")} == {"river0", "river1", "river2"}


def test_a_filter_and_a_collection_hide_everything_else(service: TestClient) -> None:
    rows = [{"title": f"Alpha {at}", "text": f"alphabet{at % 2}", "metadata": {"n": at}} for at in range(60)]
    put(service, "filtered", *rows)
    put(service, "elsewhere", *titled("Alpha elsewhere"))
    odd = orjson.dumps({"n": {"$in": [11, 13]}}).decode()
    assert suggest(service, "filtered", "alph", filter=odd) == [
        ("Alpha 11", "title"),
        ("Alpha", "term"),
        ("Alpha 13", "title"),
        ("alphabet1", "term"),
    ]
    assert suggest(service, "filtered", "alph", filter='{"n": -1}') == []
    assert titles(service, "elsewhere", "al") == ["Alpha elsewhere"]


def test_a_filter_hides_how_other_documents_write_a_term(service: TestClient) -> None:
    rows = [("ÉCLAIR", 1), ("ÉCLAIR", 1), ("éclair", 2), ("éclair", 2), ("Eclair", 3), ("eclair", 3)]
    put(service, "spelling", *({"text": text, "metadata": {"n": n}} for text, n in rows))
    assert suggest(service, "spelling", "ecl") == [("éclair", "term")]
    for n, spelled in ((1, "ÉCLAIR"), (2, "éclair"), (3, "Eclair")):
        assert suggest(service, "spelling", "ecl", filter=f'{{"n": {n}}}') == [(spelled, "term")]
    assert suggest(service, "spelling", "ecl", filter='{"n": 4}') == []


def click(client: TestClient, collection: str, query: str, *visitors: str | None, **more: Any) -> None:
    events = [
        {
            "search_id": f"{abs(hash((query, visitor, at)))}",
            "query": query,
            "id": "00000",
            "type": "click",
            **more,
        }
        | ({} if visitor is None else {"user": visitor})
        for at, visitor in enumerate(visitors)
    ]
    answer = client.post(f"/collections/{collection}/events", json={"events": events})
    assert answer.json() == {"stored": len(events), "refused": []}


PEOPLE = [f"visitor-{at}" for at in range(VISITORS)]


@pytest.mark.usefixtures("_renewed")
def test_a_query_is_suggested_when_enough_visitors_have_clicked(service: TestClient) -> None:
    put(service, "queries", {"text": "x"}, {"text": "y"})
    put(service, "others", {"text": "x"})
    click(service, "queries", "my bank account", *PEOPLE[1:], None)
    click(service, "queries", "my cat", *PEOPLE[:1] * 20)
    click(service, "queries", "my dog", *[None] * 20)
    click(service, "queries", "my sorrow", *PEOPLE, type="skip")
    click(service, "others", "my house", *PEOPLE)
    click(service, "queries", "my " + "x" * 200, *PEOPLE)
    click(service, "queries", "My  garden", *PEOPLE)
    click(service, "queries", "my gate", *PEOPLE, "one-more")
    until(lambda: suggest(service, "queries", "MY ") == [("my gate", "query"), ("My garden", "query")])
    assert suggest(service, "queries", "my ", filter='{"n": {"$exists": false}}') == []
    click(service, "queries", "my bank account", *PEOPLE)
    until(lambda: suggest(service, "queries", "my b") == [("my bank account", "query")])


def test_a_query_disappears_with_its_events(service: TestClient) -> None:
    put(service, "forgotten", {"text": "x"})
    click(service, "forgotten", "red river", *PEOPLE)
    assert suggest(service, "forgotten", "red") == [("red river", "query")]
    params = {"user": PEOPLE[0]}
    service.delete("/collections/forgotten/events", params=params).raise_for_status()
    assert suggest(service, "forgotten", "red") == []


@pytest.mark.parametrize("path", ["/documents/00000", '/documents?filter={"n": 1}', ""])
def test_a_query_disappears_with_the_documents_of_its_clicks(service: TestClient, path: str) -> None:
    collection = f"left{len(path)}"
    put(service, collection, {"metadata": {"n": 1}}, {"title": "Red rock"})
    click(service, collection, "red river", *PEOPLE)
    assert ("red river", "query") in suggest(service, collection, "red")
    service.delete(f"/collections/{collection}{path}").raise_for_status()
    if path:
        assert suggest(service, collection, "red") == [("Red rock", "title")]
    put(service, collection, {})
    assert ("red river", "query") not in suggest(service, collection, "red")


def test_the_first_request_after_idle_time_waits_for_new_candidates(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, "idle", *titled("Red rock", "Red reed"))
    click(service, "idle", "red river", *PEOPLE)
    assert len(suggest(service, "idle", "red")) == 3
    index = service.app.state.runtime.suggestions  # type: ignore[attr-defined]
    monkeypatch.setattr(index, "_used", set())
    service.delete("/collections/idle/documents/00000").raise_for_status()
    put(service, "idle", {"id": "new", "title": "Red rose"})
    assert suggest(service, "idle", "red") == [("Red reed", "title")]
    monkeypatch.setattr(index, "_used", set())
    monkeypatch.setattr(suggestions, "RENEW_SECONDS", 0.0)
    monkeypatch.setattr(suggestions, "RENEW_SHARE", 0)
    assert {*suggest(service, "idle", "red")} == {("Red reed", "title"), ("Red rose", "title")}


def test_a_request_does_not_wait_for_slow_candidates(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, "slow", *titled("Red rock"))
    assert titles(service, "slow", "red") == ["Red rock"]
    index = service.app.state.runtime.suggestions  # type: ignore[attr-defined]
    monkeypatch.setattr(index, "_used", set())
    monkeypatch.setattr(suggestions, "WAITED_SECONDS", 0.0)
    put(service, "slow", *titled("Red rock", "Red rose"))
    with monkeypatch.context() as patch:
        patch.setattr(suggestions, "RENEW_SECONDS", 0.0)
        patch.setattr(suggestions, "RENEW_SHARE", 0)
        first = titles(service, "slow", "red")
        until(lambda: titles(service, "slow", "red") == ["Red rock", "Red rose"])
    assert first == ["Red rock"]


def test_new_candidates_read_only_new_titles(service: TestClient) -> None:
    """They equal those that are read from nothing."""
    runtime: Any = service.app.state.runtime  # type: ignore[attr-defined]
    assert service.portal is not None
    read: list[int] = []

    class Counting:
        """A snapshot that lists the titles that are read."""

        def __init__(self, snapshot: Any) -> None:
            self._snapshot = snapshot

        def __getattr__(self, name: str) -> Any:
            return getattr(self._snapshot, name)

        def get_titles(self, revisions: list[int]) -> Any:
            read.extend(revisions)
            return self._snapshot.get_titles(revisions)

    def build(before: Any) -> Any:
        read.clear()

        async def ask() -> Any:
            return await runtime.corpus.store.search(
                lambda snapshot: suggestions.build(Counting(snapshot), "steps", 0, bool, before)  # type: ignore[arg-type]
            )

        return service.portal.call(ask)  # type: ignore[union-attr]

    def rows(candidates: Any) -> list[tuple[Any, ...]]:
        found = candidates.titles
        return [*zip(found.keys, found.revisions, found.ranks, found.sums, strict=True)]

    put(service, "steps", *titled(*(f"{word} river {at}" for at in range(20) for word in ("red", "old"))))
    first = build(None)
    assert len(read) == 40
    assert rows(build(first)) == rows(first)
    assert not read
    service.delete("/collections/steps/documents/00003").raise_for_status()
    put(service, "steps", {"title": "A red changed one"})
    second = build(first)
    assert len(read) == 1
    assert rows(second) == rows(build(None)) != rows(first)


def test_kinds_alternate_and_equal_texts_are_one(service: TestClient) -> None:
    put(service, "kinds", *titled("Red river", "Red rock", "red stone"), *[{"text": "redwood"}] * 2)
    click(service, "kinds", "RED RIVER", *PEOPLE)
    click(service, "kinds", "red sea", *PEOPLE)
    assert suggest(service, "kinds", "red") == [
        ("RED RIVER", "query"),
        ("Red rock", "title"),
        ("redwood", "term"),
        ("red sea", "query"),
        ("red stone", "title"),
    ]


@pytest.mark.parametrize("mark", ["trusted", "untrusted"])
def test_only_clicks_of_trusted_keys_suggest_queries(
    tmp_path: Path, tiny_models_dir: Path, mark: str
) -> None:
    keys = keys_file(tmp_path, line("page", "write", "sk-page", "", "", mark))
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=keys)) as client:
        client.headers.update(bearer("sk-page"))
        put(client, "c", {"text": "x"})
        click(client, "c", "red river", *PEOPLE)
        assert suggest(client, "c", "red") == ([("red river", "query")] if mark == "trusted" else [])


def test_many_equal_beginnings_are_searched_within_limits(service: TestClient) -> None:
    beginning = "a long beginning that all of the titles share, "
    put(service, "many", *titled(*(f"{beginning}{at:04}" for at in range(2000))))
    found = titles(service, "many", "a long", k=MAX_SUGGESTIONS)
    assert len({*found}) == MAX_SUGGESTIONS
    assert titles(service, "many", f"{beginning}19", k=3) == [f"{beginning}{at}" for at in (1900, 1901, 1902)]
    assert titles(service, "many", "a long", filter='{"n": 1}') == []


def test_no_title_is_left_out(service: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Titles are suggested that come after many equal ones, or that alone match a filter."""
    monkeypatch.setattr(suggestions, "CHECKED_TITLES", (8, 16))
    monkeypatch.setattr(suggestions, "MAX_CHECKED_TITLES", 20)
    rows = [{"title": "Untitled", "metadata": {"n": at}} for at in range(60)]
    rows += [{"title": f"Until the day {at:02}", "metadata": {"n": 60 + at}} for at in range(60)]
    put(service, "repeated", *rows)
    days = [f"Until the day {at:02}" for at in range(60)]
    assert titles(service, "repeated", "unti", k=20) == ["Untitled", *days[:18]]  # And the term "until".
    for at in (0, 31, 59):
        one = orjson.dumps({"n": {"$in": [3, 60 + at]}}).decode()
        assert titles(service, "repeated", "unti", filter=one) == ["Untitled", days[at]]


@pytest.mark.parametrize(("most", "words"), [(240, 4), (60, 3), (40, 2), (20, 1)])
def test_large_collections_complete_fewer_words_of_a_title(
    service: TestClient, monkeypatch: pytest.MonkeyPatch, most: int, words: int
) -> None:
    monkeypatch.setattr(suggestions, "MAX_TITLES", most)
    put(service, f"large{most}", *titled(*(f"alpha beta gamma delta {at}" for at in range(20))))
    found = [titles(service, f"large{most}", word, k=50) for word in ("al", "be", "ga", "de")]
    assert [len(each) for each in found] == [20] * words + [0] * (4 - words)


def test_a_query_is_suggested_only_while_enough_of_its_clicks_exist(service: TestClient) -> None:
    """Other queries stay. After fresh candidates, other visitors may count instead."""
    put(service, "witnesses", {"text": "x"})
    click(service, "witnesses", "red river", *PEOPLE, "one-more")
    click(service, "witnesses", "red rock", *PEOPLE[1:], "one-more")
    shown = [("red river", "query"), ("red rock", "query")]
    assert suggest(service, "witnesses", "red") == shown
    params = {"user": PEOPLE[0]}
    service.delete("/collections/witnesses/events", params=params).raise_for_status()
    assert suggest(service, "witnesses", "red")[-1:] == shown[1:]
    service.delete("/collections/witnesses/events", params={"query": "red rock"}).raise_for_status()
    assert ("red rock", "query") not in suggest(service, "witnesses", "red")
    service.delete("/collections/witnesses/events", params={"user": PEOPLE[1]}).raise_for_status()
    assert suggest(service, "witnesses", "red") == []


@pytest.mark.parametrize(
    ("params", "status", "complaint"),
    [
        ({}, 422, "q"),
        ({"q": ""}, 400, "q is empty"),
        ({"q": " \u3000"}, 400, "q is empty"),
        ({"q": "x" * (MAX_CHARACTERS + 1)}, 422, f"at most {MAX_CHARACTERS}"),
        ({"q": "x", "k": 0}, 422, "k"),
        ({"q": "x", "k": MAX_SUGGESTIONS + 1}, 422, "k"),
        ({"q": "x", "filter": "{"}, 422, "filter"),
        ({"q": "x", "filter": '{"a": {"$x": 1}}'}, 422, "unknown operator"),
        ({"q": "x", "mode": "dense"}, 422, "mode"),
    ],
)
def test_a_wrong_request_is_refused(
    service: TestClient, params: dict[str, Any], status: int, complaint: str
) -> None:
    answer = service.get("/suggest", params=params)
    assert answer.status_code == status, answer.text
    assert complaint in answer.json()["error"]
    assert service.get("/collections/never-made/suggest", params={"q": "x"}).status_code == 404


@pytest.mark.parametrize(
    "q", ["\0", "\U0010ffff", "\ufdfa" * MAX_CHARACTERS, "🦉", "™", "'", "%", "a\0b", "\u0300"]
)
def test_any_text_is_answered(service: TestClient, q: str) -> None:
    put(service, "any", *titled("🦉 owl", "100 % wool", "it's"))
    suggest(service, "any", q)
