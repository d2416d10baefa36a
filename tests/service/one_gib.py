"""Memory of a service under test: a limit, where this process may set one, and how much it uses in any case.

The peak is the kernel's own (VmHWM, set back before each case), so nothing is missed between two looks. It
counts the pages of files too.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

GIB = 1 << 30
_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def limited(to: int = GIB) -> Iterator[tuple[str, ...]]:
    """The prefix of a command that then runs in `to` bytes of memory; empty where no group can be made."""
    name = f"simile-test-{os.getpid()}"
    for group, file in (
        (_GROUPS / name, "memory.max"),
        (_GROUPS / "memory" / name, "memory.limit_in_bytes"),
    ):
        try:
            group.mkdir()
            with (group / file).open("r+") as limit:  # of another kernel it would be a new, plain file
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
    """Bytes that it has in memory now."""
    return _of(process, "VmRSS")


def peak(process: int) -> int:
    """The most that it has had since `forget_peak`."""
    return _of(process, "VmHWM")


def forget_peak(process: int) -> None:
    Path(f"/proc/{process}/clear_refs").write_text("5")


def _of(process: int, name: str) -> int:
    for line in Path(f"/proc/{process}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    return 0  # it has ended
