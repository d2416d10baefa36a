"""Typo tolerance over HTTP: what is corrected, and what a filter or another collection hides."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.corpus.spelling import MAX_CORRECTED, MAX_EXAMPLES, MAX_TERMS
from tests.parts.documents import put
from tests.service.conftest import new_settings, serving

TEXTS = {
    "jam": "How to clear a paper jam in the printer",
    "ink": "The printer needs ink. Printers print",
    "pointer": "A pointer names a place in memory",
    "layer": "boundary layers of organizations and their heating",
    "russian": "Москва столица России",
    "polish": "Łódzki uniwersytet",
    "code": "Error PRNT-4711 of the device AB12CD",
}


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    documents = [{"id": id, "text": text, "metadata": {"who": "all"}} for id, text in TEXTS.items()]
    secret = {
        "id": "secret",
        "text": "The zirconium reactor of project nightingale",
        "metadata": {"who": "b"},
    }
    put(running, *documents, secret)
    put(running, {"id": "other", "text": "a telescope"}, path="/collections/other/documents")


def ask(client: TestClient, q: str, **params: object) -> dict[str, Any]:
    sent: Any = {"q": q, "mode": "lexical", **params}
    response = client.get("/search", params=sent)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def ids(answer: dict[str, Any]) -> list[str]:
    return [hit["id"] for hit in answer["hits"]]


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.parametrize("typed", ["pritner", "prnter", "printerr", "orinter", "PRITNER", "Pritners"])
def test_a_word_that_no_document_has_is_corrected(client: TestClient, mode: str, typed: str) -> None:
    found = ask(client, f"{typed} jam", mode=mode)
    assert found["query"] == f"{typed} jam"
    assert found["corrected_query"] in {"printer jam", "printers jam"}
    [correction] = found["corrections"]
    assert correction["term"] == typed
    assert correction["to"][0] in {"printer", "printers"}
    assert ids(found)[0] == "jam"
    assert {"jam", "ink"} <= {*ids(found)}


@pytest.mark.parametrize(
    ("typed", "corrected"),
    [
        ("heatnig", "heating"),
        ("organiztions", "organizations"),
        ("uniwrestyet", "uniwersytet"),  # Two edits of a long word.
        ("boundray-layer", "boundary-layer"),
        ("Мосвка", "москва"),
        ("łódzik", "łódzki"),
        ("uniwresytet", "uniwersytet"),
    ],
)
def test_the_correction_is_a_word_of_a_document(client: TestClient, typed: str, corrected: str) -> None:
    assert ask(client, typed)["corrected_query"] == corrected


@pytest.mark.parametrize(
    "typed",
    [
        "printer jam",
        "prin",  # Four letters.
        "pritnre",  # Two edits, but fewer than nine letters.
        "PRNT-4712",
        "AB12CE",
        "4712",
        "PRNTX-4711",
        "pritner.example",
        "printre_name",
        "東京都",
        "telescoep",  # A word of another collection.
        "🦉🦉🦉🦉🦉",
        "x" * 5000,
        '"',
    ],
)
def test_nothing_is_corrected(client: TestClient, typed: str) -> None:
    found = ask(client, typed)
    assert "corrections" not in found
    assert "corrected_query" not in found
    assert found["hits"] == ask(client, typed, typos="false")["hits"]


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.parametrize("typed", ["river", "River", "window rivers river"])
def test_real_words_are_not_corrected(client: TestClient, mode: str, typed: str) -> None:
    """The model's vocabulary has river and window. The documents have neither."""
    path = "/collections/real"
    put(client, {"id": "a", "text": "a driver would widow there"}, path=f"{path}/documents")
    found = client.get(f"{path}/search", params={"q": typed, "mode": mode}).json()
    assert "corrections" not in found
    found = client.get(f"{path}/search", params={"q": "drivver", "mode": mode}).json()
    assert found["corrected_query"] == "driver"


