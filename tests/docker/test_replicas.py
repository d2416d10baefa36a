"""docker/postgres.yml: three replicas and a load balancer, with kills, drains and a database restart."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPResponse

import httpx2
import pytest

from tests.docker.stack import Stack, config, docker, image
from tests.service.process import is_ready
from tests.waiting import LIMIT, until

REPLICAS, CLIENTS = 3, 6
PASSWORD = "a secret word / @ #"  # has characters that a URL must escape
ONE_MORE = 30  # answers per client after each event


@pytest.fixture(scope="module")
def replicas(service_image: str) -> Iterator[Stack]:
    found = config(("docker/postgres.yml",))
    images = {
        "HAPROXY_IMAGE": image(found, "balancer", "haproxy"),
        "PGVECTOR_IMAGE": image(found, "postgres", "pgvector"),
    }
    variables = {"POSTGRES_PASSWORD": PASSWORD, "SIMILE_WORKERS": "1", "POSTGRES_BUFFERS": "128MB"}
    with Stack("replicas", "docker/postgres.yml", **images, **variables) as stack:
        scale(stack, REPLICAS)
        stack.wait_until_ready()
        yield stack


def scale(stack: Stack, count: int) -> None:
    stack.compose(
        "up", "--detach", "--wait", "--no-build", "--no-recreate", "--scale", f"service={count}",
        "service", "balancer", seconds=600,
    )  # fmt: skip


def containers(stack: Stack) -> list[str]:
    return stack.compose("ps", "--quiet", "service").split()


class Traffic:
    """Clients that write and search. Every answer must be a 200, and must show the client's last write."""

    def __init__(self, port: int) -> None:
        self.failures: list[str] = []
        self.answered = 0
        self._port = port
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(at,)) for at in range(CLIENTS)]

    def _run(self, number: int) -> None:
        with httpx2.Client(
            base_url=f"http://127.0.0.1:{self._port}", timeout=LIMIT, trust_env=False
        ) as client:
            turn = 0
            while not self._stop.is_set() and not self.failures:
                turn += 1
                id = f"{number}-{turn % 20}"
                text = f"The lamp {id} was repaired {turn} times."
                document = {"id": id, "text": text, "metadata": {"by": number, "turn": turn}}
                requested = {"queries": ["lamp"], "k": 5, "filter": {"turn": turn, "by": number}}
                try:
                    written = client.post("/documents", json={"documents": [document]})
                    assert written.status_code == 200, written.text
                    found = client.post("/search", json=requested)
                    assert found.status_code == 200, found.text
                    assert [hit["text"] for hit in found.json()["results"][0]] == [text]
                except (AssertionError, httpx2.HTTPError) as error:
                    self.failures.append(repr(error))
                self.answered += 1

    def more(self) -> None:
        """Wait until `ONE_MORE * CLIENTS` further answers came, or until a failure."""
        behind = self.answered + ONE_MORE * CLIENTS
        until(lambda: self.answered >= behind or self.failures)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            self.more()
            yield
            self.more()
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        assert not self.failures, self.failures


def test_requests_go_to_all_replicas_and_each_knows_of_the_others(replicas: Stack) -> None:
    until(lambda: "simile_replicas 3.0" in replicas.client.get("/metrics").text)
    seen: Counter[str] = Counter()
    for _ in range(60):
        with httpx2.Client(base_url=replicas.client.base_url, trust_env=False) as client:
            lines = client.get("/metrics").text.splitlines()
        seen[next(line for line in lines if line.startswith("process_start_time_seconds"))] += 1
    assert len(seen) == REPLICAS, seen


def test_a_replica_that_is_killed_fails_no_request(replicas: Stack) -> None:
    traffic = Traffic(replicas.port)
    with traffic.running():
        victim = containers(replicas)[0]
        docker("kill", "--signal=KILL", victim)
        traffic.more()
        docker("start", victim)


def test_a_replica_that_is_killed_amid_a_request_fails_none(replicas: Stack) -> None:
    """At the kill, clients have sent headers and a part of the body, on connections used before."""
    body = json.dumps({"documents": [{"id": "amid", "text": "A lamp amid the kill."}]}).encode()
    begun = "POST /documents HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    begun += f"Content-Length: {len(body)}\r\n\r\n"
    with ExitStack() as stack:
        clients = [HTTPConnection("127.0.0.1", replicas.port, timeout=LIMIT) for _ in range(2 * REPLICAS)]
        for client in clients:
            stack.callback(client.close)
            client.request("GET", "/ready")
            assert client.getresponse().read()
        for client in clients:
            client.sock.sendall(begun.encode() + body[:20])
        # The balancer has read the data that was sent before this request.
        assert replicas.client.get("/ready").status_code == 200
        victim = containers(replicas)[0]
        docker("kill", "--signal=KILL", victim)
        for client in clients:
            client.sock.sendall(body[20:])
        for client in clients:
            answer = HTTPResponse(client.sock, method="POST")
            answer.begin()
            assert answer.status == 200, answer.read()
        docker("start", victim)
    until(lambda: "simile_replicas 3.0" in replicas.client.get("/metrics").text)


def test_a_replica_that_is_stopped_or_added_fails_no_request(replicas: Stack) -> None:
    traffic = Traffic(replicas.port)
    with traffic.running():
        scale(replicas, REPLICAS + 1)
        traffic.more()
        scale(replicas, REPLICAS - 1)
        traffic.more()
        scale(replicas, REPLICAS)
    assert len(containers(replicas)) == REPLICAS


def test_while_the_database_is_away_clients_are_told_to_come_again_and_then_all_is_there(
    replicas: Stack,
) -> None:
    assert replicas.client.post(
        "/documents", json={"documents": [{"id": "kept", "text": "What was answered is kept."}]}
    ).is_success
    replicas.compose("stop", "postgres")
    answer = replicas.client.get("/search", params={"q": "kept", "user": "visitor-in-no-log"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0
    assert answer.json()["error_type"] == "Unhealthy"
    until(lambda: " GET /search HTTP/1.1" in replicas.compose("logs", "balancer", both=True))
    assert "visitor-in-no-log" not in replicas.compose("logs", both=True)
    replicas.compose("start", "postgres")
    until(lambda: is_ready(replicas.client))
    assert replicas.client.get("/documents/kept").status_code == 200


def test_replicas_keep_nothing_and_the_password_is_in_no_log(replicas: Stack) -> None:
    for container in containers(replicas):
        assert docker("exec", container, "ls", "/data").strip() == ""
    said = replicas.compose("logs", both=True)
    assert "simile" in said
    assert PASSWORD not in said
