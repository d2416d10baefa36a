"""If the database fails, each error has its response, the process stays healthy, and no write is lost."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from service.app import create_app
from service.errors import StartupError
from service.settings import Settings, check_database
from tests import postgres
from tests.relay import Relay, relaying
from tests.service.conftest import new_settings, serving

pytest.importorskip("psycopg", reason="needs the extra postgres")

import psycopg

from service.store.postgres.connection import GRACE_SECONDS, Connection, Pool
from service.store.postgres.store import PostgresStore
from tests.waiting import LIMIT, until

HANG_SECONDS = 2.0


class Place:
    """A service that reaches its database through a relay."""

    def __init__(self, client: TestClient, relay: Relay, url: str) -> None:
        self.client = client
        self.relay = relay
        self.url = url  # of the database itself, without the relay
        self.acknowledged: set[str] = set()

    def put(self, id: str) -> Any:
        answer = self.client.post("/documents", json={"documents": [{"id": id, "text": f"text {id}"}]})
        if answer.status_code == 200:
            self.acknowledged.add(id)
        return answer

    def search(self) -> Any:
        return self.client.get("/search", params={"q": "text", "k": 100})

    def refused(self, ask: Callable[[], Any], status: int, says: str) -> None:
        """Checks that `ask()` is refused with `status` and Retry-After, and that the process is healthy."""
        answer = ask()
        assert answer.status_code == status, answer.text
        assert says in answer.json()["error"]
        assert int(answer.headers["retry-after"]) >= 1
        assert self.client.get("/health").status_code == 200

    def recovers(self) -> None:
        """Waits until the service recovers by itself, and checks that no acknowledged write is lost."""
        until(lambda: self.put("after").status_code == self.search().status_code == 200, pause=0.05)
        assert {hit["id"] for hit in self.search().json()["hits"]} >= self.acknowledged

    def at_rest(self) -> bool:
        """Returns whether all connections of the pool are open and idle. Cut ones reopen after a pause."""
        pool = self.client.app.state.runtime.corpus.store.pool  # type: ignore[attr-defined]
        pool.check()
        state = pool.get_stats()
        return bool(state["pool_available"] == state["pool_size"])

    def run(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    def fail(self, code: str, when: str = "INSERT", first: int = 1_000_000) -> None:
        """Makes `when` statements fail with the error `code` for the first `first` rows of documents."""
        self.run(
            "CREATE SEQUENCE tries; CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN IF nextval('tries') <= {first} THEN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; "
            "END IF; RETURN NEW; END $$; "
            f"CREATE TRIGGER fail BEFORE {when} ON documents FOR EACH ROW EXECUTE FUNCTION fail()"
        )


@contextmanager
def placed(folder: Path, models: Path, url: str, **others: Any) -> Iterator[Place]:
    with relaying(postgres.socket_of(url)) as relay:
        database = postgres.by_tcp(url, relay.port)
        settings = new_settings(folder, models, database=database, hang_seconds=HANG_SECONDS, **others)
        with serving(settings) as client:
            place = Place(client, relay, url)
            assert place.put("before").status_code == 200
            yield place


@pytest.fixture
def place(tmp_path: Path, tiny_models_dir: Path) -> Iterator[Place]:
    with placed(tmp_path, tiny_models_dir, postgres.new_database()) as made:
        yield made


def test_a_cut_connection_is_replaced_and_no_request_fails(place: Place) -> None:
    for number in range(3):
        for ask in (partial(place.put, f"{number}"), place.search):
            until(place.at_rest, pause=0.05)
            place.relay.cut()
            assert ask().status_code == 200
    place.recovers()


@pytest.mark.long
def test_a_database_that_refuses_connections(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.relay.refuse()
    place.refused(lambda: place.put("a"), 503, "reached")
    place.refused(place.search, 503, "reached")
    place.relay.listen()
    place.recovers()
    assert "secret-word" not in caplog.text


def test_a_commit_whose_answer_is_lost(place: Place) -> None:
    place.relay.drop_commit = b"INSERT INTO documents"
    place.refused(lambda: place.put("a"), 503, "may be stored or not")
    assert place.put("a").status_code == 200
    place.recovers()
    assert place.client.get("/documents/count").json() == {"count": 3}


@pytest.mark.long
def test_a_full_pool(tmp_path: Path, tiny_models_dir: Path) -> None:
    url = postgres.new_database()
    with placed(tmp_path, tiny_models_dir, url, database_connections=4) as place:
        app: Any = place.client.app
        pool = app.state.runtime.corpus.store.pool
        taken = [pool.getconn() for _ in range(4)]
        place.refused(lambda: place.put("a"), 503, "No connection to the database is free")
        place.refused(place.search, 503, "No connection to the database is free")
        for raw in taken:
            pool.putconn(raw)
        place.recovers()


def test_a_statement_that_takes_too_long(place: Place) -> None:
    with psycopg.connect(place.url) as connection:
        connection.execute("LOCK TABLE documents IN ACCESS EXCLUSIVE MODE")
        place.refused(lambda: place.put("a"), 504, "took longer than SIMILE_HANG_SECONDS")
        place.refused(place.search, 504, "took longer than SIMILE_HANG_SECONDS")
    place.recovers()


@pytest.mark.parametrize(
    ("code", "status", "says"),
    [
        ("53100", 507, "disk is full"),
        ("53200", 503, "lacks memory"),
        ("57P01", 503, "reached"),
        ("40P01", 503, "too busy"),
        ("25006", 503, "standby"),
    ],
)
def test_what_the_database_itself_says(place: Place, code: str, status: int, says: str) -> None:
    place.fail(code)
    answer = place.put("a")
    assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text
    assert place.search().status_code == 200, "reads go on"
    assert place.client.get("/health").status_code == 200
    place.run("DROP TRIGGER fail ON documents")
    place.recovers()


def test_a_delete_of_many_that_takes_too_long_says_how_far_it_came(place: Place) -> None:
    place.fail("57014", "DELETE")
    body = {"documents": [{"id": "a", "text": "text", "metadata": {"n": 1}}]}
    assert place.client.post("/documents", json=body).status_code == 200
    delete = partial(place.client.delete, "/documents", params={"filter": '{"n": 1}'})
    place.refused(delete, 504, "0 of 1 document was deleted before that")


def test_a_deadlock_is_tried_again(place: Place) -> None:
    place.fail("40P01", first=2)
    assert place.put("a").status_code == 200
    place.recovers()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Any]:
    """A separate PostgreSQL server, which a test can stop."""
    with postgres.another(tmp_path / "pg") as started:
        yield started


def test_a_connection_that_took_its_time_is_as_patient_as_before() -> None:
    with closing(Pool(postgres.new_database(), 2, HANG_SECONDS)) as pool:
        for _ in range(2):
            with pool.connection() as one, pool.connection() as other:
                assert one.answer_seconds == other.answer_seconds == HANG_SECONDS + GRACE_SECONDS
                Connection(one).take_time()
                Connection(other).take_time()


@pytest.mark.long
def test_a_server_that_hangs(server: Any, tmp_path: Path, tiny_models_dir: Path) -> None:
    with placed(tmp_path, tiny_models_dir, server.get_uri()) as place:
        pids = postgres.processes(server)
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            answers: list[Any] = []
            asking = [
                threading.Thread(target=lambda ask=ask: answers.append(ask()))
                for ask in (place.search, lambda: place.put("a"))
            ]
            for each in asking:
                each.start()
            for each in asking:
                each.join(LIMIT)
            assert [answer.status_code for answer in answers] == [503, 503]
            assert all("retry-after" in answer.headers for answer in answers)
            assert place.client.get("/health").status_code == 200
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        place.recovers()


@pytest.mark.long
def test_a_network_that_is_cut_without_a_word(place: Place) -> None:
    """No error reports the lost packets, and new connections get no answer either."""
    for number in range(5):
        assert place.put(f"{number}").status_code == 200
    place.relay.fall_silent()
    place.refused(lambda: place.put("a"), 503, "Send again later")
    place.refused(place.search, 503, "Send again later")
    until(lambda: place.client.get("/ready").status_code == 503)
    assert place.client.get("/health").status_code == 200
    place.relay.pass_on()
    place.recovers()
    until(lambda: place.client.get("/ready").status_code == 200)


@pytest.mark.long
def test_a_server_that_is_started_elsewhere(server: Any, tmp_path: Path, tiny_models_dir: Path) -> None:
    with placed(tmp_path, tiny_models_dir, server.get_uri()) as place:
        for number in range(5):
            assert place.put(f"{number}").status_code == 200
        server.stop()
        place.refused(lambda: place.put("a"), 503, "reached")
        place.refused(place.search, 503, "reached")
        with postgres.another(tmp_path / "pg2", tmp_path / "pg" / "data") as moved:
            place.relay.to = postgres.socket_of(moved.get_uri())
            place.recovers()


def test_a_database_that_is_not_there_is_named_without_its_password(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(StartupError, match="cannot be used") as raised:
        PostgresStore(
            "postgresql://user:secret-word@127.0.0.1:1/x", [], connections=4, answer_seconds=HANG_SECONDS
        )
    assert "Is it running" in str(raised.value)
    assert "secret-word" not in str(raised.value) + caplog.text


@pytest.mark.parametrize(
    "url",
    [
        "u:SeCrEt%zz2@h/a",
        "u:SeCrEt%@h/a",
        "u:SeCrEt%00@h/a",
        "u:x@SeCrEt@h/a",
        "u:12/SeCrEt@h/a",
        "u:/SeCrEt@h/a",
        "u:[SeCrEt@h/a",
        "u:SeCrEt@h:x/a",
        "u:SeCrEt@[::1]x/a",
        "h/a?password=SeCrEt%zz",
        "h/a?password=x&SeCrEt",
        "h/a?SeCrEt=x",
    ],
)
def test_a_malformed_url_is_refused_without_its_password(url: str, caplog: pytest.LogCaptureFixture) -> None:
    def use() -> None:
        check_database(f"postgresql://{url}")
        PostgresStore(f"postgresql://{url}", [], connections=4, answer_seconds=HANG_SECONDS)

    with caplog.at_level(logging.DEBUG), pytest.raises((StartupError, ValueError)) as raised:
        use()
    assert "postgresql://USER:PASSWORD@HOST" in str(raised.value)
    assert "secret" not in (str(raised.value) + caplog.text).lower()


def test_without_its_extra_the_setting_is_refused(
    tmp_path: Path, tiny_models_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "service.store.postgres.store", None)
    settings: Settings = new_settings(tmp_path, tiny_models_dir, database="postgresql://localhost/x")
    with pytest.raises(StartupError, match="needs the extra postgres"), TestClient(create_app(settings)):
        pass
