"""Facets over HTTP: each listed value or range is a filter that matches as many documents as it says."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from sys import float_info
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from service.api.search_plan import MAX_FACET_CHARACTERS, MAX_FACETS
from service.store.sql import facets
from service.store.sql.facets import MAX_CHARACTERS
from tests.service.conftest import new_settings, serving
from tests.service.filtering import metadatas, named_values

Facet = dict[str, Any]
FILLED: dict[str, Any] = {"topic": "printer", "year": 2001}
HUGE = st.floats(1e307) | st.floats(max_value=-1e307) | st.floats(-1e308, 1e308)
HUGE = HUGE.filter(lambda number: abs(number) <= float_info.max)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[TestClient]:
    """A service whose field `topic` is indexed. The tests add collections."""
    folder = tmp_path_factory.mktemp("facets")
    with serving(new_settings(folder, tiny_models_dir, indexed_fields="topic")) as client:
        yield client


def put(client: TestClient, collection: str, rows: dict[str, dict[str, Any]], text: str = "a river") -> None:
    documents = [{"id": id, "text": text, "metadata": metadata} for id, metadata in rows.items()]
    answer = client.post(f"/collections/{collection}/documents", json={"documents": documents})
    assert answer.status_code == 200, answer.text


def put_rows(client: TestClient, collection: str, *rows: dict[str, Any]) -> None:
    put(client, collection, {f"{at:04}": row for at, row in enumerate(rows)})


def search(client: TestClient, collection: str, *facets: str, **options: Any) -> dict[str, Any]:
    """Returns the answer of a search with facets, by GET."""
    params = {"q": "river", "facets": ",".join(f"metadata.{field}" for field in facets), **options}
    answer = client.get(f"/collections/{collection}/search", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def facet(client: TestClient, collection: str, field: str, **options: Any) -> Facet:
    found: Facet = search(client, collection, field, **options)["facets"][f"metadata.{field}"]
    return found


def count(client: TestClient, collection: str, filter: dict[str, Any]) -> int:
    params = {"filter": orjson.dumps(filter).decode()}
    answer = client.get(f"/collections/{collection}/documents/count", params=params)
    assert answer.status_code == 200, (filter, answer.text)
    return int(answer.json()["count"])


def conditions(found: Facet) -> Iterator[tuple[Any, int]]:
    """Yields the condition of each value and range of a facet, with its count."""
    for each in found.get("values", ()):
        yield {"$in": [each["value"]]}, each["count"]
    for each in found.get("ranges", ()):
        yield {"$gte": each["from"]} | ({"$lt": each["to"]} if "to" in each else {}), each["count"]


def check(client: TestClient, collection: str, field: str, found: Facet, where: dict[str, Any]) -> None:
    """Checks all counts of a facet by filters. `where` is the filter of the search."""
    none_listed: list[dict[str, Any]] = [{field: {"$exists": True}}]
    for condition, stated in conditions(found):
        matching = count(
            client, collection, {"$and": [{field: condition}, where]} if where else {field: condition}
        )
        assert matching == stated > 0, (field, condition, found)
    everything = count(client, collection, where)
    assert found["missing"] == count(client, collection, {**where, field: {"$exists": False}})
    listed = [{field: condition} for condition, _ in conditions(found)]
    none_listed += [{field: {"$ne": each["value"]}} for each in found.get("values", ())]
    covered = (
        count(client, collection, {"$and": [{"$or": listed}, *([where] if where else [])]}) if listed else 0
    )
    assert covered + found["other"] + found["missing"] == everything, (field, found)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(metadatas, min_size=1, max_size=25), st.integers(1, 8))
def test_a_facet_counts_what_filters_match(
    service: TestClient, rows: list[dict[str, Any]], most: int
) -> None:
    collection = f"random{abs(hash(orjson.dumps([rows, most])))}"
    put_rows(service, collection, *rows)
    fields = sorted({name for row in rows for name, _ in named_values(row) if len(name) < 200})
    for start in range(0, len(fields), MAX_FACETS):
        some = fields[start : start + MAX_FACETS]
        body = {"queries": ["river"], "facets": [f"metadata.{field}" for field in some], "facet_values": most}
        answer = service.post(f"/collections/{collection}/search", json=body)
        assert answer.status_code == 200, answer.text
        [facets] = answer.json()["facets"]
        assert facets.keys() == {f"metadata.{field}" for field in some}
        for field in some:
            check(service, collection, field, facets[f"metadata.{field}"], {})
    service.delete(f"/collections/{collection}").raise_for_status()


RNG = random.Random(5)
NUMBERS: dict[str, list[Any]] = {
    "years": [RNG.randint(1950, 2025) for _ in range(150)],
    "prices": [round(RNG.lognormvariate(3, 1.5), 2) for _ in range(150)],
    "signed": [RNG.uniform(-1, 1) for _ in range(100)],
    "odd": [RNG.uniform(0, 1) for _ in range(100)] + [1e300, -1.5e308, 2**63 - 1, -(2**63)],
    "near": [1 + at * 2.0**-52 for at in range(40)],
    "tiny": [5e-324 * at for at in range(40)],
    "large": [RNG.randint(2**62, 2**63 - 1) for _ in range(60)],
    "lists": [[RNG.randint(0, 1000) for _ in range(RNG.randint(0, 3))] for _ in range(150)],
    "mixed": [RNG.choice([RNG.randint(0, 500), "none", True, None, RNG.random()]) for _ in range(150)],
}
TIMES: dict[str, list[Any]] = {
    "days": [f"20{RNG.randint(10, 24)}-{RNG.randint(1, 12):02}-{RNG.randint(1, 28):02}" for _ in range(150)],
    "hours": [f"2024-05-01T{RNG.randint(0, 23):02}:{RNG.randint(0, 59):02}:00Z" for _ in range(100)],
    "zones": [f"2024-0{RNG.randint(1, 9)}-01T00:00:00+{RNG.randint(0, 23):02}:00" for _ in range(100)],
    "fractions": [f"2024-05-01T00:00:00.{at:03}Z" for at in range(60)],
    "all years": [f"{RNG.randint(0, 9999):04}-12-31T23:00:00-0{RNG.randint(1, 9)}:00" for _ in range(100)],
    "ends": [
        "0000-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        *(f"{at:02}00-01-01" for at in range(1, 30)),
    ],
    "with lists": [[f"20{RNG.randint(10, 24)}-01-01" for _ in range(RNG.randint(0, 3))] for _ in range(150)],
    "with texts": [*(f"20{at}-01-01" for at in range(10, 30)), "2012", "soon"],
}


@pytest.mark.parametrize("name", [*NUMBERS, *TIMES])
@pytest.mark.parametrize("most", [1, 2, 7])
def test_numbers_and_times_are_counted_in_ranges(service: TestClient, name: str, most: int) -> None:
    collection = f"ranges-{name.replace(' ', '-')}"
    rows = [{"n": value, "side": at % 2} for at, value in enumerate((NUMBERS | TIMES)[name])]
    put_rows(service, collection, *rows, {"side": 0})
    for where in ({}, {"side": 1}):
        found = facet(service, collection, "n", facet_values=most, filter=orjson.dumps(where).decode())
        assert ("ranges" in found) == (name != "with texts")
        assert len(found.get("ranges", ())) <= max(most, 2)
        check(service, collection, "n", found, where)


@pytest.mark.parametrize(
    ("values", "most", "expected"),
    [
        (range(1950, 2026), 8, [(1950 + 10 * at, 1960 + 10 * at) for at in range(8)]),
        (range(1, 12), 5, [(0, 5), (5, 10), (10, 15)]),
        ([at / 10 for at in range(10)], 5, [(0, 0.2), (0.2, 0.4), (0.4, 0.6), (0.6, 0.8), (0.8, 1)]),
        ([*range(100), 10**6], 10, [*((10 * at, 10 * at + 10) for at in range(9)), (90, 2 * 10**6)]),
        (
            [f"20{at}-03-01" for at in range(10, 25)],
            3,
            [(f"{at}-01-01", f"{at + 5}-01-01") for at in (2010, 2015, 2020)],
        ),
        (
            [f"2024-{at:02}-05T10:00:00Z" for at in range(1, 13)],
            4,
            [(f"2024-{at:02}-01", f"2024-{at + 3:02}-01") for at in (1, 4, 7)]
            + [("2024-10-01", "2025-01-01")],
        ),
        (
            [f"2024-01-01T{at:02}:30:00Z" for at in range(24)],
            4,
            [
                ("2024-01-01", "2024-01-01T06:00:00Z"),
                ("2024-01-01T06:00:00Z", "2024-01-01T12:00:00Z"),
                ("2024-01-01T12:00:00Z", "2024-01-01T18:00:00Z"),
                ("2024-01-01T18:00:00Z", "2024-01-02"),
            ],
        ),
    ],
)
def test_ranges_have_round_borders(
    service: TestClient, values: Any, most: int, expected: list[tuple[Any, Any]]
) -> None:
    put_rows(service, "round", *({"n": value} for value in values))
    found = facet(service, "round", "n", facet_values=most)
    service.delete("/collections/round").raise_for_status()
    assert [(each["from"], each["to"]) for each in found["ranges"]] == expected


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(HUGE, min_size=1, max_size=8), st.integers(1, 4))
@example([-1.7e308, 1.7e308, 0.0], 2)
@example([-1.7e308, -1.6e308], 1)
@example([float_info.max, -float_info.max], 1)
def test_ranges_of_huge_numbers_have_all_documents(
    service: TestClient, numbers: list[float], most: int
) -> None:
    put_rows(service, "huge", *({"n": number} for number in numbers), {"other": 1})
    found = facet(service, "huge", "n", facet_values=most)
    check(service, "huge", "n", found, {})
    service.delete("/collections/huge").raise_for_status()
    listed = [each["count"] for kind in ("values", "ranges") for each in found.get(kind, ())]
    assert sum(listed) + found["other"] + found["missing"] == len(numbers) + 1
    assert None not in [each["from"] for each in found.get("ranges", ())]


def test_equal_values_are_one_and_different_ones_are_not(service: TestClient) -> None:
    values = [1, 1.0, True, "1", None, "é", "e\u0301", "東京", "🦉", [1, 1, "1"], [], {"x": 1}]
    times = ["2024-01-01", "2024-01-01T01:00:00+01:00", "2024-01-01T00:00:00.000Z"]
    put_rows(service, "equal", *({"v": value} for value in [*values, *times]), {})
    found = facet(service, "equal", "v", facet_values=100)
    listed = {(type(each["value"]), each["value"]): each["count"] for each in found["values"]}
    expected: dict[tuple[type, Any], int] = {
        (int, 1): 3,
        (bool, True): 1,
        (str, "1"): 2,
        (type(None), None): 1,
        **{(str, text): 1 for text in ("é", "e\u0301", "東京", "🦉")},
        (str, "2024-01-01"): 3,
    }
    assert listed == expected
    assert (found["other"], found["missing"]) == (2, 1)  # The empty list and the object; no field.
    check(service, "equal", "v", found, {})


def test_the_most_frequent_values_come_first_and_ties_in_order(service: TestClient) -> None:
    put_rows(service, "often", *({"v": text} for text in "ccbbbaadde"))
    found = facet(service, "often", "v", facet_values=3)
    assert found["values"] == [
        {"value": "b", "count": 3},
        {"value": "a", "count": 2},
        {"value": "c", "count": 2},
    ]
    assert (found["other"], found["missing"]) == (3, 0)


def test_lexical_search_counts_documents_with_a_term(service: TestClient) -> None:
    put(service, "modes", {f"r{at}": {"topic": "water"} for at in range(3)}, "Rivers and the sea")
    put(service, "modes", {f"s{at}": {"topic": "rock"} for at in range(2)}, "A stone")
    put(service, "modes", {"both": {"topic": ["rock", "water"], "x": 1}}, "A river of stone")
    for mode, expected in (
        ("lexical", {"water": 4, "rock": 1}),
        ("dense", {"water": 4, "rock": 3}),
        ("hybrid", {"water": 4, "rock": 3}),
    ):
        found = facet(service, "modes", "topic", mode=mode, k=1)
        assert {each["value"]: each["count"] for each in found["values"]} == expected
    found = facet(service, "modes", "topic", mode="lexical", filter='{"x": 1}')
    assert [each["count"] for each in found["values"]] == [1, 1]
    body = {"queries": ["river", "stone", "nothing"], "mode": "lexical", "facets": ["metadata.topic"]}
    answer = service.post("/collections/modes/search", json=body).json()
    counts = [
        {each["value"]: each["count"] for each in found["metadata.topic"]["values"]}
        for found in answer["facets"]
    ]
    assert counts == [{"water": 4, "rock": 1}, {"rock": 3, "water": 1}, {}]


def test_a_document_with_many_passages_counts_once(service: TestClient) -> None:
    put(service, "long", {"a": FILLED}, "A river. " * 2000)
    put(service, "long", {"b": FILLED})
    for mode in ("dense", "lexical", "hybrid"):
        assert facet(service, "long", "topic", mode=mode)["values"] == [{"value": "printer", "count": 2}]


def test_facets_follow_every_write(service: TestClient) -> None:
    def counts(**options: Any) -> dict[Any, int]:
        found = facet(service, "writes", "v", facet_values=100, **options)
        return {each["value"]: each["count"] for each in found["values"]}

    put_rows(service, "writes", *({"v": at % 3, "n": at} for at in range(30)))
    assert counts(filter='{"n": {"$gte": 27}}') == {0: 1, 1: 1, 2: 1}  # Reads the last documents first.
    assert counts() == {0: 10, 1: 10, 2: 10}
    put(service, "writes", {"0000": {"v": 1}, "new": {"v": "x"}})
    assert counts() == {0: 9, 1: 11, 2: 10, "x": 1}
    service.delete("/collections/writes/documents", params={"filter": '{"v": 2}'}).raise_for_status()
    assert counts() == {0: 9, 1: 11, "x": 1}
    put(service, "elsewhere", {"a": {"v": 0}})
    assert counts() == {0: 9, 1: 11, "x": 1}
    service.delete("/collections/writes").raise_for_status()
    put(service, "writes", {"a": {"v": "only"}})
    assert counts() == {"only": 1}


def test_a_page_and_a_missing_reranker_change_no_count(service: TestClient) -> None:
    put_rows(service, "pages", *(FILLED for _ in range(12)))
    for options in ({"offset": 10}, {"k": 1}, {"rerank": "true"}, {"fields": ""}):
        found = search(service, "pages", "topic", "year", **options)["facets"]
        assert found == {
            "metadata.topic": {"values": [{"value": "printer", "count": 12}], "other": 0, "missing": 0},
            "metadata.year": {"values": [{"value": 2001, "count": 12}], "other": 0, "missing": 0},
        }
    assert "facets" not in search(service, "pages")
    assert search(service, "pages", "topic", filter='{"topic": "x"}')["facets"] == {
        "metadata.topic": {"values": [], "other": 0, "missing": 0}
    }


def test_a_field_that_no_document_has_is_a_warning(service: TestClient) -> None:
    put_rows(service, "typed", {"topic": "a"}, {"topic": "b"})
    answer = search(service, "typed", "topc", "topic")
    assert answer["facets"]["metadata.topc"] == {"values": [], "other": 0, "missing": 2}
    assert answer["warnings"] == ["No document has the field 'topc'. Did you mean 'topic'?"]


def test_long_texts_are_other_values(service: TestClient) -> None:
    whole = "x" * MAX_CHARACTERS
    put_rows(service, "texts", {"v": whole}, {"v": whole + "y"}, {"v": [whole + "z", "short"]})
    found = facet(service, "texts", "v")
    assert {each["value"] for each in found["values"]} == {whole, "short"}
    assert found["other"] == 1


@pytest.mark.parametrize(
    ("facets", "complaint"),
    [
        (["topic"], "'topic' cannot be counted. Name one value of the metadata, such as metadata.topic"),
        (["text"], "cannot be counted"),
        (["metadata"], "cannot be counted"),
        (["metadata."], "cannot be counted"),
        (["metadata.a..b"], "there is no name before or after a dot"),
        (["metadata.a."], "there is no name before or after a dot"),
        (["metadata.$in"], "begins as an operator does"),
        ([f"metadata.{at}" for at in range(MAX_FACETS + 1)], f"at most {MAX_FACETS}"),
        (["metadata." + "x" * MAX_FACET_CHARACTERS], f"more than {MAX_FACET_CHARACTERS} characters"),
        (["metadata.a\0"], "U+0000"),
    ],
)
def test_wrong_facets_are_refused(service: TestClient, facets: list[str], complaint: str) -> None:
    posted = service.post("/search", json={"queries": ["a"], "facets": facets})
    got = service.get("/search", params={"q": "a", "facets": ",".join(facets)})
    for answer in (posted, got):
        assert answer.status_code == 422, answer.text
        assert complaint in answer.json()["error"]


@pytest.mark.parametrize("options", [{"facet_values": 0}, {"facet_values": 101}, {"facets": "metadata.a"}])
def test_wrong_options_are_refused(service: TestClient, options: dict[str, Any]) -> None:
    body: dict[str, Any] = {"queries": ["a"]}
    answer = service.post("/search", json=body | options)
    assert answer.status_code == 422
    assert next(iter(options)) in answer.json()["error"]


def test_too_many_documents_are_not_counted(tmp_path: Path, tiny_models_dir: Path) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, max_faceted=5)) as client:
        put_rows(client, "many", {"a": 1, "b": 1}, {"a": 2}, {"a": 2})
        answer = search(client, "many", "a", "b")
        assert answer["facets"] == {}
        assert len(answer["hits"]) == 3
        [warning] = answer["warnings"]
        assert "6 documents" in warning
        assert "SIMILE_MAX_FACETED" in warning
        assert search(client, "many", "a", "b", filter='{"a": 2}')["facets"]
        body = {"queries": ["river"] * 2, "mode": "lexical", "facets": ["metadata.a"]}
        answer = client.post("/collections/many/search", json=body).json()
        assert answer["facets"] == [{}, {}]


def test_too_many_different_values_are_not_counted(
    service: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.store.sql.facets.MAX_COLUMN_BYTES", 20_000)
    put_rows(service, "different", *({"url": f"https://example.org/{at}", "n": at % 3} for at in range(200)))
    answer = search(service, "different", "url", "n")
    assert answer["facets"].keys() == {"metadata.n"}
    [warning] = answer["warnings"]
    assert "metadata.url" in warning
    # The values of replaced documents do not count.
    for turn in range(5):
        rows = {f"{at:04}": {"url": f"{turn} {at}"} for at in range(40)}
        put(service, "fewer", rows)
        assert facet(service, "fewer", "url", facet_values=1)["other"] == 39


@pytest.fixture
def unwarmed(tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """A service that reads values only when a search needs them."""

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr("service.runtime.runtime.keep_warm", never)
    with serving(new_settings(tmp_path, tiny_models_dir)) as client:
        yield client


def test_too_many_values_are_not_read_again(unwarmed: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facets, "MAX_COLUMN_BYTES", 20_000)
    read, read_some = [], facets._read

    assert unwarmed.portal is not None
    readers = unwarmed.app.state.runtime.corpus.store.readers  # type: ignore[attr-defined]
    columns = unwarmed.portal.call(readers.own, lambda it: it.columns)

    def count_read(connection: Any, revisions: Any) -> Any:
        if connection.columns is columns:  # The service of the other tests also reads.
            read.append(len(revisions))
        return read_some(connection, revisions)

    monkeypatch.setattr(facets, "_read", count_read)
    put_rows(
        unwarmed, "tags", *({"tags": [f"{at} {tag}" for tag in range(10)], "n": at % 5} for at in range(40))
    )

    def is_counted(**options: str) -> bool:
        read.clear()
        found = search(unwarmed, "tags", "tags", **options)
        assert bool(found["facets"]) != ("too many" in "".join(found.get("warnings", ())))
        return bool(found["facets"])

    assert not is_counted()
    assert read == [40]
    assert not is_counted()
    assert not is_counted(filter='{"n": {"$in": [0, 1, 2, 3, 4]}}')
    assert read == []
    assert search(unwarmed, "tags", "n", "tags")["facets"].keys() == {"metadata.n"}
    put(unwarmed, "tags", {"0007": {"tags": ["another"]}})
    assert not is_counted()
    assert read == []
    assert is_counted(filter='{"n": 0}')
    assert facet(unwarmed, "tags", "tags", filter='{"n": 0}', facet_values=1)["other"] == 7
    assert not is_counted()
    assert read == []
    put(unwarmed, "tags", {f"{at:04}": {"tags": ["one"]} for at in range(10)})
    assert not is_counted()
    assert read
    put(unwarmed, "tags", {f"{at:04}": {"tags": ["one"]} for at in range(32)})
    assert is_counted()


@pytest.mark.parametrize(("limit", "most"), [("MAX_REFUSED", 2), ("MAX_REFUSED_BYTES", 24 * 12)])
def test_few_left_out_fields_are_remembered(
    service: TestClient, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(facets, limit, most)
    refused = facets.Columns()._refused
    for field in "abcdef":
        refused.keep(("c", field), facets._Refused(np.arange(10), np.ones(10, np.int32)))
    assert [field for field in "abcdef" if refused.get(("c", field))] == ["e", "f"]


def test_facets_count_what_conditions_corrections_and_synonyms_find(service: TestClient) -> None:
    texts = {"a": "a printer jam", "b": "the printer has a paper jam", "c": "a plotter", "d": "a garden"}
    documents = [{"id": id, "text": text, "metadata": {"n": id}} for id, text in texts.items()]
    path = "/collections/conditions"
    assert service.post(f"{path}/documents", json={"documents": documents}).status_code == 200

    def counted(q: str, mode: str = "lexical", **options: str) -> set[str]:
        found = facet(service, "conditions", "n", q=q, mode=mode, k="10", **options)["values"]
        hits = search(service, "conditions", q=q, mode=mode, k="10", **options)["hits"]
        assert {each["value"] for each in found} == {hit["id"] for hit in hits}
        return {hit["id"] for hit in hits}

    assert counted("pritner") == {"a", "b"}
    assert counted('"printer jam"', syntax="true") == {"a"}
    assert counted("jam -paper", syntax="true") == {"a"}
    assert counted("jam -paper", "hybrid", syntax="true") == {"a", "c", "d"}
    synonyms = {"groups": [["printer", "plotter"]]}
    assert service.put(f"{path}/synonyms", json=synonyms).status_code == 200
    assert counted("printer") == {"a", "b", "c"}


def test_results_of_other_threads_do_not_disturb_a_count(monkeypatch: pytest.MonkeyPatch) -> None:
    column = facets.Column()
    column.add({1: ["a"], 2: ["b"], 3: ["a"], 4: []})
    some, equal = np.array([1, 2]), np.array_equal
    some.flags.writeable = False
    facets._count(column, column.rows, some, 5)

    def meanwhile(one: Any, other: Any) -> bool:
        column.counted.append(column.counted[0])
        return equal(one, other)

    monkeypatch.setattr(np, "array_equal", meanwhile)
    found = facets._count(column, column.rows, np.array([1, 3]), 5)
    assert len(column.counted) == 2
    assert found.values == [("a", 2)]
