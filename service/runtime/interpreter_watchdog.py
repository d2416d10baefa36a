"""A second process that ends this one when the interpreter itself hangs.

    supervisor's thread ──a byte at each look──▶ interpreter_watchdog_process.py
                    silent for twice SIMILE_HANG_SECONDS: every thread's stack to the log, exit status 70

A C call that never gives the interpreter's lock back stops every thread, the supervisor's too. Two things
still work then, both in C: faulthandler writes the stacks when a signal arrives, and the C library ends the
process when an asynchronous read (aio_read) completes. It is armed on a pipe that only the watchdog process
writes to. A signal would not do: no signal ends a process with a status of its choice, and SIGKILL does not
end process 1 of a container.

The watchdog process counts its own looks and not a clock's seconds, and not while this process is stopped:
one that is frozen, or held by a debugger, has not hung.
"""

import contextlib
import ctypes
import faulthandler
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal, Self

from service.runtime.watchdog import EXIT_STATUS

log = logging.getLogger(__name__)

PROGRAM = Path(__file__).with_name("interpreter_watchdog_process.py")
STACKS_SIGNAL = signal.SIGUSR2
STACKS_BYTES = 1 << 20  # what a pipe keeps of them until they are read
RESTART_SECONDS = 60.0
STOP_SECONDS = 5.0
_SIGEV_THREAD = 2


class InterpreterWatchdog:
    """A context: the watchdog process lives as long as it. `hang_seconds` 0: there is none."""

    def __init__(self, hang_seconds: float, log_format: Literal["text", "json"]) -> None:
        self._silence = 2 * hang_seconds  # the supervisor, while it can, ends a hang in this time
        self._log_format = log_format
        self._process: subprocess.Popen[bytes] | None = None
        self._started = 0.0
        self._stacks: tuple[int, int]
        self._end: tuple[int, int]

    def __enter__(self) -> Self:
        if self._silence:
            self._stacks, self._end = _stacks_pipe(), os.pipe()
            faulthandler.register(STACKS_SIGNAL, file=self._stacks[1], all_threads=True)
            if not _exit_at_a_byte(self._end[0], EXIT_STATUS):
                log.warning("Without aio_read in the C library a hang of the interpreter ends with SIGKILL")
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        """The pipes stay: what the C library reads from must not come to its end."""
        if self._process is not None:
            process, self._process = self._process, None
            _close(process)

    def beat(self) -> None:
        """The interpreter runs. Never waits for the watchdog process, and starts it again when it died."""
        process = self._process
        if process is None or _tell(process) or self._process is not process:  # closed meanwhile
            return
        if time.monotonic() - self._started < RESTART_SECONDS:
            return
        log.warning("The watchdog process died and is started again")
        _close(process)
        self._start()
        if self._process is not None:
            _tell(self._process)

    def _start(self) -> None:
        self._started = time.monotonic()
        passed = (self._stacks[0], self._end[1])
        numbers = (os.getpid(), self._silence, *passed, int(STACKS_SIGNAL), EXIT_STATUS)
        try:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                [sys.executable, "-I", "-S", PROGRAM, self._log_format, *map(str, numbers)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,  # Ctrl-C is for the service
            )
        except OSError as error:
            self._process = None
            log.warning("No watchdog process: a hang of the interpreter will not be ended (%s)", error)
            return
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        os.set_blocking(self._process.stdin.fileno(), False)


def _tell(process: subprocess.Popen[bytes]) -> bool:
    """Send a beat; whether the watchdog process lives."""
    assert process.stdin is not None  # noqa: S101  it is a pipe
    try:
        os.write(process.stdin.fileno(), b".")
    except BlockingIOError:  # it is slow to look, and has enough to see
        return True
    except (OSError, ValueError):  # it died, or its pipe was closed
        return False
    return True


def _close(process: subprocess.Popen[bytes]) -> None:
    """End the watchdog process: its pipe ends."""
    # A debugger may hold it; two threads may close it.
    with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
        process.communicate(timeout=STOP_SECONDS)


def _stacks_pipe() -> tuple[int, int]:
    """A pipe that takes many stacks; writing to it never waits."""
    ends = os.pipe()
    os.set_blocking(ends[1], False)
    if sys.platform == "linux":
        import fcntl  # noqa: PLC0415

        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, STACKS_BYTES)
    return ends


class _Event(ctypes.Structure):
    """`struct sigevent`."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("rest", ctypes.c_char * 64),
    )


class _Read(ctypes.Structure):
    """`struct aiocb` of glibc and musl, and room for what they keep behind."""

    _fields_ = (
        ("file", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("priority", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("event", _Event),
        ("rest", ctypes.c_char * 256),
    )


_kept: list[object] = []  # what the C library looks at for as long as the process lives


def _exit_at_a_byte(file: int, status: int) -> bool:
    """Let the C library call `_exit(status)` once a byte can be read; whether it can.

    A thread of its own waits for the byte and makes the call, and takes no lock of Python's.
    """
    if sys.platform != "linux":
        return False
    for name in (None, "librt.so.1"):  # of glibc before 2.34
        try:
            corpus = ctypes.CDLL(name)
            aio_read, leave = corpus.aio_read, corpus._exit  # noqa: SLF001  its name in C
        except (OSError, AttributeError):
            continue
        buffer = ctypes.create_string_buffer(1)
        read = _Read(file=file, buffer=ctypes.addressof(buffer), count=1)
        read.event.value = status
        read.event.notify = _SIGEV_THREAD
        read.event.function = ctypes.cast(leave, ctypes.c_void_p).value
        _kept.extend((corpus, buffer, read))
        return bool(aio_read(ctypes.byref(read)) == 0)
    return False