FORMS = [
    ("several severe cases", "sevrer", None),  # severer has the same term as several, but no document has it.
    ("severers sing", "sevrer", "severers"),  # A plural is as near as its singular.
    ("computing computers", "computationaly", None),
    ("a broth of herbs", "brother", None),
    ("it would be there", "woudl", None),  # Function words replace none.
    ("Überall in München", "Müncehn", "münchen"),
    ("Überall in München", "MUNCEHN UEBERALL", "münchen überall"),
    ("ο ΛΌΓΟΣ και ο λόγος", "λόγςο", "λόγος"),  # noqa: RUF001
]


@pytest.mark.parametrize(("text", "typed", "corrected"), FORMS)
def test_the_correction_is_near_and_written_as_in_a_document(
    client: TestClient, text: str, typed: str, corrected: str | None
) -> None:
    path = "/collections/forms"
    put(client, {"id": "a", "text": text}, path=f"{path}/documents")
    found = client.get(f"{path}/search", params={"q": typed, "mode": "lexical"}).json()
    assert found.get("corrected_query") == corrected
    if corrected is not None:
        assert found["corrections"][0]["term"] == typed.split(maxsplit=1)[0]
        assert ids(found) == ["a"]


@pytest.mark.parametrize("others", [4, 40])
def test_a_form_that_few_documents_have_is_found(client: TestClient, others: int) -> None:
    """The first documents have the term in another form. Not all of them are read."""
    path = f"/collections/few{others}"
    documents = [{"id": f"{at}", "text": "computing"} for at in range(others)]
    put(client, *documents, {"id": "last", "text": "computational"}, path=f"{path}/documents")
    found = client.get(f"{path}/search", params={"q": "computationla", "mode": "lexical"}).json()
    assert found.get("corrected_query") == ("computational" if others < MAX_EXAMPLES else None)
    documents = [{"id": f"p{at}", "text": "problem"} for at in range(others)]
    put(client, *documents, {"id": "plural", "text": "problems"}, path=f"{path}/documents")
    found = client.get(f"{path}/search", params={"q": "probleks", "mode": "lexical"}).json()
    assert found["corrected_query"] == ("problems" if others < MAX_EXAMPLES else "problem")


def test_the_caller_may_turn_it_off(client: TestClient) -> None:
    found = ask(client, "pritner", typos="false")
    assert "corrections" not in found
    assert found["hits"] == []
    posted = client.post("/search", json={"queries": ["pritner"], "mode": "lexical", "typos": False}).json()
    assert posted["results"] == [[]]
    assert "corrections" not in posted


def test_dense_search_corrects_nothing(client: TestClient) -> None:
    assert "corrections" not in ask(client, "pritner", mode="dense")
    for typos in ("true", "maybe"):
        answer = client.get("/search", params={"q": "pritner", "mode": "dense", "typos": typos})
        assert answer.status_code == 422
    assert "Leave typos out" in client.get("/search?q=pritner&mode=dense&typos=true").json()["error"]
    assert client.post("/search", json={"queries": ["a"], "typos": "false"}).status_code == 422


def test_several_queries_are_corrected_one_by_one(client: TestClient) -> None:
    body = {"queries": ["pritner", "printer", "heatnig"], "mode": "lexical"}
    found = client.post("/search", json=body).json()
    assert found["corrected_queries"] == ["printer", None, "heating"]
    assert [[each["term"] for each in some] for some in found["corrections"]] == [
        ["pritner"],
        [],
        ["heatnig"],
    ]
    assert [[hit["id"] for hit in hits][:1] for hits in found["results"]][2] == ["layer"]
    plain = client.post("/search", json={"queries": ["printer"], "mode": "lexical"}).json()
    assert "corrected_queries" not in plain


def test_a_filter_hides_the_words_of_other_documents(client: TestClient) -> None:
    hidden = json.dumps({"who": "all"})
    for typed, term in (("zirconum", "zirconium"), ("nightingael", "nightingale"), ("raector", "reactor")):
        assert ask(client, typed)["corrected_query"] == term
        assert ask(client, typed, filter=json.dumps({"who": "b"}))["corrected_query"] == term
        found = ask(client, typed, filter=hidden)
        assert "corrections" not in found
        assert found["hits"] == []


