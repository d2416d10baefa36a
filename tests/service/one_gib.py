"""Limits the memory of a service if possible, and measures its memory.

The kernel measures the peak (VmHWM), which is reset before each case. It includes pages of files.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GIB = 1 << 30
_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limited(to: int = GIB) -> Iterator[tuple[str, ...]]:
    """Yields a prefix that limits a command's memory to `to` bytes, or () if cgroups are not writable."""
    name = f"simile-test-{os.getpid()}"
    for group, file in ((_GROUPS / name, "memory.max"), (_GROUPS / "memory" / name, "memory.limit_in_bytes")):
        try:
            group.mkdir()
            with (group / file).open("r+") as limit:  # "w" could create a plain file.
                limit.write(str(to))
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        try:
            yield ("sh", "-c", f'echo $$ > "{group}/cgroup.procs"; exec "$@"', "sh")
        finally:
            with suppress(OSError):
                group.rmdir()
        return
    yield ()


def resident(process: int) -> int:
    """Returns the resident memory of a process in bytes."""
    return _of(process, "VmRSS")


def peak(process: int) -> int:
    """Returns the largest resident memory since `forget_peak`, in bytes."""
    return _of(process, "VmHWM")


def forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _of(process: int, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    return 0  # The process has ended.
