"""Reads how much memory is `free` and what the `limit` is, and returns freed memory to the system.

A cgroup counts cached files as used memory. This module counts those that the kernel would evict first
(`inactive_file`) as free.
"""

import contextlib
import ctypes
import os
import threading
from collections.abc import Iterator
from pathlib import Path

MACHINE = Path("/")
# Memory of an open model and its working memory, divided by its file size. Measured with all-MiniLM-L6-v2.
MODEL = 2.0
# The same for external weights, without the token embeddings, which stay mapped. The ratio was 1.12 with
# 1.54 GB of layers.
BESIDE = 1.2
GIVE_BACK_SECONDS = 1.0  # After this delay, the last reference to the memory is gone.
UNLIMITED = 1 << 60  # cgroups version 1 report almost 2^63 bytes for "no limit".

_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


M_ARENA_MAX = -8  # from glibc's malloc.h
ARENAS, GPU_ARENAS = 2, 8


def limit_arenas(arenas: int) -> None:
    """Limits the number of glibc's memory arenas, unless MALLOC_ARENA_MAX is set.

    Call it before the first thread starts. Each arena keeps the peak memory of its threads, and `malloc_trim`
    does not free the top of an arena. With one arena per thread, four heavy searches kept 150 MiB. With two
    arenas they kept nothing, at the same speed on two processors. With eight arenas, four workers that
    tokenized for a GPU took 0.56 of the time with two arenas.
    """
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(OSError, AttributeError):  # not glibc
            ctypes.CDLL(None).mallopt(M_ARENA_MAX, arenas)


_trim_is_due = threading.Lock()  # Held from the first request for a trim until the trim begins.


def give_back() -> None:
    """Returns freed memory to the system after `GIVE_BACK_SECONDS`, on another thread. Needs glibc.

    Call it after something large is freed: a model and its index, a body, an answer or a search. Otherwise
    glibc keeps freed memory: nine swaps of the default model grew the process from 351 to 643 MiB. With this
    call, the process stayed below 275 MiB.
    """
    if not _trim_is_due.acquire(blocking=False):
        return
    later = threading.Timer(GIVE_BACK_SECONDS, _trim)
    later.daemon = True
    try:
        later.start()
    except RuntimeError:  # The system cannot start another thread.
        _trim_is_due.release()


def _trim() -> None:
    _trim_is_due.release()  # Memory freed from now on needs another trim.
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        ctypes.CDLL(None).malloc_trim(0)


def free(machine: Path = MACHINE) -> int | None:
    """Returns the bytes that this process may still allocate, or None if unknown.

    Args:
        machine: Folder that contains `proc` and `sys`.

    """
    cgroups = (allowed - used for allowed, used in _cgroups(machine))
    found = [*cgroups, *_of_the_machine(machine, "MemAvailable:")]
    return max(0, min(found)) if found else None


def limit(machine: Path = MACHINE) -> int | None:
    """Returns the bytes that this process may use in total, or None if unknown.

    Args:
        machine: Folder that contains `proc` and `sys`.

    """
    found = [allowed for allowed, _ in _cgroups(machine)]
    return min([*found, *_of_the_machine(machine, "MemTotal:")], default=None)


def _cgroups(machine: Path) -> Iterator[tuple[int, int]]:
    """Yields (limit, used) in bytes for this process's cgroup and for each ancestor that has a limit.

    A container may see its own cgroup as the root, although `/proc/self/cgroup` contains another path. So
    folders that do not exist are skipped.
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
        allowed, used = int(_read(folder / limit)), int(_read(folder / usage))  # "max" means no limit.
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
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return 0


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