def test_a_filter_hides_whether_a_word_exists(client: TestClient) -> None:
    """A word of hidden documents is corrected like a word that does not exist."""
    put(client, {"id": "hidden", "text": "the prinker", "metadata": {"who": "c"}})
    assert "corrections" not in ask(client, "prinker")
    found = ask(client, "prinker", filter=json.dumps({"who": "all"}))
    absent = ask(client, "prinxer", filter=json.dumps({"who": "all"}))
    assert found["corrected_query"] == absent["corrected_query"] == "printer"
    assert ids(found) == ids(absent)
    client.delete("/documents/hidden")


@pytest.mark.parametrize(("most", "corrected"), [(3, None), (30, None), (9, "zebro")])
def test_a_word_with_too_many_documents_to_test_is_known(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, most: int, corrected: str | None
) -> None:
    """The last document has the word and matches. If all are tested and none matches, it is corrected."""
    for module in ("corpus.spelling", "store.sqlite.vocabulary", "store.postgres.vocabulary"):
        monkeypatch.setattr(f"service.{module}.TRIED", 1)
        monkeypatch.setattr(f"service.{module}.MAX_TRIED", most)
    path = f"/collections/frequent{most}"
    documents = [{"id": f"{at}", "text": "zebra", "metadata": {"who": "b"}} for at in range(10)]
    mine = {"id": "last", "text": "zebra" if corrected is None else "else", "metadata": {"who": "a"}}
    near = {"id": "near", "text": "zebro", "metadata": {"who": "a"}}
    put(client, near, *documents, mine, path=f"{path}/documents")
    sent = {"q": "zebra", "mode": "lexical", "filter": json.dumps({"who": "a"})}
    assert client.get(f"{path}/search", params=sent).json().get("corrected_query") == corrected


@pytest.mark.parametrize("mode", ["lexical", "hybrid"])
@pytest.mark.parametrize(
    ("typed", "corrected"),
    [
        ("serach -document", "search -document"),
        (
            "serach  -title:document,  “search results” engien",
            "search  -title:document,  “search results” engine",
        ),
        ("-title:serach engien title:results", "-title:serach engine title:results"),
        ("serach -search", None),
        ('serach -"search page"', None),
        ('searhc "serach"', 'search "serach"'),
        ('title:"results" titel:"page" engien', 'title:"results" titel:"page" engine'),
        ("titel: engien", "titel: engine"),
    ],
)
def test_a_corrected_query_keeps_its_syntax(
    client: TestClient, mode: str, typed: str, corrected: str | None
) -> None:
    path = "/collections/syntax"
    documents = [
        {"id": "a", "title": "results", "text": "search results of an engine page"},
        {"id": "b", "title": "document", "text": "search results, engine page of a document with a title"},
        {"id": "c", "title": "", "text": "another document"},
    ]
    put(client, *documents, path=f"{path}/documents")
    sent = {"q": typed, "mode": mode, "syntax": "true"}
    found = client.get(f"{path}/search", params=sent).json()
    assert found.get("corrected_query") == corrected
    if corrected is not None:
        again = client.get(f"{path}/search", params={**sent, "q": corrected}).json()
        assert "corrections" not in again
        assert ids(found) == ids(again)


def test_corrections_follow_every_write(client: TestClient) -> None:
    assert "corrections" not in ask(client, "krokodli")
    put(client, {"id": "new", "text": "ein Krokodil"})
    assert ask(client, "krokodli")["corrected_query"] == "krokodil"
    put(client, {"id": "new", "text": "ein Elefant"})
    assert "corrections" not in ask(client, "krokodli")
    assert ask(client, "elefnat")["corrected_query"] == "elefant"
    client.delete("/documents/new")
    assert "corrections" not in ask(client, "elefnat")


