"""Malformed HTTP and slow clients, on real sockets: rejected or closed, and no other client waits."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.service.process import Service
from tests.service.raw import FAMILIES, Wire, check_served, head, held, post
from tests.waiting import until

DEADLINE = 3.0  # seconds
LATE = 10.0  # seconds that a busy machine may add
BODY = FAMILIES["/embed"]


VARIABLES = {
    "SIMILE_TIMEOUT_SECONDS": str(DEADLINE),
    "SIMILE_MAX_QUERY_CHARACTERS": "100000",
    "SIMILE_MAX_TOKENIZE_CHARACTERS": "1000000",
}


@pytest.fixture(autouse=True)
def _served(service: Service) -> Iterator[None]:
    yield
    check_served(service)


@pytest.mark.parametrize(
    "request_",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0" * 100,
        b"P" * 100_000,
        b"BREW /embed HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /embed HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /documents/\xe9 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /doc\0uments HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"CONNECT example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        head("/embed", b"X-A: a\0b"),
        head("/embed", b"X A: a"),
        head("/embed", b": a"),
        head("/embed", "Content-Length: -1"),
        head("/embed", "Content-Length: +5"),
        head("/embed", "Content-Length: 0x10"),
        head("/embed", "Content-Length: five"),
        head("/embed", "Content-Length: 5, 6"),
        head("/embed", "Content-Length: 5", "Content-Length: 6"),
        head("/embed", "Content-Length: " + "9" * 40),
        head("/embed", "Content-Length: 5", "Transfer-Encoding: chunked"),
        head("/embed", "Transfer-Encoding: chunked") + b"zz\r\n",
        head("/embed", "Transfer-Encoding: chunked") + b"-1\r\n",
        head("/embed", "Transfer-Encoding: chunked") + b"f" * 20 + b"\r\n",
        head("/embed", "Transfer-Encoding: chunked") + b"2\r\nabcdef\r\n",
    ],
)
def test_what_is_no_http_is_400_and_closed(service: Service, request_: bytes) -> None:
    with Wire(service) as wire:
        wire.send(request_).answer().refused("/", 400, "Validation")
        assert wire.closed()


def test_each_family_words_what_is_no_http(service: Service) -> None:
    for path in FAMILIES:
        with Wire(service) as wire:
            wire.send(head(path, "Content-Length: five")).answer().refused(path, 400, "Validation")
    series = 'simile_requests_total{method="other",route="unmatched",status="400"}'
    assert series in service.client.get("/metrics").text


LONG = {
    "a URL": head("/embed?" + "a" * 100_000),
    "a query": head("/search?q=" + "a" * 100_000, method="GET"),
    "a header": head("/embed", "X-A: " + "a" * 100_000),
    "many headers": head("/embed", *(f"X-{number}: a" for number in range(20_000))),
    "a header without an end": head("/embed", "X-A: " + "a" * 10_000_000)[:-4],
    "a trailer": head("/embed", "Transfer-Encoding: chunked") + b"0\r\nX-A: " + b"a" * 1_000_000,
    "trailers": head("/embed", "Transfer-Encoding: chunked") + b"0\r\n" + b"X-A: a\r\n" * 200_000,
}


@pytest.mark.parametrize("what", LONG)
def test_a_head_that_is_too_large_is_431(service: Service, what: str) -> None:
    with Wire(service) as wire:
        assert "64 KiB" in wire.send(LONG[what]).answer().refused("/", 431, "TooLarge")
        assert wire.closed()


def test_a_query_of_60_kb_is_still_served(service: Service) -> None:
    with Wire(service) as wire:
        answer = wire.send(head("/search?q=" + "a+" * 30_000, method="GET")).answer()
    assert (answer.status, answer.headers["x-truncated"]) == (200, "1")


def test_a_body_shorter_than_it_is_said_to_be_is_504_and_a_longer_one_is_no_request(service: Service) -> None:
    with Wire(service) as wire:
        began = time.monotonic()
        answer = wire.send(head("/embed", f"Content-Length: {len(BODY) + 1}"), BODY).answer()
        answer.refused("/embed", 504, "Timeout")
        assert DEADLINE - 0.1 < time.monotonic() - began < DEADLINE + LATE
    with Wire(service) as wire:
        wire.send(head("/embed", "Transfer-Encoding: chunked"), b"ff\r\n{")
        wire.answer().refused("/embed", 504, "Timeout")
    with Wire(service) as wire:
        wire.send(post("/embed", BODY) + b"too much")
        assert wire.answer().status == 200, "what was whole is answered"
        assert wire.closed()


def test_requests_sent_at_once_are_answered_in_their_order(service: Service) -> None:
    paths = [*FAMILIES, "/embed", "/nothing", "/documents"] * 8
    sent = [post(path, FAMILIES.get(path, b"{}"), f"x-request-id: {at}") for at, path in enumerate(paths)]
    with Wire(service) as wire:
        wire.send(b"".join(sent))
        for at, path in enumerate(paths):
            answer = wire.answer()
            assert answer.headers["x-request-id"] == str(at)
            assert answer.status == {"/nothing": 404, "/documents": 422}.get(path, 200)
        wire.send(post("/embed", BODY) + b"and no request\r\n\r\n")
        assert wire.answer().status == 200
        assert wire.closed()


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
def test_no_other_protocol_is_spoken_and_the_request_is_served(service: Service, upgrade: str) -> None:
    headers = ["Connection: Upgrade", f"Upgrade: {upgrade}", "Sec-WebSocket-Version: 13"]
    key = "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA=="
    with Wire(service) as wire:
        assert wire.send(post("/embed", BODY, *headers, key)).answer().status == 200
    with Wire(service) as wire:
        answer = wire.send(head("/embed", *headers, key, method="GET")).answer("GET")
        answer.refused("/embed", 405, "MethodNotAllowed")


def test_requests_for_another_protocol_sent_at_once_are_all_answered(service: Service) -> None:
    upgrade = ("Connection: Upgrade", "Upgrade: h2c")
    requests = [post("/embed", BODY, *upgrade, f"x-request-id: {at}") for at in range(5)]
    with Wire(service) as wire:
        wire.send(b"".join([*requests, post("/embed", BODY, "x-request-id: 5")]))
        for at in range(6):
            answer = wire.answer()
            assert (answer.status, answer.headers["x-request-id"]) == (200, str(at))


def test_line_ends_after_an_answer_keep_no_connection_open(service: Service) -> None:
    with Wire(service) as requested, Wire(service) as refused:
        assert requested.send(post("/embed", BODY)).answer().status == 200
        large = 17 << 20
        refused.send(head("/embed", f"Content-Length: {large}")).answer().refused("/embed", 413, "TooLarge")
        refused.send([bytes(1 << 20)] * 17)
        for _ in range(3):
            requested.send(b"\r\n")
        assert requested.closed()
        assert refused.closed()


def dribble(service: Service, first: bytes, rest: bytes) -> tuple[float, bytes]:
    """Sends `first`, then a byte of `rest` every 50 ms. Returns the duration and the received bytes."""
    began = time.monotonic()
    with Wire(service) as wire:
        wire.send(first)
        wire.socket.settimeout(0.05)
        received = bytearray()
        for byte in rest:
            try:
                part = wire.socket.recv(1 << 16)
            except TimeoutError:
                wire.send(bytes([byte]))
                continue
            except ConnectionResetError:
                part = b""
            if not part:
                break
            received += part
        return time.monotonic() - began, bytes(received)


@pytest.mark.long
def test_who_writes_slowly_is_stopped_by_the_deadline_and_harms_nobody(service: Service) -> None:
    endless = b"a" * 2000
    writers = {
        "a body": (head("/embed", "Content-Length: 2000"), endless),
        "chunks": (head("/embed", "Transfer-Encoding: chunked"), b"1\r\na\r\n" * 300),
        "a head": (head("/embed")[:-4] + b"\r\nX-A: ", endless),
        "nothing at all": (b"", b""),
        "a refused body": (head("/embed", f"Content-Length: {64 << 20}"), endless),
    }
    with ThreadPoolExecutor(20) as pool:
        slow = {
            what: [pool.submit(dribble, service, *writer) for _ in range(3)]
            for what, writer in writers.items()
        }
        until = time.monotonic() + 2 * DEADLINE
        while time.monotonic() < until:
            check_served(service, DEADLINE - 0.5)
        ends = {what: [one.result() for one in several] for what, several in slow.items()}
    for what, status in (("a body", b"504"), ("chunks", b"504"), ("a refused body", b"413")):
        for seconds, received in ends[what]:
            assert received.startswith(b"HTTP/1.1 " + status), what
            assert seconds < 2 * DEADLINE + LATE, f"{what}: then the rest is not waited for"
    for seconds, received in ends["a head"]:
        assert received == b""
        assert DEADLINE - 0.1 < seconds < DEADLINE + LATE


def test_a_connection_that_says_nothing_is_closed(service: Service) -> None:
    began = time.monotonic()
    with Wire(service) as wire:
        assert wire.closed()
        assert DEADLINE - 0.1 < time.monotonic() - began < DEADLINE + LATE


@pytest.mark.long
def test_an_answer_that_nobody_reads_is_thrown_away(service: Service) -> None:
    body = json.dumps({"inputs": "red river " * 50_000}).encode()  # 6 MB of tokens
    with Wire(service, receive_bytes=4096) as wire:
        wire.send(post("/tokenize", body), post("/tokenize", body))
        until(lambda: held(service, wire), pause=0)

        def thrown_away() -> bool:
            check_served(service, DEADLINE - 0.5)
            return not held(service, wire)

        until(thrown_away, "it is kept for ever")


@pytest.mark.long
def test_an_answer_that_is_read_slowly_arrives(service: Service) -> None:
    body = json.dumps({"inputs": "red river " * 50_000}).encode()
    with Wire(service, receive_bytes=65536) as wire:
        wire.send(post("/tokenize", body))
        time.sleep(1.2 * DEADLINE)
        [tokens] = json.loads(wire.answer().body)
    assert len(tokens) == 100_002


def test_any_bytes_are_answered_or_closed(service: Service) -> None:
    whole = post("/embed", BODY)

    @settings(max_examples=50, deadline=None)
    @given(st.binary(max_size=100), st.integers(0, len(whole)), st.integers(0, 30))
    def check(bytes_: bytes, at: int, cut: int) -> None:
        with Wire(service) as wire:
            wire.send(whole[:at] + bytes_ + whole[at + cut :])
            wire.socket.shutdown(socket.SHUT_WR)
            received = b""
            while part := wire.socket.recv(1 << 16):
                received += part
        if received:
            assert received[:9] == b"HTTP/1.1 "
            assert int(received[9:12]) in {200, 400, 404, 405, 413, 415, 421, 422, 431}

    check()
    check_served(service)
