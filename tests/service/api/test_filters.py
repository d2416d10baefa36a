"""Filters over HTTP: names with dots, and warnings about filters without matches."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from starlette.testclient import TestClient

from models.store import ModelStore
from service.cli.check import check_data
from service.files.columns import Columns
from service.files.values import BadFile
from service.runtime.runtime import Runtime
from service.settings import Settings
from service.store.filters.names import count_unreachable, suspect, unreachable_names
from service.store.values import Document
from tests.service.conftest import new_settings, serving

NAMES: dict[str, dict[str, Any]] = {
    "flat": {"service.name": "cart", "unit.price": "9.50"},
    "nest": {"service": {"name": "cart"}},
    "mixed": {"service": {"name.full": "the cart", "name": {"short": "cart"}}},
    "authors": {
        "authors": [{"name": "Ada", "born": 1815}, {"name": "Bob"}, "nobody"],
        "a.b": {"c.d": [1, 2]},
    },
    "both": {"service.name": "cart", "service": {"name": "shop"}},
}


@pytest.fixture(scope="module", params=["", "service.name,unit.price,authors.name,a.b.c.d,t,d.t"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path
) -> Iterator[TestClient]:
    """A service without indexed fields, and one with them. The tests add collections."""
    folder = tmp_path_factory.mktemp("filters")
    with serving(new_settings(folder, tiny_models_dir, indexed_fields=request.param)) as client:
        put(client, "names", NAMES)
        yield client


def put(client: TestClient, collection: str, rows: dict[str, dict[str, Any]]) -> None:
    documents = [{"id": id, "text": f"a {id}", "metadata": metadata} for id, metadata in rows.items()]
    answer = client.post(f"/collections/{collection}/documents", json={"documents": documents})
    assert answer.status_code == 200, answer.text


def ids(client: TestClient, collection: str, filter: dict[str, Any]) -> set[str]:
    """Returns the ids of the matching documents. Checks that search, list and count agree."""
    place, text = f"/collections/{collection}", orjson.dumps(filter).decode()
    [hits] = client.post(f"{place}/search", json={"queries": ["a"], "k": 100, "filter": filter}).json()[
        "results"
    ]
    found = {hit["id"] for hit in hits}
    page = client.get(f"{place}/documents", params={"filter": text}).json()["documents"]
    assert {document["id"] for document in page} == found
    assert client.get(f"{place}/documents/count", params={"filter": text}).json()["count"] == len(found)
    return found


@pytest.mark.parametrize(
    ("filter", "matching"),
    [
        ({"service.name": "cart"}, {"flat", "nest", "both"}),
        ({"service.name": {"$ne": "cart"}}, {"mixed", "authors"}),
        ({"service.name": {"$exists": False}}, {"authors"}),
        ({"service.name": {"$in": ["shop", "x"]}}, {"both"}),
        ({"service.name": {"$gte": "d"}}, {"both"}),
        ({"service.name.full": "the cart"}, {"mixed"}),
        ({"service.name.short": "cart"}, {"mixed"}),
        ({"service": {"$exists": True}}, {"nest", "mixed", "both"}),
        ({"unit.price": "9.50"}, {"flat"}),
        ({"authors.name": "Bob"}, {"authors"}),
        ({"authors.name": {"$ne": "Ada"}}, {"flat", "nest", "mixed", "both"}),
        ({"authors.born": {"$gt": 1800, "$lt": 1900}}, {"authors"}),
        ({"authors.0.name": "Ada"}, set()),
        ({"a.b.c.d": 2}, {"authors"}),
    ],
)
def test_a_field_is_every_way_to_read_its_dots(
    service: TestClient, filter: dict[str, Any], matching: set[str]
) -> None:
    assert ids(service, "names", filter) == matching


def test_fields_show_the_values_that_a_filter_compares(service: TestClient) -> None:
    named = ["metadata.service.name", "metadata.authors.name", "metadata.a.b.c.d"]
    body = {"queries": ["a"], "k": 100, "fields": named}
    [hits] = service.post("/collections/names/search", json=body).json()["results"]
    assert {hit["id"]: hit["metadata"] for hit in hits} == {
        "flat": {"service.name": "cart"},
        "nest": {"service": {"name": "cart"}},
        "mixed": {"service": {"name": {"short": "cart"}}},
        "authors": {"authors": [{"name": "Ada"}, {"name": "Bob"}], "a.b": {"c.d": [1, 2]}},
        "both": {"service.name": "cart", "service": {"name": "shop"}},
    }


def test_a_delete_by_a_field_with_a_dot_deletes_what_passes(service: TestClient) -> None:
    put(service, "deleted", {"flat": NAMES["flat"], "nest": NAMES["nest"], "both": NAMES["both"]})
    for filter, deleted in (
        ({"service.name": {"$ne": "cart"}}, 0),
        ({"service.name": {"$exists": False}}, 0),
        ({"service.name": "shop"}, 1),
        ({"unit.price": "9.50"}, 1),
        ({"service.name": {"$in": ["cart"]}}, 1),
    ):
        params = {"filter": orjson.dumps(filter).decode()}
        answer = service.delete("/collections/deleted/documents", params=params).json()
        assert answer["deleted"] == deleted, filter


@pytest.mark.parametrize(
    "filter",
    [
        {"t": {"$exists": True}},
        {"$and": [{"t": {"$exists": True}}]},
        {"t": {"$exists": True}, "d.t": {"$exists": False}},
        {"$or": [{"t": {"$exists": True}}, {"d.t": {"$exists": True}}]},
        {"d.u": {"$exists": False}, "t": {"$exists": True}},
        {"u": {"$exists": False}},
        {"$or": [{"t": {"$exists": True}}, {"t": {"$exists": False}}], "$ids": ["with"]},
    ],
)
def test_a_delete_by_whether_a_field_is_there_deletes_what_passes(
    service: TestClient, filter: dict[str, Any]
) -> None:
    put(service, "there", {"with": {"t": 1}, "without": {"u": 1}})
    params = {"filter": orjson.dumps(filter).decode()}
    answer = service.delete("/collections/there/documents", params=params)
    assert (answer.status_code, answer.json().get("deleted")) == (200, 1), answer.text
    assert service.get("/collections/there/documents/count").json() == {"count": 1}
    for absent in ({}, {"filter": "{}"}):
        assert service.delete("/collections/there/documents", params=absent).status_code == 422


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"": 1}, "''"),
    ({"$ref": 1}, "'$ref'"),
    ({"a.": 1}, "'a.'"),
    ({".b": 1}, "'.b'"),
    ({"a..b": 1}, "'a..b'"),
    ({"a": {"": 1}}, "'' in 'a'"),
    ({"a": [{"b": [{"c.": "x"}]}]}, "'c.' in 'a.b'"),
    ({".".join("a" * 17): 1}, "more than 15 dots"),
    ({'q"\\': {'"': {'".': 0}}}, "'\".'"),
]
ACCEPTED: list[dict[str, Any]] = [
    {"a": {"$ref": "x"}},
    {"a.$b": "x"},
    {"a": ["", ".", "..", "a.", {"b": '"":'}]},
    {"a,": ',"":', '"': '{"":1}', "b": [1.5] * 20},
    {".".join("a" * 16): "x"},
    {" ": "x", "\n": "x", "é.ü": "x"},
]


@pytest.mark.parametrize(("metadata", "said"), REFUSED)
def test_a_name_no_filter_has_is_refused(service: TestClient, metadata: dict[str, Any], said: str) -> None:
    document = {"id": "r", "text": "a", "metadata": metadata}
    refused = service.post("/documents", json={"documents": [{"text": "b"}, document]})
    assert refused.status_code == 422
    assert refused.json()["error"].startswith("documents[1].metadata: the name ")
    assert said in refused.json()["error"]
    lines = b"\n".join([orjson.dumps(document), b'{"id": "good", "text": "a"}'])
    told = service.post("/documents", content=lines, headers={"content-type": "application/x-ndjson"}).json()
    assert (told["upserted"], told["failed"]) == (1, 1)
    assert said in told["errors"][0]["error"]


def test_every_name_that_is_stored_can_be_asked_for(service: TestClient) -> None:
    put(service, "accepted", {f"d{at}": metadata for at, metadata in enumerate(ACCEPTED)})
    for filter, id in (
        ({"a.$ref": "x"}, "d0"),
        ({"a.$b": "x"}, "d1"),
        ({"a.b": '"":'}, "d2"),
        ({"a,": ',"":'}, "d3"),
        ({".".join("a" * 16): "x"}, "d4"),
        ({"é.ü": "x", " ": "x", "\n": "x"}, "d5"),
    ):
        assert ids(service, "accepted", filter) == {id}


def test_a_quick_look_misses_no_refused_name_beside_damaged_metadata() -> None:
    for metadata, _ in REFUSED:
        assert suspect(orjson.dumps(metadata))
        assert next(unreachable_names(metadata), None)
    for metadata in ACCEPTED:
        assert next(unreachable_names(metadata), None) is None
    damaged = [b'{"":"\xff"}', b'{"$\xff":1}', b'{"$x":', b'"$x"', b'["$x"]', b'{"":1}x']
    rows = [(f"d{at}", json) for at, json in enumerate(damaged)]
    assert count_unreachable([*rows, ("old", b'{"$x":1}')], 5) == (1, ["old"], ["$x"])


def test_a_column_that_cannot_be_metadata_is_refused_before_a_row_is_sent() -> None:
    for name, said in (
        ("", "column 3 has no name"),
        ("a.", "nothing before or after"),
        ("$x", "begins with"),
    ):
        with pytest.raises(BadFile, match=said.replace("$", r"\$")):
            Columns(all_metadata=True).check(["id", "text", name])
        with pytest.raises(BadFile):
            Columns(metadata=(name,)).check(["id", "text", name])
        Columns(metadata=("b",)).check(["id", "text", "b", name])
    Columns(all_metadata=True).check(["id", "text", "unit.price"])


def test_documents_of_an_older_version_keep_working_and_are_listed_by_the_check(
    running: TestClient, runtime: Runtime, settings: Settings
) -> None:
    old = {"o1": '{"":1,"b":2}', "o2": '{"$ref":{"a.":[{".b":3}]},"b":3}', "o3": '{"ok":{"$ref":1}}'}
    portal = running.portal
    assert portal is not None
    portal.call(runtime.corpus.put, [Document(id, f"old {id}", json) for id, json in old.items()])
    for id, json in old.items():
        assert running.get(f"/documents/{id}").json()["metadata"] == orjson.loads(json)
    listed = running.get("/documents", params={"filter": '{"b": {"$gt": 1}}'}).json()["documents"]
    assert {document["id"] for document in listed} == {"o1", "o2"}
    said = check_data(settings)
    assert "note: 2 documents have names in their metadata that no filter could name, such as" in said
    assert "'', '$ref', '.b', 'a.': 'o1', 'o2'. Send these documents again" in said
    assert running.delete("/documents/o1").json()["deleted"] == 1
    assert "note: 1 document has names" in check_data(settings)
    assert running.delete("/documents/o2").json()["deleted"] == 1
    assert "that no filter could name" not in check_data(settings)
    assert ModelStore(settings.models_dir).requested() is not None


@pytest.mark.parametrize(
    ("filter", "said"),
    [
        ({"Categorie": "x"}, "No document has the field 'Categorie'. Did you mean 'Kategorie'?"),
        ({"kategorie": "x"}, "No document has the field 'kategorie'. Did you mean 'Kategorie'?"),
        ({"metadata.Kategorie": "x"}, "Leave out 'metadata.': the field is 'Kategorie'."),
        ({"page": 7}, "Did you mean 'source.page'?"),
        ({"zzz": {"$gt": 1}}, "No document has the field 'zzz'."),
        ({"price": {"$gt": 5}}, "The field 'price' holds texts, and none of them is compared by $gt with"),
        ({"year": "1990"}, "The field 'year' holds numbers, and none of them equals a text."),
        ({"year": {"$in": ["1990", True]}}, "none of them equals a text or true or false."),
        ({"source": "x"}, "Name a field inside, such as 'source.page'."),
        ({"$or": [{"Kategorie": "b"}, {"$and": [{"yaer": 1}]}]}, "Did you mean 'year'?"),
        ({"Kategorie": "b"}, None),
        ({"year": {"$gt": 3000}}, None),
        ({"Kategorie": "b", "nope": {"$exists": False}}, None),
        ({"$ids": ["nope"]}, None),
    ],
)
def test_a_filter_that_nothing_passes_is_explained(
    service: TestClient, filter: dict[str, Any], said: str | None
) -> None:
    rows: dict[str, dict[str, Any]] = {
        "1": {"Kategorie": "a", "price": "9.50", "year": 1990, "source": {"page": 1}},
        "2": {"year": [2, 3]},
    }
    put(service, "explained", rows)
    place, params = "/collections/explained", {"filter": orjson.dumps(filter).decode()}
    answers = [
        service.get(f"{place}/search", params={"q": "a", **params}).json(),
        service.post(f"{place}/search", json={"queries": ["a", "b"], "filter": filter}).json(),
        service.get(f"{place}/documents", params=params).json(),
        service.get(f"{place}/documents/count", params=params).json(),
        service.delete(f"{place}/documents", params=params).json(),
    ]
    for answer in answers:
        assert "error" not in answer
        found = answer.get("warnings", [])
        assert len(found) == (said is not None)
        assert said is None or said in found[0], found


def test_nothing_is_said_of_a_filter_that_something_passes_or_without_documents(service: TestClient) -> None:
    put(service, "said", {"1": {"a": 1}, "2": {"b": "x"}})
    for filter in ({"a": 1}, {"c": {"$ne": 1}}, {"$or": [{"zzz": 1}, {"b": "x"}]}):
        answer = service.post("/collections/said/search", json={"queries": ["a"], "filter": filter}).json()
        assert answer["results"][0]
        assert "warnings" not in answer
    assert service.delete("/collections/said/documents", params={"filter": '{"a": {"$ne": 5}}'}).json()[
        "deleted"
    ]
    empty = service.get("/collections/said/documents/count", params={"filter": '{"zzz": 1}'}).json()
    assert empty == {"count": 0}


def test_of_a_large_collection_some_documents_are_looked_at(service: TestClient) -> None:
    put(service, "large", {f"{at:05}": {"n": at, "first" if at < 600 else "last": 1} for at in range(1300)})
    params = {"filter": '{"lst": 1}'}
    found = service.get("/collections/large/documents/count", params=params).json()
    assert found["warnings"] == [
        "None of the 1,000 documents looked at has the field 'lst'. Did you mean 'last'?"
    ]
    params = {"filter": '{"n": "x"}'}
    found = service.get("/collections/large/documents/count", params=params).json()
    assert "holds numbers in the 1,000 documents looked at, and none" in found["warnings"][0]


def test_no_more_of_large_documents_is_looked_at_than_so_many_bytes(service: TestClient) -> None:
    put(service, "heavy", {f"{at:05}": {"n": at, "text": "x" * 60_000} for at in range(60)})
    params = {"filter": '{"zzz": 1}'}
    found = service.get("/collections/heavy/documents/count", params=params).json()
    assert found["warnings"] == ["None of the 35 documents looked at has the field 'zzz'."]
