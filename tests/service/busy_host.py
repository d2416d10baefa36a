"""Measures how much processor time other processes use during a test."""

import os
import time
from pathlib import Path

BUSY = "the host was too busy"  # prefix of a skip reason
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = {3, 4, 8, 9}  # Columns of /proc/stat: idle, iowait and guests. User time includes guests.


class Others:
    """Measures the processor time of all processes except `process`, from now on."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._began = time.monotonic()
        self._before = self._seconds()

    def leave_none(self) -> bool:
        """Returns whether other processes left less than one processor. Then, measured times do not count."""
        passed = time.monotonic() - self._began
        taken = (self._seconds() - self._before) / passed
        return (os.cpu_count() or 1) - taken < 1

    def _seconds(self) -> float:
        whole = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(ticks) for at, ticks in enumerate(whole) if at not in _IDLE)
        try:
            own = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            own = []  # The process has ended.
        return (busy - sum(map(int, own))) / _TICKS