def test_a_deleted_collection_leaves_no_words(client: TestClient) -> None:
    path = "/collections/brief"
    for text, typed, corrected in (
        ("a platypus", "platypsu", "platypus"),
        ("a hedgehog", "hedgehgo", "hedgehog"),
    ):
        put(client, {"id": "one", "text": text}, path=f"{path}/documents")
        found = client.get(f"{path}/search", params={"q": typed, "mode": "lexical"}).json()
        assert found["corrected_query"] == corrected
        client.delete(path)
    put(client, {"id": "one", "text": "a hedgehog"}, path=f"{path}/documents")
    found = client.get(f"{path}/search", params={"q": "platypsu", "mode": "lexical"}).json()
    assert "corrections" not in found


def test_the_most_frequent_near_words_are_taken(client: TestClient) -> None:
    texts = ["xatter"] * 4 + ["zatter"] * 2 + ["yatter"] * 3 + ["vatters"]
    documents = [{"id": str(at), "text": f"{text} {at}"} for at, text in enumerate(texts)]
    put(client, *documents, path="/collections/near/documents")
    found = client.get("/collections/near/search", params={"q": "watter", "mode": "lexical", "k": 100}).json()
    assert found["corrections"] == [{"term": "watter", "to": ["xatter", "yatter", "zatter"][:MAX_TERMS]}]
    assert found["corrected_query"] == "xatter"
    taken = {str(at) for at, text in enumerate(texts) if text in found["corrections"][0]["to"]}
    assert {*ids(found)} == taken


def test_a_corrected_word_counts_less_than_a_word_as_typed(client: TestClient) -> None:
    documents = [{"id": "typed", "text": "lantern"}, {"id": "corrected", "text": "hammock"}]
    put(client, *documents, path="/collections/less/documents")
    found = client.get("/collections/less/search", params={"q": "lantern hammokc", "mode": "lexical"}).json()
    assert ids(found) == ["typed", "corrected"]
    plain = client.get("/collections/less/search", params={"q": "lantern hammock", "mode": "lexical"}).json()
    assert plain["hits"][0]["score"] == plain["hits"][1]["score"]


@pytest.mark.parametrize("collections", ["near, default", "*"])
def test_a_collection_may_do_without(tmp_path: Path, tiny_models_dir: Path, collections: str) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, exact_collections=collections)) as client:
        put(client, {"id": "a", "text": "printer"})
        assert "corrections" not in ask(client, "pritner")
        assert ask(client, "pritner", typos="true")["corrected_query"] == "printer"


@pytest.fixture(scope="module")
def _many(running: TestClient) -> None:
    """A collection with twenty thousand different words."""
    words = [
        f"{a}{b}{c}ellation{d}"
        for a in "bcdfghklmnprst"
        for b in "aeiou"
        for c in "bcdfghklmn"
        for d in "abcdefghklmnop"
    ]
    documents = [{"id": str(at), "text": " ".join(words[at : at + 100])} for at in range(0, len(words), 100)]
    put(running, *documents, path="/collections/many/documents")


@pytest.mark.usefixtures("_many")
def test_hostile_queries_take_bounded_time(client: TestClient) -> None:
    """A query of many unknown words takes at most thrice the time of one with as many as are corrected."""
    unknown = [f"{a}{b}bellatoin{c}" for a in "bcdfghklmnprst" for b in "aeiou" for c in "abcdefghk"]

    def seconds(query: str) -> float:
        began = time.perf_counter()
        answer = client.get("/collections/many/search", params={"q": query, "mode": "lexical"})
        assert answer.status_code == 200
        assert len(answer.json().get("corrections", [])) <= MAX_CORRECTED
        return time.perf_counter() - began

    some = min(seconds(" ".join(unknown[:MAX_CORRECTED])) for _ in range(3))
    assert min(seconds(" ".join(unknown)) for _ in range(3)) < 3 * some + 0.2
    assert min(seconds("a" * 9000) for _ in range(3)) < 3 * some + 0.2
    assert min(seconds("-".join(["abcdef"] * 1400)) for _ in range(3)) < 3 * some + 0.2
