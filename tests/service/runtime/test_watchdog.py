"""If a thread hangs or dies, or at a stop signal, clients get answers and no acknowledged write is lost."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import pytest

from service.batching.admission import ThroughputEstimate
from service.batching.batcher import Batcher
from service.batching.executor import begin_step
from service.batching.planner import GROUP_OVERHEAD_TOKENS
from service.batching.request import Job, Lane
from service.batching.scheduler import Scheduler
from service.batching.workers import Worker
from service.errors import Backend, Unhealthy
from service.observability.metrics import Metrics
from service.runtime.watchdog import EXIT_STATUS, Heartbeat, Watchdog, lasting
from tests.service.fakes import QUEUED, CountingEncoder, run, until
from tests.service.process import Service
from tests.waiting import LIMIT
from tests.waiting import until as wait_until

FAULTY = (sys.executable, "-m", "tests.service.faulty")


@asynccontextmanager
async def watched(batcher: Batcher) -> AsyncIterator[Watchdog]:
    """Starts `batcher`, and yields its watchdog, which never ends the process."""
    batcher.start()
    watchdog = Watchdog([batcher], 0)
    watchdog.start()
    try:
        yield watchdog
    finally:
        await asyncio.to_thread(batcher.stop)
        watchdog.stop()


def test_a_batch_that_hangs_fails_its_callers_and_those_behind_it_and_nobody_waits() -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        batcher = Batcher(Metrics(), workers=1, max_queue_tokens=10_000, hang_seconds=1.0)
        async with watched(batcher) as watchdog:
            await batcher.embed(encoder.as_encoder(), ["well"])
            encoder.gate.clear()
            began = time.monotonic()
            hanging = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["a"]))
            await until(lambda: len(encoder.begun) == 2)
            waiting = asyncio.create_task(batcher.embed(encoder.as_encoder(), ["b"]))
            with pytest.raises(Backend, match="SIMILE_HANG_SECONDS"):
                await hanging
            assert time.monotonic() - began >= 1.0
            with pytest.raises(Unhealthy, match="hangs"):
                await waiting
            with pytest.raises(Unhealthy, match="hangs"):
                await batcher.embed(encoder.as_encoder(), ["c"])
            assert watchdog.illness == "1 of 1 workers hang"
            assert batcher.failure(encoder.as_encoder()) == "a batch hangs"
            encoder.gate.set()  # The hanging pass ends after all.
            await until(lambda: watchdog.illness is None)
            again = await batcher.embed(encoder.as_encoder(), ["dd"])
            assert again.vectors[0].tolist() == [1, 2, ord("d")]
            assert batcher.failure(encoder.as_encoder()) is None

    run(body)


def test_one_worker_that_hangs_does_not_keep_the_other_from_serving() -> None:
    async def body() -> None:
        stuck, well = CountingEncoder(1), CountingEncoder(2)
        batcher = Batcher(Metrics(), workers=2, max_queue_tokens=10_000, hang_seconds=1.0)
        async with watched(batcher) as watchdog:
            stuck.gate.clear()
            with pytest.raises(Backend, match="SIMILE_HANG_SECONDS"):
                await batcher.embed(stuck.as_encoder(), ["a"])
            answers = [await batcher.embed(well.as_encoder(), ["bb"]) for _ in range(20)]
            assert {tuple(answer.vectors[0]) for answer in answers} == {(2, 2, ord("b"))}
            await until(lambda: watchdog.illness == "1 of 2 workers hang")
            stuck.gate.set()

    run(body)


def test_a_worker_that_dies_is_replaced_and_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        metrics = Metrics()
        batcher = Batcher(metrics, workers=1, max_queue_tokens=100)
        take = Scheduler.next_job

        def dying(scheduler: Scheduler) -> Job | None:
            job = take(scheduler)
            if job is not None:
                raise SystemExit("a worker is told to end while it holds rows")
            return job

        async with watched(batcher) as watchdog:
            with monkeypatch.context() as patch:
                patch.setattr(Scheduler, "next_job", dying)
                with pytest.raises(Unhealthy, match="A worker died"):
                    await batcher.embed(encoder.as_encoder(), ["a" * 50])
                assert batcher.failure(encoder.as_encoder()) == "a worker died"
            assert batcher._scheduler.lanes[Lane.INTERACTIVE].tokens == 0, "what it held frees its places"
            answer = await batcher.embed(encoder.as_encoder(), ["bb"])
            assert answer.vectors[0].tolist() == [1, 2, ord("b")]
            assert batcher.failure(encoder.as_encoder()) is None
            await until(lambda: watchdog.illness is None)
        assert metrics.registry.get_sample_value("simile_worker_restarts_total") == 1

    run(body)


def test_whatever_a_batch_raises_its_worker_lives_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        encoder = CountingEncoder()
        batcher = Batcher(Metrics(), workers=1, max_queue_tokens=100)
        async with watched(batcher):
            for owner, name, error in [
                (encoder, "tokenize", SystemExit()),
                (encoder, "forward", KeyboardInterrupt()),
                (encoder, "forward", MemoryError()),
                (batcher._executor, "_answer", ValueError("a bug")),
            ]:
                with monkeypatch.context() as patch:
                    patch.setattr(owner, name, raising(error))
                    with pytest.raises(Backend):
                        await batcher.embed(encoder.as_encoder(), ["!"])
                assert batcher.failure(encoder.as_encoder()) is not None
                await batcher.embed(encoder.as_encoder(), ["fine" * 10])
                assert batcher.failure(encoder.as_encoder()) is None

    def raising(error: BaseException) -> Callable[..., None]:
        def work(*arguments: object, **options: object) -> None:
            raise error

        return work

    run(body)


def test_a_step_is_overdue_once_and_the_next_step_begins_at_nothing() -> None:
    worker = Worker()
    worker.job = Job([], embed=True)
    begin_step(worker, 1.0)
    assert [worker.spend(0.4) for _ in range(6)] == [False, False, False, True, False, False]
    assert worker.hangs
    begin_step(worker, 1.0)
    assert not worker.spend(0.4)
    assert not worker.hangs
    worker.spend(0.8)
    worker.job = None  # The worker finished in time, and waits for work.
    assert not worker.spend(5)
    assert not worker.hangs


def test_how_long_a_batch_may_take_follows_the_measured_pace() -> None:
    pace = ThroughputEstimate(workers=2, hang_seconds=10)
    besides = GROUP_OVERHEAD_TOKENS  # the fixed cost of a batch, in tokens
    pace.measured(QUEUED, Lane.BACKGROUND, 50 - besides, 0.5)  # 100 tokens per second, by one worker
    assert pace.batch_may_take(QUEUED, 10) == 10, "20 times 0.1 s is less than anything may take"
    assert pace.batch_may_take(QUEUED, 512) == pytest.approx(20 * 5.12)
    assert pace.seconds_for(1000) == pytest.approx(5)
    pace.measured(QUEUED, Lane.BACKGROUND, 300 - besides, 1)
    assert pace.batch_may_take(QUEUED, 512) == pytest.approx(20 * 512 / 200), "the mean of the first ones"
    for _ in range(8):
        pace.measured(QUEUED, Lane.BACKGROUND, 200 - besides, 1)
    pace.measured(QUEUED, Lane.BACKGROUND, 300 - besides, 1)
    assert pace.batch_may_take(QUEUED, 512) == pytest.approx(20 * 512 / 210), "a tenth of the way to each"
    assert ThroughputEstimate(workers=2, hang_seconds=0).batch_may_take(QUEUED, 512) == float("inf")


def test_a_watchdog_that_was_suspended_itself_counts_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class Stage:
        def check(self, seconds: float, /) -> None:
            seen.append(seconds)

    clock = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 3600 * (len(seen) > 1))  # an hour asleep
    watchdog = Watchdog([Stage()], 1)
    watchdog.start()
    wait_until(lambda: len(seen) >= 4)
    watchdog.stop()
    assert max(seen) == 1.0


TIMED = """
import threading, time
from service.runtime.watchdog import Watchdog, interpreter_timer

