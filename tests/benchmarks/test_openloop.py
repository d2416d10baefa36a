"""The open-loop generator against a small server with known answers and stalls."""

import asyncio
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.load import Answers, Generator, Load, get_request

STALL_AFTER, STALL_SECONDS = 0.4, 0.5  # from the first request
SLOW_SECONDS = 0.03
ANSWERS = {
    b"/": b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n[]",
    b"/full": b"HTTP/1.1 429 Full\r\nRetry-After: 3\r\ncontent-length: 2\r\n\r\n{}",
    b"/rude": b"HTTP/1.1 429 Full\r\ncontent-length: 2\r\n\r\n{}",
}
ANSWERS[b"/slow"] = ANSWERS[b"/"]


class Answering:
    """An HTTP server on its own thread. With `stalls`, it once answers no connection for a while."""

    def __init__(self, *, stalls: bool = False) -> None:
        self.stall: tuple[float, float] | None = None
        self._stalls = stalls
        self._first = 0.0
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.run_until_complete(self._close())
        self._loop.close()

    async def _close(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                target = head.split(b" ", 2)[1]
                self._stall_once()
                if target == b"/slow":
                    await asyncio.sleep(SLOW_SECONDS)
                if target not in ANSWERS:
                    break
                writer.write(ANSWERS[target])
        except (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        writer.close()

    def _stall_once(self) -> None:
        now = time.monotonic()
        self._first = self._first or now
        if self._stalls and self.stall is None and now > self._first + STALL_AFTER:
            time.sleep(STALL_SECONDS)
            self.stall = (now, time.monotonic())


@pytest.fixture
def server() -> Iterator[Answering]:
    answering = Answering()
    yield answering
    answering.stop()


def outcomes(port: int, *targets: str, rate: float, seconds: float, most: int = 256) -> tuple[float, Answers]:
    """Puts open-loop load on a server. Returns the start of the load and the outcomes of all requests."""
    requests = [get_request(target) for target in targets]
    loop = Generator(Load(port, requests, 1, seconds, rate, most, seed=7))
    time.sleep(max(0.0, loop.begin + seconds - time.monotonic()))
    return loop.begin, loop.finish()


def test_a_stalled_service_is_charged_for_every_arrival_during_the_stall(server: Answering) -> None:
    stalling = Answering(stalls=True)
    try:
        begin, found = outcomes(stalling.port, "/", rate=200, seconds=1.5)
    finally:
        stalling.stop()
    smooth_begin, smooth = outcomes(server.port, "/", rate=200, seconds=1.5)
    assert (found.status == 200).all()
    # The arrivals do not depend on the answers.
    count = min(len(found.arrived), len(smooth.arrived))  # a busy machine may admit fewer before the end
    offsets = smooth.arrived[:count] - smooth_begin
    np.testing.assert_allclose(found.arrived[:count] - begin, offsets, atol=1e-5)
    assert stalling.stall is not None
    stopped, resumed = stalling.stall
    meanwhile = found.between(stopped, resumed)
    # 200 per second in half a second: 100 requests. Five standard deviations of a Poisson count are 50.
    expected = 200 * (min(resumed, begin + 1.5) - stopped)
    assert 0.5 * expected < len(meanwhile.arrived) < 1.5 * expected
    waited = (resumed - meanwhile.arrived) * 1000
    assert (meanwhile.milliseconds >= waited - 2).all()
    assert np.median(meanwhile.milliseconds) > 1000 * STALL_SECONDS / 3


def test_rejections_and_broken_connections_are_distinguished(server: Answering) -> None:
    _, found = outcomes(server.port, "/", "/full", "/rude", "/break", rate=200, seconds=0.5)
    kinds = np.arange(len(found.status)) % 4
    assert len(kinds) > 40
    for kind, status in enumerate((200, 429, 429, 0)):
        assert set(found.status[kinds == kind].tolist()) == {status}
    assert found.retry_after.tolist() == (kinds == 1).tolist()


def test_the_latency_includes_the_wait_for_a_connection(server: Answering) -> None:
    _, found = outcomes(server.port, "/slow", rate=100, seconds=0.6, most=1)
    assert found.max_open == 1
    assert (found.status == 200).all()
    # Requests take 30 ms each and arrive every 10 ms, so the queue grows to the end.
    assert found.late_ms[-1] > 1000 * (SLOW_SECONDS * len(found.status) - 0.6) - SLOW_SECONDS * 1000
    assert (found.milliseconds >= found.late_ms + 1000 * SLOW_SECONDS - 2).all()


def test_a_load_that_ends_early_reports_the_requests_that_had_arrived(server: Answering) -> None:
    loop = Generator(Load(server.port, [get_request("/")], 4, 600.0, 100.0, 16))
    time.sleep(max(0.0, loop.begin + 0.5 - time.monotonic()))
    ended = time.monotonic()
    found = loop.finish()
    assert time.monotonic() < ended + 15
    assert 15 < len(found.arrived) < 200 * (ended - loop.begin)
    assert found.arrived[-1] <= time.monotonic()
    assert (found.status == 200).all()
