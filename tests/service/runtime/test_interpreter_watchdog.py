"""The process that ends a service whose interpreter hangs: beside a few lines, and on a clock of ours."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.runtime import interpreter_watchdog
from service.runtime import interpreter_watchdog_process as program
from tests.waiting import LIMIT, until

WATCHED = """
import ctypes, os, signal, sys, threading, time, unicodedata
from service.runtime import interpreter_watchdog
from service.runtime.interpreter_watchdog import InterpreterWatchdog

interpreter_watchdog.RESTART_SECONDS = 0

def beats():
    while True:
        watchdog.beat()
        time.sleep(0.01)

def pid():
    return watchdog._process.pid

with InterpreterWatchdog({hang_seconds}, {log_format!r}) as watchdog:
    watchdog.beat()
    threading.Thread(target=beats, daemon=True).start()
    {then}
"""
# A lock that is taken twice: unlike sleep, no signal wakes it.
LOCKS = "libc = ctypes.PyDLL(None); lock = ctypes.create_string_buffer(64); take = libc.pthread_mutex_lock"
HOLDS = {
    "asleep": f"{LOCKS}; take(lock); take(lock)",
    "computing": "unicodedata.normalize('NFC', 'a' + '\\u0315\\u0300' * 4_000_000)",
    "another thread": f"{LOCKS}; take(lock); threading.Thread(target=take, args=(lock,)).start()",
}


SOON = 0.2  # SIMILE_HANG_SECONDS of one that is to hang
LATE = 5.0  # of one that is not, on a machine that lets it wait for seconds


def watched(then: str, hang_seconds: float = SOON, log_format: str = "text") -> list[str]:
    """The command of a process that beats, does `then`, and ends."""
    return [sys.executable, "-c", WATCHED.format(then=then, hang_seconds=hang_seconds, log_format=log_format)]


def lives(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("hold", HOLDS)
def test_an_interpreter_that_is_held_ends_with_status_70_and_every_stack(hold: str) -> None:
    done = subprocess.run(watched(HOLDS[hold]), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 70, done.stderr
    assert "SIMILE_HANG_SECONDS" in done.stderr
    assert done.stderr.count("most recent call first") >= 2
    assert "in beats" in done.stderr


def test_a_log_of_objects_gets_one_line() -> None:
    command = watched(HOLDS["asleep"], log_format="json")
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 70
    [line] = done.stderr.splitlines()
    said = json.loads(line)
    assert (said["level"], said["logger"]) == ("critical", "service.runtime.interpreter_watchdog")
    assert "in beats" in said["message"]
    assert said["time"].endswith("Z")


def test_process_1_of_a_container_ends_with_status_70_too() -> None:
    """SIGKILL from inside does nothing to it."""
    alone = ["unshare", "--pid", "--fork", "--mount-proc"]
    try:
        subprocess.run([*alone, "true"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs a process namespace of its own, which this machine does not allow")
    command = [*alone, *watched(f"assert os.getpid() == 1; {HOLDS['asleep']}")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 70, done.stderr
    assert "in beats" in done.stderr


def test_one_that_runs_is_left_alone_and_leaves_no_process_behind() -> None:
    command = watched("print(pid(), flush=True)", LATE)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert not lives(int(done.stdout))


def test_nothing_is_started_where_nothing_counts_as_hanging() -> None:
    command = watched("print(watchdog._process)", hang_seconds=0)
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")


def test_it_ends_when_the_service_is_killed() -> None:
    command = watched("print(pid(), flush=True); time.sleep(600)", LATE)
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert lives(pid)
        process.kill()
    until(lambda: not lives(pid))


def test_one_that_was_killed_is_started_again_and_watches() -> None:
    # Only the second one is to find a hang soon.
    then = f"""first = pid()
    watchdog._silence = 2 * {SOON}
    os.kill(first, signal.SIGKILL)
    while pid() == first:
        time.sleep(0.01)
    {HOLDS["asleep"]}"""
    done = subprocess.run(watched(then, LATE), capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 70, done.stderr
    assert "started again" in done.stderr


class Looks:
    """A clock that only looks move, and as many looks as a test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int, seconds: float) -> None:
        self.left = count
        self.now = 0.0
        self.seconds = seconds
        self.beats = iter([True])
        monkeypatch.setattr(program, "ended", self._ended)
        monkeypatch.setattr(program, "beaten", lambda: next(self.beats, False))
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def _ended(self, _seconds: float) -> bool:
        self.left -= 1
        self.now += self.seconds
        return self.left < 0


@pytest.fixture
def sleeper() -> Iterator[int]:
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


def test_silence_is_counted_in_looks_from_the_first_beat_on(
    sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        looks = Looks(patch, 100, 0.5)
        looks.beats = iter([False] * 50 + [True])
        assert program.hangs(sleeper, 10)
        assert looks.now == 0.5 * (51 + 21)
    with monkeypatch.context() as patch:
        looks = Looks(patch, 100, 3600)  # it was held as well: an hour counts for a second
        assert program.hangs(sleeper, 10)
        assert looks.now == 3600 * (1 + 11)
    with monkeypatch.context() as patch:
        looks = Looks(patch, 100, 1)
        looks.beats = iter([True, False, False] * 40)
        assert not program.hangs(sleeper, 2.5)


def test_a_process_that_a_signal_stopped_has_not_hung(sleeper: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.kill(sleeper, signal.SIGSTOP)
    until(lambda: program.stopped(sleeper))
    with monkeypatch.context() as patch:
        Looks(patch, 100, 1)
        assert not program.hangs(sleeper, 10)
    os.kill(sleeper, signal.SIGCONT)
    until(lambda: not program.stopped(sleeper))
    with monkeypatch.context() as patch:
        Looks(patch, 100, 1)
        assert program.hangs(sleeper, 10)


def test_a_beat_that_meets_the_end_starts_no_other_process() -> None:
    """The supervisor's thread may be in the middle of a beat when the service closes the watchdog."""
    with interpreter_watchdog.InterpreterWatchdog(LATE, "text") as watchdog:
        process, started = watchdog._process, watchdog._started
        assert process is not None
        tell = interpreter_watchdog._tell

        def closed_meanwhile(one: object) -> bool:
            watchdog.__exit__()
            return tell(process)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(interpreter_watchdog, "_tell", closed_meanwhile)
            patch.setattr(interpreter_watchdog, "RESTART_SECONDS", 0)
            watchdog.beat()
        assert (watchdog._process, watchdog._started) == (None, started)
        assert not lives(process.pid)
