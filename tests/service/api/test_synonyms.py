"""Synonyms of a collection: the routes, what searches find by them, and what keeps them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from models.search.synonyms import (
    MAX_ADDED,
    MAX_ALL_PHRASES,
    MAX_CHARACTERS,
    MAX_ENTRIES,
    MAX_PHRASES,
    MAX_WORDS,
)
from models.search.synonyms import WEIGHT as SYNONYM_WEIGHT
from service.runtime.runtime import Runtime
from tests.parts.documents import put
from tests.service.conftest import new_settings, serving

PLACE = "/collections/shop"
TEXTS = {
    "car": "a red car",
    "automobile": "an automobile museum",
    "both": "an automobile is a car",
    "television": "a television with a remote",
    "screen": "a flat panel, a screen",
    "flat": "a flat tire",
    "cpp": "C++ compilers",
    "tokyo": "東京の夜",
    "edo": "江戸の町",
}


@pytest.fixture(scope="module", autouse=True)
def _filled(running: TestClient) -> None:
    put(running, *({"id": id, "text": text} for id, text in TEXTS.items()), path=f"{PLACE}/documents")


def save(client: TestClient, *, place: str = PLACE, **body: Any) -> int:
    answer = client.put(f"{place}/synonyms", json=body)
    assert answer.status_code == 200, answer.text
    version: int = answer.json()["version"]
    return version


def found(client: TestClient, q: str, *, place: str = PLACE, **params: object) -> list[str]:
    sent: Any = {"q": q, "mode": "lexical", **params}
    answer = client.get(f"{place}/search", params=sent)
    assert answer.status_code == 200, answer.text
    return [hit["id"] for hit in answer.json()["hits"]]


def test_synonyms_are_stored_with_a_version_that_grows(client: TestClient) -> None:
    first = client.get(f"{PLACE}/synonyms").json()
    given: dict[str, Any] = {
        "groups": [["car", "Automobile"]],
        "one_way": [{"from": "TV", "to": ["television", "flat screen"]}],
    }
    version = save(client, **given)
    assert version == first["version"] + 1
    stored = client.get(f"{PLACE}/synonyms").json()
    assert stored == {"version": version, **given}
    assert save(client, **stored) == version + 1, "an answer can be sent again"
    assert client.put(f"{PLACE}/synonyms", json=stored).status_code == 409
    assert client.get(f"{PLACE}/synonyms").json() == {"version": version + 1, **given}
    assert client.delete(f"{PLACE}/synonyms").json() == {"version": version + 2}
    assert client.delete(f"{PLACE}/synonyms").json() == {"version": version + 2}, "there are none"
    assert client.get(f"{PLACE}/synonyms").json() == {"version": version + 2, "groups": [], "one_way": []}


def test_members_of_a_group_find_each_other_and_the_word_as_typed_first(client: TestClient) -> None:
    assert {*found(client, "car")} == {"car", "both"}
    save(client, groups=[["car", "automobiles"]])
    for query in ("car", "cars", "automobile"):
        assert {*found(client, query)} == {"car", "automobile", "both"}
        assert found(client, query)[-1] == ("automobile" if query.startswith("car") else "car")
        assert {*found(client, query, mode="hybrid")} >= {"car", "automobile", "both"}
    assert SYNONYM_WEIGHT < 1


def test_a_synonym_of_several_words_does_not_outrank_the_word_as_typed(client: TestClient) -> None:
    place = "/collections/sets"
    texts = {
        "typed": "my tv set here",
        "one": "some television show here",
        "several": "flat panel screen here",
    }
    fill = ({"id": f"f{at}", "text": "other words only"} for at in range(9))
    put(client, *({"id": id, "text": text} for id, text in texts.items()), *fill, path=f"{place}/documents")
    save(client, place=place, one_way=[{"from": "tv", "to": ["television", "flat panel with a screen"]}])
    hits = client.get(f"{place}/search", params={"q": "tv", "mode": "lexical"}).json()["hits"]
    scores = {hit["id"]: hit["score"] for hit in hits}
    assert next(iter(scores)) == "typed"
    for id in ("one", "several"):  # Their words are as rare, and their texts as long.
        assert scores[id] == pytest.approx(SYNONYM_WEIGHT * scores["typed"]), id


def test_one_way_synonyms_work_one_way(client: TestClient) -> None:
    save(client, one_way=[{"from": "tv", "to": ["television", "flat screen"]}])
    assert {*found(client, "tv")} == {"television", "screen"}, "a document needs both words"
    assert found(client, "television") == ["television"]
    assert {*found(client, "flat screen")} == {"screen", "flat"}


def test_several_words_are_found_where_they_follow_each_other(client: TestClient) -> None:
    save(client, one_way=[{"from": "flat screen", "to": ["television"]}])
    assert "television" in found(client, "a flat screens, please")
    assert "television" not in found(client, "screen, flat")
    assert "television" not in found(client, "flat red screen")


@pytest.mark.parametrize(
    ("start", "to", "query", "id"),
    [
        ("c++", "car", "C++ car", "car"),
        ("東京", "江戸", "東京", "edo"),
        ("İstanbul", "car", "ISTANBUL", "car"),
    ],
)
def test_codes_and_other_scripts(client: TestClient, start: str, to: str, query: str, id: str) -> None:
    save(client, one_way=[{"from": start, "to": [to]}])
    assert id in found(client, query)


def test_a_single_character_is_found_at_any_place_as_in_a_query(running: TestClient) -> None:
    place = "/collections/single"
    texts = {"tokyo": "東京の夜", "kyoto": "京都の寺", "edo": "江戸の町", "guide": "寺院 guide"}
    put(running, *({"id": id, "text": text} for id, text in texts.items()), path=f"{place}/documents")
    save(
        running,
        place=place,
        one_way=[{"from": "capital", "to": ["京"]}, {"from": "book", "to": ["寺 guide"]}],
    )
    assert {*found(running, "京", place=place)} == {"tokyo", "kyoto"}
    params = {"q": "capital", "mode": "lexical", "highlight": "true", "explain": "true"}
    hits = running.get(f"{place}/search", params=params).json()["hits"]
    marked = {hit["id"]: [hit["text"][slice(*pair)] for pair in hit["highlights"]["text"]] for hit in hits}
    assert marked == {"tokyo": ["京"], "kyoto": ["京"]}
    assert {term["term"] for hit in hits for term in hit["explanation"]["terms"]} == {"京"}
    typed = running.get(f"{place}/search", params=params | {"q": "京"}).json()["hits"]
    scores = {hit["id"]: hit["score"] for hit in typed}
    for hit in hits:
        assert hit["score"] == pytest.approx(SYNONYM_WEIGHT * scores[hit["id"]])
    assert found(running, "book", place=place) == ["guide"]
    assert {*found(running, "book 京", place=place)} == {"guide", "tokyo", "kyoto"}


def test_a_code_is_not_its_part(client: TestClient) -> None:
    save(client, one_way=[{"from": "c++", "to": ["television"]}])
    assert "television" in found(client, "learn C++")
    assert "television" not in found(client, "vitamin c")


def test_a_word_with_a_synonym_is_not_corrected_and_a_corrected_one_has_synonyms(client: TestClient) -> None:
    save(client, one_way=[{"from": "automobila", "to": ["remote"]}, {"from": "museum", "to": ["tire"]}])
    assert found(client, "automobila") == ["television"]
    assert "flat" in found(client, "musuem")
    assert "automobile" in found(client, "musuem", typos="true")


def test_synonyms_of_another_collection_do_not_apply(client: TestClient) -> None:
    save(client, groups=[["car", "automobile"]])
    put(client, {"id": "a", "text": "automobile"}, path="/collections/elsewhere/documents")
    assert found(client, "car", place="/collections/elsewhere") == []
    assert client.get("/collections/elsewhere/synonyms").json()["version"] == 0
    save(client, place="/collections/default", groups=[["car", "automobile"]])
    assert client.delete("/collections/default").status_code == 200
    assert client.get("/collections/default/synonyms").json()["groups"] == []


def test_synonyms_are_deleted_with_their_collection(client: TestClient) -> None:
    place = "/collections/brief"
    put(client, {"id": "a", "text": "automobile"}, path=f"{place}/documents")
    save(client, place=place, groups=[["car", "automobile"]])
    assert found(client, "car", place=place) == ["a"]
    client.delete(place)
    assert client.get(f"{place}/synonyms").status_code == 404
    put(client, {"id": "a", "text": "automobile"}, path=f"{place}/documents")
    assert found(client, "car", place=place) == []


BAD: list[tuple[object, str]] = [
    ({"groups": [["car"]]}, "groups[0] has 1 phrase; give 2 to 50."),
    ({"groups": [[]]}, "groups[0] has 0 phrases; give 2 to 50."),
    ({"groups": [["car", "Cars", "CÁR"]]}, "groups[0]: a search for 'car' finds the others anyway"),
    ({"one_way": [{"from": "car", "to": ["Cars"]}]}, "one_way[0]: a search for 'car' finds the others"),
    (
        {"groups": [["car", "日本語日本語日本語日"]]},
        "9 words, and each pair of neighboring characters is one;",
    ),
    ({"one_way": [{"start": "tv", "to": ["television"]}]}, "one_way[0].from"),
    ({"one_way": [{"from": "tv", "start": "tv", "to": ["television"]}]}, "no field 'start' in one_way[0]"),
    ({"groups": [["car", ""]]}, "groups[0]"),
    ({"groups": [["car", 3]]}, "groups[0][1]"),
    ({"groups": ["car"]}, "groups[0]"),
    ({"groups": [["car", "?!"]]}, "no word"),
    ({"groups": [["car", "x" * (MAX_CHARACTERS + 1)]]}, "groups[0]"),
    ({"groups": [["car", "a " * MAX_WORDS + "b"]]}, "words"),
    ({"groups": [[str(at) for at in range(MAX_PHRASES + 1)]]}, "groups[0] has 51 phrases; give 2 to 50."),
    ({"groups": [["a", "b"]] * (MAX_ENTRIES + 1)}, str(MAX_ENTRIES)),
    ({"groups": [[f"w{at}" for at in range(MAX_PHRASES)]] * (MAX_ALL_PHRASES // MAX_PHRASES + 1)}, "phrases"),
    ({"one_way": [{"from": "tv"}]}, "one_way[0]"),
    ({"one_way": [{"from": "tv", "to": []}]}, "one_way[0].to has 0 phrases; give 1 to 50."),
    ({"one_way": [{"from": "tv", "to": ["a"], "more": 1}]}, "one_way[0]"),
    ({"one_way": {"tv": "television"}}, "one_way"),
    ({"synonyms": []}, "synonyms"),
    ({"version": -1}, "version"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
def test_bad_synonyms_are_refused_and_change_nothing(client: TestClient, body: object, said: str) -> None:
    before = client.get(f"{PLACE}/synonyms").json()
    answer = client.put(f"{PLACE}/synonyms", json=body)
    assert answer.status_code in {400, 422}
    assert said in answer.json()["error"]
    assert client.get(f"{PLACE}/synonyms").json() == before


def test_an_unknown_collection_has_none(client: TestClient) -> None:
    for method in ("GET", "PUT", "DELETE"):
        sent: dict[str, Any] = {"json": {}} if method == "PUT" else {}
        assert client.request(method, "/collections/nowhere/synonyms", **sent).status_code == 404


def test_many_synonyms_add_a_bounded_number_of_phrases(client: TestClient, runtime: Runtime) -> None:
    put(
        client,
        {"id": "last", "text": f"w{MAX_ADDED}"},
        {"id": "fits", "text": f"w{MAX_ADDED - 2}"},
        path=f"{PLACE}/documents",
    )
    groups = [["many", *(f"w{at}" for at in range(first, first + 20))] for first in range(0, 200, 20)]
    save(client, groups=groups)
    assert found(client, "many") == ["fits"]


def test_synonyms_survive_a_restart(tmp_path: Path, tiny_models_dir: Path) -> None:
    settings = new_settings(tmp_path, tiny_models_dir)
    with serving(settings) as client:
        put(client, {"id": "a", "text": "automobile"})
        save(client, place="/collections/default", groups=[["car", "automobile"]])
    with serving(settings) as client:
        assert client.get("/collections/default/synonyms").json()["version"] == 1
        assert client.get("/search", params={"q": "car", "mode": "lexical"}).json()["hits"][0]["id"] == "a"


def test_two_writers_get_different_versions(client: TestClient, runtime: Runtime) -> None:
    assert client.portal is not None
    store = runtime.corpus.store

    async def replace_at_once() -> list[int]:
        given: dict[str, Any] = {"groups": [], "one_way": []}
        return [*await asyncio.gather(*(store.replace_synonyms(given, "shop", None) for _ in range(8)))]

    versions = client.portal.call(replace_at_once)
    assert sorted(versions) == [*range(min(versions), min(versions) + 8)]


def test_synonyms_are_highlighted_if_a_document_has_all_their_words(running: TestClient) -> None:
    texts = {
        "both": "a flat bright screen, no television",
        "one": "a flat tire near a television",
        "wide": "the screen is flat",
    }
    place = "/collections/marked"
    put(running, *({"id": id, "text": text} for id, text in texts.items()), path=f"{place}/documents")
    save(running, place=place, one_way=[{"from": "telly", "to": ["television", "flat screen"]}])
    params = {"q": "telly", "mode": "lexical", "highlight": "true", "explain": "true"}
    hits = running.get(f"{place}/search", params=params).json()["hits"]
    marked = {hit["id"]: [hit["text"][slice(*pair)] for pair in hit["highlights"]["text"]] for hit in hits}
    assert marked == {
        "both": ["flat", "screen", "television"],
        "one": ["television"],
        "wide": ["screen", "flat"],
    }
    terms = {hit["id"]: {term["term"] for term in hit["explanation"]["terms"]} for hit in hits}
    assert {id: len(each) for id, each in terms.items()} == {"both": 3, "one": 1, "wide": 2}


def test_explained_terms_say_where_they_come_from(running: TestClient) -> None:
    place = "/collections/explained"
    put(running, {"id": "a", "text": "automobile, car, flat screen, tire"}, path=f"{place}/documents")
    save(running, place=place, one_way=[{"from": "automobile", "to": ["car", "flat screen"]}])
    params = {"q": "automoblie flat tires", "mode": "lexical", "highlight": "true", "explain": "true"}
    [hit] = running.get(f"{place}/search", params=params).json()["hits"]
    sources = {term["term"]: term.get("from", "typed") for term in hit["explanation"]["terms"]}
    synonyms = {"car": "synonym", "screen": "synonym"}
    assert sources == {"automobil": "correction", "flat": "typed", "tire": "typed", **synonyms}


def test_a_correction_is_highlighted(running: TestClient) -> None:
    params = {"q": "automoblie", "mode": "lexical", "highlight": "true"}
    hits = running.get(f"{PLACE}/search", params=params).json()["hits"]
    assert hits
    assert {hit["text"][slice(*pair)] for hit in hits for pair in hit["highlights"]["text"]} == {"automobile"}
