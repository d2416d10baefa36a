"""Explicit syntax over HTTP: phrases, exclusions and words of titles, in every mode."""

import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.search.content import Content
from models.search.syntax import MAX_CONDITIONS, parse_syntax
from models.search.terms import get_terms
from tests import postgres
from tests.parts.documents import put

TEXTS = {
    "a": ("Red river", "the red river flows by the town"),
    "b": ("", "a river that is red, and a boat"),
    "c": ("Boats", "rivers and a red boat"),
    "d": ("Red", "river of the north"),
    "e": ("", "C++ and C, printed by ABC-123"),
    "f": ("東京都の夜", "京都の寺"),
    "g": ("", "printing the state of the art"),
    "h": ("", "東京 station map"),
    "i": ("地図", "서울 호텔 추천"),
    "j": ("ケース", "black map"),
    "k": ("C language", "C++ is another one"),
    "l": ("C++ guide", "a guide"),
}
MODES = ("dense", "lexical", "hybrid")


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    documents = [
        {"id": id, "title": title, "text": text, "metadata": {"n": at}}
        for at, (id, (title, text)) in enumerate(TEXTS.items())
    ]
    put(running, *documents)


def ask(client: TestClient, q: str, mode: str, **params: object) -> dict[str, Any]:
    sent: Any = {"q": q, "mode": mode, "syntax": "true", "k": 100, **params}
    answer = client.get("/search", params=sent)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(client: TestClient, q: str, mode: str, **params: object) -> str:
    return "".join(sorted(hit["id"] for hit in ask(client, q, mode, **params)["hits"]))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('"red river"', "ad"),  # Title and text are one text.
        ('"RED rivers"', "ad"),  # Endings and case do not count.
        ("“red river”", "ad"),
        ('"river red"', ""),
        ('"red boat" river', "c"),
        ("river -boat", "ad"),
        ('river -"red river"', "bc"),
        ('red -boats -"red river"', ""),
        ("title:red river", "ad"),
        ('title:"red river"', "a"),
        ("title:boat red", "c"),
        ("red -title:red", "bc"),
        ('"state of the art"', "g"),
        ('"state art"', ""),
        ('"c++"', "ekl"),
        ("title:C++", "l"),
        ("guide -title:C++", ""),
        ("language -title:C++", "k"),
        ("title:red title:river", "a"),
        ("title:red -title:river red", "d"),
        ('title:red -title:"river town" -title:red', ""),
        ("printed -c++", "g"),
        ('"abc-123"', "e"),
        ('"東京都"', "f"),
        ("title:京都", "f"),
        ("title:寺の夜", ""),
        ('"東京 station"', "h"),
        ('"東京-station"', "h"),
        ('"京都 station"', ""),
        ('map -"東京 station"', "j"),
        ('map -"東京 map"', "hj"),
        ('"서울 호텔"', "i"),
        ('"서울 호텔 추천"', "i"),
        ('"地図 서울"', "i"),
        ('"ケース black"', "j"),
        ('title:"ケース black"', ""),
        ("printed -absent", "eg"),
        ('"absent word"', ""),
    ],
)
def test_conditions_hold_in_every_mode(client: TestClient, mode: str, query: str, expected: str) -> None:
    met = "".join(id for id in TEXTS if _meets(query, id))
    assert ids(client, query, mode) == (expected if mode == "lexical" else met)
    assert {*expected} <= {*met}


def _meets(query: str, id: str) -> bool:
    """A slow reference: whether a document meets the conditions of a query."""
    title, text = TEXTS[id]
    for condition in parse_syntax(query).conditions:
        terms = get_terms(title if condition.in_title else Content(text, title).whole)
        joined = f" {' '.join(terms)} "
        has = f" {' '.join(condition.words)} " in joined and {*condition.terms} <= {*terms}
        if has == condition.is_excluded:
            return False
    return True


@pytest.mark.parametrize("mode", MODES)
def test_conditions_and_filters_go_together(client: TestClient, mode: str) -> None:
    filter = json.dumps({"n": {"$gt": 0}})
    assert ids(client, '"red river"', mode, filter=filter) == "d"
    assert "a" not in ids(client, "river -boat", mode, filter=filter)
    assert ids(client, '"red river"', mode, filter='{"n": 77}') == ""


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
def test_without_it_queries_stay_plain_text(client: TestClient, mode: str) -> None:
    for query in ('"red river"', "river -boat", "title:red"):
        plain = ask(client, query.replace('"', " ").replace("-", " ").replace(":", " "), mode, syntax="false")
        assert ids(client, query, mode, syntax="false") == "".join(sorted(hit["id"] for hit in plain["hits"]))


def test_a_sign_within_a_word_is_text() -> None:
    for query in ("boundary-layer", "a - b", "subtitle:x", "it's", "-"):
        assert parse_syntax(query) == (query, [])


