"""Limits of connections: their number, the connection that is closed first, and unread answers."""

import asyncio
import logging
import resource
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from service.http.connections import (
    MIN_IDLE_SECONDS,
    OTHER_FILES,
    SPARE,
    BufferedTransport,
    Connections,
    Place,
    bounded_by_files,
)
from tests.parts.clock import Clock
from tests.service.process import Service
from tests.service.raw import FAMILIES, Wire, ending_well, head, held, post
from tests.waiting import until

MAX_HELD = 4
BODY = FAMILIES["/embed"]


class Peer:
    def __init__(self, *, unread: bool = False) -> None:
        self.unread = unread
        self.closed = False

    def give_way(self) -> bool:
        self.closed = not self.unread
        return self.closed


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def bound(clock: Clock) -> Connections:
    return Connections(MAX_HELD, clock)


def entered(bound: Connections, count: int) -> list[Peer]:
    peers = [Peer() for _ in range(count)]
    for peer in peers:
        assert bound.enter(peer) is Place.USUAL
    return peers


def test_the_connection_that_is_idle_for_longest_makes_room(bound: Connections, clock: Clock) -> None:
    first, second, third, fourth = entered(bound, MAX_HELD)
    bound.busy(first)
    bound.idle(second)  # after third and fourth
    clock.now += MIN_IDLE_SECONDS
    for expected in (third, fourth, second):
        assert bound.enter(Peer()) is Place.USUAL
        assert expected.closed
    assert not first.closed
    bound.leave(first)
    assert bound.enter(Peer()) is Place.USUAL


def test_a_young_one_a_busy_one_and_one_that_is_still_read_make_none(
    bound: Connections, clock: Clock
) -> None:
    peers = [Peer(unread=True), *entered(bound, MAX_HELD - 1)]
    bound.enter(peers[0])
    bound.busy(peers[1])
    clock.now += MIN_IDLE_SECONDS
    bound.idle(peers[2])
    bound.idle(peers[3])
    assert bound.enter(Peer()) is Place.SPARE
    assert not any(peer.closed for peer in peers)


def test_spare_ones_make_room_for_each_other_at_once_and_end(bound: Connections) -> None:
    for peer in entered(bound, MAX_HELD):
        bound.busy(peer)
    spare = [Peer() for _ in range(SPARE)]
    assert {bound.enter(peer) for peer in spare} == {Place.SPARE}
    assert bound.enter(Peer()) is Place.SPARE
    assert [peer.closed for peer in spare] == [True] + [False] * (SPARE - 1)
    for peer in spare:
        bound.busy(peer)
    last = Peer()
    assert bound.enter(last) is Place.SPARE, "in place of the one before it"
    bound.busy(last)
    assert bound.enter(Peer()) is Place.NONE
    bound.leave(last)
    assert bound.enter(Peer()) is Place.SPARE


@pytest.mark.parametrize(
    ("limits", "most", "raised"),
    [
        ((4096, 4096), 1000, None),
        ((1024, 4096), 1000, 1000 + SPARE + OTHER_FILES),
        ((1024, resource.RLIM_INFINITY), 1000, 1000 + SPARE + OTHER_FILES),
        ((1024, 1024), 1024 - SPARE - OTHER_FILES, 1024),
        ((64, 64), SPARE, 64),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1000, None),
    ],
)
def test_there_are_files_for_all_of_them_or_fewer_are_served(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    limits: tuple[int, int],
    most: int,
    raised: int | None,
) -> None:
    chosen: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: chosen.append(both))
    with caplog.at_level(logging.WARNING):
        assert bounded_by_files(1000) == most
    assert chosen == ([] if raised is None else [(raised, limits[1])])
    assert ("SIMILE_MAX_CONNECTIONS" in caplog.text) == (most < 1000)


class Recording(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[bytes]] = []
        self.unread = 0
        self.closed = False

    def writelines(self, parts: Any) -> None:
        self.calls.append([*parts])

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.closed

    def close(self) -> None:
        self.closed = True

    abort = close


def test_what_is_written_in_one_round_of_the_loop_is_one_call() -> None:
    told: list[bool] = []

    async def written() -> Recording:
        inner = Recording()
        corked = BufferedTransport(inner, asyncio.get_running_loop(), lambda: told.append(True))
        corked.write(b"head")
        corked.write(b"body")
        assert corked.get_write_buffer_size() == 8
        assert inner.calls == []
        await asyncio.sleep(0)
        assert told == []
        corked.write(b"second")
        inner.unread = 3
        await asyncio.sleep(0)
        assert told == [True]
        corked.write(b"last")
        corked.close()
        corked.write(b"too late")
        await asyncio.sleep(0)
        return inner

    inner = asyncio.run(written())
    assert inner.calls == [[b"head", b"body"], [b"second"], [b"last"]]
    assert inner.closed


