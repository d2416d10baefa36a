"""The service as a process: start, a second process on the same data, stop, kill -9."""

import contextlib
import os
import random
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from tests.service.process import Service, run_and_fail
from tests.waiting import LIMIT, until

KILLS = int(os.environ.get("KILLS", "5"))
JUDGED = {"a": "red", "b": "green"}  # the two documents of each judged query


def test_importing_the_service_brings_no_torch_and_no_transformers() -> None:
    script = "import service.app, sys; print({'torch', 'transformers', 'training'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


class Ledger:
    """Acknowledged and unanswered writes of several clients: texts by id, and judgments by query."""

    def __init__(self, expected: dict[str, object]) -> None:
        self.expected = expected
        self.in_hand: set[str] = set()
        self.acknowledged = 0
        self._lock = threading.Lock()

    def write(self, service: Service, thread: int) -> None:
        """Puts, deletes and judges documents until the service dies. Each thread has ids of its own."""
        with httpx2.Client(base_url=service.client.base_url, timeout=LIMIT, trust_env=False) as client:
            for step in range(1_000_000):
                id, text = f"{thread}-{step % 16}", f"river {thread} {step} {service.process.pid}"
                deletes, judges = step % 5 == 3, step % 5 == 4
                name = f"judged {id}" if judges else id
                self.in_hand.add(name)
                try:
                    if deletes:
                        answer = client.delete(f"/documents/{id}")
                    elif judges:
                        pair = [{"query": id, "id": each, "relevant": step % 3 == 0} for each in JUDGED]
                        answer = client.post("/feedback", json={"feedback": pair})
                    else:
                        answer = client.post("/documents", json={"documents": [{"id": id, "text": text}]})
                except httpx2.TransportError:
                    return
                assert answer.status_code == 200, answer.text
                with self._lock:
                    self.acknowledged += 1
                    self.in_hand.discard(name)
                    self.expected.pop(name, None)
                    if not deletes:
                        self.expected[name] = step % 3 == 0 if judges else text

    def check(self, service: Service) -> dict[str, object]:
        """Checks acknowledged writes in the store and the index. Returns all stored texts and judgments."""
        stored = service.stored()
        answer = service.client.post("/search", json={"queries": ["red river"], "k": 1000, "mode": "dense"})
        assert {hit["id"]: hit["text"] for hit in answer.json()["results"][0]} == stored
        rows = service.client.get("/feedback?limit=1000").json()["feedback"]
        first, second = (
            {f"judged {row['query']}": row["relevant"] for row in rows if row["id"] == id} for id in JUDGED
        )
        assert first == second, "half of a list was stored"
        assert service.client.get("/feedback/count").json() == {"count": len(rows)}
        found = stored | first
        for name in (self.expected.keys() | found.keys()) - self.in_hand:
            assert found.get(name) == self.expected.get(name), name
        return found


@pytest.mark.long
def test_kills_during_writes_lose_no_answered_write(tmp_path: Path, tiny_models_dir: Path) -> None:
    rng = random.Random(11)
    service = Service(tmp_path, tiny_models_dir)
    service.start()
    service.put(JUDGED)
    service.kill()
    ledger = Ledger({**JUDGED})
    for _ in range(KILLS):
        service.start()
        ledger = Ledger(ledger.check(service))
        threads = [threading.Thread(target=ledger.write, args=[service, number]) for number in range(4)]
        for thread in threads:
            thread.start()
        target = rng.randrange(20, 120)
        while ledger.acknowledged < target and any(thread.is_alive() for thread in threads):
            time.sleep(0.001)
        service.kill()
        for thread in threads:
            thread.join()
        assert ledger.acknowledged >= target
    service.start()
    assert any(name.startswith("judged ") for name in ledger.check(service))
    service.kill()
    service.client.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_stop_signal_ends_it_cleanly(tmp_path: Path, tiny_models_dir: Path, how: signal.Signals) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        service.put({"a": "red river"})
        assert service.stop(how) == 0
        log = service.log.read_text()
        assert "Traceback" not in log
        assert "ERROR" not in log
        service.start()
        assert service.stored() == {"a": "red river"}


@pytest.mark.long
def test_a_first_start_that_is_interrupted_is_begun_again(tmp_path: Path, default_models_dir: Path) -> None:
    for how in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        service = Service(tmp_path)
        with service.log.open("wb") as log:
            command = [sys.executable, "-m", "service"]
            service.process = subprocess.Popen(command, env=service._environment, stdout=log, stderr=log)
        until(lambda: "verifying" in service.log.read_text() or service.process.poll() is not None)  # noqa: B023
        assert service.process.poll() is None, service.log.read_text()
        assert service.stop(how) != 0
        service.client.close()
        assert "Traceback" not in service.log.read_text()
    with Service(tmp_path) as service:
        assert [path.name for path in (tmp_path / "models").glob(".tmp-*")] == []
        assert service.client.get("/info").json()["dimension"] == 384


STOPPED_EARLY = """
import os, signal
from service import server
from service.__main__ import main

run = server.Server.run

def stopped(self, sockets=None):
    os.kill(os.getpid(), signal.{})
    run(self, sockets)

server.Server.run = stopped
main()
"""