def test_a_query_is_answered_as_typed_and_searched_without_signs(client: TestClient) -> None:
    found = ask(client, '"red river" -boat', "lexical")
    assert found["query"] == '"red river" -boat'
    plain = client.get("/search", params={"q": "red river", "mode": "lexical", "k": 100}).json()["hits"]
    scores = {hit["id"]: hit["score"] for hit in plain}
    assert {hit["id"]: hit["score"] for hit in found["hits"]} == {id: scores[id] for id in "ad"}


def test_quoted_words_are_not_corrected(client: TestClient) -> None:
    found = ask(client, '"rde rivre" baot', "lexical")
    assert found["hits"] == []
    found = ask(client, "title:boatts river", "lexical")
    assert "corrections" not in found
    found = ask(client, "rivver -boatts", "lexical")
    assert found["corrected_query"] == "river -boatts"


def test_several_queries_have_their_own_conditions(client: TestClient) -> None:
    body = {"queries": ['"red river"', "river -boat", "river"], "syntax": True, "k": 100}
    for mode in MODES:
        found = client.post("/search", json=body | {"mode": mode}).json()["results"]
        for query, hits in zip(body["queries"], found, strict=True):  # type: ignore[call-overload]
            assert hits == ask(client, query, mode)["hits"]


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ('"red river', "no partner"),
        ('""', "no word"),
        ('"?!" red', "no word"),
        ("-boat", "only excludes"),
        ("red title:", "no word"),
        ("red -京", "two or more"),
        (" ".join(f"-w{at}" for at in range(MAX_CONDITIONS + 1)) + " red", str(MAX_CONDITIONS)),
    ],
)
def test_bad_syntax_is_refused_with_a_sentence(client: TestClient, query: str, said: str) -> None:
    answer = client.get("/search", params={"q": query, "syntax": "true"})
    assert answer.status_code == 422
    assert said in answer.json()["error"]
    assert "Query" not in answer.json()["error"].partition(" ")[0]
    answer = client.post("/search", json={"queries": ["red", query], "syntax": True})
    assert answer.status_code == 422
    assert "Query 1" in answer.json()["error"]
    assert client.get("/search", params={"q": query}).status_code == 200


def test_only_texts_have_syntax(client: TestClient) -> None:
    answer = client.get("/search", params={"id": "a", "syntax": "true"})
    assert answer.status_code == 422
    assert "Only texts have syntax" in answer.json()["error"]


def refused(client: TestClient, q: str) -> str:
    answer = client.get("/search", params={"q": q, "syntax": "true"})
    assert answer.status_code == 422, answer.text
    return str(answer.json()["error"])


def test_the_work_is_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.corpus.conditions.MAX_READ", 2)
    if postgres.chosen:
        assert "'red river'" in refused(client, '"red river"')
    for query in ("title:red", "river -title:red"):
        said = refused(client, query)
        assert "'red'" in said
        assert "rarer" in said
        assert "quotes" not in said
    assert ids(client, "river -red", "lexical") == ""
    # The title of a document without "north" is not read.
    assert ids(client, "title:red title:north", "lexical") == ""
    # The limit is for all conditions of a query together.
    assert ids(client, "title:printed", "lexical") == ids(client, "title:boats", "lexical").strip("c") == ""
    assert "rarer" in refused(client, "red -title:printed -title:town -title:boats")


def test_each_title_is_read_once_for_a_search(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    cut: list[str] = []

    def count(title: str) -> list[str]:
        cut.append(title)
        return get_terms(title)

    monkeypatch.setattr("service.corpus.conditions.get_terms", count)
    found = ask(client, "red -title:river -title:boats", "lexical", facets="metadata.n")
    assert {hit["id"] for hit in found["hits"]} == {"b", "d"}
    assert sum(each["count"] for each in found["facets"]["metadata.n"]["values"]) == 2
    assert sorted(cut) == ["", "Boats", "Red", "Red river"]


def test_each_condition_counts_as_work(client: TestClient) -> None:
    body: dict[str, Any] = {"mode": "lexical", "syntax": True}
    for query, count, status in (
        ("title:red", 90, 200),
        ("red", 500, 200),
        (" ".join(["title:red"] * MAX_CONDITIONS), 5, 200),
        (" ".join(["title:red"] * MAX_CONDITIONS), 90, 422),
    ):
        answer = client.post("/search", json=body | {"queries": [query] * count})
        assert answer.status_code == status, answer.text
    assert "SIMILE_MAX_CANDIDATES" in answer.json()["error"]
    some = [" ".join(["title:red"] * MAX_CONDITIONS), *["red"] * 90]  # Only what is asked counts.
    assert client.post("/search", json=body | {"queries": some}).status_code == 200
