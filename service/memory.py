"""Memory that the cgroups and the machine have left (`free`), or allow in all (`limit`).

A cgroup counts files that were read as used memory; those that it would give up first (`inactive_file`) are
counted as free here.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

MACHINE = Path("/")
MODEL = 2.0  # an open model and its working memory, over its file: measured with all-MiniLM-L6-v2
# The same over the weights that lie beside a large graph, without the vectors of its vocabulary, which stay
# mapped: 1.12 was measured with 1.54 GB of layers.
BESIDE = 1.2
GIVE_BACK_SECONDS = 1.0  # by then the last reference is gone
UNLIMITED = 1 << 60  # version 1 writes a number next to 2^63

_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


M_ARENA_MAX = -8  # of glibc's malloc.h
ARENAS = 2


def few_arenas() -> None:
    """Let all threads share two of glibc's arenas; for a process that has begun no threads yet.

    Each arena keeps the most that its threads ever had at a time, and `malloc_trim` leaves that end of it
    alone: with one for each thread, four heavy searches left 150 MiB behind, and with two none. It costs
    nothing that could be measured. Who sets MALLOC_ARENA_MAX has chosen otherwise.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, ARENAS)


_trim_is_due = threading.Lock()  # held from the first request for a trim until it begins


def give_back() -> None:
    """Return freed memory to the system: soon, on a thread of its own, at most once in `GIVE_BACK_SECONDS`.

    For what frees much at once: a closed model and its index, a large body, answer or search. glibc keeps
    freed memory for later: nine swaps of the default model took the process from 351 to 643 MiB, and with
    this it stayed below 275. Elsewhere it does nothing.
    """
    if not _trim_is_due.acquire(blocking=False):
        return
    later = threading.Timer(GIVE_BACK_SECONDS, _trim)
    later.daemon = True
    try:
        later.start()
    except RuntimeError:  # no thread is to be had now
        _trim_is_due.release()


def _trim() -> None:
    _trim_is_due.release()  # what is freed from now on asks for another one
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def free(machine: Path = MACHINE) -> int | None:
    """Bytes that this process may still take, None when the system does not tell.

    Args:
        machine: where `proc` and `sys` are.

    """
    cgroups = (allowed - used for allowed, used in _cgroups(machine))
    found = [*cgroups, *_of_the_machine(machine, "MemAvailable:")]
    return max(0, min(found)) if found else None


def limit(machine: Path = MACHINE) -> int | None:
    """Bytes that this process may have in all, None when the system does not tell.

    Args:
        machine: where `proc` and `sys` are.

    """
    found = [allowed for allowed, _ in _cgroups(machine)]
    return min([*found, *_of_the_machine(machine, "MemTotal:")], default=None)


def _cgroups(machine: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of each cgroup with a limit: this process's own, and all those above it.

    A container may see its own cgroup as the top one, whatever path it is told.
    """
    mount = machine / "sys/fs/cgroup"
    for line in _read(machine / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (mount / "memory", _V1) if controllers else (mount, _V2)
        folder = top / path.lstrip("/")
        while True:
            found = _cgroup(folder, *names)
            if found is not None:
                yield found
            if folder in {top, folder.parent}:
                break
            folder = folder.parent


def _cgroup(folder: Path, limit: str, usage: str, inactive: str) -> tuple[int, int] | None:
    try:
        allowed, used = int(_read(folder / limit)), int(_read(folder / usage))  # "max" is no number
    except ValueError:
        return None
    if allowed >= UNLIMITED:
        return None
    return allowed, used - _value(_read(folder / "memory.stat"), inactive)


def _of_the_machine(machine: Path, name: str) -> Iterator[int]:
    kilobytes = _value(_read(machine / "proc/meminfo"), name)
    if kilobytes:
        yield 1024 * kilobytes


def _value(text: str, name: str) -> int:
    """The number behind `name` in lines of names and numbers, 0 when there is none."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0


def _read(file: Path) -> str:
    """A file's text, empty when it cannot be read."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