@pytest.mark.long
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_just_before_the_loop_runs_is_a_stop_too(
    tmp_path: Path, tiny_models_dir: Path, name: str
) -> None:
    service = Service(tmp_path, tiny_models_dir)
    command = [sys.executable, "-c", STOPPED_EARLY.format(name)]
    ended = subprocess.run(
        command, env=service._environment, timeout=LIMIT, capture_output=True, text=True, check=False
    )
    service.client.close()
    assert (ended.returncode, "Traceback" in ended.stderr) == (0, False), ended.stderr


@pytest.mark.long
def test_requests_in_hand_are_answered_when_it_stops(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        statuses: list[int] = []

        def send(number: int) -> None:
            documents = {f"{number}-{at}": f"red river {number} {at}" for at in range(500)}
            statuses.append(service.put(documents).status_code)

        threads = [threading.Thread(target=send, args=[number]) for number in range(4)]
        for thread in threads:
            thread.start()
        until(lambda: arrived(service) + len(statuses) >= 4, pause=0)  # before that, a stop closes the port
        assert service.stop() == 0
        for thread in threads:
            thread.join()
        assert set(statuses) <= {200, 503}
        service.start()
        assert len(service.stored()) == 500 * statuses.count(200)


def arrived(service: Service) -> int:
    """Returns the number of requests in progress, without the request for the metrics."""
    return metric(service, "simile_requests_in_flight") - 1


def metric(service: Service, name: str) -> int:
    [count] = re.findall(rf"^{name} (.*)$", service.client.get("/metrics").text, re.MULTILINE)
    return int(float(count))


def test_it_says_where_it_is_and_what_to_try(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir, PYTHONUNBUFFERED="1") as service:
        until(lambda: "Ctrl-C" in service.log.read_text(), service.log.read_text)
        said = service.log.read_text()
        assert f"http://127.0.0.1:{service.port}" in said
        assert said.count("\n  curl ") == 4


def test_a_second_owner_of_a_data_directory_is_refused_by_name(tmp_path: Path, tiny_models_dir: Path) -> None:
    with Service(tmp_path, tiny_models_dir) as service:
        said = run_and_fail(tmp_path, SIMILE_MODELS_DIR=str(tmp_path / "models"))
        assert f"in use by process {service.process.pid}" in said
        assert service.put({"a": "red"}).status_code == 200


def test_an_occupied_port_is_a_plain_error_before_anything_is_written(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        said = run_and_fail(tmp_path, SIMILE_PORT=port)
    assert f"127.0.0.1:{port}" in said
    assert "SIMILE_PORT" in said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("newer", [True, False])
def test_a_newer_store_and_a_file_that_is_not_a_database_are_refused(tmp_path: Path, newer: bool) -> None:
    path = tmp_path / "data/simile.db"
    path.parent.mkdir()
    if newer:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA user_version = 99")
    else:
        path.write_bytes(b"not a database, but someone's notes " * 200)
    assert ("newer Simile (schema 99" if newer else "simile.db") in run_and_fail(tmp_path)


@pytest.mark.parametrize(
    "id", ["with/slash", "per%cent", "spaces and ümläut", "emoji-🙂", "?q=1#x", "two\nlines", "i" * 512]
)
def test_any_id_works_percent_encoded_in_a_path(service: Service, id: str) -> None:
    assert service.put({id: "red river"}).status_code == 200
    path = f"/documents/{quote(id, safe='')}"
    assert service.client.get(path).json()["id"] == id
    assert service.client.delete(path).json()["deleted"] == 1
    assert service.client.get(path).status_code == 404


def test_the_longest_query_fits_into_an_address(service: Service) -> None:
    longest = "🙂" * 4096  # twelve characters each in a URL
    service.put({"a": "red"})
    judgment = {"query": longest, "id": "a", "relevant": True}
    service.client.post("/feedback", json=judgment).raise_for_status()
    assert service.client.delete("/feedback", params={"query": longest}).json() == {"deleted": 1}


def head_of(length: int) -> bytes:
    return (
        "POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    ).encode()


def test_a_client_that_hangs_up_in_its_body_is_no_bug_of_ours(service: Service) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT) as raw:
            raw.sendall(head_of(9_000_000) + b'{"inputs": "' + b"a" * 1_000_000)
            until(lambda: metric(service, "simile_admitted_bytes") > 900_000)
        until(lambda: arrived(service) == 0)
    assert metric(service, "simile_admitted_bytes") == 0
    assert service.client.post("/embed", json={"inputs": "a"}).status_code == 200
    counted = 'route="/embed",status="499"} 3.0'
    until(lambda: counted in service.client.get("/metrics").text, lambda: service.client.get("/metrics").text)
    assert "Traceback" not in service.log.read_text()


@pytest.mark.long
def test_a_client_that_hangs_up_costs_nobody_else_anything(service: Service) -> None:
    body = b'{"inputs": [' + b",".join([b'"' + b"river " * 200 + b'"'] * 1500) + b"]}"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", service.port), timeout=LIMIT) as raw:
            raw.sendall(head_of(len(body)) + body)
            time.sleep(0.4)
    empty = 'simile_queue_tokens{lane="interactive"} 0.0'
    until(lambda: empty in service.client.get("/metrics").text, "work that nobody waits for is still queued")
    assert service.client.post("/embed", json={"inputs": "a"}).status_code == 200
