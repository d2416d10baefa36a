"""How much of the host's processors others take while a service is measured."""

import os
import time
from pathlib import Path

BUSY = "the host was too busy"  # begins the reason of a test that is skipped for it
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = {3, 4, 8, 9}  # of /proc/stat: idle and iowait, and what guests took, which stands in user time too


class Others:
    """From now on, everything but the process."""

    def __init__(self, process: int) -> None:
        self._process = process
        self._began = time.monotonic()
        self._before = self._seconds()

    def leave_none(self) -> bool:
        """Whether less than one processor was left for the process: what it did slowly, it may do fast."""
        passed = time.monotonic() - self._began
        taken = (self._seconds() - self._before) / passed
        return (os.cpu_count() or 1) - taken < 1

    def _seconds(self) -> float:
        whole = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(ticks) for at, ticks in enumerate(whole) if at not in _IDLE)
        try:
            own = Path(f"/proc/{self._process}/stat").read_text().rpartition(")")[2].split()[11:13]
        except OSError:
            own = []  # it has ended
        return (busy - sum(map(int, own))) / _TICKS
