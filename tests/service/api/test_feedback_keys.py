"""`/feedback` and `/events` with several keys: owners, limits per key, and who may delete."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from tests.service.api.test_http_errors import refused
from tests.service.conftest import new_settings, serving
from tests.service.keyed import KEYS, bearer, keys_file, line

OTHER = "sk-another-writer"
ALL = KEYS | {"other": OTHER}


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Settings:
    keys = keys_file(tmp_path, line("other", "write", OTHER))
    limits = {"feedback_per_key": 9, "feedback_per_query": 4, "feedback_per_document": 3}
    return new_settings(tmp_path, tiny_models_dir, api_keys_file=keys, **limits)


@pytest.fixture
def client(place: Settings) -> Iterator[TestClient]:
    with serving(place) as client:
        for path in ("/documents", "/collections/tickets/documents"):
            documents = [{"id": f"d{at}", "text": f"river {at}"} for at in range(12)]
            answer = client.post(path, json={"documents": documents}, headers=bearer(KEYS["writer"]))
            assert answer.status_code == 200, answer.text
        yield client


def said(query: str, id: str, relevant: bool = True) -> dict[str, Any]:
    return {"query": query, "id": id, "relevant": relevant}


def judge(client: TestClient, name: str, *judgements: dict[str, Any], path: str = "/feedback") -> Any:
    return client.post(path, json={"feedback": list(judgements)}, headers=bearer(ALL[name]))


def listed(client: TestClient, **requested: str) -> list[tuple[str, str, str, bool]]:
    """Returns (key, query, id, relevant) of each judgment, and checks the count."""
    answer = client.get("/feedback", params=requested, headers=bearer(KEYS["reader"]))
    assert answer.status_code == 200, answer.text
    counted = client.get("/feedback/count", params=requested, headers=bearer(KEYS["reader"])).json()["count"]
    rows = answer.json()["feedback"]
    assert counted == len(rows)
    return [(row["key"], row["query"], row["id"], row["relevant"]) for row in rows]


def forget(client: TestClient, name: str, **requested: str) -> Any:
    return client.delete("/feedback", params=requested, headers=bearer(ALL[name]))


@pytest.mark.parametrize(
    "users", [({}, {}), ({"user": "first"}, {"user": "second"}), ({"user": "first"}, {})]
)
def test_each_key_has_a_judgment_of_its_own_and_replaces_only_that(
    client: TestClient, users: tuple[dict[str, str], dict[str, str]]
) -> None:
    """A key has one judgment per query and document, whatever `user` it sends."""
    before, after = users
    for name, relevant in (("writer", True), ("other", False), ("boss", True)):
        assert judge(client, name, said("q", "d1", relevant) | before).status_code == 200
    assert judge(client, "writer", said("q", "d1", relevant=False) | after).status_code == 200
    about = ("q", "d1")
    assert listed(client) == [("other", *about, False), ("boss", *about, True), ("writer", *about, False)]
    assert listed(client, key="other") == [("other", "q", "d1", False)]
    assert listed(client, key="nobody") == listed(client, key="-") == []


def test_pages_of_one_keys_judgments_hold_each_once(client: TestClient) -> None:
    for at in range(7):
        for name in ("writer", "other"):
            assert judge(client, name, said(f"q{at}", f"d{at}")).status_code == 200
    found: list[str] = []
    after: int | None = 0
    while after is not None:
        requested: dict[str, str | int] = {"key": "other", "limit": 3, "after": after}
        page = client.get("/feedback", params=requested, headers=bearer(KEYS["reader"])).json()
        found += [row["query"] for row in page["feedback"]]
        after = page["next"]
    assert found == [f"q{at}" for at in range(7)]


def test_a_writer_deletes_its_own_and_an_admin_any(client: TestClient) -> None:
    for name in ("writer", "other", "boss"):
        assert judge(client, name, said("q", "d1"), said("r", "d2")).status_code == 200
    for requested in ({"key": "other"}, {"query": "q"}, {"id": "d1"}, {"query": "q", "key": "boss"}):
        refused(forget(client, "writer", **requested), 403, "Forbidden", "role admin", "key=writer")
    assert len(listed(client)) == 6, "a refused delete took something"
    assert forget(client, "writer", key="writer", query="q").json() == {"deleted": 1}
    assert forget(client, "writer", key="writer").json() == {"deleted": 1}
    assert forget(client, "writer", key="writer").json() == {"deleted": 0}
    assert forget(client, "reader", key="reader").status_code == 403
    assert {key for key, *_ in listed(client)} == {"other", "boss"}
    assert forget(client, "boss", key="other").json() == {"deleted": 2}
    assert forget(client, "boss", query="q").json() == {"deleted": 1}
    assert listed(client) == [("boss", "r", "d2", True)]


def test_a_keys_judgments_are_listed_and_deleted_in_all_collections_together(client: TestClient) -> None:
    tickets = "/collections/tickets/feedback"
    for path in ("/feedback", tickets):
        for name in ("writer", "other"):
            assert judge(client, name, said("q", "d1"), path=path).status_code == 200
    assert len(listed(client)) == len(listed(client, collection="tickets")) == 2
    assert len(listed(client, collection="*")) == 4
    rows = client.get("/feedback?collection=*&key=other", headers=bearer(KEYS["reader"])).json()["feedback"]
    assert [row["collection"] for row in rows] == ["default", "tickets"]
    assert forget(client, "boss", key="other", collection="*").json() == {"deleted": 2}
    assert forget(client, "writer", key="writer", collection="tickets").json() == {"deleted": 1}
    assert listed(client, collection="*") == [("writer", "q", "d1", True)]


def test_a_key_has_at_most_so_many_in_all_of_a_query_and_of_a_document(client: TestClient) -> None:
    of_a_query = [said("q", f"d{at}") for at in range(4)]
    assert judge(client, "writer", *of_a_query).status_code == 200
    refused(judge(client, "writer", said("q", "d4")), 409, "Conflict", "SIMILE_FEEDBACK_PER_QUERY", "'q'")
    of_a_document = [said("r", "d0"), said("s", "d0")]
    assert judge(client, "writer", *of_a_document).status_code == 200
    refused(judge(client, "writer", said("t", "d0")), 409, "Conflict", "SIMILE_FEEDBACK_PER_DOCUMENT", "'d0'")
    others = [said(f"u{at}", f"d{5 + at}") for at in range(3)]
    assert judge(client, "writer", *others).status_code == 200
    before = listed(client)
    tickets = "/collections/tickets/feedback"
    one_more = judge(client, "writer", said("q", "d1"), path=tickets)
    refused(one_more, 409, "Conflict", "more than 9 judgments in all", "SIMILE_FEEDBACK_PER_KEY", "'writer'")
    refused(judge(client, "writer", said("q", "d0", False), said("v", "d9")), 409, "Conflict", "PER_KEY")
    assert listed(client) == before, "a refused list left something behind"
    # Equal pairs need no more room, each key has its own limit, and deleted judgments free room.
    assert judge(client, "writer", *of_a_query).status_code == 200
    assert judge(client, "other", *of_a_query, said("t", "d0")).status_code == 200
    assert forget(client, "writer", key="writer", query="u0").json() == {"deleted": 1}
    assert judge(client, "writer", said("q", "d1"), path=tickets).status_code == 200


def test_one_list_cannot_pass_a_bound_either(client: TestClient) -> None:
    refused(judge(client, "writer", *(said("q", f"d{at}") for at in range(5))), 409, "Conflict", "PER_QUERY")
    refused(judge(client, "writer", *(said(f"q{at}", "d1") for at in range(4))), 409, "Conflict", "PER_DOC")
    assert listed(client) == []


def test_a_limit_that_was_lowered_lets_a_mind_be_changed(place: Settings, client: TestClient) -> None:
    assert judge(client, "writer", *(said("q", f"d{at}") for at in range(4))).status_code == 200
    client.app.state.runtime.settings = place.model_copy(  # type: ignore[attr-defined]
        update={"feedback_per_query": 2, "feedback_per_key": 2}
    )
    assert judge(client, "writer", said("q", "d1", relevant=False)).status_code == 200
    assert judge(client, "writer", said("r", "d1")).status_code == 409


@pytest.mark.parametrize("what", ["feedback", "events"])
def test_a_delete_is_in_the_audit_with_the_collection_and_the_keys_whose_data_it_was(
    client: TestClient, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    for given, collection, owners in (
        ({"key": "other"}, "default", {"other": 2}),
        ({"key": "other", "collection": "*"}, "*", {"other": 3}),
        ({"query": "secret words"}, "default", {"other": 1, "writer": 1}),
        ({"id": "d1", "collection": "tickets"}, "tickets", {"other": 1, "writer": 1}),
        ({"query": "secret words", "collection": "*"}, "*", {"other": 2, "writer": 2}),
        ({"query": "never judged"}, "default", {"*": 0}),
        ({"key": "-"}, "default", {"-": 0}),
        ({"key": "reader"}, "default", {"reader": 0}),
    ):
        for name, query, path in (
            ("other", "secret words", ""),
            ("other", "secret words", "/collections/tickets"),
            ("other", "more words", ""),
            ("writer", "secret words", ""),
            ("writer", "secret words", "/collections/tickets"),
        ):
            send(client, what, name, query, path)
        caplog.clear()
        with caplog.at_level(logging.INFO, "simile.audit"):
            answer = client.delete(f"/{what}", params=given, headers=bearer(KEYS["boss"]))
        assert answer.json() == {"deleted": sum(owners.values())}
        records = [record for record in caplog.records if record.name == "simile.audit"]
        assert {record.message for record in records} == {f"delete-{what}"}
        request_id = answer.headers["x-request-id"]
        assert [record.fields for record in records] == [  # type: ignore[attr-defined]
            {"key": "boss", "collection": collection, "owner": owner, "deleted": n, "request_id": request_id}
            for owner, n in sorted(owners.items())
        ]


def send(client: TestClient, what: str, name: str, query: str, path: str) -> None:
    """Stores a judgment or an event with the key `name`."""
    body: dict[str, Any] = said(query, "d1")
    if what == "events":
        body = {
            "query": query,
            "id": "d1",
            "type": "click",
            "shown": ["d1"],
            "search_id": f"{name}-{path}-{query}",
        }
    client.post(f"{path}/{what}", json=body, headers=bearer(ALL[name])).raise_for_status()


def test_judgments_from_before_there_were_keys_are_of_no_key(place: Settings) -> None:
    with serving(place.model_copy(update={"api_keys_file": None})) as client:
        client.post("/documents", json={"documents": [{"id": "d1", "text": "river"}]}).raise_for_status()
        client.post("/feedback", json=said("q", "d1")).raise_for_status()
    with serving(place) as client:
        judge(client, "writer", said("q", "d1", relevant=False))
        assert listed(client) == [("", "q", "d1", True), ("writer", "q", "d1", False)]
        assert listed(client, key="-") == [("", "q", "d1", True)]
        refused(forget(client, "writer", key="-"), 403, "Forbidden")
        assert forget(client, "boss", key="-").json() == {"deleted": 1}
        assert listed(client) == [("writer", "q", "d1", False)]


EVENT = {"search_id": "s", "query": "q", "id": "d1", "type": "click"}


def test_an_event_is_of_its_key(tmp_path: Path, tiny_models_dir: Path) -> None:
    keys = keys_file(tmp_path, line("other", "write", OTHER))
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=keys, events_per_key=2)) as client:
        documents = [{"id": f"d{at}", "text": f"river {at}"} for at in range(4)]
        client.post("/documents", json={"documents": documents}, headers=bearer(KEYS["writer"]))
        refused(report(client, "reader"), 403, "Forbidden", "")
        for name in ("writer", "other", "boss"):
            assert report(client, name).json() == {"stored": 1, "refused": []}
        assert of_keys(client) == ["writer", "other", "boss"]
        assert of_keys(client, key="other") == ["other"]

        assert report(client, "other", id="d2").json() == {"stored": 1, "refused": []}
        refused(report(client, "other", id="d3"), 409, "Conflict", "the key 'other'")
        assert report(client, "writer", id="d3").json() == {"stored": 1, "refused": []}, "it has its own room"

        refused(forget_events(client, "reader", key="other"), 403, "Forbidden", "")
        refused(forget_events(client, "other", id="d1"), 403, "Forbidden", "Some of these events are not of")
        assert forget_events(client, "other", key="other").json() == {"deleted": 2}
        assert forget_events(client, "boss", id="d1").json() == {"deleted": 2}
        assert of_keys(client) == ["writer"]


def report(client: TestClient, name: str, **changed: object) -> Any:
    return client.post("/events", json=EVENT | changed, headers=bearer(ALL[name]))


def forget_events(client: TestClient, name: str, **requested: str) -> Any:
    return client.delete("/events", params=requested, headers=bearer(ALL[name]))


def of_keys(client: TestClient, **requested: str) -> list[str]:
    answer = client.get("/events", params=requested, headers=bearer(KEYS["reader"]))
    return [row["key"] for row in answer.json()["events"]]