def test_what_is_aborted_is_not_written() -> None:
    async def aborted() -> Recording:
        inner = Recording()
        corked = BufferedTransport(inner, asyncio.get_running_loop(), lambda: None)
        corked.write(b"head")
        corked.abort()
        await asyncio.sleep(0)
        return inner

    assert asyncio.run(aborted()).calls == []


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_models_dir: Path) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("connections")
    limits = {"SIMILE_MAX_CONNECTIONS": str(MAX_HELD), "SIMILE_IDLE_SECONDS": "1"}
    with ending_well(folder, tiny_models_dir, **limits) as service:
        service.client.close()
        yield service
        service.client = type(service.client)(base_url=f"http://127.0.0.1:{service.port}", trust_env=False)


@pytest.fixture
def service(running: Service) -> Service:
    until(lambda: not held(running))
    return running


def ask(service: Service, request: bytes) -> int:
    with Wire(service) as wire:
        return wire.send(request).answer().status


def test_when_all_are_busy_health_is_answered_and_the_rest_is_told_to_come_later(service: Service) -> None:
    with ExitStack() as stack:
        for _ in range(MAX_HELD):
            busy(service, stack)
        for path, body in FAMILIES.items():
            with Wire(service) as wire:
                answer = wire.send(post(path, body)).answer()
                assert "SIMILE_MAX_CONNECTIONS" in answer.refused(path, 503, "Unhealthy")
                assert int(answer.headers["retry-after"]) >= 1
                assert wire.closed()
        for path in ("/health", "/ready", "/metrics"):
            with Wire(service) as wire:
                assert wire.send(head(path, method="GET")).answer("GET").status == 200
                assert wire.closed(), "a spare connection answers one request"


FIRST = {
    "GET": head("/health", method="GET"),
    "HEAD": head("/health", method="HEAD"),
    "POST": post("/embed", BODY),
    "404": head("/nothing", method="GET"),
    "422": post("/embed", b"{}"),
    "415": post("/embed", BODY.replace(b"{", b"\n{"), "Content-Encoding: gzip"),
}


def see_closed(service: Service, idle_seconds: int, *names: str) -> None:
    with ExitStack() as stack:
        began = monotonic()
        wires = [stack.enter_context(Wire(service)) for _ in names]
        for wire, name in zip(wires, names, strict=True):
            wire.send(FIRST[name]).answer(name)
        for wire in wires:
            assert wire.closed()
            assert monotonic() - began >= idle_seconds


def test_idle_connections_are_closed_after_the_setting(service: Service) -> None:
    see_closed(service, 1, "GET", "HEAD", "POST")
    see_closed(service, 1, "404", "415", "422")


@pytest.mark.long
def test_idle_connections_stay_open_for_longer_than_the_servers_own_five_seconds(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with ending_well(tmp_path, tiny_models_dir, SIMILE_IDLE_SECONDS="6") as service:
        see_closed(service, 6, *FIRST)


def busy(service: Service, stack: ExitStack) -> Wire:
    """Returns a connection in the middle of a request."""
    wire = stack.enter_context(Wire(service))
    wire.send(head("/embed", f"Content-Length: {len(BODY)}", "Expect: 100-continue"))
    assert wire.line().startswith(b"HTTP/1.1 100 ")
    return wire


def test_silent_ones_keep_nobody_out_and_are_bounded(service: Service) -> None:
    with ExitStack() as stack:
        for _ in range(10 * (MAX_HELD + SPARE)):
            stack.enter_context(Wire(service))
        assert ask(service, head("/health", method="GET")) == 200
        until(lambda: held(service) <= MAX_HELD + SPARE, "their number has no bound")
        while ask(service, post("/embed", BODY)) == 503:
            pass  # until the first silent connections have been idle for a second


@pytest.mark.long
def test_busy_ones_are_answered_whatever_comes_beside_them(service: Service) -> None:
    with ExitStack() as stack:
        wires = [busy(service, stack) for _ in range(MAX_HELD)]
        for _ in range(10 * SPARE):
            stack.enter_context(Wire(service))
        for wire in wires:
            wire.send(BODY)
            wire.line()  # ends `100 Continue`
            assert wire.answer().status == 200