class Stage:
    looks = 0

    def check(self, seconds):
        self.looks += 1

hang_seconds = float("{hang_seconds}")
with interpreter_timer(hang_seconds) as beat:
    stage = Stage()
    watchdog = Watchdog([stage], hang_seconds, beat)
    watchdog.start()
    {then}
    watchdog.stop()
"""


def timed(hang_seconds: float, then: str) -> subprocess.CompletedProcess[str]:
    """Runs the code `then` in a new process with a watchdog and an interpreter timer."""
    code = TIMED.format(hang_seconds=hang_seconds, then=then)
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_an_interpreter_that_computes_in_c_ends_with_status_1_and_every_stack() -> None:
    """The computation of 7 ** 7**12 takes hours and lets no other thread run."""
    done = timed(0.2, "threading.Thread(target=pow, args=(7, 7**12)).start()")
    assert done.returncode == 1, done.stderr
    assert "Timeout (0:00:03)!" in done.stderr
    assert done.stderr.count("most recent call first") >= 3, (
        "the main thread, the watchdog's and the one that hangs"
    )
    assert "in _watch" in done.stderr


@pytest.mark.parametrize("hang_seconds", [float("inf"), 20.0, 0.0])
def test_an_interpreter_that_runs_is_left_alone(hang_seconds: float) -> None:
    done = timed(hang_seconds, "while stage.looks < 3: time.sleep(0.05)")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
def test_each_beat_sets_the_interpreter_timer_again() -> None:
    done = timed(0.2, "time.sleep(6)  # twice the timer's least time")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_blocked_event_loop_is_seen_and_one_that_runs_is_not() -> None:
    async def body() -> None:
        heartbeat = Heartbeat(asyncio.get_running_loop(), 0.5)
        for _ in range(10):
            assert heartbeat.check(0.3) is None
            await asyncio.sleep(0)
        assert [heartbeat.check(0.3) for _ in range(2)] == [None, None]
        assert heartbeat.check(0.3) == "the event loop has been blocked for 0.5 s"
        await asyncio.sleep(0)
        assert heartbeat.check(0.3) is None

    run(body)


def test_a_task_that_breaks_begins_again_and_a_cancelled_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.runtime.watchdog.RETRY_SECONDS", 0.01)

    async def body() -> None:
        runs: list[int] = []

        async def work() -> None:
            runs.append(len(runs))
            if len(runs) == 1:
                raise ValueError("a bug")
            if len(runs) == 2:
                raise asyncio.CancelledError  # from inside, not from the caller
            await asyncio.sleep(60)

        task = asyncio.create_task(lasting("Working", work))
        await until(lambda: len(runs) == 3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert len(runs) == 3

    run(body)


@contextmanager
def faulty(folder: Path, models_dir: Path, **variables: str) -> Iterator[Service]:
    """Yields a service in its own process. Files in `folder` turn on faults (faulty.py)."""
    service = Service(folder, models_dir, FAULTS=str(folder), SIMILE_WORKERS="1", **variables)
    service.start(FAULTY)
    try:
        yield service
    finally:
        service.kill()
        service.client.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "status", "says"),
    [
        ("hang", EXIT_STATUS, ("1 of 1 workers hang", "SIMILE_HANG_SECONDS")),
        ("block", EXIT_STATUS, ("the event loop has been blocked", "SIMILE_HANG_SECONDS")),
        ("hold", 1, ("Timeout (0:00:03",)),
        ("hold2", 1, ("Timeout (0:00:03",)),
    ],
)
def test_a_service_that_hangs_ends_itself_and_starts_again_with_all_it_acknowledged(
    tmp_path: Path, tiny_models_dir: Path, fault: str, status: int, says: tuple[str, ...]
) -> None:
    with faulty(tmp_path, tiny_models_dir, SIMILE_HANG_SECONDS="1.5") as service:
        assert service.put({"a": "red river"}).status_code == 200
        (tmp_path / fault).touch()
        answers: list[int] = []

        def send() -> None:
            try:
                answers.append(service.client.post("/embed", json={"inputs": "a"}).status_code)
            except httpx2.TransportError:
                answers.append(0)

        sender = threading.Thread(target=send)
        sender.start()
        assert service.process.wait(LIMIT) == status
        sender.join()
        assert answers == [424 if fault == "hang" else 0]
        said = service.log.read_text()
        assert all(each in said for each in says), said
        assert "faulty.py" in said, "the stacks show where it hangs"
        assert "red river" not in said
        (tmp_path / fault).unlink()
        service.start()
        assert service.stored() == {"a": "red river"}


@pytest.mark.long
def test_ready_is_red_at_once_and_requests_are_served_until_the_port_closes(
    tmp_path: Path, tiny_models_dir: Path
) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_STOP_DELAY_SECONDS="10") as service:
        began = time.monotonic()
        service.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        service.process.send_signal(signal.SIGTERM)  # A second signal changes nothing.
        while (ready := service.client.get("/ready")).status_code == 200:
            pass  # A closed port would raise.
        assert (ready.status_code, ready.json()["error"]) == (503, "The service is stopping.")
        with httpx2.Client(base_url=service.client.base_url, timeout=LIMIT, trust_env=False) as fresh:
            assert fresh.post("/embed", json={"inputs": "a"}).status_code == 200
            assert fresh.get("/health").status_code == 200
        assert service.put({"late": "green garden"}).status_code == 200
        assert service.process.wait(LIMIT) == 0
        assert time.monotonic() - began >= 10
        service.start()
        assert service.stored() == {"late": "green garden"}


@pytest.mark.long
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once_and_loses_nothing_acknowledged(
    tmp_path: Path, tiny_models_dir: Path, second: signal.Signals
) -> None:
    with Service(tmp_path, tiny_models_dir, SIMILE_STOP_DELAY_SECONDS="3600") as service:
        service.process.send_signal(signal.SIGTERM)
        wait_until(lambda: service.client.get("/ready").status_code != 200)
        assert service.put({"a": "red river"}).status_code == 200
        time.sleep(1.2)
        assert service.process.poll() is None
        service.process.send_signal(second)
        assert service.process.wait(LIMIT) == 128 + second
        service.start()
        assert service.stored() == {"a": "red river"}
