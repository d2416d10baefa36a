"""The program that interpreter_watchdog.py starts: it needs Python's own library alone, and little of that.

    FORMAT PID SILENCE STACKS END SIGNAL STATUS     beats come on stdin, and its end is the end of the service

It ends by itself when the service does, whatever ended it.
"""

import os
import select
import signal
import sys
import time

LOOK_SECONDS = 0.5
MOST_SECONDS = 1.0  # that one look counts for: this process may have been held as well
STACKS_SECONDS = 5.0
SAY_SECONDS = 2  # a log that cannot be written must not keep the service from ending
END_SECONDS = 5.0
NAME = "service.runtime.interpreter_watchdog"


def main() -> None:
    log_format, *given = sys.argv[1:]
    pid, silence, stacks, end, number, status = int(given[0]), float(given[1]), *map(int, given[2:])
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    os.set_blocking(0, False)
    if not hangs(pid, silence) or os.getppid() != pid:
        return
    os.kill(pid, number)
    reason = (
        f"The interpreter has been blocked for {silence:g} s (twice SIMILE_HANG_SECONDS), most likely by a C "
        f"call that lets no other thread run. The process ends with status {status}, to be started again."
    )
    say(log_format, f"{reason}\n{read_stacks(stacks)}")
    os.write(end, b".")
    if not ended(END_SECONDS):
        os.kill(pid, signal.SIGKILL)


def hangs(pid: int, silence: float) -> bool:
    """Wait until no beat has come for `silence` seconds; False when the service has ended instead.

    The first beat says that there is something to watch.
    """
    silent, began = 0.0, False
    before = time.monotonic()
    while not ended(LOOK_SECONDS):
        now = time.monotonic()
        seconds, before = min(now - before, MOST_SECONDS), now
        if beaten():
            silent, began = 0.0, True
        elif began and not stopped(pid):
            silent += seconds
        if silent > silence:
            return True
    return False


def beaten() -> bool:
    """True if beats have come since the last look."""
    try:
        return bool(os.read(0, 1 << 16))
    except BlockingIOError:
        return False


def ended(seconds: float) -> bool:
    """True if the service ends within so long: its end of stdin is closed."""
    poll = select.poll()
    poll.register(0, 0)
    return bool(poll.poll(seconds * 1000))


def stopped(pid: int) -> bool:
    """True if a signal or a debugger holds the service."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  pathlib would take a megabyte
            state = file.read().rpartition(b")")[2].split()[0]
    except OSError:  # another system
        return False
    return state in {b"T", b"t"}


def read_stacks(file: int) -> str:
    """Stacks that the service's C code writes, until it stops writing."""
    os.set_blocking(file, False)
    found = b""
    left = STACKS_SECONDS
    while select.select([file], [], [], left)[0]:
        found += os.read(file, 1 << 16)
        left = LOOK_SECONDS
    return found.decode(errors="replace") or "Its threads' stacks could not be read."


def say(log_format: str, words: str) -> None:
    """A line of the log, as logs.py writes it."""
    now = time.time()
    if log_format == "json":
        import json  # noqa: PLC0415

        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now * 1000) % 1000:03d}Z"
        line = json.dumps({"time": moment, "level": "critical", "logger": NAME, "message": words})
    else:
        moment = time.strftime("%Y-%m-%d %H:%M:%S") + f",{int(now * 1000) % 1000:03d}"
        line = f"{moment} CRITICAL {NAME}: {words}"
    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(SAY_SECONDS)
    try:
        left = f"{line}\n".encode()
        while left:
            left = left[os.write(2, left) :]
    except OSError:  # TimeoutError too
        pass
    finally:
        signal.alarm(0)


def give_up(*_: object) -> None:
    raise TimeoutError


if __name__ == "__main__":
    main()
