"""The visitors (`user`) of searches, events and judgments, and rows of trusted and untrusted keys."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.auth import keys
from service.auth.access import hash_visitor
from service.settings import Settings
from tests.service.api.test_http_errors import refused
from tests.service.conftest import new_settings, serving
from tests.service.keyed import KEYS, bearer, keys_file, line

PAGE = "sk-public-page"
ALL = KEYS | {"page": PAGE}
RAW = "customer-4711"
EVENT = {"search_id": "s", "query": "q", "id": "d1", "type": "click"}
JUDGMENT = {"query": "q", "id": "d1", "relevant": True}
WRONG = ["", " ", "two words", "tab\t", "no\xa0break", "line\n", "\x00", "x" * 129, 7, True, ["ann"], {}]


def fill(client: TestClient, key: str | None = None) -> None:
    documents = [{"id": f"d{at}", "text": f"river {at}"} for at in range(6)]
    client.post("/documents", json={"documents": documents}, headers=bearer(key)).raise_for_status()


@pytest.fixture(scope="module")
def running(settings: Settings) -> Iterator[TestClient]:
    with serving(settings) as client:
        fill(client)
        yield client


@pytest.fixture
def client(running: TestClient) -> TestClient:
    for route in ("events", "feedback"):
        running.delete(f"/{route}?key=-").raise_for_status()
    return running


def sent(client: TestClient, **changed: object) -> None:
    answer = client.post("/events", json=EVENT | changed)
    assert answer.json() == {"stored": 1, "refused": []}, answer.text


def users(client: TestClient, route: str = "events", **requested: str) -> list[str]:
    rows = client.get(f"/{route}", params=requested).json()[route]
    assert client.get(f"/{route}/count", params=requested).json() == {"count": len(rows)}
    return [row["user"] for row in rows]


def test_equal_ids_are_equal_hashes_and_no_id_is_listed(client: TestClient) -> None:
    for at, user in enumerate([RAW, "other", RAW, None, "x" * 128, "Zoë#1"]):
        sent(client, event_id=f"{at}", user=user)
        given = JUDGMENT | {"query": f"q{at}", "user": user}
        assert client.post("/feedback", json=given).status_code == 200
    found = users(client)
    assert found == users(client, "feedback")
    assert found[0] == found[2]
    assert found[3] == ""
    assert len(set(found)) == 5
    assert all(len(each) == 32 for each in found if each)
    assert not {RAW, "other"} & {*found}


def test_a_hash_depends_on_the_secret_and_is_an_hmac() -> None:
    # HMAC-SHA256 of "what do ya want for nothing?" by "Jefe": RFC 4231, test case 2.
    assert hash_visitor(b"Jefe", "what do ya want for nothing?") == "5bdcc146bf60754e6a042426089575c7"
    assert hash_visitor(b"a", "ann") != hash_visitor(b"b", "ann")
    assert hash_visitor(b"a", None) == ""


def test_an_event_inherits_the_user_of_its_search_unless_it_names_one(client: TestClient) -> None:
    single = client.get("/search", params={"q": "river", "user": RAW}).json()["search_id"]
    body = {"queries": ["river", "stone"], "user": RAW}
    many = client.post("/search", json=body).json()["search_ids"]
    without = client.get("/search?q=river").json()["search_id"]
    for name in (single, *many, without):
        sent(client, search_id=name)
    sent(client, search_id=single, id="d2", user="other")
    sent(client, search_id="unknown", user=RAW)
    hashed = users(client)
    assert hashed[0] == hashed[1] == hashed[2] == hashed[5] != ""
    assert hashed[3] == ""
    assert hashed[4] not in {"", hashed[0]}


def test_a_search_answers_the_same_with_and_without_a_user(client: TestClient) -> None:
    answers = [client.get(f"/search?q=river{more}").json()["hits"] for more in ("", f"&user={RAW}")]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_what_is_no_id_of_a_visitor_is_refused_and_not_repeated(client: TestClient, wrong: Any) -> None:
    answers = {
        "user": client.post("/search", json={"queries": ["river"], "user": wrong}),
        "": client.post("/events", json=EVENT | {"user": wrong}),
        "events[1].user": client.post("/events", json={"events": [EVENT, EVENT | {"user": wrong}]}),
        "user ": client.post("/feedback", json=JUDGMENT | {"user": wrong}),
    }
    if isinstance(wrong, str):
        answers |= {
            f"{method} {path}": client.request(method, path, params={"user": wrong, **more})
            for method, path, more in (
                ("GET", "/search", {"q": "river"}),
                ("GET", "/events", {}),
                ("GET", "/events/count", {}),
                ("DELETE", "/events", {}),
                ("DELETE", "/feedback", {}),
            )
        }
    for answer in answers.values():
        refused(answer, 422, "Validation", "user")
        assert "x" * 129 not in answer.text
    refused(answers["events[1].user"], 422, "Validation", "events[1].user")
    assert users(client) == []


def test_a_visitors_rows_are_listed_and_deleted_by_the_id_as_it_was_sent(client: TestClient) -> None:
    for at, user in enumerate([RAW, "other", RAW, None]):
        sent(client, event_id=f"{at}", query=f"q{at}", user=user)
        client.post("/feedback", json=JUDGMENT | {"query": f"q{at}", "user": user}).raise_for_status()
    for route in ("events", "feedback"):
        assert len(users(client, route, user=RAW)) == 2
        assert users(client, route, user=users(client, route)[0]) == [], "a hash is no id"
        assert client.delete(f"/{route}?user={RAW}&query=q0").json() == {"deleted": 1}
        assert client.delete(f"/{route}?user={RAW}&collection=*").json() == {"deleted": 1}
        assert client.delete(f"/{route}?user={RAW}").json() == {"deleted": 0}
        assert len(users(client, route)) == 2
        refused(client.delete(f"/{route}"), 422, "Validation", "a key or a user")


def test_the_id_is_in_no_log(
    client: TestClient, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        sent(client, search_id=client.get(f"/search?q=a&user={RAW}").json()["search_id"], user=RAW)
        client.delete(f"/events?user={RAW}").raise_for_status()
        sent(client, user=RAW)
    said = [
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records if "httpx" not in record.name
    ]
    assert said, "nothing was logged at all"
    assert RAW not in "".join(said)
    # With PostgreSQL the folder contains only models.
    for path in settings.data_dir.rglob("*"):
        assert not path.is_file() or RAW.encode() not in path.read_bytes(), path


def test_a_restart_keeps_the_hash_and_another_store_has_another(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    hashes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        settings = new_settings(tmp_path / name, tiny_models_dir)
        for event in ("first", "second"):
            with serving(settings) as client:
                fill(client)
                sent(client, event_id=event, user=RAW)
                hashes.append(users(client)[-1])
    assert hashes[0] == hashes[1] != hashes[2] == hashes[3]


def say(client: TestClient, query: str) -> None:
    """Sends an event and a judgment with each key that may write."""
    for name in ("writer", "page"):
        for path, body in (("/events", EVENT | {"event_id": query}), ("/feedback", JUDGMENT)):
            answer = client.post(path, json=body | {"query": query}, headers=bearer(ALL[name]))
            assert answer.status_code == 200, answer.text


def trusted(client: TestClient) -> dict[str, bool]:
    """Returns whether rows are trusted, by "key query". Judgments and events must agree."""
    found = []
    for route in ("events", "feedback"):
        rows = client.get(f"/{route}", headers=bearer(KEYS["reader"])).json()[route]
        found.append({f"{row['key']} {row['query']}": row["trusted"] for row in rows})
    assert found[0] == found[1]
    return found[0]


def test_a_row_is_trusted_as_its_key_was_and_still_is(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "LOOK_SECONDS", 0.0)
    file = keys_file(tmp_path)
    fixed = file.read_text().replace(line("writer", "write", KEYS["writer"]), "")
    writer = line("writer", "write", KEYS["writer"])
    untrusted = line("page", "write", PAGE, "", "", "untrusted")

    def use(*lines: str) -> None:
        """Writes the fixed keys and `lines` to the keys file, even while the service runs."""
        file.write_text("\n".join([fixed, *lines]))

    use(writer, untrusted)
    settings = new_settings(tmp_path, tiny_models_dir, api_keys_file=file)
    with serving(settings) as client:
        fill(client, KEYS["writer"])
        say(client, "first")
        first = {"writer first": True, "page first": False}
        assert trusted(client) == first, "the page was untrusted when it was stored"
        # A new trusted key with the same name does not change older rows.
        use(writer, line("page", "write", PAGE))
        say(client, "second")
        second = first | {"writer second": True, "page second": True}
        assert trusted(client) == second
        use(line("page", "write", PAGE))
        assert trusted(client) == second, "a key that is removed, or rotated to another name, keeps its rows"
        use(line("writer", "write", "sk-new-secret"), line("page", "write", PAGE))
        assert trusted(client) == second, "so does one that is rotated and keeps its name"
        use(writer, untrusted)
        assert trusted(client) == second | {"page second": False}, "marking a key covers its old rows"
        use(writer, line("page", "write", PAGE))
        assert trusted(client) == second, "and taking the mark back returns those that were trusted"
    with serving(settings.model_copy(update={"api_keys_file": None})) as client:
        assert trusted(client) == second, "without keys, rows stay as they were stored"


def test_a_visitors_rows_of_several_keys_need_an_admin(tmp_path: Path, tiny_models_dir: Path) -> None:
    file = keys_file(tmp_path, line("page", "write", PAGE))
    with serving(new_settings(tmp_path, tiny_models_dir, api_keys_file=file)) as client:
        fill(client, KEYS["writer"])
        for name in ("writer", "page"):
            body = EVENT | {"user": RAW}
            client.post("/events", json=body, headers=bearer(ALL[name])).raise_for_status()
        rows = client.get("/events", headers=bearer(KEYS["reader"])).json()["events"]
        assert rows[0]["user"] == rows[1]["user"] != "", "one visitor, whatever the key"

        def forget(name: str, **requested: str) -> Any:
            return client.delete("/events", params={"user": RAW, **requested}, headers=bearer(ALL[name]))

        refused(forget("writer"), 403, "Forbidden", "key=writer")
        assert forget("writer", key="writer").json() == {"deleted": 1}
        assert forget("boss").json() == {"deleted": 1}
