"""`/events` stores an event once, with the shown hits, until its document is deleted or the event expires."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.settings import Settings
from tests.service.api.test_http_errors import refused
from tests.service.conftest import new_settings, serving
from tests.waiting import until

PLACES = ("/documents", "/collections/tickets/documents")
WHOLE = {
    "search_id": "s-1",
    "query": "Red  River ",
    "id": "d2",
    "type": "convert",
    "position": 12,
    "shown": ["d1", "d2", "d3"],
    "at": "2026-11-20T08:30:00+02:00",
    "event_id": "e-1",
}


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Settings:
    return new_settings(tmp_path, tiny_models_dir, events_days=0)


@pytest.fixture
def client(place: Settings) -> Iterator[TestClient]:
    with serving(place) as client:
        fill(client)
        yield client


def fill(client: TestClient) -> None:
    for path in PLACES:
        documents = [{"id": f"d{at}", "text": f"river {at}"} for at in range(30)]
        assert client.post(path, json={"documents": documents}).status_code == 200


def event(**changed: object) -> dict[str, Any]:
    return {"search_id": "s", "query": "q", "id": "d1", "type": "click"} | changed


def send(client: TestClient, *events: dict[str, Any], path: str = "/events") -> tuple[int, list[Any]]:
    """Sends events. Returns the number of stored ones, and (index, error type) of each rejected one."""
    response = client.post(path, json={"events": list(events)})
    assert response.status_code == 200, response.text
    answer = response.json()
    assert all(set(each) == {"event", "error", "error_type"} for each in answer["refused"])
    return answer["stored"], [(each["event"], each["error_type"]) for each in answer["refused"]]


def listed(client: TestClient, **requested: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = client.get("/events", params=requested).json()["events"]
    assert client.get("/events/count", params=requested).json() == {"count": len(rows)}
    return rows


def ids(client: TestClient, **requested: str) -> list[str]:
    return [row["id"] for row in listed(client, **requested)]


def counted(client: TestClient, series: str) -> float:
    [line] = [line for line in client.get("/metrics").text.splitlines() if line.startswith(f"{series} ")]
    return float(line.split()[-1])


def test_an_event_is_listed_as_it_was_sent(client: TestClient) -> None:
    assert client.post("/events", json=WHOLE).json() == {"stored": 1, "refused": []}
    added = {"collection": "default", "key": "", "sequence": 1, "user": "", "trusted": True}
    expected = WHOLE | {"at": "2026-11-20T06:30:00Z"} | added
    assert client.get("/events").json() == {"events": [expected], "next": None}


@pytest.mark.parametrize("prefix", ["", "/collections/tickets"])
def test_what_an_event_leaves_out_is_what_the_search_showed(client: TestClient, prefix: str) -> None:
    answer = client.get(f"{prefix}/search?q=a+river&k=5&offset=10").json()
    shown = [hit["id"] for hit in answer["hits"]]
    before = time.time()
    sent = {"search_id": answer["search_id"], "id": shown[3], "type": "open"}
    assert client.post(f"{prefix}/events", json=sent).json() == {"stored": 1, "refused": []}
    [row] = listed(client, collection="*")
    assert (row["query"], row["shown"], row["position"]) == ("a river", shown, 14)
    stored = datetime.fromisoformat(row["at"]).timestamp()
    assert int(before) <= stored <= time.time()


def test_a_search_of_another_collection_is_not_taken_for_it(client: TestClient) -> None:
    name = client.get("/search?q=a+river").json()["search_id"]
    sent = {"search_id": name, "id": "d1", "type": "open"}
    refused(client.post("/collections/tickets/events", json=sent), 404, "NotFound", "does not remember")


def test_after_a_restart_an_event_needs_its_query_and_nothing_stored_is_lost(place: Settings) -> None:
    with serving(place) as client:
        fill(client)
        name = client.get("/search?q=a+river").json()["search_id"]
        assert send(client, event()) == (1, [])
    with serving(place) as client:
        sent = {"search_id": name, "id": "d2", "type": "click"}
        refused(client.post("/events", json=sent), 404, "NotFound", "Send query and shown")
        assert send(client, sent, sent | {"query": "a river"}) == (1, [(0, "NotFound")])
        assert [(row["id"], row["query"], row["position"]) for row in listed(client)] == [
            ("d1", "q", None),
            ("d2", "a river", None),
        ]
        sent |= {"id": "d3", "query": "a river", "shown": ["d7", "d3"]}
        assert send(client, sent) == (1, [])
        assert listed(client)[-1]["position"] == 2


def test_of_many_shown_those_around_the_hit_are_kept(client: TestClient) -> None:
    page = [f"d{at}" for at in range(30)]
    for id, first in (("d3", 0), ("d19", 0), ("d25", 6)):
        assert send(client, event(id=id, shown=page)) == (1, [])
        row = listed(client)[-1]
        assert row["shown"] == page[first : first + 20]
        assert row["position"] == page.index(id) + 1


def test_an_event_sent_again_changes_nothing(client: TestClient) -> None:
    many = [event(id=f"d{at}") for at in range(5)] + [event(event_id="x"), event(event_id="y")]
    for _ in range(3):
        assert send(client, *many, many[0]) == (8, [])
    assert len(listed(client)) == 7
    assert send(client, event(type="open"), event(search_id="t"), event(event_id="x", id="d9")) == (3, [])
    assert ids(client)[7:] == ["d1", "d1"]
    assert counted(client, 'simile_events_total{type="click"}') == 8


def test_what_cannot_be_stored_is_named_and_the_rest_is_stored(client: TestClient) -> None:
    sent = [event(id="gone"), event(id="d1"), event(id="d2", query=None), event(id="d3")]
    assert send(client, *sent) == (2, [(0, "NotFound"), (2, "NotFound")])
    assert ids(client) == ["d1", "d3"]
    assert counted(client, "simile_events_refused_total") == 2
    refused(client.post("/events", json=event(query=" \t")), 400, "Empty", "query is empty")
    refused(client.post("/events", json={"events": []}), 400, "Empty", "events")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"type": "purchase"}, "events[1].type must be 'click', 'open', 'convert' or 'skip'"),
        ({"position": 0}, "events[1].position"),
        ({"position": True}, "events[1].position"),
        ({"shown": ["d0", "d1"], "position": 1}, "the document is number 2 of shown"),
        ({"shown": [f"x{at}" for at in range(101)]}, "events[1].shown"),
        ({"at": "yesterday"}, "events[1].at must be a time with its zone"),
        ({"at": 1763884800}, "events[1].at must be a time with its zone"),
        ({"at": "1763884800"}, "events[1].at must be a time with its zone"),
        ({"at": "2026-11-20T08:30:00"}, "events[1].at must be a time with its zone"),
        ({"at": "2026-11-20T99:00:00Z"}, "events[1].at must be a time with its zone"),
        ({"usr": "ann"}, "no field 'usr' in events[1]. Did you mean user?"),
        ({"search_id": ""}, "events[1].search_id"),
    ],
)
def test_a_malformed_event_refuses_the_request(client: TestClient, wrong: Any, says: str) -> None:
    response = client.post("/events", json={"events": [event(), event() | wrong]})
    refused(response, 422, "Validation", says)
    assert listed(client) == []


@pytest.mark.parametrize(
    "at",
    ["2999-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00Z", "1969-12-31T23:59Z"],
)
def test_a_time_in_the_future_or_before_1970_is_refused(client: TestClient, at: str) -> None:
    answer = client.post("/events", json=event(at=at))
    assert (answer.status_code, answer.json()["error"][:6]) == (422, "at is ")
    ahead = datetime.now(UTC) + timedelta(seconds=200)
    assert send(client, event(at=ahead.isoformat())) == (1, [])
    assert datetime.fromisoformat(listed(client)[-1]["at"]) == ahead


def test_events_are_deleted_by_query_id_and_key(client: TestClient) -> None:
    sent = [event(id=f"d{at}", query=f"q{at % 2}") for at in range(6)]
    assert send(client, *sent) == (6, [])
    refused(client.delete("/events"), 422, "Validation", "DELETE /events?query=")
    assert client.delete("/events?query=q1&id=d3").json() == {"deleted": 1}
    assert client.delete("/events?query=q1").json() == {"deleted": 2}
    assert ids(client) == ["d0", "d2", "d4"]
    assert client.delete("/events?key=-").json() == {"deleted": 3}


def test_events_go_with_their_document_and_stay_with_a_new_text(client: TestClient) -> None:
    for path in ("/events", "/collections/tickets/events"):
        assert send(client, *(event(id=f"d{at}") for at in range(6)), path=path) == (6, [])
    assert client.delete("/documents/d0").json()["deleted"] == 1
    documents = [{"id": "d1", "text": "another", "metadata": {"n": 1}}, {"id": "d2", "text": "more"}]
    assert client.post("/documents", json={"documents": documents}).status_code == 200
    assert client.delete('/documents?filter={"n": 1}').json()["deleted"] == 1
    assert ids(client) == ["d2", "d3", "d4", "d5"]
    assert client.delete("/collections/tickets").status_code == 200
    assert ids(client, collection="*") == ["d2", "d3", "d4", "d5"]
    fill(client)
    assert ids(client, collection="*") == ["d2", "d3", "d4", "d5"], "a new document has no old events"


def test_each_limit_refuses_what_goes_beyond_it(tmp_path: Path, tiny_models_dir: Path) -> None:
    limits = {"events_per_key": 7, "events_per_document": 3, "max_events": 9}
    with serving(new_settings(tmp_path, tiny_models_dir, **limits)) as client:
        fill(client)
        clicks = [event(search_id=f"s{at}") for at in range(5)]
        assert send(client, *clicks) == (3, [(3, "Conflict"), (4, "Conflict")])
        assert send(client, clicks[0]) == (1, []), "sent again, it needs no room"
        others = [event(id=f"d{at}") for at in range(2, 8)]
        assert send(client, *others) == (4, [(4, "Conflict"), (5, "Conflict")])
        refused(client.post("/events", json=others[-1]), 409, "Conflict", "SIMILE_EVENTS_PER_KEY")
        assert client.delete("/events?id=d1").json() == {"deleted": 3}
        assert send(client, *others) == (6, [])


def test_old_events_are_refused_and_deleted(place: Settings, client: TestClient) -> None:
    times = [time.time() - days * 86_400 for days in (30, 10, 1)]
    many = [
        event(id=f"d{at}", at=datetime.fromtimestamp(when, UTC).isoformat()) for at, when in enumerate(times)
    ]
    assert send(client, *many) == (3, [])
    client.__exit__(None, None, None)
    with serving(place.model_copy(update={"events_days": 5.0})) as again:
        until(lambda: ids(again) == ["d2"])
        assert send(again, *many) == (1, [(0, "Conflict"), (1, "Conflict")])


def test_with_events_off_none_is_taken_and_stored_ones_can_be_read_and_deleted(place: Settings) -> None:
    with serving(place) as client:
        fill(client)
        assert send(client, event()) == (1, [])
    with serving(place.model_copy(update={"events": False})) as client:
        refused(client.post("/events", json=event(id="d2")), 409, "Conflict", "SIMILE_EVENTS=0")
        assert ids(client) == ["d1"]
        assert client.delete("/events?id=d1").json() == {"deleted": 1}


def test_a_page_ends_before_it_is_larger_than_an_answer_may_be_and_the_next_goes_on(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with serving(new_settings(tmp_path, tiny_models_dir, max_answer_mb=1)) as client:
        fill(client)
        long = [event(event_id=f"e{at}", query=f"{at} " + "x" * 4_000) for at in range(300)]
        assert send(client, *long) == (300, [])
        first = client.get("/events", params={"limit": 1000}).json()
        assert 200 < len(first["events"]) < 300
        rest = client.get("/events", params={"limit": 1000, "after": first["next"]}).json()
        assert [each["event_id"] for each in first["events"] + rest["events"]] == [
            each["event_id"] for each in long
        ]
        assert rest["next"] is None
